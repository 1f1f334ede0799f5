"""Session windows, what operations lack, sources of extracted memories, outbox and webhooks; settings of a tenant.

Expand only: new tables, and columns with constant defaults.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NEW_TABLES = ("session_windows", "memory_sources", "webhooks", "outbox", "webhook_deliveries")


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS operations_subject_idx")
        op.execute(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS operations_subject_idx ON operations (tenant_id, subject_id)"
        )
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.add_column(
        "tenants",
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )
    for name in ("user_id", "agent_id", "detail"):
        op.add_column("operations", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("operations", sa.Column("actor", sa.Text(), server_default=sa.text("'worker'"), nullable=False))
    op.add_column("operations", sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True))
    create_tables()
    secure_tables()


def create_tables() -> None:
    op.create_table(
        "session_windows",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("messages", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id"],
            ["subjects.tenant_id", "subjects.subject_id"],
            name=op.f("session_windows_tenant_id_subject_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "session_id", "agent_id", name=op.f("session_windows_pkey")),
        prefixes=["UNLOGGED"],
    )
    op.create_index("session_windows_ends_idx", "session_windows", ["ends_at"], unique=False)
    op.create_table(
        "memory_sources",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("source_id", sa.Uuid(), nullable=False),
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("said_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_sources_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", "source_id", name=op.f("memory_sources_pkey")),
    )
    op.create_table(
        "webhooks",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.CheckConstraint("(disabled_at IS NULL) = (disabled_reason IS NULL)", name=op.f("webhooks_disabled_check")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("webhooks_tenant_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "webhook_id", name=op.f("webhooks_pkey")),
    )
    op.create_table(
        "outbox",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "event_id", name=op.f("outbox_pkey")),
    )
    op.create_index("outbox_created_idx", "outbox", ["created_at"], unique=False)
    op.create_table(
        "webhook_deliveries",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_status", sa.SmallInteger(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("took_ms", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("webhook_deliveries_state_check")),
        sa.CheckConstraint(
            "(state = 'pending') = (finished_at IS NULL)", name=op.f("webhook_deliveries_finished_check")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "event_id"],
            ["outbox.tenant_id", "outbox.subject_id", "outbox.event_id"],
            name=op.f("webhook_deliveries_tenant_id_subject_id_event_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "webhook_id"],
            ["webhooks.tenant_id", "webhooks.webhook_id"],
            name=op.f("webhook_deliveries_tenant_id_webhook_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "subject_id", "event_id", "webhook_id", name=op.f("webhook_deliveries_pkey")
        ),
    )
    op.create_index(
        "webhook_deliveries_due_idx",
        "webhook_deliveries",
        ["tenant_id", "webhook_id", "due_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_log_idx", "webhook_deliveries", ["tenant_id", "webhook_id", "event_id"], unique=False
    )


# table -> what the application role may do with the rows of its tenant
APP_RIGHTS = {
    "session_windows": "SELECT, INSERT, UPDATE, DELETE",
    "memory_sources": "SELECT, INSERT",  # originals: never changed, and gone with their memory
    "webhooks": "SELECT, INSERT, UPDATE, DELETE",
    "outbox": "SELECT, INSERT",
    "webhook_deliveries": "SELECT, INSERT, UPDATE",
}
# table -> what the worker role may do across tenants; of conversations it sees the ends, never the words
WORKER_RIGHTS = {
    "session_windows": "SELECT (tenant_id, subject_id, session_id, ends_at)",
    "webhooks": "SELECT, UPDATE",
    "outbox": "SELECT, UPDATE, DELETE",  # UPDATE: to lock what it deletes
    "webhook_deliveries": "SELECT, UPDATE, DELETE",
}
TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"


def secure_tables() -> None:
    for table, rights in APP_RIGHTS.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT {rights} ON {table} TO mneme_app")
        op.execute(
            f"CREATE POLICY {table}_of_tenant ON {table} TO mneme_app"
            f" USING (tenant_id = {TENANT}) WITH CHECK (tenant_id = {TENANT})"
        )
    for table, rights in WORKER_RIGHTS.items():
        op.execute(f"GRANT {rights} ON {table} TO mneme_worker")
        op.execute(f"CREATE POLICY {table}_of_worker ON {table} TO mneme_worker USING (true)")
    op.execute("GRANT DELETE ON operations TO mneme_worker")  # those whose time is over


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("REVOKE DELETE ON operations FROM mneme_worker")
    for table in reversed(NEW_TABLES):
        op.drop_table(table)
    for name in ("finished_at", "actor", "detail", "agent_id", "user_id"):
        op.drop_column("operations", name)
    op.drop_column("tenants", "settings")
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS operations_subject_idx")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
