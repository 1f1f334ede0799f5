"""Every table of Mneme, as SQLAlchemy Core metadata: the life of a memory in one file.

A write puts a row into memories (text, vector, keywords), memory_usage and memory_events in one transaction;
memory_links says what replaced what, memory_versions keeps replaced texts, embedding_queue what waits for a vector.
Invariant: keys are tenant-first and subject-second, so that either column can become the partition column.
"""

from typing import Any

from pgvector.sqlalchemy import HALFVEC, SPARSEVEC
from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.wire import KEYWORD_DIMENSIONS

DEFAULT_TENANT = "00000000-0000-7000-8000-000000000001"
STATUSES = ("active", "deprecated", "duplicate", "quarantined", "archived")
CONTENT_TYPES = ("text", "image", "audio", "video")
RELATIONS = ("duplicate_of", "supersedes")

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _tenant() -> Column[Any]:
    return Column("tenant_id", Uuid, primary_key=True)


def _subject() -> Column[Any]:
    return Column("subject_id", Uuid, primary_key=True)


def _memory() -> Column[Any]:
    return Column("memory_id", Uuid, primary_key=True)


def _time(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, Text, nullable=nullable)


def _of_subject() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "subject_id"], ["subjects.tenant_id", "subjects.subject_id"], ondelete="CASCADE"
    )


def _of_memory(column: str = "memory_id") -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "subject_id", column],
        ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
        ondelete="CASCADE",
    )


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=column)


tenants = Table("tenants", metadata, _tenant(), _text("name"), _time("created_at"), UniqueConstraint("name"))

api_keys = Table(
    "api_keys",
    metadata,
    _tenant(),
    Column("key_id", Uuid, primary_key=True),
    _text("name"),
    Column("secret_hmac", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    _text("agent_id", nullable=True),
    _text("user_id", nullable=True),
    _time("created_at"),
    _time("expires_at", nullable=True),
    _time("revoked_at", nullable=True),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], ondelete="CASCADE"),
)

# The shared subject of a tenant (user_id null) has the tenant's own id, so that no statement needs to look it up.
subjects = Table(
    "subjects",
    metadata,
    _tenant(),
    _subject(),
    _text("user_id", nullable=True),
    # A job marks a subject that outgrew the exact scan (ann: new rows go into index and postings, too) and says when
    # all of its rows are there (ann_ready: search may use them); the counts are those of that moment.
    Column("ann", Boolean, nullable=False, server_default=text("false")),
    Column("ann_ready", Boolean, nullable=False, server_default=text("false")),
    Column("memory_count", BigInteger, nullable=False, server_default=text("0")),
    Column("mean_word_count", REAL, nullable=False, server_default=text("0")),
    _time("created_at"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], ondelete="CASCADE"),
    UniqueConstraint("tenant_id", "user_id", postgresql_nulls_not_distinct=True),
    Index("subjects_large_idx", "tenant_id", postgresql_where=text("ann")),
)

memories = Table(
    "memories",
    metadata,
    _tenant(),
    _subject(),
    _memory(),
    _text("agent_id", nullable=True),
    _text("status"),
    _text("content"),
    _text("content_type"),
    _text("kind"),
    _text("key", nullable=True),
    Column("importance", REAL, nullable=False),
    Column("tags", ARRAY(Text), nullable=False),
    Column("metadata", JSONB, nullable=False),
    _text("source", nullable=True),
    _text("session_id", nullable=True),
    Column("pinned", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    _time("event_at", nullable=True),
    _time("valid_from", nullable=True),
    _time("valid_to", nullable=True),
    _time("expires_at", nullable=True),
    _time("deprecated_at", nullable=True),
    Column("content_hash", LargeBinary, nullable=False),
    Column("keywords", SPARSEVEC(KEYWORD_DIMENSIONS), nullable=False),
    Column("word_count", Integer, nullable=False),
    Column("tokenizer_version", SmallInteger, nullable=False),
    Column("embedding", HALFVEC, nullable=True),
    Column("generation_id", SmallInteger, nullable=True),
    Column("window_count", SmallInteger, nullable=False, server_default=text("1")),
    Column("ann", Boolean, nullable=False, server_default=text("false")),
    ForeignKeyConstraint(
        ["tenant_id", "subject_id"], ["subjects.tenant_id", "subjects.subject_id"], ondelete="CASCADE"
    ),
    ForeignKeyConstraint(["generation_id"], ["embedding_generations.generation_id"]),
    _one_of("status", STATUSES),
    _one_of("content_type", CONTENT_TYPES),
    CheckConstraint("importance BETWEEN 1 AND 5", name="importance"),
    CheckConstraint("(embedding IS NULL) = (generation_id IS NULL)", name="generation"),
    CheckConstraint("(status = 'deprecated') = (deprecated_at IS NOT NULL)", name="deprecated"),
    # Exact duplicates and the key slot: the last word when two processes write at once.
    Index(
        "memories_content_key",
        "tenant_id",
        "subject_id",
        "content_hash",
        "agent_id",
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=text("status = 'active'"),
    ),
    Index(
        "memories_slot_key",
        "tenant_id",
        "subject_id",
        "key",
        "agent_id",
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=text("status = 'active' AND key IS NOT NULL"),
    ),
    Index("memories_subject_status_idx", "tenant_id", "subject_id", "status"),
    Index("memories_id_idx", "tenant_id", "memory_id"),
    # The profile: pinned, keyed and most important memories first, read backwards and as fresh as the last commit.
    Index(
        "memories_profile_idx",
        "tenant_id",
        "subject_id",
        "pinned",
        text("(key IS NOT NULL)"),
        "importance",
        "memory_id",
        postgresql_where=text("status = 'active'"),
    ),
    Index(
        "memories_session_idx",
        "tenant_id",
        "subject_id",
        "session_id",
        "memory_id",
        postgresql_where=text("status = 'active' AND session_id IS NOT NULL"),
    ),
    # Rows of up to a page stay whole: a vector or keyword weights moved out of line would cost every search a detour.
    postgresql_with={"toast_tuple_target": "8160"},
)

# Words of the memories of large subjects. A GIN index on an array would be smaller, but under row-level security its
# operators are no index conditions (they are not leakproof); equality of uuid and int is.
memory_terms = Table(
    "memory_terms",
    metadata,
    _tenant(),
    _subject(),
    Column("term_id", Integer, primary_key=True),
    _memory(),
    _of_memory(),
    Index("memory_terms_memory_idx", "tenant_id", "subject_id", "memory_id"),
)

# Vectors of the further windows of a text longer than the model's limit; the first is memories.embedding.
memory_windows = Table(
    "memory_windows",
    metadata,
    _tenant(),
    _subject(),
    _memory(),
    Column("window_number", SmallInteger, primary_key=True),
    Column("embedding", HALFVEC, nullable=False),
    _of_memory(),
    CheckConstraint("window_number >= 2", name="window_number"),
)

# Hot counters, apart from memories: an update here touches no vector and no keyword index.
memory_usage = Table(
    "memory_usage",
    metadata,
    _tenant(),
    _subject(),
    _memory(),
    Column("access_count", BigInteger, nullable=False),
    Column("hit_streak", Integer, nullable=False),
    _time("last_accessed_at", nullable=True),
    _of_memory(),
    postgresql_with={"fillfactor": "80"},
)

memory_links = Table(
    "memory_links",
    metadata,
    _tenant(),
    _subject(),
    _memory(),
    Column("relation", Text, primary_key=True),
    Column("other_id", Uuid, primary_key=True),
    _time("created_at"),
    _of_memory(),
    _of_memory("other_id"),
    _one_of("relation", RELATIONS),
    Index("memory_links_other_idx", "tenant_id", "subject_id", "other_id"),
)

memory_versions = Table(
    "memory_versions",
    metadata,
    _tenant(),
    _subject(),
    _memory(),
    Column("version", Integer, primary_key=True),
    Column("snapshot", JSONB, nullable=False),
    _time("replaced_at"),
    _of_memory(),
)

# Append-only (a trigger refuses UPDATE and DELETE); holds ids and names of changed fields, never text.
memory_events = Table(
    "memory_events",
    metadata,
    _tenant(),
    _subject(),
    Column("event_id", Uuid, primary_key=True),
    Column("memory_id", Uuid, nullable=False),
    _text("action"),
    _text("actor"),
    Column("version", Integer, nullable=False),
    Column("detail", JSONB, nullable=False),
    _time("created_at"),
    Index("memory_events_memory_idx", "tenant_id", "subject_id", "memory_id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    _tenant(),
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("response", LargeBinary, nullable=False),
    _time("created_at"),
    Index("idempotency_keys_created_idx", "created_at"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], ondelete="CASCADE"),
)

embedding_queue = Table(
    "embedding_queue",
    metadata,
    _tenant(),
    _subject(),
    _memory(),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    _text("last_error", nullable=True),
    _time("due_at"),
    _time("created_at"),
    Index("embedding_queue_due_idx", "due_at"),
    _of_memory(),
)

operations = Table(
    "operations",
    metadata,
    _tenant(),
    Column("operation_id", Uuid, primary_key=True),
    Column("subject_id", Uuid, nullable=True),
    _text("kind"),
    _text("state"),
    Column("request", JSONB, nullable=False),
    Column("result", JSONB, nullable=True),
    _text("error", nullable=True),
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    Column("total", BigInteger, nullable=True),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    _time("due_at"),
    _time("created_at"),
    _time("updated_at"),
    _one_of("state", ("queued", "running", "succeeded", "failed", "cancelled")),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], ondelete="CASCADE"),
    Index("operations_due_idx", "due_at", postgresql_where=text("state IN ('queued', 'running')")),
)

job_runs = Table(
    "job_runs",
    metadata,
    Column("job", Text, primary_key=True),
    Column("slot", DateTime(timezone=True), primary_key=True),
    _text("state"),
    _text("worker"),
    _time("started_at"),
    _time("heartbeat_at"),
    _time("lease_until"),
    _time("finished_at", nullable=True),
    Column("counts", JSONB, nullable=False),
    _text("error", nullable=True),
    _one_of("state", ("running", "succeeded", "failed")),
)

embedding_generations = Table(
    "embedding_generations",
    metadata,
    Column("generation_id", SmallInteger, primary_key=True, autoincrement=False),
    _text("model"),
    _text("revision"),
    Column("dimension", Integer, nullable=False),
    _text("query_prompt"),
    _text("document_prompt"),
    Column("tokenizer_version", SmallInteger, nullable=False),
    Column("query_window", ARRAY(Double), nullable=False),
    Column("pair_window", ARRAY(Double), nullable=False),
    _text("state"),
    _time("created_at"),
    _one_of("state", ("active", "retired")),
    Index("embedding_generations_active_key", "state", unique=True, postgresql_where=text("state = 'active'")),
)

# Document frequencies of large subjects, refreshed by a job; small subjects count the rows at hand.
term_statistics = Table(
    "term_statistics",
    metadata,
    _tenant(),
    _subject(),
    Column("term_id", Integer, primary_key=True),
    Column("document_count", Integer, nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "subject_id"], ["subjects.tenant_id", "subjects.subject_id"], ondelete="CASCADE"
    ),
)

GLOBAL_TABLES = (job_runs, embedding_generations)
WORK_TABLES = (memory_usage, embedding_queue, operations, idempotency_keys)
