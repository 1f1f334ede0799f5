"""The tree of commands, and the one place where a refusal becomes a message and an exit code."""

import signal
import sys
import threading
from importlib.metadata import version
from typing import Annotated

import structlog
import typer

from app.cli import archive, backup, config, db, jobs, keys, model, reembed, repair, serve, tenants, tiers, up
from app.cli.bench import bench
from app.cli.eval import evaluate, evaluate_conflict, evaluate_dedup
from app.cli.search import search
from app.cli.simulate import simulate
from app.errors import MnemeError, StartupRefused, VerificationFailed

EXIT_FAILURE = 1

app = typer.Typer(
    name="mneme",
    help="Long-term memory of AI agents on one PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables, and those hold secrets and texts
    rich_markup_mode=None,
    add_completion=False,
)
app.command()(up.up)
app.command()(serve.serve)
app.command()(serve.worker)
app.command()(serve.openapi)
app.command()(search)
app.command()(repair.repair)
app.command()(repair.reindex)
app.command("eval")(evaluate)
app.command("eval-dedup")(evaluate_dedup)
app.command("eval-conflict")(evaluate_conflict)
app.command()(bench)
app.command()(simulate)
app.add_typer(archive.app, name="archive", help="Move archived memories out of the database, and back.")
app.add_typer(backup.app, name="backup", help="Make, prove, bring back and remove backups.")
app.add_typer(config.app, name="config", help="Show and check the settings.")
app.add_typer(db.app, name="db", help="Migrate the database and look at its schema.")
app.add_typer(jobs.app, name="jobs", help="List, run and look back at the jobs of the workers.")
app.add_typer(keys.app, name="keys", help="Make, list and revoke API keys.")
app.add_typer(model.app, name="model", help="Prepare the embedding model.")
app.add_typer(reembed.app, name="reembed", help="Move the store to another embedding model while it serves.")
app.add_typer(tenants.app, name="tenants", help="Make and list tenants.")
app.add_typer(tiers.app, name="tiers", help="Look at what is hot, warm and cold.")


@app.callback(invoke_without_command=True)
def root(show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show_version:
        print(version("mneme"))
        raise typer.Exit


def run() -> None:
    """Run the command line; StartupRefused and VerificationFailed end with their exit code, other refusals with 1.

    SIGTERM and SIGHUP end a command as Ctrl-C does, so that it stops the servers it started and removes its folders.
    """
    if threading.current_thread() is threading.main_thread():  # else signals are for whoever called
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, signal.default_int_handler)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # what is printed is the answer
    try:
        app()
    except (StartupRefused, VerificationFailed) as error:
        print(f"mneme: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except MnemeError as error:
        print(f"mneme: {error.detail}", file=sys.stderr)
        for wrong in error.errors:
            print(f"  {wrong.pointer.removeprefix('/')}: {wrong.detail}", file=sys.stderr)
        sys.exit(EXIT_FAILURE)
