"""mneme eval-dedup and eval-conflict: pairs of our own on disk, the verdicts, and what a missed limit does."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import root
from app.cli.eval.judgement import LEAST_RECALL

SAME = [
    ("我在成都上班", "我在成都工作呢"),
    ("Emma is allergic to pollen", "Emma has a pollen allergy"),
    ("我今年三岁", "我今年3岁"),
]
DIFFERENT = [
    ("我住在上海", "我住在杭州"),
    ("Amy eats meat", "Amy eats fish"),
    ("Deadline is 15 May", "Deadline is 16 May"),
]
CONFLICTING = [("我住在上海", "我搬到杭州了"), ("I smoke", "I quit smoking")]
AGREEING = [("我养了一只猫", "我不再喝咖啡了"), ("Dana works at Acme", "Dana also runs the payroll committee")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MNEME_EMBED__PROVIDER", "hashing")
    monkeypatch.setenv("MNEME_REMEMBER__DUPLICATE_SIMILARITY", "0.1")
    sets: dict[str, Sequence[tuple[str, str, int | str]]] = {
        "mine": [(*pair, 1) for pair in SAME] + [(*pair, 0) for pair in DIFFERENT],
        "nli": [(*pair, "contradiction") for pair in CONFLICTING] + [(*pair, "neutral") for pair in AGREEING],
    }
    for name, rows in sets.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps({"a": a, "b": b, "label": label}) for a, b, label in rows]
        (tmp_path / name / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_duplicates_by_set(folder: Path) -> None:
    made = CliRunner().invoke(root.app, ["eval-dedup", str(folder), "--json"])
    assert made.exit_code == 0, made.output
    [figures] = json.loads(made.stdout)["sets"]
    assert (figures["set"], figures["pairs"]) == ("mine", 6)
    assert (figures["recall"], figures["false_merges"]) == (1.0, 0.0)


def test_conflicts_count_both_orders(folder: Path) -> None:
    made = CliRunner().invoke(root.app, ["eval-conflict", str(folder)])
    assert made.exit_code == 0, made.output
    made = CliRunner().invoke(root.app, ["eval-conflict", str(folder), "--json"])
    [figures] = json.loads(made.stdout)["sets"]
    assert (figures["set"], figures["judged"]) == ("nli", 8)
    assert (figures["recall"], figures["false_retirements"]) == (0.5, 0.0)  # the older text overrules nothing


def test_a_missed_limit_ends_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEAST_RECALL, "mine", 1.1)
    assert CliRunner().invoke(root.app, ["eval-dedup", str(folder)]).exit_code == 1


def test_a_folder_without_pairs_is_refused(folder: Path) -> None:
    made = CliRunner().invoke(root.app, ["eval-dedup", str(folder), "--sets", "nli"])
    assert made.exit_code != 0
    assert "no set of pairs" in str(made.exception)
