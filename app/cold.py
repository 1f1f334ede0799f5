"""Cold memories: what nobody used for long keeps its text and its vector's signs, and is made whole when it is used.

Invariant: a cold memory has a run in `cooled_by`, no vector and no keywords; only the worker that makes its vector anew
ends that. A tier says nothing about what holds: cold or warm, a memory is active, overruled or archived like any other.
"""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from app.database import Transaction, sql


async def wake(transaction: Transaction, tenant_id: UUID, memories: Collection[UUID], *, now: datetime) -> int:
    """Queue those of a tenant's memories that are cold for their vector, as used now; returns how many were queued."""
    return await transaction.execute(_WAKE, tenant_id=tenant_id, memories=list(memories), now=now)


_WAKE = sql("""
    WITH woken AS (
        SELECT m.tenant_id, m.subject_id, m.memory_id FROM memories m
        WHERE m.tenant_id = :tenant_id AND m.memory_id = ANY (cast(:memories AS uuid[]))
          AND m.cooled_by IS NOT NULL AND m.status = 'active'
    ), used AS (
        UPDATE memory_usage u SET last_accessed_at = greatest(u.last_accessed_at, cast(:now AS timestamptz))
        FROM woken w
        WHERE u.tenant_id = w.tenant_id AND u.subject_id = w.subject_id AND u.memory_id = w.memory_id
    )
    INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
    SELECT tenant_id, subject_id, memory_id, cast(:now AS timestamptz), cast(:now AS timestamptz) FROM woken
    ON CONFLICT DO NOTHING
""")
