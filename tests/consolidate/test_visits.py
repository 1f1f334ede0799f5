"""A night costs what there is to do: subjects without work get their marks a page at a time, and none is lost."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from app.consolidate import deprecate_overruled, merge_duplicates, summarise_old
from app.consolidate.visits import Mark, Visit, mark, visits
from app.database import Scope, Transaction, sql
from app.errand import Errand
from app.forget import erase_subject
from app.idempotency import Answer
from app.remember import NewMemory
from tests.consolidate.conftest import NOON, Store, days_ago

JOBS = {"dedup": merge_duplicates, "deprecate": deprecate_overruled, "summarise": summarise_old}
WORDS = ("I like green tea", "我喜欢喝绿茶")


async def write(store: Store, users: Sequence[str]) -> None:
    """One unremarkable memory of each, in one request, half of them in Chinese."""
    items = [
        NewMemory(user_id=user, content=WORDS[number % 2], kind="user_preference") for number, user in enumerate(users)
    ]
    await store.rememberer.remember(store.caller, items, lambda _: Answer(207, b""), now=days_ago(1))


async def marks(store: Store, job: str) -> dict[str | None, bool]:
    """Whether a job has seen all there is, by user; who has no mark is left out."""
    async with store.database.read(store.tenant_id) as transaction:
        rows = await transaction.fetch(_MARKS, tenant=store.tenant_id, job=job)
    return {row["user_id"]: row["seen"] for row in rows}


@pytest.mark.parametrize("job", JOBS)
async def test_a_page_costs_the_same_however_many_changed_on_it_without_work(
    store: Store, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    opened: list[Scope] = []
    entered = Scope.__aenter__

    async def entering(scope: Scope) -> Transaction:
        opened.append(scope)
        return await entered(scope)

    async def cost() -> int:
        opened.clear()
        await store.run(JOBS[job])
        return len(opened)

    monkeypatch.setattr(Scope, "__aenter__", entering)
    few, many = [f"few {n}" for n in range(2)], [f"many {n}" for n in range(40)]
    await write(store, few)
    first = await cost()
    assert await marks(store, job) == dict.fromkeys(few, True)
    await write(store, many)
    assert await cost() == first
    assert await marks(store, job) == dict.fromkeys([*few, *many], True)
    assert await cost() < first, "nothing has changed"


@pytest.mark.parametrize("job", JOBS)
async def test_a_dry_run_moves_no_mark(store: Store, job: str) -> None:
    await write(store, ["lin", "wang"])
    await store.run(JOBS[job], dry_run=True)
    assert await marks(store, job) == {}


async def on_page(store: Store, meanwhile: Store | None = None, *, busy: str, budget: float = 1e6) -> list[Visit]:
    """The visits of a job that finds work with one user; `meanwhile` somebody writes to all of the page."""
    errand = Errand(NOON, tenant_id=store.tenant_id, budget_seconds=budget)

    async def glance(page: Sequence[Visit]) -> list[Mark]:
        if meanwhile is not None:
            for visit in page:
                await meanwhile.add("Something else happened 又发生了什么", user_id=visit.user_id)
        return [Mark(visit) for visit in page if visit.user_id != busy]

    return [visit async for visit in visits(store.database, errand, "any", glance)]


async def test_only_those_with_work_are_visited(store: Store) -> None:
    users = [f"user {n}" for n in range(130)]  # more than a page
    await write(store, users)
    assert [visit.user_id for visit in await on_page(store, busy="user 77")] == ["user 77"]
    assert await marks(store, "any") == dict.fromkeys(set(users) - {"user 77"}, True), "whose mark its visit moves"
    assert [visit.user_id for visit in await on_page(store, busy="user 77")] == ["user 77"], "until it is done"


async def test_what_is_written_between_page_and_mark_is_seen_by_the_next_run(store: Store) -> None:
    await write(store, ["lin", "wang"])
    await on_page(store, store, busy="nobody")
    assert await marks(store, "any") == {"lin": False, "wang": False}
    assert [visit.user_id for visit in await on_page(store, busy="wang")] == ["wang"]
    assert await marks(store, "any") == {"lin": True, "wang": False}


async def test_who_was_erased_between_page_and_mark_gets_none_and_takes_no_other_along(store: Store) -> None:
    await write(store, ["lin", "wang"])
    errand = Errand(NOON, tenant_id=store.tenant_id)

    async def glance(page: Sequence[Visit]) -> list[Mark]:
        await erase_subject(store.database, store.caller, "lin", now=NOON)
        return [Mark(visit) for visit in page]

    assert [visit async for visit in visits(store.database, errand, "any", glance)] == []
    assert await marks(store, "any") == {"wang": True}


async def test_an_errand_without_time_visits_nobody_and_loses_nobody(store: Store) -> None:
    await write(store, ["lin", "wang"])
    assert await on_page(store, busy="lin", budget=0) == []
    assert "lin" not in await marks(store, "any")
    assert [visit.user_id for visit in await on_page(store, busy="lin")] == ["lin"]


async def test_a_mark_says_how_far_and_when_to_come_again(store: Store) -> None:
    await write(store, ["lin"])
    [visit] = await on_page(store, busy="lin")
    due = NOON + timedelta(days=1)
    await mark(store.database, "any", [Mark(visit, days_ago(3), visit.subject_id, whole=False, due_at=due)])
    [again] = await on_page(store, busy="lin")
    assert (again.through, again.through_id) == (days_ago(3), visit.subject_id)
    await mark(store.database, "any", [Mark(again, due_at=due)])
    assert await on_page(store, busy="lin") == []
    later = Errand(due, tenant_id=store.tenant_id)

    async def nothing(_: Sequence[Visit]) -> list[Mark]:
        return []

    assert [one.subject_id async for one in visits(store.database, later, "any", nothing)] == [visit.subject_id]


EDITS = {  # the night's judgement of an edited memory beside an older one: who changes
    "overrules": ("I live in Boston", "I moved to Denver", {}, ["old"], "supersedes"),
    "推翻": ("我住在上海", "我搬到杭州了", {}, ["old"], "supersedes"),
    "is for a person": ("I live in Boston", "I moved to Denver", {"pinned": True}, [], "review"),
    "要人决定": ("我住在上海", "我搬到杭州了", {"pinned": True}, [], "review"),
    "says the same": ("Emma has a black cat", "Emma has a cat", {}, [], "candidate"),
    "不相干": ("我住在上海", "今天下雨了", {}, [], None),
}


async def test_a_glance_hides_no_work(store: Store) -> None:
    """All of a page at once: what a visit would do to each of them by itself is done."""
    old: dict[str, UUID] = {}
    new: dict[str, UUID] = {}
    for user, (before, after, fields, *_) in EDITS.items():
        old[user] = await store.add(before, at=days_ago(9), user_id=user, **fields)
        new[user] = await store.add("placeholder of no meaning", at=days_ago(2), user_id=user)
        await store.shelf.amend(store.caller, new[user], {"content": after}, now=days_ago(1))
    told = (await store.run(deprecate_overruled))[1]
    changed = [user for user, case in EDITS.items() if case[3]]
    assert sorted(told) == sorted((old[user], "active", "deprecated") for user in changed)
    assert await store.links() == {
        (new[user], relation, old[user]) for user, (*_, relation) in EDITS.items() if relation is not None
    }
    assert await marks(store, "deprecate") == {user: not case[3] for user, case in EDITS.items()}, "changed by itself"


_MARKS = sql("""
    SELECT s.user_id, k.stamp IS NOT DISTINCT FROM p.stamp AS seen
    FROM consolidation_marks k
    JOIN subjects s ON s.tenant_id = k.tenant_id AND s.subject_id = k.subject_id
    JOIN subject_stamps p ON p.tenant_id = k.tenant_id AND p.subject_id = k.subject_id
    WHERE k.tenant_id = :tenant AND k.job = :job
""")
