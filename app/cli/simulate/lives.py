"""A made-up year with known truth: who says what on which day, what is true of whom, and what is asked.

Invariant: the same seed gives the same days. What is true is known to the generator only; the store sees texts.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any, Final

from app.cli.bench import texts
from app.cli.simulate.facts import CASES, SLOTS, SMALL_TALK, THINGS, Tongue
from app.remember import NewMemory

START: Final = datetime(2025, 1, 1, 9, tzinfo=UTC)
MONTH_DAYS: Final = 30
SEARCHES_A_WRITE: Final = 0.2
SUBJECT_SKEW: Final = 0.8
"""Exponent of the Zipf law over subjects: of 1,000 the first tenth writes and asks for a little over half."""
SAYS: Final = {"line": 0.42, "fact": 0.25, "case": 0.2, "small_talk": 0.13}
"""What a write is: an event told at length, a fact about the customer, a step of a case, or nothing of weight."""
CHANGES: Final = 0.12
"""Share of the facts told again that have another value than before; the others say the same, in other words or not."""
KEYED: Final = 0.5
"""Share of slots that the writing agent names with a key."""
ASKS_ANY: Final = 0.3
"""Share of questions about any fact of a customer; the others prefer what was said lately."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about whom; the answer is what is true of `slot` that day, told last at `told_at`."""

    user_id: str
    text: str
    slot: str
    told_at: datetime


@dataclass(frozen=True, slots=True)
class Day:
    """One day: its moment, what is written and then what is asked."""

    at: datetime
    writes: list[NewMemory]
    questions: list[Question]


@dataclass(slots=True)
class _Known:
    value: str
    told_at: datetime
    key: str | None


@dataclass(slots=True)
class _Life:
    """One customer: the language, facts by slot, and open cases with the number of their last step."""

    user_id: str
    tongue: Tongue
    lines: Iterator[str]
    facts: dict[str, _Known] = field(default_factory=dict)
    cases: list[tuple[str, str, int]] = field(default_factory=list)


class Lives:
    """All customers of a simulation and the truth about them; `days()` lets them live, once."""

    def __init__(self, subjects: int, writes: int, months: int, seed: int = 0) -> None:
        self._random = Random(seed)  # noqa: S311 - the same year every run
        self._lives = [
            _Life(f"customer {number}", "zh" if number % 2 else "en", texts.memories(f"{seed} {number}"))
            for number in range(subjects)
        ]
        self._weights = list(accumulate((rank + 1) ** -SUBJECT_SKEW for rank in range(subjects)))
        self._writes, self.length = writes, months * MONTH_DAYS
        self._told: dict[tuple[str, str], tuple[str, str]] = {}  # slot and value, by user and text

    def days(self) -> Iterator[Day]:
        """Day after day; writes and questions are spread evenly over them."""
        for number in range(self.length):
            at = START + timedelta(days=number)
            count = self._share(number, self._writes)
            writes = [self._write(self._one_of_them(), at) for _ in range(count)]
            asked = self._share(number, round(self._writes * SEARCHES_A_WRITE))
            questions = [one for one in (self._question() for _ in range(asked)) if one is not None]
            yield Day(at, writes, questions)

    def meaning(self, user_id: str, content: str) -> tuple[str, str] | None:
        """Slot and value that a text of a user tells; None: it is about no slot."""
        return self._told.get((user_id, content))

    def truth(self, user_id: str, slot: str) -> str:
        """The value of a slot of which the user told, as it is now."""
        return self._lives[int(user_id.rpartition(" ")[2])].facts[slot].value

    def _share(self, number: int, total: int) -> int:
        return total * (number + 1) // self.length - total * number // self.length

    def _one_of_them(self) -> _Life:
        (life,) = self._random.choices(self._lives, cum_weights=self._weights)
        return life

    def _write(self, life: _Life, at: datetime) -> NewMemory:
        (what,) = self._random.choices(list(SAYS), weights=list(SAYS.values()))
        if what == "fact":
            return self._fact(life, at)
        if what == "case":
            return self._case(life)
        if what == "small_talk":
            text = self._random.choice(SMALL_TALK[life.tongue])
            kept: Any = self._random.choice(("filter", "filter", "expire"))
            return NewMemory(user_id=life.user_id, content=text, kind="interaction_history", if_trivial=kept)
        importance = self._random.choice((1.0, 1.5, 2.0, 2.5, 3.0))
        ends = at + timedelta(days=14) if self._random.random() < 0.05 else None
        return NewMemory(
            user_id=life.user_id, content=next(life.lines), kind="interaction_history", importance=importance,
            expires_at=ends,
        )  # fmt: skip

    def _fact(self, life: _Life, at: datetime) -> NewMemory:
        name = self._random.choice(list(SLOTS))
        slot, known = SLOTS[name], life.facts.get(name)
        wordings = slot.wordings[life.tongue]
        if known is None:
            key = f"{slot.kind}.{name}" if self._random.random() < KEYED else None
            known = life.facts[name] = _Known(self._random.choice(wordings.values), at, key)
        elif self._random.random() < CHANGES:
            known.value = self._random.choice([value for value in wordings.values if value != known.value])
        known.told_at = at
        content = self._random.choice(wordings.statements).format(v=known.value)
        self._told[life.user_id, content] = name, known.value
        return NewMemory(user_id=life.user_id, content=content, kind=slot.kind, key=known.key)

    def _case(self, life: _Life) -> NewMemory:
        if not life.cases or self._random.random() < 0.35:
            code = f"{self._random.choice('ABCDEFGH')}-{self._random.randint(1000, 99999)}"
            life.cases.append((code, self._random.choice(THINGS[life.tongue]), 0))
        code, thing, step = life.cases.pop(self._random.randrange(len(life.cases)))
        words = CASES[life.tongue]
        content = words[step].format(code=code, thing=thing, n=self._random.randint(2, 9))
        closed = step + 1 == len(words)
        if not closed:
            life.cases.append((code, thing, step + 1))
        return NewMemory(
            user_id=life.user_id, content=content, kind="task_state", tags=("closed",) if closed else (),
            metadata={"case_id": code},
        )  # fmt: skip

    def _question(self) -> Question | None:
        life = self._one_of_them()
        lately: list[tuple[datetime, str]] = []
        for name, known in life.facts.items():
            insort(lately, (known.told_at, name))
        if not lately:
            return None
        back = self._random.randrange(len(lately)) if self._random.random() < ASKS_ANY else self._recent(len(lately))
        name = lately[-1 - back][1]
        return Question(life.user_id, SLOTS[name].wordings[life.tongue].question, name, life.facts[name].told_at)

    def _recent(self, count: int) -> int:
        return min(int(self._random.expovariate(0.5)), count - 1)
