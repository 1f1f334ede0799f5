"""Texts to vectors: one interface over the bundled model, any sentence-transformers model, a remote endpoint, hashing.

Invariant: whatever leaves this room is float32, finite, of unit length and of the generation's dimension.
"""

from app.embed.breaker import Breaker, BreakerOpen
from app.embed.embedder import EmbedConfig, Embedder
from app.embed.generations import Generation, claim_generation
from app.embed.loading import load_embedder, prepare_model
from app.embed.models import ModelSpec

__all__ = [
    "Breaker",
    "BreakerOpen",
    "EmbedConfig",
    "Embedder",
    "Generation",
    "ModelSpec",
    "claim_generation",
    "load_embedder",
    "prepare_model",
]
