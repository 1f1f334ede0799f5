"""BERT-like encoders in CTranslate2: ragged batches without padding, layers fused, no lock of Python held meanwhile.

Invariant: it gives the vectors that torch gives (kept.py compares them) or is not used; in int8 weights are scaled per
output channel and activations per token, as in int8.py, because a scale per tensor drifts.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.embed.embedder import Vectors
from app.embed.processor import has_narrow_int8

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PASS_TOKENS: Final = 384
"""Of one pass, a thread: 10 texts cost no more each than 50 do, and a short pass answers and lets others in sooner."""

_WIDE_VECTORS: Final = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})
_PADDED_POSITIONS: Final = {"BertModel": False, "RobertaModel": True, "CamembertModel": True, "XLMRobertaModel": True}
"""Architectures, and whether their positions begin after the number of the padding token."""

_ACTIVATIONS: Final = {"gelu": "GELU", "gelu_new": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh", "relu": "RELU"}


class PackedEncoder:
    """Tokens to pooled vectors; calls do not overlap.

    Each thread computes texts of its own: threads that share a matrix product wait for each other at every layer.
    """

    def __init__(self, folder: str, *, mean: bool, compute_type: str, threads: int) -> None:
        import ctranslate2  # noqa: PLC0415

        self.batch_tokens = threads * PASS_TOKENS
        self._mean, self._threads = mean, threads
        self._encoder = ctranslate2.Encoder(folder, compute_type=compute_type, inter_threads=threads, intra_threads=1)
        self._pool = ThreadPoolExecutor(threads, "mneme-model") if threads > 1 else None

    def __call__(self, windows: Sequence[Sequence[int]]) -> Vectors:
        """Return (windows, dimension), not normalised."""
        if self._pool is None or len(windows) == 1:
            return self._pooled(windows)
        stripes = [windows[first :: self._threads] for first in range(min(self._threads, len(windows)))]
        parts = list(self._pool.map(self._pooled, stripes))
        vectors = np.empty((len(windows), parts[0].shape[1]), np.float32)
        for first, part in enumerate(parts):
            vectors[first :: self._threads] = part
        return vectors

    def _pooled(self, windows: Sequence[Sequence[int]]) -> Vectors:
        hidden = np.asarray(self._encoder.forward_batch(windows).last_hidden_state)
        if not self._mean:
            return hidden[:, 0].copy()
        # One product: every call of numpy on large arrays may wait milliseconds for the interpreter's lock.
        lengths = np.array([[len(tokens)] for tokens in windows], np.float32)
        shares = (np.arange(hidden.shape[1], dtype=np.float32) < lengths) / lengths
        vectors: Vectors = np.matmul(shares[:, None], hidden)[:, 0]
        return vectors


def choose_kernels(flags: frozenset[str]) -> None:
    """Call it before the first encoder. The library's own choice stops at AVX2, which takes a fifth longer than what is
    wider; with AVX2 alone only oneDNN was measured in int8, and on some processors its own choice is MKL."""
    if flags >= _WIDE_VECTORS:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
    elif has_narrow_int8(flags):
        os.environ.setdefault("CT2_USE_MKL", "0")


def pooling_of(model: "SentenceTransformer") -> Literal["mean", "cls"] | None:
    """How a model makes one vector of many; None when it is no BERT with mean or first-token pooling."""
    names = [type(module).__name__ for module in model]
    if names[:2] != ["Transformer", "Pooling"] or not {"Normalize"}.issuperset(names[2:]):
        return None
    bert, pooling = model[0].auto_model, model[1]
    config = bert.config
    understood = (
        type(bert).__name__ in _PADDED_POSITIONS
        and config.hidden_act in _ACTIVATIONS
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not getattr(config, "is_decoder", False)
        and pooling.include_prompt
    )
    modes: dict[str, Literal["mean", "cls"]] = {"mean": "mean", "cls": "cls"}
    return modes.get(pooling.pooling_mode) if understood else None


def save(model: "SentenceTransformer", folder: Path) -> None:
    """Write the weights of a model with a pooling in float32, from which any arithmetic is made when they are read."""
    from ctranslate2.specs import common_spec, transformer_spec  # noqa: PLC0415 - brings torch

    bert = model[0].auto_model
    config = bert.config
    encoder = transformer_spec.TransformerEncoderSpec(
        config.num_hidden_layers,
        config.num_attention_heads,
        pre_norm=False,
        activation=common_spec.Activation[_ACTIVATIONS[config.hidden_act]],
        layernorm_embedding=True,
    )
    spec = transformer_spec.TransformerEncoderModelSpec(encoder)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    first = config.pad_token_id + 1 if _PADDED_POSITIONS[type(bert).__name__] else 0
    embeddings = bert.embeddings
    words = _array(embeddings.word_embeddings.weight)
    encoder.scale_embeddings = False
    encoder.embeddings[0].weight = words
    # Our texts are one segment, so its embedding is part of every position.
    encoder.position_encodings.encodings = (
        _array(embeddings.position_embeddings.weight)[first:] + _array(embeddings.token_type_embeddings.weight)[0]
    )
    _fill_norm(encoder.layernorm_embedding, embeddings.LayerNorm)
    for target, layer in zip(encoder.layer, bert.encoder.layer, strict=True):
        attention = layer.attention
        looking = (attention.self.query, attention.self.key, attention.self.value)
        _fill_linear(target.self_attention.linear[0], looking)
        _fill_linear(target.self_attention.linear[1], (attention.output.dense,))
        _fill_norm(target.self_attention.layer_norm, attention.output.LayerNorm)
        _fill_linear(target.ffn.linear_0, (layer.intermediate.dense,))
        _fill_linear(target.ffn.linear_1, (layer.output.dense,))
        _fill_norm(target.ffn.layer_norm, layer.output.LayerNorm)
    spec.register_vocabulary([str(number) for number in range(len(words))])  # required; we send numbers
    spec.validate()
    spec.save(str(folder))


def _fill_linear(target: Any, layers: Sequence[Any]) -> None:
    target.weight = np.concatenate([_array(layer.weight) for layer in layers])
    target.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _fill_norm(target: Any, norm: Any) -> None:
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _array(weight: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = weight.detach().float().numpy()
    return array
