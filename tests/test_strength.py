"""The curve and its inverse say the same, and what should lengthen a life does."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kinds import KINDS
from app.strength import FORGOTTEN, USES_MOST, forget_at, half_life, strength

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
IMPORTANCES = st.floats(1, 5)
USES = st.integers(0, 1_000_000)
KIND = st.sampled_from(list(KINDS.values()))


@given(KIND, IMPORTANCES, USES)
def test_the_stored_moment_is_the_inverse_of_the_curve(kind: object, importance: float, uses: int) -> None:
    life = half_life(KINDS[kind.name].half_life_days, importance, uses)  # type: ignore[attr-defined]
    due = forget_at(NOON, life)
    assert strength(due - NOON, life) == pytest.approx(FORGOTTEN, rel=1e-6)
    assert strength(due - NOON - timedelta(hours=1), life) > FORGOTTEN > strength(due - NOON + timedelta(hours=1), life)


@given(IMPORTANCES, IMPORTANCES, USES, USES)
def test_importance_and_use_only_ever_lengthen_a_life(one: float, other: float, few: int, many: int) -> None:
    (least, most), (few, many) = sorted((one, other)), sorted((few, many))
    assert half_life(100, least, few) <= half_life(100, most, few) <= half_life(100, most, many)
    assert half_life(100, most, many) / half_life(100, most, 0) <= USES_MOST * (1 + 1e-9)


def test_a_half_life_halves_and_nothing_is_stronger_than_new() -> None:
    life = timedelta(days=10)
    assert strength(timedelta(0), life) == 1
    assert strength(life, life) == 0.5
    assert strength(-life, life) == 1


@pytest.mark.parametrize(("importance", "factor"), [(1, 0.5), (3, 1), (5, 2)])
def test_importance_halves_and_doubles(importance: float, factor: float) -> None:
    assert half_life(60, importance, 0) == timedelta(days=60 * factor)


def test_an_unused_line_of_a_conversation_fades_in_half_a_year_and_a_fact_about_a_person_in_years() -> None:
    days = {name: (kind.forget_at(kind.default_importance, 0, NOON) - NOON).days for name, kind in KINDS.items()}
    assert 180 <= days["interaction_history"] <= 190
    assert days["profile"] > 10 * 365
    assert min(days, key=days.__getitem__) == "interaction_history"
