"""From configuration to embedder and reranker."""

from pathlib import Path

from app.embed import bundled
from app.embed.embedder import EmbedConfig, Embedder, Engine
from app.embed.hashing import HashingEngine
from app.embed.models import UNKNOWN_PAIR_WINDOW, UNKNOWN_QUERY_WINDOW, KnownModel, ModelSpec, known
from app.embed.remote import RemoteEngine
from app.embed.rerank_endpoint import RerankEndpointEngine
from app.embed.reranker import RerankConfig, RerankEngine, Reranker
from app.embed.source import Source
from app.errors import StartupRefused

REMOTE_PATIENCE_SECONDS = 0.9
"""A caller with a deadline (search waits 1 s) that gives up on a silent endpoint counts as a failed call."""


def load_embedder(config: EmbedConfig, data_dir: Path) -> Embedder:
    """Load the configured model and return its embedder, not yet started; takes seconds for a local model.

    Raises StartupRefused when the model cannot be found, read or named completely.
    """
    patience_seconds = REMOTE_PATIENCE_SECONDS if config.provider == "remote" else None
    return Embedder(
        _engine(config, data_dir), query_cache_size=config.query_cache_size, patience_seconds=patience_seconds
    )


def prepare_model(config: EmbedConfig, data_dir: Path) -> None:
    """Do the slow once-only part of load_embedder before several processes start; raises StartupRefused."""
    if config.provider in {"bundled", "local"}:
        from app.embed import local  # noqa: PLC0415 - see _engine

        local.keep(config, _source(config, data_dir), bundled.shelf_of(data_dir))


def load_reranker(config: RerankConfig, *, threads: int | None) -> Reranker:
    """Return the configured reranker, not yet started; its model is loaded by `start`, with so many `threads`.

    Raises StartupRefused when it is not named completely.
    """
    return Reranker(_rerank_engine(config, threads), config)


def _rerank_engine(config: RerankConfig, threads: int | None) -> RerankEngine | None:
    if config.provider == "none":
        return None
    if not config.model:
        raise StartupRefused("a reranker needs MNEME_RERANK__MODEL")
    if config.provider == "remote":
        if not config.url:
            raise StartupRefused("a remote reranker needs MNEME_RERANK__URL")
        return RerankEndpointEngine(config)
    from app.embed.cross_encoder import CrossEncoderEngine  # noqa: PLC0415 - brings numpy's and torch's weight

    return CrossEncoderEngine(config, threads)


def _engine(config: EmbedConfig, data_dir: Path) -> Engine:
    if config.provider == "hashing":
        return HashingEngine(_spec(config, "hashing", known("hashing")))
    if config.provider == "remote":
        if not config.url or not config.model:
            raise StartupRefused("a remote embedder needs MNEME_EMBED__URL and MNEME_EMBED__MODEL")
        return RemoteEngine(_spec(config, config.model, known(config.model)), config)
    from app.embed import local  # noqa: PLC0415 - the other providers do without tokenizers and CTranslate2

    return local.load(config, _source(config, data_dir), bundled.shelf_of(data_dir))


def _source(config: EmbedConfig, data_dir: Path) -> Source:
    if config.provider == "bundled":
        return bundled.source(data_dir)
    if not config.model:
        raise StartupRefused("a local embedder needs MNEME_EMBED__MODEL, a name or a folder")
    # A folder goes by its last name and the digest of its weights, so that it may move.
    name = Path(config.model).name if Path(config.model).is_dir() else config.model
    return Source(config.model, name, config.revision)


def _spec(config: EmbedConfig, model: str, row: KnownModel | None) -> ModelSpec:
    dimension = config.dimension or (row.dimension if row else None)
    if dimension is None:
        raise StartupRefused(f"{model} is not a known model: set MNEME_EMBED__DIMENSION")
    return ModelSpec(
        model=model,
        revision=config.revision or "",
        dimension=dimension,
        query_prompt=_first(config.query_prompt, row.query_prompt if row else ""),
        document_prompt=_first(config.document_prompt, row.document_prompt if row else ""),
        max_tokens=config.max_tokens or (row.max_tokens if row else 512),
        query_window=config.query_window or (row.query_window if row else UNKNOWN_QUERY_WINDOW),
        pair_window=config.pair_window or (row.pair_window if row else UNKNOWN_PAIR_WINDOW),
        stated=config.stated,
    )


def _first(chosen: str | None, default: str) -> str:
    return default if chosen is None else chosen
