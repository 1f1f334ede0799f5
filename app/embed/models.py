"""MODELS: one row a known model, with its prompts and the calibration of its cosines.

Invariant: a row describes vectors, so changing one that is in use makes a new generation (claim_generation refuses it);
only windows may change: a generation keeps those that it was stored with.
"""

from dataclasses import dataclass
from typing import Final

Window = tuple[float, float]
"""Raw cosines that become 0.0 and 1.0 of the calibrated scale; linear between, clipped outside."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What makes vectors comparable: model, revision, dimension and prompts, with the calibration of their cosines.

    `max_tokens` is the model's limit for one window, prompt and special tokens included. `query_window` calibrates
    query–memory cosines, `pair_window` memory–memory cosines; `stated` names those that the settings state.
    """

    model: str
    revision: str
    dimension: int
    query_prompt: str
    document_prompt: str
    max_tokens: int
    query_window: Window
    pair_window: Window
    stated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One row of MODELS."""

    dimension: int
    max_tokens: int
    query_prompt: str
    document_prompt: str
    query_window: Window
    pair_window: Window


_E5_SMALL: Final = KnownModel(384, 512, "query: ", "passage: ", (0.75, 0.92), (0.85, 1.00))
_MINILM: Final = KnownModel(384, 256, "", "", (0.05, 0.75), (0.10, 1.00))
_BGE_ZH: Final = "为这个句子生成表示以用于检索相关文章："
_BGE_EN: Final = "Represent this sentence for searching relevant passages: "

# The windows of e5-small, MiniLM and hashing are measured (docs/embeddings.md), the others are estimates, which
# `mneme model calibrate --write` replaces.
MODELS: Final[dict[str, KnownModel]] = {
    "bundled": _E5_SMALL,
    "intfloat/multilingual-e5-small": _E5_SMALL,
    "intfloat/multilingual-e5-base": KnownModel(768, 512, "query: ", "passage: ", (0.75, 0.92), (0.85, 1.00)),
    "sentence-transformers/all-MiniLM-L6-v2": _MINILM,
    "BAAI/bge-small-zh-v1.5": KnownModel(512, 512, _BGE_ZH, "", (0.25, 0.85), (0.40, 1.00)),
    "BAAI/bge-base-zh-v1.5": KnownModel(768, 512, _BGE_ZH, "", (0.25, 0.85), (0.40, 1.00)),
    "BAAI/bge-small-en-v1.5": KnownModel(384, 512, _BGE_EN, "", (0.45, 0.85), (0.50, 1.00)),
    "BAAI/bge-m3": KnownModel(1024, 8192, "", "", (0.35, 0.80), (0.40, 1.00)),
    "text-embedding-3-small": KnownModel(1536, 8191, "", "", (0.10, 0.70), (0.20, 1.00)),
    "text-embedding-3-large": KnownModel(3072, 8191, "", "", (0.10, 0.70), (0.20, 1.00)),
    "hashing": KnownModel(384, 1 << 20, "", "", (0.00, 0.60), (0.00, 1.00)),
}

UNKNOWN_QUERY_WINDOW: Final[Window] = (0.2, 0.85)
UNKNOWN_PAIR_WINDOW: Final[Window] = (0.3, 1.0)


def known(model: str) -> KnownModel | None:
    """Find a model by its name, or by the last part of it (`all-MiniLM-L6-v2`)."""
    if row := MODELS.get(model):
        return row
    return next((row for name, row in MODELS.items() if name.rpartition("/")[2] == model), None)
