"""Real models small enough for a test to make: random weights, a tokenizer of single characters, at most 64 tokens."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

WORDS = "the of is a to in and order refund mango allergic coffee dog"
CHARACTERS = "我你他是的不芒果过敏发票快递退款客户喜欢咖啡狗订单能吃任何abcdefghijklmnopqrstuvwxyz0123456789，。？"


def save_cross_encoder(folder: Path, *, labels: int = 1, seed: int = 1) -> Path:
    """Save a CrossEncoder of 20 kB in `folder`."""
    return _save(folder, "BertForSequenceClassification", "BertConfig", seed=seed, num_labels=labels)


def encoder(folder: Path, architecture: str, *, pooling: str = "mean", **options: object) -> "SentenceTransformer":
    """Make a sentence-transformers model of one of transformers' architectures ("Bert") in `folder`."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

    _save(folder, f"{architecture}Model", f"{architecture}Config", seed=1, **options)
    return SentenceTransformer(modules=[Transformer(str(folder)), Pooling(16, pooling)], device="cpu")


def _save(folder: Path, model: str, config: str, *, seed: int, **options: object) -> Path:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *WORDS.split(), *CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    sizes: dict[str, Any] = {
        "vocab_size": len(vocabulary), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 66, "initializer_range": 0.5, "pad_token_id": 0,
    }  # fmt: skip
    getattr(transformers, model)(getattr(transformers, config)(**sizes | options)).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=vocabulary, model_max_length=64).save_pretrained(folder)
    return folder
