"""What no job changes by itself: what is pinned, under a legal hold, or was brought back or kept by somebody."""

from typing import Final

from app.forget import HELD

RESTORED: Final = """(
    SELECT e.event_id FROM memory_events e
    WHERE e.tenant_id = m.tenant_id AND e.subject_id = m.subject_id AND e.memory_id = m.memory_id
      AND e.action IN ('restored', 'kept')
    LIMIT 1
) IS NOT NULL"""
"""The LIMIT keeps the planner from hashing all events of everybody, which it may do with EXISTS."""
GUARDED: Final = f"(m.pinned OR {HELD} OR {RESTORED})"
"""Of memory m. What somebody brought back would only be taken away again, by the same rule, the next night."""
