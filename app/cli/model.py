"""`mneme model`: the embedding model on disk."""

import typer

from app.embed import prepare_model
from app.settings import load_settings

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Prepare the embedding model."""


@app.command()
def prepare() -> None:
    """Write the bundled model into the data directory, so that no start has to; does nothing when it is there."""
    settings = load_settings()
    prepare_model(settings.embed, settings.data_dir)
