"""A sentence-transformers model in this process, computed by packed.py where that can, else by torch, which is imported
when a model is loaded and which only this file and int8.py know.

Invariant: the tokenizer never truncates or pads, so it is safe to share between threads, and no text loses its tail.
"""

import gc
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

from app.embed.batcher import Batcher
from app.embed.embedder import EmbedConfig, Kind, Precision, Vectors
from app.embed.models import UNKNOWN_PAIR_WINDOW, UNKNOWN_QUERY_WINDOW, ModelSpec, known
from app.embed.packed import pack
from app.errors import StartupRefused
from app.telemetry import EMBEDDING_TRUNCATED, log

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Tokens = Sequence[int]
Arithmetic = Literal["float32", "bfloat16", "int8"]
OVERLAP_TOKENS: Final = 64
"""Shared by neighbouring windows, so that a sentence on the border is whole in one of them."""

QUERY_WINDOWS: Final = 4
"""A query's first windows are averaged; the rest is cut and counted, or one request could buy minutes of the model."""

MOST_THREADS: Final = 4
"""Half the cores and no more: threads of one matrix product wait for the slowest, and the service needs cores too."""

BATCH_TOKENS: Final = 1024
"""Of one forward pass of torch: more is not faster per text, and a query waits for the pass that runs."""

PASS_TOKENS: Final = 80
"""What a forward pass costs before its first token (about 20 ms of small operations), counted in tokens of padding."""

ALIKE: Final = {"float32": 0.9999, "int8": 0.99}
"""Smallest cosine to torch's float32 at which packed.py has understood a model; int8 of the bundled one keeps 0.998."""


class Encoder(Protocol):
    """What computes; one class each for packed.py and torch."""

    @property
    def batch_tokens(self) -> int:
        """Tokens of one pass beyond which it gains nothing."""
        ...

    def __call__(self, windows: Sequence[Tokens]) -> Vectors:
        """Return (windows, dimension), not normalised, for windows sorted by length."""
        ...


class PaddedEncoder:
    """The library's own modules in torch: any architecture, any pooling."""

    batch_tokens: Final = BATCH_TOKENS

    def __init__(self, model: "SentenceTransformer") -> None:
        self._model = model
        self._pad = model.tokenizer.pad_token_id or 0

    def __call__(self, windows: Sequence[Tokens]) -> Vectors:
        import torch  # noqa: PLC0415

        parts = []
        first = 0
        while first < len(windows):
            last = first + 1
            # One more text pads all before it to its length: worth it while that costs less than a pass of its own.
            while last < len(windows) and (last - first) * (len(windows[last]) - len(windows[last - 1])) < PASS_TOKENS:
                last += 1
            group = windows[first:last]
            ids = np.full((len(group), len(group[-1])), self._pad, np.int64)
            mask = np.zeros_like(ids)
            for row, tokens in enumerate(group):
                ids[row, : len(tokens)] = tokens
                mask[row, : len(tokens)] = 1
            with torch.inference_mode():
                features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
                # Not encode(): its bookkeeping costs as much as a short query.
                parts.append(self._model(features)["sentence_embedding"].float().numpy())
            first = last
        return np.concatenate(parts)


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
        self.count_tokens = model.count_tokens
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

    async def close(self) -> None:
        await self._batcher.close()


def load(config: EmbedConfig, source: str, *, name: str, revision: str | None) -> LocalEngine:
    """Load the model at `source` (a folder or a name of the hub) under `name`; raises StartupRefused."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    precision, dtype = prepare_torch(config.threads, config.precision)
    try:
        model = SentenceTransformer(
            source, device="cpu", revision=config.revision, model_kwargs={"dtype": dtype}, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise StartupRefused(
            f"the embedding model {source} cannot be loaded ({type(error).__name__}): check MNEME_EMBED__MODEL, its "
            "folder, or the connection to the model hub",
            dependency=True,
        ) from error
    spec = _spec(model, config, name, revision or _revision(source, model))
    local = LocalModel(_tokenizer(model), _encoder(model, name, precision), spec)
    del model
    gc.collect()  # when packed.py has taken them over, torch's weights are garbage in cycles: half a gigabyte
    return LocalEngine(local, config)


def _encoder(model: "SentenceTransformer", name: str, precision: Arithmetic) -> Encoder:
    import torch  # noqa: PLC0415

    model.eval()
    padded = PaddedEncoder(model)
    if precision != "bfloat16":
        packed = pack(model, precision, torch.get_num_threads(), _processor_flags())
        if packed is not None and _alike(packed, padded) >= ALIKE[precision]:
            return packed
        reason = "unknown architecture or pooling" if packed is None else "other vectors than torch"
        log().warning("embedding_model_runs_in_torch", model=name, reason=reason)
    settle(model, precision)
    return padded


def _alike(one: Encoder, other: Encoder) -> float:
    """The smallest cosine between two ways to compute a few texts of different length."""
    windows = [range(5, 5 + length) for length in (3, 11, 24)]
    left, right = one(windows), other(windows)
    cosines = np.einsum("td,td->t", left, right) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(cosines.min())


def prepare_torch(threads: int | None, wanted: Precision) -> tuple[Arithmetic, Any]:
    """Set up the library before a model is loaded; return the precision for this processor and the dtype to load in."""
    import torch  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    # It reports the pooler, which sentence-transformers never uses, as missing.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads or min(max((os.cpu_count() or 1) // 2, 1), MOST_THREADS))
    precision = _precision(wanted, _processor_flags())
    return precision, torch.bfloat16 if precision == "bfloat16" else torch.float32


def settle(model: Any, precision: Arithmetic) -> None:
    """Make a loaded model ready for inference in its precision."""
    model.eval()
    if precision == "int8":
        from app.embed.int8 import quantise  # noqa: PLC0415

        quantise(model)


def _spec(model: "SentenceTransformer", config: EmbedConfig, name: str, revision: str) -> ModelSpec:
    row = known(name)
    prompts = model.prompts
    limit = model.max_seq_length or (row.max_tokens if row else 512)
    dimension = model.get_embedding_dimension()
    if dimension is None or (config.dimension or dimension) != dimension:
        raise StartupRefused(f"MNEME_EMBED__DIMENSION is {config.dimension}, but {name} gives {dimension}")

    def first(*choices: str | None) -> str:
        return next((choice for choice in choices if choice is not None), "")

    return ModelSpec(
        model=name,
        revision=revision,
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


def _revision(source: str, model: "SentenceTransformer") -> str:
    """The hub's commit, or for a folder a digest of its weights: names stay the same when models are trained on."""
    folder = Path(source)
    if not folder.is_dir():
        return str(getattr(getattr(model[0].auto_model, "config", None), "_commit_hash", None) or "unknown")
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".safetensors", ".bin"}:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _tokenizer(model: "SentenceTransformer") -> Any:
    """The library's own tokenizer, without the truncation and padding that its files may ask for."""
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise StartupRefused("the embedding model has no fast tokenizer; choose a model with a tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _precision(wanted: Precision, flags: frozenset[str]) -> Arithmetic:
    """The arithmetic for this processor; measurements and reasons: docs/decisions/0004-int8-without-amx.md.

    bfloat16 wins with AMX and loses to float32 with avx512_bf16 alone; int8 without VNNI saturates, so it is refused.
    """
    if wanted == "int8" and "avx512_vnni" not in flags:
        raise StartupRefused("MNEME_EMBED__PRECISION is int8, but this processor has no avx512_vnni")
    if wanted != "auto":
        return wanted
    if "amx_bf16" in flags:
        return "bfloat16"
    return "int8" if "avx512_vnni" in flags else "float32"


def _processor_flags() -> frozenset[str]:
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split()) if cpuinfo.is_file() else frozenset()
