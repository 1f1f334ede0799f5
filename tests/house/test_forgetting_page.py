"""docs/forgetting.md says of every rule and kind what the program does."""

import re
from pathlib import Path

import pytest

from app.forget import RULES, Rule
from app.kinds import KINDS

PAGE = (Path(__file__).parents[2] / "docs/forgetting.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]*)\|$", PAGE, re.MULTILINE))


def test_the_rules_stand_there_in_their_order() -> None:
    assert [name for name in ROWS if name in RULES] == list(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_has_its_numbers_there(rule: Rule) -> None:
    said = {name: float(value) for name, value in re.findall(r"`(\w+)` ([\d.]+)", ROWS[rule.name])}
    assert said == {name: number.default for name, number in rule.numbers.items()}
    assert set(re.findall(r"\{(\w+):g\}", rule.reason)) <= set(rule.numbers)


def test_the_half_lives_are_those_of_the_kinds() -> None:
    (sentence,) = re.findall(r"Half-life by kind.*?:(.*?)\n- ", PAGE, re.DOTALL)
    said: dict[str, float] = {}
    for days, names in re.findall(r"(\d+)(?: days)? for ((?:`\w+`(?:, | and )?)+)", sentence):
        said |= dict.fromkeys(re.findall(r"`(\w+)`", names), float(days))
    assert said == {name: kind.half_life_days for name, kind in KINDS.items()}
