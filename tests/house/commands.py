"""Which `mneme` commands and settings exist, asked of the program itself."""

from typing import Any

import typer.main

from app.cli import root
from app.settings import API_KEY, CONFIG_FILE, SECRETS_DIR, fields, variable

VARIABLES = {variable(path) for path, _ in fields()} | {API_KEY, CONFIG_FILE, SECRETS_DIR}


def command_exists(words: list[str]) -> bool:
    """Walk the words down the tree of commands; dashes must be options of the command, other words its arguments."""
    command: Any = typer.main.get_command(root.app)
    arguments = 0
    for word in words:
        if word.startswith("-"):
            if not any(word in parameter.opts for parameter in command.params):
                return False
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        else:
            arguments += 1
    takes = sum(parameter.param_type_name == "argument" for parameter in command.params)
    return not hasattr(command, "commands") and arguments <= takes
