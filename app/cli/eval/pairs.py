"""Labelled pairs on disk, and what the write path makes of the second text when the first is stored.

A set is a folder with pairs.jsonl {"a", "b", "label"}; label 1 or 0 (the same or not), or the name of an NLI class.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from app.embed import Embedder
from app.errors import Invalid
from app.remember import DEFAULT_KIND, NewMemory, RememberConfig, judge_pair

PAIRS: Final = "pairs.jsonl"
CONTRADICTION: Final = "contradiction"
TEXTS_AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and their label."""

    left: str
    right: str
    label: int | str


@dataclass(slots=True)
class PairOutcome:
    """How many pairs of each label came to what: `same`, `candidate`, `retired` or `apart`."""

    name: str
    counts: Counter[tuple[int | str, str]] = field(default_factory=Counter)

    def share(self, what: str, *labels: int | str) -> float:
        """Of the pairs with these labels, the share that came to this; 0 if there are none."""
        total = sum(count for (label, _), count in self.counts.items() if label in labels)
        return sum(self.counts[label, what] for label in labels) / total if total else 0.0

    def labels(self) -> set[int | str]:
        return {label for label, _ in self.counts}


def find_pairs(folder: Path, names: Sequence[str], *, classes: bool) -> Iterator[tuple[str, list[Pair]]]:
    """The sets in a folder (or the folder itself) whose labels are NLI classes, or 1 and 0; raises Invalid if none."""
    here = [folder] if (folder / PAIRS).is_file() else sorted(path.parent for path in folder.glob(f"*/{PAIRS}"))
    found = False
    for path in here:
        if names and path.name not in names:
            continue
        pairs = [_pair(orjson.loads(line)) for line in (path / PAIRS).read_bytes().split(b"\n") if line.strip()]
        if pairs and all(isinstance(pair.label, str) == classes for pair in pairs):
            found = True
            yield path.name, pairs
    if not found:
        raise Invalid(f"no set of pairs in {folder}: a set is a folder with {PAIRS}")


def _pair(row: dict[str, Any]) -> Pair:
    return Pair(row["a"], row["b"], row["label"])


async def measure_pairs(
    name: str,
    pairs: Sequence[Pair],
    embedder: Embedder,
    config: RememberConfig,
    now: datetime,
    advance: Callable[[int], None] = lambda _: None,
    *,
    both_orders: bool = False,
) -> PairOutcome:
    """Judge each pair by the functions of the write path, with the vectors of the real embedder."""
    texts = sorted({text for pair in pairs for text in (pair.left, pair.right)}, key=len)
    number = {text: place for place, text in enumerate(texts)}
    vectors = np.empty((len(texts), embedder.spec.dimension), np.float32)
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        for place, windows in enumerate(await embedder.embed_documents(part), start):
            vectors[place] = windows[0] if len(windows) == 1 else 0.0  # a long text is no neighbour
        advance(len(part))
    outcome = PairOutcome(name)
    for pair in pairs:
        cosine = float(vectors[number[pair.left]] @ vectors[number[pair.right]])
        orders = [(pair.left, pair.right), (pair.right, pair.left)] if both_orders else [(pair.left, pair.right)]
        for old, new in orders:
            draft = judge_pair(_memory(old), _memory(new), cosine, embedder.spec.pair_window, config, now=now)
            what = "same" if draft.twin_id is not None else "retired" if draft.retired else "apart"
            if what == "apart" and draft.links:
                what = "candidate"
            outcome.counts[pair.label, what] += 1
    return outcome


def _memory(text: str) -> NewMemory:
    return NewMemory(user_id="pair", content=text, kind=DEFAULT_KIND)
