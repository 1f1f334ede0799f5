"""A sentence-transformers model in torch: how models are read, and what computes those that packed.py does not.

Invariant: the library is imported when a model is loaded and not before; only this file and int8.py know torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import BaseModel

from app.embed import bundled
from app.embed.embedder import Precision, Vectors
from app.embed.processor import Arithmetic, arithmetic_for, processor_flags, threads_for
from app.embed.source import Source
from app.errors import StartupRefused

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BATCH_TOKENS: Final = 1024
"""Of one forward pass: more is not faster per text, and a query waits for the pass that runs."""

PASS_TOKENS: Final = 80
"""What a forward pass costs before its first token (about 20 ms of small operations), counted in tokens of padding."""


class Facts(BaseModel, frozen=True, extra="forbid"):
    """What a model says of itself; `max_tokens` None: it does not."""

    revision: str
    dimension: int
    max_tokens: int | None
    prompts: dict[str, str]


class PaddedEncoder:
    """The library's own modules: any architecture, any pooling."""

    batch_tokens: Final = BATCH_TOKENS

    def __init__(self, model: "SentenceTransformer") -> None:
        self._model = model.eval()
        self._pad = model.tokenizer.pad_token_id or 0

    def __call__(self, windows: Sequence[Sequence[int]]) -> Vectors:
        """Return (windows, dimension), not normalised, for windows sorted by length."""
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


def prepare_torch(threads: int | None, wanted: Precision) -> tuple[Arithmetic, Any]:
    """Set up the library before a model is loaded; return this processor's arithmetic and the dtype to load in."""
    import torch  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    # It reports the pooler, which sentence-transformers never uses, as missing.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads_for(threads))
    arithmetic = arithmetic_for(wanted, processor_flags(), torch=True)
    return arithmetic, torch.bfloat16 if arithmetic == "bfloat16" else torch.float32


def settle(model: Any, arithmetic: Arithmetic) -> None:
    """Make a loaded model ready for inference in its arithmetic."""
    model.eval()
    if arithmetic == "int8":
        from app.embed.int8 import quantise  # noqa: PLC0415

        quantise(model)


def read(source: Source, dtype: Any) -> "SentenceTransformer":
    """Load the model, from the hub if need be; raises StartupRefused. Call prepare_torch first."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    if source.data_dir is not None:
        bundled.prepare(Path(source.data_dir))
    try:
        return SentenceTransformer(
            source.path, device="cpu", revision=source.revision, model_kwargs={"dtype": dtype}, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise StartupRefused(
            f"the embedding model {source.path} cannot be loaded ({type(error).__name__}): check MNEME_EMBED__MODEL, "
            "its folder, or the connection to the model hub",
            dependency=True,
        ) from error


def facts_of(model: "SentenceTransformer", source: Source) -> Facts:
    """What a loaded model says of itself; raises StartupRefused when it gives vectors of no fixed dimension."""
    dimension = model.get_embedding_dimension()
    if dimension is None:
        raise StartupRefused(f"{source.name} does not say the dimension of its vectors")
    prompts = {name: prompt for name, prompt in model.prompts.items() if prompt is not None}
    revision = source.known_identity or source.weights() or commit_of(model)
    return Facts(revision=revision, dimension=dimension, max_tokens=model.max_seq_length, prompts=prompts)


def commit_of(model: "SentenceTransformer") -> str:
    """The commit of the hub that a model was loaded from."""
    return str(getattr(getattr(model[0].auto_model, "config", None), "_commit_hash", None) or "unknown")


def tokenizer_of(model: "SentenceTransformer") -> Any:
    """The library's own tokenizer, without the truncation and padding that its files may ask for."""
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise StartupRefused("the embedding model has no fast tokenizer; choose a model with a tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
