"""Texts to vectors: one interface over the bundled model, any sentence-transformers model, a remote endpoint, hashing;
and texts into the order of their relevance, by a cross-encoder or an endpoint.

Invariant: whatever leaves this room is float32, finite, of unit length and of the generation's dimension.
"""

from app.embed.calibration import Calibration, Measured, calibrate
from app.embed.embedder import EmbedConfig, Embedder
from app.embed.generations import Generation, claim_generation, store_calibration, stored_calibration
from app.embed.loading import load_embedder, load_reranker, prepare_model
from app.embed.models import ModelSpec
from app.embed.nli import Nli, NliConfig, NliUnavailable, load_nli
from app.embed.reranker import RerankConfig, Reranker, RerankUnavailable

__all__ = [
    "Calibration",
    "EmbedConfig",
    "Embedder",
    "Generation",
    "Measured",
    "ModelSpec",
    "Nli",
    "NliConfig",
    "NliUnavailable",
    "RerankConfig",
    "RerankUnavailable",
    "Reranker",
    "calibrate",
    "claim_generation",
    "load_embedder",
    "load_nli",
    "load_reranker",
    "prepare_model",
    "store_calibration",
    "stored_calibration",
]
