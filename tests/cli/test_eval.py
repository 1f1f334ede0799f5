"""mneme eval: measures, fusion and reading sets."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.eval.sets import find_sets, fuse, measure, read_set
from app.errors import Invalid

IDS = st.lists(st.sampled_from("abcdefghijklmnop"), unique=True)


@given(ranking=IDS, gold=st.frozensets(st.sampled_from("abcdefghijklmnop"), min_size=1))
def test_measures_are_shares_and_perfect_only_for_a_perfect_ranking(ranking: list[str], gold: frozenset[str]) -> None:
    measures = measure([ranking], [gold])
    for value in (measures.ndcg_10, measures.recall_5, measures.recall_10, measures.mrr):
        assert 0 <= value <= 1 + 1e-12
    assert measures.recall_5 <= measures.recall_10
    perfect = measure([sorted(gold)], [gold])
    assert perfect.ndcg_10 == pytest.approx(1)
    assert perfect.mrr == 1


def test_measures_by_hand() -> None:
    measures = measure([["x", "a", "y", "z", "w", "b"]], [frozenset("ab")])
    assert measures.ndcg_10 == pytest.approx((1 / math.log2(3) + 1 / math.log2(7)) / (1 + 1 / math.log2(3)))
    assert (measures.recall_5, measures.recall_10, measures.mrr) == (0.5, 1.0, 0.5)


def test_fusion_prefers_what_both_rankings_have() -> None:
    assert fuse([["a", "b", "c"], ["d", "b", "e"]])[0] == "b"
    assert fuse([[], ["a"]]) == ["a"]


def write_set(folder: Path, corpus: list[dict[str, object]], queries: list[dict[str, object]]) -> Path:
    folder.mkdir(parents=True)
    for name, rows in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        (folder / name).write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
    return folder


QUERY: dict[str, object] = {"id": "q", "user_id": "u", "query": "芒果", "gold": ["a"]}


@pytest.mark.parametrize(
    ("row", "event_at", "session_id"),
    [
        ({}, None, None),
        ({"created_at": "2023-04-27"}, "2023-04-27T00:00:00+00:00", "u/2023-04-27"),
        ({"created_at": "2023-04-27T16:04:00"}, "2023-04-27T16:04:00+00:00", "u/2023-04-27"),
        ({"created_at": "2023-04-27T16:04:00+08:00", "seq": 7}, "2023-04-27T16:04:00+08:00", "u/7"),
        ({"created_at": "2023-04-27", "session_id": "s1", "seq": 7}, "2023-04-27T00:00:00+00:00", "u/s1"),
    ],
)
def test_a_row_becomes_a_memory(
    tmp_path: Path, row: dict[str, object], event_at: str | None, session_id: str | None
) -> None:
    folder = write_set(tmp_path / "s", [{"id": "a", "user_id": "u", "content": "芒果", "kind": "x"} | row], [QUERY])
    (memory,) = read_set(folder).memories.values()
    assert (memory.get("event_at"), memory.get("session_id")) == (event_at, session_id)
    assert memory.keys() <= {"user_id", "content", "event_at", "session_id", "importance"}


def test_absent_and_other_folders_are_skipped(tmp_path: Path) -> None:
    row: dict[str, object] = {"id": "a", "user_id": "u", "content": "芒果"}
    write_set(tmp_path / "zz_new", [row], [QUERY])
    write_set(tmp_path / "locomo", [row], [QUERY])
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "pairs.jsonl").write_text("{}\n")
    assert [path.name for path in find_sets(tmp_path)] == ["locomo", "zz_new"]
    assert [path.name for path in find_sets(tmp_path, ["zz_new"])] == ["zz_new"]
    assert find_sets(tmp_path / "locomo") == [tmp_path / "locomo"]
    with pytest.raises(Invalid):
        find_sets(tmp_path / "pairs")


def test_few_queries_are_spread_over_all(tmp_path: Path) -> None:
    queries = [QUERY | {"id": str(n), "user_id": f"u{n}"} for n in range(10)]
    folder = write_set(tmp_path / "s", [{"id": "a", "user_id": "u", "content": "芒果"}], queries)
    assert [question.user_id for question in read_set(folder, 4).questions] == ["u0", "u3", "u6", "u9"]
