"""A real CrossEncoder small enough to be made by a test: random weights, a tokenizer of single characters."""

from pathlib import Path

WORDS = "the of is a to in and order refund mango allergic coffee dog"
CHARACTERS = "我你他是的不芒果过敏发票快递退款客户喜欢咖啡狗订单能吃任何abcdefghijklmnopqrstuvwxyz0123456789，。？"


def save_cross_encoder(folder: Path, *, labels: int = 1, seed: int = 1) -> Path:
    """Save a model of 20 kB in `folder`; it reads at most 64 tokens."""
    import torch  # noqa: PLC0415
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast  # noqa: PLC0415

    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *WORDS.split(), *CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = BertTokenizerFast(vocab=vocabulary, model_max_length=64)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=labels, initializer_range=0.5,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
