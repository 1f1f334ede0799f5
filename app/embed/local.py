"""A model in this process: texts to windows of tokens, computed by packed.py where that can, else by torch.

Invariant: the tokenizer never truncates or pads, so it is safe to share between threads, and no text loses its tail.
"""

import asyncio
import ctypes
import gc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.embed import bundled
from app.embed.batcher import Batcher
from app.embed.embedder import EmbedConfig, Kind, Vectors
from app.embed.kept import find, is_there, make_apart, open_once
from app.embed.models import UNKNOWN_PAIR_WINDOW, UNKNOWN_QUERY_WINDOW, ModelSpec, known
from app.embed.processor import arithmetic_for, processor_flags, threads_for
from app.embed.source import Source
from app.embed.torch_model import Facts, PaddedEncoder, facts_of, prepare_torch, read, settle, tokenizer_of
from app.errors import EmbeddingUnavailable, StartupRefused
from app.telemetry import EMBEDDING_TRUNCATED, log

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Tokens = Sequence[int]
OVERLAP_TOKENS: Final = 64
"""Shared by neighbouring windows, so that a sentence on the border is whole in one of them."""

QUERY_WINDOWS: Final = 4
"""A query's first windows are averaged; the rest is cut and counted, or one request could buy minutes of the model."""


class Encoder(Protocol):
    """What computes; one class each for packed.py and torch."""

    @property
    def batch_tokens(self) -> int:
        """Tokens of one pass beyond which it gains nothing."""
        ...

    def __call__(self, windows: Sequence[Tokens]) -> Vectors:
        """Return (windows, dimension), not normalised, for windows sorted by length."""
        ...


class LocalModel:
    """The loaded model; `forward` belongs to the batcher's thread alone."""

    def __init__(self, tokenizer: Any, forward: Encoder, spec: ModelSpec) -> None:
        self.spec = spec
        self.forward = forward
        self._tokenizer = tokenizer
        bare, framed = self._ids("a", special=False), self._ids("a", special=True)
        start = next(at for at in range(len(framed)) if framed[at : at + len(bare)] == bare)
        self._prefix, self._suffix = framed[:start], framed[start + len(bare) :]

    def count_tokens(self, text: str) -> int:
        return len(self._ids(text, special=False))

    def split(self, text: str, kind: Kind) -> list[Tokens]:
        """Return the tokens of each window, prompt and special tokens included, each within `spec.max_tokens`."""
        prompt = self.spec.query_prompt if kind == "query" else self.spec.document_prompt
        encoding = self._tokenizer.encode(prompt + text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        room = self.spec.max_tokens - len(self._prefix) - len(self._suffix)
        if len(ids) <= room:
            return [self._prefix + ids + self._suffix]
        head = next((at for at, (_, end) in enumerate(encoding.offsets) if end > len(prompt)), 0)
        lead, body = self._prefix + ids[:head], ids[head:]
        room -= head
        step = room - min(OVERLAP_TOKENS, room // 2)
        starts = list(range(0, max(len(body) - room, 0) + step, step))
        if kind == "query" and len(starts) > QUERY_WINDOWS:
            EMBEDDING_TRUNCATED.inc()
            starts = starts[:QUERY_WINDOWS]
        return [lead + body[at : at + room] + self._suffix for at in starts]

    def _ids(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids


class LocalEngine:
    """A loaded model behind its batcher."""

    def __init__(self, model: LocalModel, config: EmbedConfig) -> None:
        self.spec = model.spec
        self._model: LocalModel | None = model
        self._batcher = Batcher(
            model,
            batch_size=config.batch_size,
            batch_tokens=model.forward.batch_tokens,
            wait_seconds=config.batch_wait_ms / 1000,
            limit=config.queue_limit,
        )
        self.encode = self._batcher.encode

    async def start(self) -> None:
        """Start the thread and run the model once: the first pass allocates and is slow."""
        self._batcher.start()
        await self.encode(["start"], "query")

    def count_tokens(self, text: str) -> int:
        if self._model is None:
            raise EmbeddingUnavailable("the model is not running")
        return self._model.count_tokens(text)

    async def close(self) -> None:
        """Free the model: a process that has followed a switch to another one goes on for long."""
        await self._batcher.close()
        self._model = None
        await asyncio.to_thread(_give_back)


def _give_back() -> None:
    """Let the allocator return what was freed: glibc keeps a quarter of a gigabyte of it otherwise."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def load(config: EmbedConfig, source: Source, shelf: Path) -> LocalEngine:
    """Load a model, by what is kept of it on `shelf` if that can be; raises StartupRefused."""
    arithmetic = arithmetic_for(config.precision, processor_flags())
    model, found = None, None
    if arithmetic != "bfloat16":
        found = find(source, shelf, arithmetic, threads := threads_for(config.threads))
        if found is None:
            model = _read(config, source)
            found = open_once(model, source, arithmetic, threads)
        if found.encoder is not None:
            del model
            gc.collect()  # torch's weights, if they were read, are garbage in cycles: half a gigabyte
            return LocalEngine(LocalModel(found.tokenizer, found.encoder, _spec(found.facts, config, source)), config)
        log().warning("embedding_model_runs_in_torch", model=source.name, reason=found.reason)
        arithmetic = arithmetic_for(config.precision, processor_flags(), torch=True)
    model = model or _read(config, source)
    spec = _spec(facts_of(model, source), config, source)
    settle(model, arithmetic)
    return LocalEngine(LocalModel(tokenizer_of(model), PaddedEncoder(model), spec), config)


def keep(config: EmbedConfig, source: Source, shelf: Path) -> None:
    """Write what `load` will look for on `shelf`, and leave no torch in this process. Raises StartupRefused."""
    if arithmetic_for(config.precision, processor_flags()) == "bfloat16":
        if source.data_dir is not None:
            bundled.prepare(Path(source.data_dir))
    elif not is_there(source, shelf):
        make_apart(source, shelf)


def _read(config: EmbedConfig, source: Source) -> "SentenceTransformer":
    wanted = "float32" if config.precision == "int8" else config.precision  # which is made of it afterwards
    _, dtype = prepare_torch(config.threads, wanted)
    return read(source, dtype)


def _spec(facts: Facts, config: EmbedConfig, source: Source) -> ModelSpec:
    row = known(source.name)
    prompts, dimension = facts.prompts, facts.dimension
    limit = facts.max_tokens or (row.max_tokens if row else 512)
    if (config.dimension or dimension) != dimension:
        raise StartupRefused(f"MNEME_EMBED__DIMENSION is {config.dimension}, but {source.name} gives {dimension}")

    def first(*choices: str | None) -> str:
        return next((choice for choice in choices if choice is not None), "")

    return ModelSpec(
        model=source.name,
        revision=source.revision or facts.revision,
        dimension=dimension,
        query_prompt=first(config.query_prompt, row.query_prompt if row else None, prompts.get("query")),
        document_prompt=first(
            config.document_prompt,
            row.document_prompt if row else None,
            prompts.get("document") or prompts.get("passage"),
        ),
        max_tokens=min(config.max_tokens or limit, limit),
        query_window=config.query_window or (row.query_window if row else UNKNOWN_QUERY_WINDOW),
        pair_window=config.pair_window or (row.pair_window if row else UNKNOWN_PAIR_WINDOW),
        stated=config.stated,
    )
