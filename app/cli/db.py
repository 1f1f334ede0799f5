"""`mneme db`: the schema's revision, and the roles that a database of one's own needs."""

from typing import Annotated

import typer
from sqlalchemy.engine import make_url

from app.cli import schema
from app.cli.connect import URL, with_owner
from app.errors import StartupRefused
from app.settings import load_settings, variable

app = typer.Typer(no_args_is_help=True)


@app.command()
def migrate() -> None:
    """Bring the schema to the newest revision, as MNEME_DATABASE__OWNER_URL (default: MNEME_DATABASE__URL)."""
    with_owner(schema.upgrade)
    current()


@app.command()
def current() -> None:
    """Print the database's revision and the newest one."""
    now_at, newest = with_owner(schema.revisions)
    print(f"{now_at or 'empty'} (newest: {newest})")


@app.command()
def check() -> None:
    """End with exit code 3 unless the database is at the newest revision."""
    now_at, newest = with_owner(schema.revisions)
    if now_at != newest:
        raise StartupRefused(
            f"the database is at {now_at or 'nothing'}, this program needs {newest}: `mneme db migrate`"
        )
    print(f"{now_at}: up to date")


@app.command()
def roles(
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Make them: the roles of MNEME_DATABASE__URL and of MNEME_BACKUP__DATABASE_URL if set, as the owner.",
        ),
    ] = False,
) -> None:
    """Print the SQL that makes the login roles of service and backups, or make them."""
    if not apply:
        print(schema.ROLES_SQL, end="")
        return
    settings = load_settings()
    database = settings.database
    if database.url is None or database.owner_url is None:
        raise StartupRefused(f"{URL} and {variable(('database', 'owner_url'))} are both needed")
    login = make_url(database.url.get_secret_value())
    if not login.username:
        raise StartupRefused(f"{URL} names no user")
    schema.create_login(database.owner_url.get_secret_value(), login.username, login.password)
    print(f"the role {login.username} is ready")
    if settings.backup.database_url is not None:
        reader = make_url(settings.backup.database_url.get_secret_value())
        if not reader.username:
            raise StartupRefused(f"{variable(('backup', 'database_url'))} names no user")
        schema.create_reader(database.owner_url.get_secret_value(), reader.username, reader.password)
        print(f"the role {reader.username} is ready")
