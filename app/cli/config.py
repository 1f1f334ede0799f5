"""`mneme config`: what the service would run with, where each value comes from, and the page that documents it all."""

from typing import Any

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app import settings as known
from app.settings import load_settings

app = typer.Typer(no_args_is_help=True)

PAGE = """\
# Settings

Made by `make settings` from the settings themselves; a test keeps it equal.

Sources, the strongest first: environment variables; secret files (one a setting, named like the variable, in the folder
`MNEME_SECRETS_DIR`); the TOML file `MNEME_CONFIG_FILE`, or `mneme.toml` in the working directory (`MNEME_API__PORT` is
`port` in the table `[api]`). An unknown or wrong setting stops the start with exit code 3 and names itself.
`mneme config show` prints the values in force and where they come from, with secrets hidden; `mneme config check` only
checks.

"""


@app.command()
def show() -> None:
    """Print every setting, its value (secrets hidden) and its source."""
    values, origins = load_settings(), known.origins()
    for path, _ in known.fields():
        # Of a table of values each has an origin of its own.
        origin = next((origin for leaf, origin in origins.items() if leaf[: len(path)] == path), "default")
        print(f"{known.variable(path)}={_shown(_value(values, path))}  # {origin}")


@app.command()
def check() -> None:
    """Check the settings; ends with exit code 3 and the name of whatever is wrong."""
    load_settings()
    print("settings are valid")


@app.command()
def docs() -> None:
    """Print docs/settings.md."""
    print(PAGE, end="")
    for heading, rows in _tables().items():
        print(f"## {heading}\n\n| variable | default | meaning |\n|---|---|---|")
        print("\n".join(rows), end="\n\n" if heading != list(_tables())[-1] else "\n")


def _tables() -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {"General": []}
    for path, field in known.fields():
        room = path[0].capitalize() if len(path) > 1 else "General"
        row = f"| `{known.variable(path)}` | {_default(field)} | {field.description} |"
        tables.setdefault(room, []).append(row)
    return tables


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    return "" if value in (None, ()) else f"`{_shown(value)}`"


def _value(model: BaseModel, path: tuple[str, ...]) -> Any:
    value: Any = model
    for name in path:
        value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "(hidden)"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
