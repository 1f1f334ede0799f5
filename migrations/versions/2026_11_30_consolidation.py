"""Consolidation: what a run did and how far it looked; a summary ends with what it was made of.

Expand only: new tables and a trigger.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"
TABLES = ("consolidations", "consolidation_marks")

# Whatever changes a source, by whatever way, in the same transaction: so no summary outlives what it says. A source
# that a rule of forgetting archived (in a run) was true, and to be remembered in short is what its summary is for.
RETIRE_SUMMARIES = """
CREATE FUNCTION retire_summaries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'archived' AND NEW.content = OLD.content AND EXISTS (
        SELECT FROM memory_archive a
        WHERE a.tenant_id = NEW.tenant_id AND a.subject_id = NEW.subject_id AND a.memory_id = NEW.memory_id
          AND a.run_id IS NOT NULL
    ) THEN
        RETURN NULL;
    END IF;
    WITH retired AS (
        UPDATE memories m SET status = 'deprecated', deprecated_at = NEW.updated_at, updated_at = NEW.updated_at
        FROM memory_links l
        WHERE l.tenant_id = NEW.tenant_id AND l.subject_id = NEW.subject_id AND l.other_id = NEW.memory_id
          AND l.relation = 'derived_from'
          AND m.tenant_id = l.tenant_id AND m.subject_id = l.subject_id AND m.memory_id = l.memory_id
          AND m.status = 'active' AND m.kind = 'summary'
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version
    )
    INSERT INTO memory_events (
        tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
    )
    SELECT tenant_id, subject_id, gen_random_uuid(), memory_id, 'deprecated', 'consolidate', version,
           jsonb_build_object('reason', 'source_changed', 'by', NEW.memory_id), NEW.updated_at
    FROM retired;
    RETURN NULL;
END $$
"""
TRIGGER = """
CREATE TRIGGER memories_retire_summaries AFTER UPDATE ON memories FOR EACH ROW
WHEN (OLD.status = 'active' AND (
    NEW.status <> 'active' OR NEW.content <> OLD.content OR NEW.event_at IS DISTINCT FROM OLD.event_at
    OR NEW.valid_to IS DISTINCT FROM OLD.valid_to OR NEW.expires_at IS DISTINCT FROM OLD.expires_at
))
EXECUTE FUNCTION retire_summaries()
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "consolidations",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("became", sa.Text(), nullable=False),
        sa.Column("other_id", sa.Uuid(), nullable=True),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.CheckConstraint(
            "became IN ('duplicate', 'deprecated', 'summary')", name=op.f("consolidations_became_check")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("consolidations_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", "run_id", name=op.f("consolidations_pkey")),
    )
    op.create_index("consolidations_run_idx", "consolidations", ["tenant_id", "run_id", "memory_id"])
    op.create_table(
        "consolidation_marks",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=True),
        sa.Column("through", moment, nullable=True),
        sa.Column("through_id", sa.Uuid(), nullable=True),
        sa.Column("due_at", moment, nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id"],
            ["subjects.tenant_id", "subjects.subject_id"],
            name=op.f("consolidation_marks_tenant_id_subject_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "job", name=op.f("consolidation_marks_pkey")),
        postgresql_with={"fillfactor": "80"},
    )
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO mneme_app")
        op.execute(
            f"CREATE POLICY {table}_of_tenant ON {table} TO mneme_app"
            f" USING (tenant_id = {TENANT}) WITH CHECK (tenant_id = {TENANT})"
        )
    op.execute(RETIRE_SUMMARIES)
    op.execute(TRIGGER)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("DROP TRIGGER memories_retire_summaries ON memories")
    op.execute("DROP FUNCTION retire_summaries()")
    for table in reversed(TABLES):
        op.drop_table(table)
