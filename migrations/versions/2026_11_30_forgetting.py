"""Forgetting: when a memory is due, how it comes back, what must stay, who was erased; runs of jobs that are asked for.

Expand only: new tables, and columns with constant defaults.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NEW_TABLES = ("memory_archive", "legal_holds", "erasures", "reinforcement_queue", "kind_searches", "jobs")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    moment = sa.DateTime(timezone=True)
    op.add_column("memory_usage", sa.Column("forget_at", moment, nullable=True))
    op.add_column("memory_usage", sa.Column("gained", sa.REAL(), server_default=sa.text("0"), nullable=False))
    op.add_column("memory_usage", sa.Column("gained_at", moment, nullable=True))
    for name, kind in (("run_id", sa.Uuid()), ("actor", sa.Text()), ("tenant_id", sa.Uuid())):
        op.add_column("job_runs", sa.Column(name, kind, nullable=True))
    op.add_column("job_runs", sa.Column("dry_run", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("job_runs", sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("1"), nullable=False))
    create_tables()
    secure_tables()


def of_subject(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "subject_id"],
        ["subjects.tenant_id", "subjects.subject_id"],
        name=op.f(f"{table}_tenant_id_subject_id_fkey"),
        ondelete="CASCADE",
    )


def of_memory(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "subject_id", "memory_id"],
        ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
        name=op.f(f"{table}_tenant_id_subject_id_memory_id_fkey"),
        ondelete="CASCADE",
    )


def create_tables() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "memory_archive",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("was", sa.Text(), nullable=False),
        sa.Column("deprecated_at", moment, nullable=True),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("archived_at", moment, nullable=False),
        sa.CheckConstraint(
            "was IN ('active', 'deprecated', 'duplicate', 'quarantined')", name=op.f("memory_archive_was_check")
        ),
        sa.CheckConstraint(
            "(was = 'deprecated') = (deprecated_at IS NOT NULL)", name=op.f("memory_archive_deprecated_check")
        ),
        of_memory("memory_archive"),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", name=op.f("memory_archive_pkey")),
    )
    op.create_index("memory_archive_due_idx", "memory_archive", ["tenant_id", "archived_at", "memory_id"])
    op.create_index(
        "memory_archive_run_idx",
        "memory_archive",
        ["tenant_id", "run_id", "memory_id"],
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_table(
        "legal_holds",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("hold_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        of_subject("legal_holds"),
        of_memory("legal_holds"),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "hold_id", name=op.f("legal_holds_pkey")),
    )
    op.create_table(
        "erasures",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("counts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "erasure_id", name=op.f("erasures_pkey")),
    )
    op.create_table(
        "reinforcement_queue",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", name=op.f("reinforcement_queue_pkey")),
    )
    op.create_table(
        "kind_searches",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("searched_at", moment, nullable=False),
        of_subject("kind_searches"),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "kind", name=op.f("kind_searches_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("meaning", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("next_at", moment, nullable=True),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("seen_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("jobs_pkey")),
    )


# table -> what the application role may do with the rows of its tenant
APP_RIGHTS = {
    "memory_archive": "SELECT, INSERT, UPDATE, DELETE",
    "legal_holds": "SELECT, INSERT, DELETE",
    "erasures": "SELECT, INSERT",
    "reinforcement_queue": "SELECT, UPDATE, DELETE",  # UPDATE: to lock what it deletes
    "kind_searches": "SELECT",
}
# table -> what the worker role may do across tenants
WORKER_RIGHTS = {
    "reinforcement_queue": "SELECT, INSERT",
    "kind_searches": "SELECT, INSERT, UPDATE",
}
# What an erased subject leaves in none of the tables of work, either.
ERASED_FROM = ("operations", "outbox")
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
    for table in ERASED_FROM:
        op.execute(f"GRANT DELETE ON {table} TO mneme_app")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON jobs TO mneme_worker")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for table in ERASED_FROM:
        op.execute(f"REVOKE DELETE ON {table} FROM mneme_app")
    for table in reversed(NEW_TABLES):
        op.drop_table(table)
    for name in ("attempts", "dry_run", "tenant_id", "actor", "run_id"):
        op.drop_column("job_runs", name)
    for name in ("gained_at", "gained", "forget_at"):
        op.drop_column("memory_usage", name)
