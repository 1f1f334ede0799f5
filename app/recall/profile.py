"""What is worth knowing of a subject without a question: index scans that end early, so no model is asked.

Invariant: a read sees what the last commit left, and only active memories that hold now and that the agent may see.
"""

from collections.abc import Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from app.database import Transaction, sql
from app.memory import MEMORY_ALIVE, MEMORY_COLUMNS, MEMORY_SOURCE, as_json

PROFILE_ROWS: Final = 100
SESSION_ROWS: Final = 50
HISTORY_ROWS: Final = 20
HISTORY_SPAN: Final = 500
"""Tasks and history are looked for among so many latest memories, however many a subject has."""

# Of the shared subject (user_id null) the id is the tenant's.
_SUBJECT = """
    CASE WHEN cast(:user_id AS text) IS NULL THEN cast(:tenant_id AS uuid)
    ELSE (SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id) END
"""
_SELECT = f"""
    SELECT {MEMORY_COLUMNS} FROM {MEMORY_SOURCE}
    WHERE m.tenant_id = :tenant_id AND m.subject_id = {_SUBJECT} AND m.status = 'active'
      AND m.cooled_by IS NULL AND {MEMORY_ALIVE}
      AND (cast(:agent_id AS text) IS NULL OR m.agent_id IS NULL OR m.agent_id = :agent_id)
"""
# The span first, as a query of its own: else the planner reads the whole subject for a kind that is rare in it.
_HISTORY = f"""
    {_SELECT} AND m.memory_id = ANY (ARRAY(
        SELECT latest.memory_id FROM (
            SELECT memory_id, kind FROM memories
            WHERE tenant_id = :tenant_id AND subject_id = {_SUBJECT} AND status = 'active' AND cooled_by IS NULL
            ORDER BY memory_id DESC LIMIT {HISTORY_SPAN}
        ) AS latest
        WHERE (latest.kind = 'task_state') = {{tasks}}
    ))
    ORDER BY m.memory_id DESC LIMIT {HISTORY_ROWS}
"""
READS = MappingProxyType(
    {
        # One row more than is shown, to know whether there are more. The order is that of memories_profile_idx.
        "profile": sql(f"""
            {_SELECT} ORDER BY m.pinned DESC, (m.key IS NOT NULL) DESC, m.importance DESC, m.memory_id DESC
            LIMIT {PROFILE_ROWS + 1}
        """),
        "session": sql(f"{_SELECT} AND m.session_id = :session_id ORDER BY m.memory_id DESC LIMIT {SESSION_ROWS}"),
        "tasks": sql(_HISTORY.format(tasks="true")),
        "recent": sql(_HISTORY.format(tasks="false")),
    }
)
"""`profile`: pinned, then with a key, then the most important; the others, latest first. Named as in block.PARTS."""


async def read(
    transaction: Transaction,
    parts: Sequence[str],
    *,
    tenant_id: UUID,
    user_id: str | None,
    agent_id: str | None,
    session_id: str | None,
    now: datetime,
) -> dict[str, list[dict[str, Any]]]:
    """The memories of some of READS by name, in their JSON shape; of an unknown subject, none.

    Each order is that of an index, which an `ordered` transaction takes.
    """
    found = {}
    for part in parts:
        rows = await transaction.fetch(
            READS[part], tenant_id=tenant_id, user_id=user_id, agent_id=agent_id, session_id=session_id, now=now
        )
        found[part] = [as_json(row) for row in rows]
    return found
