"""The tables of consolidation: what a run merged, deprecated or summarised, and how far each subject was looked at.

Invariant: none of them holds text of a memory.
"""

from sqlalchemy import BigInteger, Column, Index, Table, Text, Uuid
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

# The way back: what became of a memory in a run, by which other memory, and what that one was before.
consolidations = Table(
    "consolidations",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("run_id", Uuid, primary_key=True),
    text_column("became"),
    Column("other_id", Uuid, nullable=True),
    Column("detail", JSONB, nullable=False),
    time_column("created_at"),
    of_memory(),
    one_of("became", ("duplicate", "deprecated", "summary")),
    Index("consolidations_run_idx", "tenant_id", "run_id", "memory_id"),
)

# A subject whose stamp is the mark's has not changed since a job looked at all of it; until then `through` says how far
# it came, and `due_at` when mere time will have made something of it old enough.
consolidation_marks = Table(
    "consolidation_marks",
    metadata,
    tenant_column(),
    subject_column(),
    Column("job", Text, primary_key=True),
    Column("stamp", BigInteger, nullable=True),
    time_column("through", nullable=True),
    Column("through_id", Uuid, nullable=True),
    time_column("due_at", nullable=True),
    of_subject(),
    postgresql_with={"fillfactor": "80"},
)
