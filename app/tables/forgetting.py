"""The tables of forgetting: what was archived, by which rule and run; what must not be; who was erased; what gains.

Invariant: none of them holds text of a memory. Erasures outlive their subjects, so that a restored backup can repeat
them.
"""

from sqlalchemy import CheckConstraint, Column, DateTime, Index, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from app.tables.base import (
    memory_column,
    metadata,
    of_memory,
    of_subject,
    one_of,
    subject_column,
    tenant_column,
    text_column,
    time_column,
)

# An archived memory's way back: what it was, and who or which rule in which run archived it.
memory_archive = Table(
    "memory_archive",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    text_column("was"),
    time_column("deprecated_at", nullable=True),
    text_column("rule"),
    Column("run_id", Uuid, nullable=True),
    time_column("archived_at"),
    of_memory(),
    one_of("was", ("active", "deprecated", "duplicate", "quarantined")),
    CheckConstraint("(was = 'deprecated') = (deprecated_at IS NOT NULL)", name="deprecated"),
    Index("memory_archive_due_idx", "tenant_id", "archived_at", "memory_id"),
    Index("memory_archive_run_idx", "tenant_id", "run_id", "memory_id", postgresql_where=text("run_id IS NOT NULL")),
)

# Of one memory, or (memory_id null) of all that a subject has and will have.
legal_holds = Table(
    "legal_holds",
    metadata,
    tenant_column(),
    subject_column(),
    Column("hold_id", Uuid, primary_key=True),
    Column("memory_id", Uuid, nullable=True),
    text_column("reason"),
    text_column("actor"),
    time_column("created_at"),
    of_subject(),
    of_memory(),
)

erasures = Table(
    "erasures",
    metadata,
    tenant_column(),
    subject_column(),
    Column("erasure_id", Uuid, primary_key=True),
    text_column("actor"),
    Column("counts", JSONB, nullable=False),
    time_column("created_at"),
    time_column("cleared_at", nullable=True),  # since when nothing of the subject lies in the archive of objects
    Index("erasures_open_idx", "tenant_id", "subject_id", postgresql_where=text("cleared_at IS NULL")),
)

# Memories hit again and again, noted with the hits. No foreign key: its lock on the memory would wait for whoever
# deletes one, who waits for the counters that the same statement holds.
reinforcement_queue = Table(
    "reinforcement_queue",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    time_column("created_at"),
)

# When memories of a kind were last found for a subject: what was not hit then has no row of hits any more.
kind_searches = Table(
    "kind_searches",
    metadata,
    tenant_column(),
    subject_column(),
    Column("kind", Text, primary_key=True),
    time_column("searched_at"),
    of_subject(),
    postgresql_with={"fillfactor": "50"},
)

# What the running workers do, as they said last.
jobs = Table(
    "jobs",
    metadata,
    Column("job", Text, primary_key=True),
    text_column("meaning"),
    text_column("schedule"),
    time_column("next_at", nullable=True),
    Column("options", JSONB, nullable=False),
    text_column("worker"),
    Column("seen_at", DateTime(timezone=True), nullable=False),
)
