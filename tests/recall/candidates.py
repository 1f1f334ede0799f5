"""Candidates as the SELECT would measure them, built from texts."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.language import grams, keyword_query, words
from app.recall.query import Candidates, Query
from app.recall.ranking import Ranked, judge
from app.recall.signals import Circumstances

NOW = 1_796_000_000.0
HERE = Circumstances(window=(0.75, 0.92), now=NOW)
TENANT = UUID("00000000-0000-7000-8000-000000000001")


def asking(text: str, **fields: object) -> Query:
    return Query(tenant_id=TENANT, user_id="u", text=text, **fields)  # type: ignore[arg-type]


def rank(candidates: Candidates, query: Query, circumstances: Circumstances, *, explain: bool = True) -> list[Ranked]:
    """The first top_k of the verdict."""
    judged = judge(candidates, query, circumstances)
    return judged.ranked(judged.order[: query.top_k].tolist(), explain=explain)


def candidates_for(texts: Sequence[str], asked: str, cosine: NDArray[np.float64] | None = None) -> Candidates:
    query = keyword_query(asked)
    count = len(texts)
    frequency = [Counter(words(text)) for text in texts]
    present = [set(grams(text)) for text in texts]
    return Candidates(
        ids=[UUID(int=n) for n in range(count)],
        cosine=np.full(count, 0.8) if cosine is None else cosine,
        frequency=np.array(
            [
                [*(min(3, f[w]) for w in query.words), *(g in p for g in query.grams)]
                for f, p in zip(frequency, present, strict=True)
            ],
            dtype=np.float64,
        ).reshape(count, len(query.words) + len(query.grams)),
        words=len(query.words),
        word_count=np.array([f.total() for f in frequency], dtype=np.float64),
        created_at=np.full(count, NOW),
        happened_at=np.full(count, NOW),
        importance=np.full(count, 3.0),
        before=np.full(count, count),
        matching=np.ones(count, dtype=np.bool_),
    )  # fmt: skip
