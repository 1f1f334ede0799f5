"""The rules walk along their indexes, oldest first, whatever the tenant's size, also behind row security."""

import pytest

from app.database import Statement
from app.forget import RULES
from app.forget.archive import _DUE
from app.forget.sweep import _BEFORE_ALL, ALONG_THE_INDEX, _pointed_at
from tests.forget.conftest import NOON, Store

INDEXES = {
    "trivial": "memories_idle_idx",
    "expired": "memories_expires_idx",
    "task_closed": "memories_task_idx",
    "superseded": "memories_deprecated_idx",
    "duplicate": "memories_duplicate_idx",
    "stale": "memories_idle_idx",
    "faded": "memory_usage_forget_idx",
}


def test_every_rule_has_its_index() -> None:
    """But the one that looks at crowded subjects only."""
    assert set(RULES) - set(INDEXES) == {"over_capacity"}


@pytest.mark.parametrize(("name", "index"), INDEXES.items())
async def test_a_rule_begins_where_it_stopped_and_sorts_nothing(store: Store, name: str, index: str) -> None:
    rule = RULES[name]
    values = rule.values({key: number.default for key, number in rule.numbers.items()}, NOON)
    plan = await explain(
        store, _pointed_at(name, of_subject=False), subject_id=None, after_due=_BEFORE_ALL[0], after_id=_BEFORE_ALL[1],
        limit=10, **values,
    )  # fmt: skip
    scan = plan.index(next(line for line in plan if f"using {index}" in line))
    condition = plan[scan + 1]
    assert "Index Cond" in condition
    assert "tenant_id" in condition
    assert ") > ROW(" in condition, "it begins after the last page"
    assert " < '2026" in condition or " <= '2026" in condition, "it ends at those that are due"
    assert not any("Sort" in line for line in plan)


async def test_the_purge_walks_along_its_index(store: Store) -> None:
    plan = await explain(store, _DUE, before=NOON, after_at=_BEFORE_ALL[0], after_id=_BEFORE_ALL[1], limit=10)
    assert any("memory_archive_due_idx" in line for line in plan)
    assert not any("Sort" in line for line in plan)


async def explain(store: Store, statement: Statement, **values: object) -> list[str]:
    explained = Statement("SELECT 1")
    explained.sql, explained.names = f"EXPLAIN (COSTS off) {statement.sql}", statement.names
    async with store.database.read(store.tenant_id) as transaction:
        await transaction.execute(ALONG_THE_INDEX)
        rows = await transaction.fetch(explained, tenant_id=store.tenant_id, **values)
    return [str(row[0]) for row in rows]
