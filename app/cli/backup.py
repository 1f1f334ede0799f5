"""`mneme backup`: make, list, prove, bring back and remove backups; exit code 5 when one is not good."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.backup import Backups, Manifest, Wanted
from app.cli import embedded, schema
from app.cli.connect import refuse_embedded_in_production, with_database
from app.cli.progress import progress
from app.clock import now
from app.database import Database
from app.errors import Invalid
from app.guard import DEFAULT_TENANT_ID
from app.settings import Settings, load_settings

app = typer.Typer(no_args_is_help=True)

Which = Annotated[str, typer.Argument(help="Name of a backup, from `mneme backup list`, or `latest`.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@app.command()
def create(
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove it good after making it.")] = True,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a backup and prove it good."""

    async def work(backups: Backups) -> Manifest:
        with progress("dump", quiet=quiet) as shown:
            made = await backups.create(version=version("mneme"), now=now(), progress=shown)
        if verify:
            with progress("verify", quiet=quiet) as shown:
                await backups.verify(made.backup, now=now(), progress=shown)
        return made

    started = time.monotonic()
    with _backups() as (backups, _):
        made = asyncio.run(work(backups))
    _print(
        as_json, backup=made.backup, state="verified" if verify else "unverified", bytes=made.stored_bytes,
        rows=made.total_rows, encrypted=made.key is not None, seconds=_since(started),
    )  # fmt: skip


@app.command("list")
def list_all(as_json: JsonOption = False) -> None:
    """Print every backup: state, when it was made, size, rows, how long it took."""
    known = asyncio.run(_stored().entries())
    if as_json:
        print(orjson.dumps(known).decode())
        return
    table = Table("backup", "state", "made (UTC)", "bytes", "rows", "seconds", "encrypted", box=None)
    for entry in known:
        state = f"{entry.state} ({entry.reason})" if entry.reason else entry.state
        cells = (
            entry.backup, state, f"{entry.made_at:%Y-%m-%d %H:%M:%S}", f"{entry.stored_bytes:,}", f"{entry.rows:,}",
            f"{entry.seconds:.1f}", "yes" if entry.encrypted else "no",
        )  # fmt: skip
        table.add_row(*map(Text, cells))
    Console(width=None if sys.stdout.isatty() else 160).print(table if known else "no backups")


@app.command()
def verify(which: Which = "latest", quiet: QuietOption = False, as_json: JsonOption = False) -> None:
    """Prove a backup good (latest: the newest): read all of it, restore it aside, compare rows, walls and searches."""

    async def work(backups: Backups) -> Manifest:
        with progress("verify", quiet=quiet) as shown:
            return await backups.verify(which, now=now(), progress=shown)

    started = time.monotonic()
    with _backups() as (backups, _):
        proved = asyncio.run(work(backups))
    _print(
        as_json, backup=proved.backup, state="verified", bytes=proved.stored_bytes, rows=proved.total_rows,
        searches=len(proved.content.searches), seconds=_since(started),
    )  # fmt: skip


@app.command()
def prune(dry_run: DryOption = False, as_json: JsonOption = False) -> None:
    """Remove backups whose time is over; a good one always stays."""
    gone = asyncio.run(_stored().prune(now=now(), dry_run=dry_run))
    _print(as_json, removed=[entry.backup for entry in gone], dry_run=dry_run)


@app.command()
def restore(  # noqa: PLR0913, PLR0917 - the options of a command are its user's
    which: Which = "latest",
    tenant: Annotated[UUID | None, typer.Option(help="Bring only this tenant back, into the running system.")] = None,
    user: Annotated[str | None, typer.Option(help="Bring only this user back (tenant: default, or --tenant).")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Bring only the tenant's shared memories back.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="What these users have now gives way; else both, and the newer version.")
    ] = False,
    even_erased: Annotated[bool, typer.Option("--even-erased", help="Also users who were erased since.")] = False,
    dry_run: DryOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a backup back: all of it into an empty database, or one tenant or user into the running system."""
    if user is not None and shared:
        raise Invalid("--user and --shared exclude each other")
    one = user is not None or shared
    if tenant is None and not one:
        if replace or even_erased:
            raise Invalid("--replace and --even-erased are for a tenant or a user")
        _restore_all(which, dry_run=dry_run, quiet=quiet, as_json=as_json)
        return
    wanted = Wanted(tenant or DEFAULT_TENANT_ID, one, user, replace, even_erased, dry_run)
    if replace and not dry_run and not yes:
        typer.confirm("What they have now is removed for good. Go on?", abort=True)
    started = time.monotonic()

    async def work(settings: Settings, database: Database) -> tuple[Manifest, dict[str, int]]:
        backups = _stored(settings, _reader(settings))
        manifest = await backups.manifest(which)
        with (
            progress("read", quiet=quiet) as shown,
            progress("subjects", quiet=quiet, counted=True) as subjects,
        ):
            counts = await backups.bring_back(
                manifest, database, wanted, migrate=schema.upgrade, now=now(), progress=shown, subjects=subjects
            )
        return manifest, counts

    manifest, counts = with_database(work)
    _print(
        as_json, backup=manifest.backup, **counts, bytes=manifest.stored_bytes, dry_run=dry_run,
        seconds=_since(started),
    )  # fmt: skip


def _restore_all(which: str, *, dry_run: bool, quiet: bool, as_json: bool) -> None:
    """Into the empty database of the owner's URL, or of the embedded server."""
    started = time.monotonic()

    async def work(backups: Backups, url: str) -> tuple[Manifest, int]:
        manifest = await backups.manifest(which)
        if dry_run:
            await backups.check_target(manifest, url)
            return manifest, 0
        with progress("restore", quiet=quiet) as shown:
            return manifest, await backups.restore_all(manifest, url, progress=shown)

    with _backups(empty=True) as (backups, url):
        manifest, erased = asyncio.run(work(backups, url))
        settings = load_settings()
        if settings.database.url is None and not dry_run:
            schema.create_login(url, schema.LOGIN_ROLE)
    _print(
        as_json, backup=manifest.backup, bytes=manifest.stored_bytes, rows=manifest.total_rows,
        revision=manifest.content.revision, erased_again=erased, dry_run=dry_run, seconds=_since(started),
    )  # fmt: skip


def _stored(settings: Settings | None = None, reader: str | None = None) -> Backups:
    settings = settings or load_settings()
    return Backups.open(settings.backup, settings.data_dir, reader)


def _reader(settings: Settings) -> str | None:
    """The login that may read past row security, where none is named: the owner, or the embedded superuser."""
    if settings.database.owner_url is not None:
        return settings.database.owner_url.get_secret_value()
    server = embedded.join(settings.data_dir / "postgres")
    return None if server is None else server.url(embedded.SUPERUSER, schema.DATABASE)


@contextmanager
def _backups(*, empty: bool = False) -> Iterator[tuple[Backups, str]]:
    """The backups and the owner's URL; an embedded server that does not run is started for it alone.

    empty: the database is not made; that is what a whole restore does.
    """
    settings = load_settings()
    owner = settings.database.owner_url or settings.database.url
    if owner is not None:
        reader = settings.database.owner_url.get_secret_value() if settings.database.owner_url else None
        yield _stored(settings, reader), owner.get_secret_value()
        return
    refuse_embedded_in_production(settings)
    server = embedded.start(settings.data_dir / "postgres")
    try:
        url = server.url(embedded.SUPERUSER, schema.DATABASE) if empty else schema.prepare(server)[0]
        yield _stored(settings, url), url
    finally:
        if server.started:
            embedded.stop(server.directory)


def _print(as_json: bool, **result: Any) -> None:
    if as_json:
        print(orjson.dumps(result).decode())
        return
    for name, value in result.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        print(f"{name.replace('_', ' ')}: {shown if shown != '' else '-'}")


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)
