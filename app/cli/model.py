"""`mneme model …`: the embedding model on disk, and the scale of its similarities."""

from typing import Annotated

import numpy as np
import typer

from app.cli.connect import with_database
from app.clock import now
from app.database import Database
from app.embed import Calibration, ModelSpec, calibrate, load_embedder, prepare_model, served_config
from app.embed import store_calibration as store
from app.embed import stored_calibration as stored
from app.language import TOKENIZER_VERSION
from app.settings import Settings, load_settings

app = typer.Typer(no_args_is_help=True)
QUERY_PAIRS = ("unrelated", "related", "answer", "same", "itself")
MEMORY_PAIRS = ("unrelated_memory", "related_memory", "same_memory")
THRESHOLDS = (0.5, 0.75, 0.9)


@app.callback()
def group() -> None:
    """Prepare and calibrate the embedding model."""


@app.command()
def prepare() -> None:
    """Write the model into the data directory as it is computed, so that no start has to; nothing when it is there."""
    settings = load_settings()
    prepare_model(settings.embed, settings.data_dir)


@app.command("calibrate")
def calibrate_model(
    write: Annotated[bool, typer.Option("--write", help="Store it; services use it from their next start.")] = False,
) -> None:
    """Find the cosines that mean 0 and 1 for the configured model, with pairs of sentences that come with Mneme.

    A window that the settings state is kept. Nothing is changed without --write.
    """

    async def run(settings: Settings, database: Database) -> None:
        served = await served_config(database, settings.embed)
        embedder = load_embedder(served, settings.data_dir)
        await embedder.start()
        try:
            found = await calibrate(embedder)
        finally:
            await embedder.close()
        after = found.applied(embedder.spec)
        _show(await stored(database, embedder.spec), after, found)
        if write:
            await store(database, after, TOKENIZER_VERSION, now())
            print("\nStored: services use it from their next start.")
        else:
            print("\nNothing was changed: --write stores it.")

    with_database(run)


def _show(before: ModelSpec, after: ModelSpec, found: Calibration) -> None:
    print(f"model {after.model}, revision {after.revision or 'none'}\n")
    for name in ("query_window", "pair_window"):
        (low, high), (new_low, new_high) = getattr(before, name), getattr(after, name)
        kept = " (stated in the settings)" if name in after.stated else ""
        print(f"{name:13} before {low:.4f} to {high:.4f}   after {new_low:.4f} to {new_high:.4f}{kept}")
    print("\nPairs in 100 at or above a threshold, before -> after")
    print("language  pair              " + "".join(f"{threshold:>14}" for threshold in THRESHOLDS))
    for language, measured in found.measured.items():
        for names, window in ((QUERY_PAIRS, "query_window"), (MEMORY_PAIRS, "pair_window")):
            for name in names:
                cosines = getattr(measured, name)
                shares = [
                    " -> ".join(f"{_share(cosines, getattr(spec, window), threshold):.0f}" for spec in (before, after))
                    for threshold in THRESHOLDS
                ]
                print(f"{language:9} {name:18}" + "".join(f"{share:>14}" for share in shares))
        if not measured.understood:
            print(f"{language:9} left out: the model does not tell answers from unrelated memories")


def _share(cosines: "np.typing.NDArray[np.float64]", window: tuple[float, float], threshold: float) -> float:
    low, high = window
    return 100 * float(np.mean((cosines - low) / (high - low) >= threshold))
