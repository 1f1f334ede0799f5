"""`mneme reembed`: moves the store to another embedding model while it serves, and back."""

import sys
from typing import Annotated, Any, Literal

import orjson
import typer

from app.cli.connect import with_database, with_database_and_owner
from app.cli.jobs import log_trouble_only, run_here
from app.cli.progress import progress
from app.cli.switch import ensure_lacking_index, ensure_vector_index, switch
from app.clock import now
from app.database import Database
from app.embed import (
    EmbedConfig,
    Embedder,
    Known,
    begin_generation,
    calibrate,
    known_generations,
    load_embedder,
    other_generation,
    prepare_model,
    retire_generation,
)
from app.errors import EXIT_HELD, Conflict
from app.language import TOKENIZER_VERSION
from app.remember import Refill
from app.settings import Settings

app = typer.Typer(invoke_without_command=True, no_args_is_help=True)
JOB = "reembed"

QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress.")]
IncompleteOption = Annotated[
    bool, typer.Option("--even-incomplete", help="Even if memories lack their vector: words find them until they have.")
]


@app.callback()
def reembed(  # noqa: PLR0913, PLR0917 - the options of a command are its user's
    context: typer.Context,
    to: Annotated[str | None, typer.Option("--to", help="bundled, hashing, or a model's name or folder.")] = None,
    url: Annotated[str | None, typer.Option(help="Of an OpenAI-compatible endpoint that has the model.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of the model.")] = None,
    dimension: Annotated[int | None, typer.Option(help="Of a model that Mneme does not know.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/s", help="Most texts a second; default: half of what goes.")
    ] = None,
    only_used: Annotated[
        bool, typer.Option("--only-used/--all", help="Leave what was never hit to the job `reembed_rest`, weekly.")
    ] = False,
    fit: Annotated[
        bool, typer.Option("--calibrate", help="Measure the scale of its similarities, as `mneme model calibrate`.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Give every memory its vector of another model; search stays with the one of now until `mneme reembed switch`.

    May be stopped, or killed, and called again; a running worker goes on with it. Ends with exit code 75 when another
    run goes on elsewhere.
    """
    if context.invoked_subcommand is not None:
        return
    if to is None:
        raise typer.BadParameter("which model? --to NAME, or one of status, switch, back, purge")
    provider = _provider(to, url)
    model = None if provider in ("bundled", "hashing") else to
    source = {"provider": provider, "model": model, "url": url, "revision": revision, "dimension": dimension}
    source = {name: value for name, value in source.items() if value is not None}
    texts_a_second = _texts_a_second(rate)
    log_trouble_only()

    async def action(settings: Settings, database: Database, owner_url: str) -> None:
        config = settings.embed.of(source)
        prepare_model(config, settings.data_dir)
        spec = (await _fitted(config, settings)) if fit else load_embedder(config, settings.data_dir).spec
        await begin_generation(
            database, spec, TOKENIZER_VERSION, config.source(), now(), only_used=only_used, rate=texts_a_second
        )
        for one in await known_generations(database):
            if one.state != "retired":
                await ensure_lacking_index(owner_url, one)
        other = await _other(database, "building")
        left = await _fill(settings, database, other, quiet=quiet)
        await ensure_vector_index(owner_url, other)
        done = "all that is used" if only_used else "every memory"
        print(f"{left} were refused: call it again" if left else f"{done} has its vector: `mneme reembed switch`")

    with_database_and_owner(action)


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False) -> None:
    """Print the generations of the store, and how many memories lack their vector of each that is in use."""

    async def action(_: Settings, database: Database) -> list[dict[str, Any]]:
        known = await known_generations(database)
        moving = any(one.state in ("building", "previous") or one.only_used for one in known)
        return [await _line(database, one, counted=moving and one.state != "retired") for one in known]

    for line in with_database(action):
        if as_json:
            print(orjson.dumps(line, option=orjson.OPT_UTC_Z).decode())
        else:
            lacking = "" if line["lacking"] is None else f"  {line['lacking']} memories lack their vector"
            print(f"{line['generation']}  {line['state']:9} {line['model']} ({line['dimension']}){lacking}")


@app.command("switch")
def switch_to_new(even_incomplete: IncompleteOption = False, quiet: QuietOption = False) -> None:
    """Serve the new model: what still lacks its vector gets it, then all processes change over within seconds."""
    _switch("building", even_incomplete=even_incomplete, quiet=quiet)


@app.command()
def back(even_incomplete: IncompleteOption = False, quiet: QuietOption = False) -> None:
    """Serve the model that was left last; its vectors were kept up since."""
    _switch("previous", even_incomplete=even_incomplete, quiet=quiet)


@app.command()
def purge() -> None:
    """Let go of the vectors beside the served ones: of a model that was left, or of a move that is given up."""
    log_trouble_only()

    async def action(settings: Settings, database: Database) -> None:
        other = await other_generation(database)
        if other is not None:
            await retire_generation(database, other.generation_id)
        outcome, errand = await run_here(settings, database, JOB, watch=lambda _: None)
        if outcome == "held":
            print("a run goes on elsewhere, which does it next")
        print(f"{errand.counts['purged']} vectors are gone")

    with_database(action)


def _switch(state: Literal["building", "previous"], *, even_incomplete: bool, quiet: bool) -> None:
    log_trouble_only()

    async def action(settings: Settings, database: Database, owner_url: str) -> Known:
        other = await _other(database, state)
        left = await _fill(settings, database, other, quiet=quiet)
        if left and not even_incomplete:
            raise Conflict(f"{other.model} refused {left} memories: try again, or --even-incomplete")
        await ensure_vector_index(owner_url, other)
        await _fill(settings, database, other, quiet=True)  # what came while the index was made
        await switch(owner_url, other.generation_id, now())
        return other

    served = with_database_and_owner(action)
    source = served.source or {}
    names = " ".join(f"MNEME_EMBED__{name.upper()}={value}" for name, value in source.items())
    print(f"{served.model} is served, by every process within seconds; `mneme reembed back` goes back")
    print(f"In your settings, when it suits you (they are not needed for it): {names}")


async def _fill(settings: Settings, database: Database, other: Known, *, quiet: bool) -> int:
    """Have the job give memories what they lack, in this process; returns how many the model refused.

    Others write on: what comes after the pass is for the next one, or for the worker.
    """
    while total := await Refill(database, other).lacking():
        with progress(f"to {other.model}", quiet=quiet, counted=True) as shown:
            outcome, errand = await run_here(
                settings, database, JOB, watch=lambda errand: shown(errand.counts["embedded"], total)
            )
        if outcome == "held":
            print("mneme: a run goes on elsewhere: see `mneme reembed status`", file=sys.stderr)
            raise typer.Exit(EXIT_HELD)
        if not errand.counts["unfinished"]:
            return errand.counts["failed"]
    return 0


async def _other(database: Database, state: str) -> Known:
    other = await other_generation(database)
    if other is None or other.state != state:
        what = "the store is on its way to no model" if state == "building" else "no model that was left is kept"
        raise Conflict(f"{what}: see `mneme reembed status`")
    return other


async def _line(database: Database, one: Known, *, counted: bool) -> dict[str, Any]:
    return {
        "generation": one.generation_id, "state": one.state, "model": one.model, "dimension": one.dimension,
        "source": one.source, "since": one.switched_at or one.created_at,
        "lacking": await Refill(database, one, rest=True).lacking() if counted else None,
    }  # fmt: skip


async def _fitted(config: EmbedConfig, settings: Settings) -> Any:
    embedder: Embedder = load_embedder(config, settings.data_dir)
    await embedder.start()
    try:
        return (await calibrate(embedder)).applied(embedder.spec)
    finally:
        await embedder.close()


def _provider(name: str, url: str | None) -> str:
    if url is not None:
        return "remote"
    return name if name in ("bundled", "hashing") else "local"


def _texts_a_second(rate: str | None) -> float | None:
    if rate is None:
        return None
    try:
        number = float(rate.removesuffix("/s"))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise typer.BadParameter("a number of texts a second, such as 50/s", param_hint="--rate")
    return number
