"""Which `mneme` commands and settings exist, asked of the program itself."""

from typing import Any

import typer.main

from app.cli import root
from app.settings import API_KEY, CONFIG_FILE, SECRETS_DIR, fields, variable

VARIABLES = {variable(path) for path, _ in fields()} | {API_KEY, CONFIG_FILE, SECRETS_DIR}


def command_exists(words: list[str]) -> bool:
    """Walk the words down the tree of commands; dashes must be options of the command, other words its arguments."""
    command: Any = typer.main.get_command(root.app)
    arguments = options = 0
    for word in words:
        if word.startswith("-"):
            option = next((parameter for parameter in command.params if word in parameter.opts), None)
            if option is None:
                return False
            options += not option.is_flag
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        else:
            arguments += 1
    takes = sum(parameter.param_type_name == "argument" for parameter in command.params)
    runs = not hasattr(command, "commands") or bool(command.invoke_without_command)
    return runs and arguments <= takes + options
