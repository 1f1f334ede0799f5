"""`mneme db`: the schema's revision, and the roles that a database of one's own needs."""

import typer

from app.cli import schema
from app.cli.connect import with_owner
from app.errors import StartupRefused

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
def roles() -> None:
    """Print the SQL that makes the service's login role."""
    print(schema.ROLES_SQL, end="")
