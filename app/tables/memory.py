"""The life of a memory: whom it belongs to, its row, and the tables beside it.

A write puts a row into memories (text, vector, keywords), memory_usage and memory_events in one transaction;
memory_links says what replaced what, memory_versions keeps replaced texts, memory_sources what was really said.
Invariant: keys are tenant-first and subject-second, so that either column can become the partition column.
"""

from pgvector.sqlalchemy import HALFVEC, SPARSEVEC
from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import BIT, JSONB

from app.tables.base import (
    memory_column,
    metadata,
    of_memory,
    of_subject,
    of_tenant,
    one_of,
    subject_column,
    tenant_column,
    text_column,
    time_column,
)
from app.wire import KEYWORD_DIMENSIONS

STATUSES = ("active", "deprecated", "duplicate", "quarantined", "archived")
CONTENT_TYPES = ("text", "image", "audio", "video")
RELATIONS = ("duplicate_of", "supersedes", "candidate", "review", "derived_from")
# A candidate may say the same, a review would have overruled: whoever can read decides.

# The shared subject of a tenant (user_id null) has the tenant's own id, so that no statement needs to look it up.
subjects = Table(
    "subjects",
    metadata,
    tenant_column(),
    subject_column(),
    text_column("user_id", nullable=True),
    # A job marks a subject that outgrew the exact scan (ann: new rows go into index and postings, too) and says when
    # all of its rows are there (ann_ready: search may use them); the counts are those of that moment.
    Column("ann", Boolean, nullable=False, server_default=text("false")),
    Column("ann_ready", Boolean, nullable=False, server_default=text("false")),
    Column("memory_count", BigInteger, nullable=False, server_default=text("0")),
    Column("mean_word_count", REAL, nullable=False, server_default=text("0")),
    time_column("created_at"),
    of_tenant(),
    UniqueConstraint("tenant_id", "user_id", postgresql_nulls_not_distinct=True),
    Index("subjects_large_idx", "tenant_id", postgresql_where=text("ann")),
)

# Moves with every change of the subject's memories (triggers on memories): a copy held in memory with another is old.
subject_stamps = Table(
    "subject_stamps",
    metadata,
    tenant_column(),
    subject_column(),
    Column("stamp", BigInteger, nullable=False),
    of_subject(),
    postgresql_with={"fillfactor": "50"},
)

memories = Table(
    "memories",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    text_column("agent_id", nullable=True),
    text_column("status"),
    text_column("content"),
    text_column("content_type"),
    text_column("kind"),
    text_column("key", nullable=True),
    Column("importance", REAL, nullable=False),
    Column("tags", ARRAY(Text), nullable=False),
    Column("metadata", JSONB, nullable=False),
    text_column("source", nullable=True),
    text_column("session_id", nullable=True),
    Column("pinned", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    time_column("created_at"),
    time_column("updated_at"),
    time_column("event_at", nullable=True),
    time_column("valid_from", nullable=True),
    time_column("valid_to", nullable=True),
    time_column("expires_at", nullable=True),
    time_column("deprecated_at", nullable=True),
    Column("content_hash", LargeBinary, nullable=False),
    Column("keywords", SPARSEVEC(KEYWORD_DIMENSIONS), nullable=False),
    Column("word_count", Integer, nullable=False),
    Column("tokenizer_version", SmallInteger, nullable=False),
    Column("embedding", HALFVEC, nullable=True),
    Column("generation_id", SmallInteger, nullable=True),
    Column("window_count", SmallInteger, nullable=False, server_default=text("1")),
    Column("ann", Boolean, nullable=False, server_default=text("false")),
    Column("trust", SmallInteger, nullable=False, server_default=text("100")),  # of the key that wrote it
    # The run that made it cold (null: warm). A cold memory has no vector and no keywords, only the signs of its vector.
    Column("cooled_by", Uuid, nullable=True),
    Column("signs", BIT(varying=True), nullable=True),
    Column("signs_generation_id", Integer, nullable=True),
    # The same of the generation that a store moves to, or has left: a switch swaps the names of the two.
    Column("other_embedding", HALFVEC, nullable=True),
    Column("other_generation_id", SmallInteger, nullable=True),
    Column("other_window_count", SmallInteger, nullable=False, server_default=text("1")),
    of_subject(),
    one_of("status", STATUSES),
    one_of("content_type", CONTENT_TYPES),
    CheckConstraint("importance BETWEEN 1 AND 5", name="importance"),
    CheckConstraint("(embedding IS NULL) = (generation_id IS NULL)", name="generation"),
    CheckConstraint("(other_embedding IS NULL) = (other_generation_id IS NULL)", name="other_generation"),
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
    # What search looks at; a cold memory has no place in it.
    Index("memories_warm_idx", "tenant_id", "subject_id", "status", postgresql_where=text("cooled_by IS NULL")),
    Index("memories_cold_idx", "tenant_id", "cooled_by", "memory_id", postgresql_where=text("cooled_by IS NOT NULL")),
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
    # Of large subjects, the rows of a time, for filters that few pass.
    Index("memories_created_idx", "tenant_id", "subject_id", "created_at", postgresql_where=text("ann")),
    Index(
        "memories_event_idx",
        "tenant_id",
        "subject_id",
        "event_at",
        postgresql_where=text("ann AND event_at IS NOT NULL"),
    ),
    # What the rules of forgetting look for, oldest first; a memory that none of them may ever want is in none.
    Index(
        "memories_expires_idx",
        "tenant_id",
        "expires_at",
        "memory_id",
        postgresql_where=text("status = 'active' AND expires_at IS NOT NULL"),
    ),
    Index(
        "memories_valid_to_idx",
        "tenant_id",
        "valid_to",
        "memory_id",
        postgresql_where=text("status = 'active' AND valid_to IS NOT NULL"),
    ),
    Index(
        "memories_idle_idx",
        "tenant_id",
        "updated_at",
        "memory_id",
        postgresql_where=text("status = 'active' AND NOT pinned AND importance < 3"),
    ),
    Index(
        "memories_task_idx",
        "tenant_id",
        "updated_at",
        "memory_id",
        postgresql_where=text("status = 'active' AND NOT pinned AND kind = 'task_state'"),
    ),
    Index(
        "memories_deprecated_idx",
        "tenant_id",
        "deprecated_at",
        "memory_id",
        postgresql_where=text("status = 'deprecated'"),
    ),
    Index(
        "memories_duplicate_idx",
        "tenant_id",
        "updated_at",
        "memory_id",
        postgresql_where=text("status = 'duplicate'"),
    ),
    # Rows of up to a page stay whole: a vector or keyword weights moved out of line would cost every search a detour.
    postgresql_with={"toast_tuple_target": "8160"},
)

# Words of the memories of large subjects. A GIN index on an array would be smaller, but under row-level security its
# operators are no index conditions (they are not leakproof); equality of uuid and int is.
memory_terms = Table(
    "memory_terms",
    metadata,
    tenant_column(),
    subject_column(),
    Column("term_id", Integer, primary_key=True),
    memory_column(),
    of_memory(),
    Index("memory_terms_memory_idx", "tenant_id", "subject_id", "memory_id"),
)

# What filters ask for (tags, kind, content type, metadata), hashed, of the memories of large subjects. A trigger on
# memories keeps it, on whichever way they change; it only proposes, so it needs no foreign key.
_FACET = Column("facet", Integer, primary_key=True)
memory_facets = Table("memory_facets", metadata, tenant_column(), subject_column(), _FACET, memory_column())

# Vectors of the further windows of a text longer than the model's limit; the first is memories.embedding.
memory_windows = Table(
    "memory_windows",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("window_number", SmallInteger, primary_key=True),
    Column("embedding", HALFVEC, nullable=False),
    of_memory(),
    CheckConstraint("window_number >= 2", name="window_number"),
)

# The same of memories.other_embedding; a switch swaps the names of the two tables.
other_windows = Table(
    "other_windows",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("window_number", SmallInteger, primary_key=True),
    Column("embedding", HALFVEC, nullable=False),
    of_memory(),
    CheckConstraint("window_number >= 2", name="window_number"),
)

# Hot counters, apart from memories: an update here touches no vector and no keyword index.
memory_usage = Table(
    "memory_usage",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("access_count", BigInteger, nullable=False),
    Column("hit_streak", Integer, nullable=False),
    time_column("last_accessed_at", nullable=True),
    # When the memory is forgotten, if nobody uses it before (null: never). Hits move it when it is due, not one by one:
    # it is indexed, and they change nothing that is.
    time_column("forget_at", nullable=True),
    Column("gained", REAL, nullable=False, server_default=text("0")),  # importance, by hits
    time_column("gained_at", nullable=True),
    of_memory(),
    Index(
        "memory_usage_forget_idx", "tenant_id", "forget_at", "memory_id", postgresql_where=text("forget_at IS NOT NULL")
    ),
    postgresql_with={"fillfactor": "80"},
)

memory_links = Table(
    "memory_links",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("relation", Text, primary_key=True),
    Column("other_id", Uuid, primary_key=True),
    time_column("created_at"),
    of_memory(),
    of_memory("other_id"),
    one_of("relation", RELATIONS),
    Index("memory_links_other_idx", "tenant_id", "subject_id", "other_id"),
    Index(
        "memory_links_review_idx",
        "tenant_id",
        "memory_id",
        "other_id",
        postgresql_where=text("relation = 'review'"),
    ),
)

memory_versions = Table(
    "memory_versions",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("version", Integer, primary_key=True),
    Column("snapshot", JSONB, nullable=False),
    time_column("replaced_at"),
    of_memory(),
)

# What was said, of which a memory was made by extraction: an original, never changed.
memory_sources = Table(
    "memory_sources",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("source_id", Uuid, primary_key=True),
    Column("operation_id", Uuid, nullable=False),
    text_column("session_id", nullable=True),
    Column("number", Integer, nullable=False),  # of the message in its conversation, from 0
    text_column("reference", nullable=True),  # the caller's own name for the message
    text_column("role"),
    text_column("content"),
    time_column("said_at", nullable=True),
    time_column("created_at"),
    of_memory(),
)

# Append-only (a trigger refuses UPDATE and DELETE); holds ids and names of changed fields, never text.
memory_events = Table(
    "memory_events",
    metadata,
    tenant_column(),
    subject_column(),
    Column("event_id", Uuid, primary_key=True),
    Column("memory_id", Uuid, nullable=False),
    text_column("action"),
    text_column("actor"),
    Column("version", Integer, nullable=False),
    Column("detail", JSONB, nullable=False),
    time_column("created_at"),
    Index("memory_events_memory_idx", "tenant_id", "subject_id", "memory_id"),
)

# Document frequencies of large subjects, refreshed by a job; small subjects count the rows at hand.
term_statistics = Table(
    "term_statistics",
    metadata,
    tenant_column(),
    subject_column(),
    Column("term_id", Integer, primary_key=True),
    Column("document_count", Integer, nullable=False),
    of_subject(),
)
