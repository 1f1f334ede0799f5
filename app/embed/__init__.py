"""Texts to vectors: one interface over the bundled model, any sentence-transformers model, a remote endpoint, hashing;
and texts into the order of their relevance, by a cross-encoder or an endpoint.

Invariant: whatever leaves this room is float32, finite, of unit length and of the generation's dimension.
"""

from app.embed.calibration import Calibration, Measured, calibrate
from app.embed.embedder import EmbedConfig, Embedder
from app.embed.generations import (
    ACTIVE,
    BOTH,
    OTHER,
    Columns,
    Generation,
    Known,
    active_generation_id,
    begin_generation,
    claim_generation,
    drop_generation_indexes,
    known_generations,
    note_lacking,
    note_purged,
    open_embedder,
    open_other,
    other_generation,
    retire_generation,
    served_config,
    store_calibration,
    stored_calibration,
)
from app.embed.loading import load_embedder, load_reranker, prepare_model
from app.embed.models import ModelSpec
from app.embed.nli import Nli, NliConfig, NliUnavailable, load_nli
from app.embed.reranker import RerankConfig, Reranker, RerankUnavailable

__all__ = [
    "ACTIVE",
    "BOTH",
    "OTHER",
    "Calibration",
    "Columns",
    "EmbedConfig",
    "Embedder",
    "Generation",
    "Known",
    "Measured",
    "ModelSpec",
    "Nli",
    "NliConfig",
    "NliUnavailable",
    "RerankConfig",
    "RerankUnavailable",
    "Reranker",
    "active_generation_id",
    "begin_generation",
    "calibrate",
    "claim_generation",
    "drop_generation_indexes",
    "known_generations",
    "load_embedder",
    "load_nli",
    "load_reranker",
    "note_lacking",
    "note_purged",
    "open_embedder",
    "open_other",
    "other_generation",
    "prepare_model",
    "retire_generation",
    "served_config",
    "store_calibration",
    "stored_calibration",
]
