"""The tables of work and of passing things: queues, stored answers, jobs, conversations that go on, webhooks.

Invariant: queues point at memories and are claimed without locking a memory's row.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

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

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    tenant_column(),
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("response", LargeBinary, nullable=False),
    time_column("created_at"),
    Index("idempotency_keys_created_idx", "created_at"),
    of_tenant(),
)

embedding_queue = Table(
    "embedding_queue",
    metadata,
    tenant_column(),
    subject_column(),
    memory_column(),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    text_column("last_error", nullable=True),
    time_column("due_at"),
    time_column("created_at"),
    Index("embedding_queue_due_idx", "due_at"),
    of_memory(),
)

# Slow work that somebody asked for. `due_at`: when it may be claimed, of a running one the end of its lease;
# `attempts` counts the claims, so that who lost the lease cannot finish what another took over.
operations = Table(
    "operations",
    metadata,
    tenant_column(),
    Column("operation_id", Uuid, primary_key=True),
    Column("subject_id", Uuid, nullable=True),
    text_column("user_id", nullable=True),
    text_column("agent_id", nullable=True),
    Column("actor", Text, nullable=False, server_default=text("'worker'")),
    text_column("kind"),
    text_column("state"),
    Column("request", JSONB, nullable=False),
    Column("result", JSONB, nullable=True),
    text_column("error", nullable=True),
    text_column("detail", nullable=True),
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    Column("total", BigInteger, nullable=True),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    time_column("due_at"),
    time_column("created_at"),
    time_column("updated_at"),
    time_column("finished_at", nullable=True),
    one_of("state", ("queued", "running", "succeeded", "failed", "cancelled")),
    of_tenant(),
    Index("operations_turn_idx", "tenant_id", "due_at", postgresql_where=text("state IN ('queued', 'running')")),
    Index(
        "operations_ended_badly_idx",
        "tenant_id",
        "operation_id",
        postgresql_where=text("state IN ('failed', 'cancelled')"),
    ),
    Index("operations_subject_idx", "tenant_id", "subject_id"),
)

# A job's run of a slot. One that somebody asked for (`actor`) has its moment as slot; it may be of one tenant only, or
# only say what it would do.
job_runs = Table(
    "job_runs",
    metadata,
    Column("job", Text, primary_key=True),
    Column("slot", DateTime(timezone=True), primary_key=True),
    Column("run_id", Uuid, nullable=True),
    text_column("actor", nullable=True),
    Column("tenant_id", Uuid, nullable=True),
    Column("dry_run", Boolean, nullable=False, server_default=text("false")),
    Column("attempts", SmallInteger, nullable=False, server_default=text("1")),
    text_column("state"),
    text_column("worker"),
    time_column("started_at"),
    time_column("heartbeat_at"),
    time_column("lease_until"),
    time_column("finished_at", nullable=True),
    Column("counts", JSONB, nullable=False),
    text_column("error", nullable=True),
    one_of("state", ("queued", "running", "succeeded", "failed")),
    Index("job_runs_run_key", "run_id", unique=True),
    Index("job_runs_open_idx", "state", "slot", postgresql_where=text("state IN ('queued', 'running')")),
)

# The latest messages of a conversation, the whole window in one row. Unlogged: in no log of the database, no replica
# and no base backup, and empty after a crash.
session_windows = Table(
    "session_windows",
    metadata,
    tenant_column(),
    subject_column(),
    Column("session_id", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),  # empty: of no agent
    Column("messages", JSONB, nullable=False),
    time_column("started_at"),
    time_column("ends_at"),
    of_subject(),
    Index("session_windows_ends_idx", "ends_at"),
    prefixes=["UNLOGGED"],
)

webhooks = Table(
    "webhooks",
    metadata,
    tenant_column(),
    Column("webhook_id", Uuid, primary_key=True),
    text_column("url"),
    Column("events", ARRAY(Text), nullable=False),
    text_column("description", nullable=True),
    time_column("created_at"),
    time_column("failing_since", nullable=True),
    time_column("disabled_at", nullable=True),
    text_column("disabled_reason", nullable=True),
    CheckConstraint("(disabled_at IS NULL) = (disabled_reason IS NULL)", name="disabled"),
    of_tenant(),
)

# What happened, written in the transaction in which it happened; ids, no text.
outbox = Table(
    "outbox",
    metadata,
    tenant_column(),
    subject_column(),
    Column("event_id", Uuid, primary_key=True),
    text_column("kind"),
    Column("payload", JSONB, nullable=False),
    time_column("created_at"),
    Index("outbox_created_idx", "created_at"),
)

# Queue and log of what is sent to whom: a row stays after its end until the outbox forgets the event.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    tenant_column(),
    subject_column(),
    Column("event_id", Uuid, primary_key=True),
    Column("webhook_id", Uuid, primary_key=True),
    text_column("state"),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    time_column("due_at"),
    Column("last_status", SmallInteger, nullable=True),
    text_column("last_error", nullable=True),
    Column("took_ms", Integer, nullable=True),
    time_column("created_at"),
    time_column("finished_at", nullable=True),
    one_of("state", ("pending", "delivered", "failed")),
    CheckConstraint("(state = 'pending') = (finished_at IS NULL)", name="finished"),
    ForeignKeyConstraint(
        ["tenant_id", "subject_id", "event_id"],
        ["outbox.tenant_id", "outbox.subject_id", "outbox.event_id"],
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["tenant_id", "webhook_id"], ["webhooks.tenant_id", "webhooks.webhook_id"], ondelete="CASCADE"
    ),
    Index(
        "webhook_deliveries_due_idx", "tenant_id", "webhook_id", "due_at", postgresql_where=text("state = 'pending'")
    ),
    Index("webhook_deliveries_log_idx", "tenant_id", "webhook_id", "event_id"),
)
