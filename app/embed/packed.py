"""BERT-like encoders in CTranslate2: ragged batches without padding, layers fused, no lock of Python held meanwhile.

Invariant: it gives the vectors that torch gives (`local.load` compares them) or is not used; weights are scaled per
output channel and activations per token, as in int8.py, because a scale per tensor drifts.
"""

import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.embed.embedder import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PASS_TOKENS: Final = 384
"""A pass of 10 texts costs no more per text than one of 50, and the short one answers, and lets queries in, sooner."""

LEVELS: Final = 127.0
_TINY: Final = 1e-12
_ROWS: Final = 8192
_WIDE_VECTORS: Final = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})
_PADDED_POSITIONS: Final = {"bert": False, "roberta": True, "camembert": True, "xlm-roberta": True}
_ACTIVATIONS: Final = {"gelu": "GELU", "gelu_new": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh", "relu": "RELU"}


class PackedEncoder:
    """Tokens to pooled vectors, not normalised; calls do not overlap."""

    batch_tokens: Final = PASS_TOKENS

    def __init__(self, spec: Any, pooling: str, compute_type: str, threads: int) -> None:
        import ctranslate2  # noqa: PLC0415

        self._mean = pooling == "mean"
        spec.validate()
        # The library reads models from files only.
        with tempfile.TemporaryDirectory(prefix="mneme-model-") as folder:
            spec.save(folder)
            self._encoder = ctranslate2.Encoder(folder, compute_type=compute_type, intra_threads=threads)

    def __call__(self, windows: Sequence[Sequence[int]]) -> Vectors:
        """Return (windows, dimension)."""
        hidden = np.asarray(self._encoder.forward_batch(windows).last_hidden_state)
        if not self._mean:
            return hidden[:, 0].copy()
        # One product: every call of numpy on large arrays may wait milliseconds for the interpreter's lock.
        lengths = np.array([[len(tokens)] for tokens in windows], np.float32)
        shares = (np.arange(hidden.shape[1], dtype=np.float32) < lengths) / lengths
        pooled: Vectors = np.matmul(shares[:, None], hidden)[:, 0]
        return pooled


def pack(
    model: "SentenceTransformer", precision: Literal["float32", "int8"], threads: int, flags: frozenset[str]
) -> PackedEncoder | None:
    """Return `model` in CTranslate2; None when it is no BERT with mean or first-token pooling."""
    if flags >= _WIDE_VECTORS:  # the library's own choice stops at AVX2, which takes a fifth longer
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
    modules = list(model)
    if [type(module).__name__ for module in modules[:2]] != ["Transformer", "Pooling"] or any(
        type(module).__name__ != "Normalize" for module in modules[2:]
    ):
        return None
    bert, pooling = modules[0].auto_model, modules[1]
    config = bert.config
    if (
        config.model_type not in _PADDED_POSITIONS
        or config.hidden_act not in _ACTIVATIONS
        or getattr(config, "position_embedding_type", "absolute") != "absolute"
        or getattr(config, "is_decoder", False)
        or pooling.pooling_mode not in {"mean", "cls"}
        or not pooling.include_prompt
    ):
        return None
    return PackedEncoder(_spec(bert, int8=precision == "int8"), pooling.pooling_mode, precision, threads)


def _spec(bert: Any, *, int8: bool) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec  # noqa: PLC0415

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
    first = config.pad_token_id + 1 if _PADDED_POSITIONS[config.model_type] else 0
    embeddings = bert.embeddings
    words = _array(embeddings.word_embeddings.weight)
    encoder.scale_embeddings = False
    _fill_matrix(encoder.embeddings[0], words, int8)
    # Our texts are one segment, so its embedding is part of every position.
    encoder.position_encodings.encodings = (
        _array(embeddings.position_embeddings.weight)[first:] + _array(embeddings.token_type_embeddings.weight)[0]
    )
    _fill_norm(encoder.layernorm_embedding, embeddings.LayerNorm)
    for target, layer in zip(encoder.layer, bert.encoder.layer, strict=True):
        attention = layer.attention
        looking = (attention.self.query, attention.self.key, attention.self.value)
        _fill_linear(target.self_attention.linear[0], looking, int8)
        _fill_linear(target.self_attention.linear[1], (attention.output.dense,), int8)
        _fill_norm(target.self_attention.layer_norm, attention.output.LayerNorm)
        _fill_linear(target.ffn.linear_0, (layer.intermediate.dense,), int8)
        _fill_linear(target.ffn.linear_1, (layer.output.dense,), int8)
        _fill_norm(target.ffn.layer_norm, layer.output.LayerNorm)
    spec.register_vocabulary([str(number) for number in range(len(words))])  # required; we send numbers
    return spec


def _fill_linear(target: Any, layers: Sequence[Any], int8: bool) -> None:
    _fill_matrix(target, np.concatenate([_array(layer.weight) for layer in layers]), int8)
    target.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _fill_norm(target: Any, norm: Any) -> None:
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _fill_matrix(target: Any, weight: NDArray[np.float32], int8: bool) -> None:
    if not int8:
        target.weight = weight
        return
    levels, scale = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    for first in range(0, len(weight), _ROWS):  # the embeddings of 250,000 words at once would take a gigabyte
        rows = weight[first : first + _ROWS]
        factor = LEVELS / np.maximum(np.abs(rows).max(axis=1), _TINY)
        scale[first : first + _ROWS] = factor
        levels[first : first + _ROWS] = np.rint(rows * factor[:, None])
    target.weight, target.weight_scale = levels, scale


def _array(weight: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = weight.detach().float().numpy()
    return array
