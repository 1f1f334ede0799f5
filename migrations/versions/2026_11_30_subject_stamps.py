"""Stamps: every statement that changes memories marks their subjects, so that a copy in memory knows it is old.

Expand only. The mark is the number of the changing transaction: no other one has it, and it is seen when its rows are.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"  # a sub-select: read once, not per row

# Subjects in order, so that two statements that mark several wait for each other instead of forever. A subject that is
# being deleted takes its stamp with it.
STAMP_SUBJECTS = """
CREATE FUNCTION stamp_subjects() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO subject_stamps AS s (tenant_id, subject_id, stamp)
    SELECT c.tenant_id, c.subject_id, pg_current_xact_id()::text::bigint
    FROM (SELECT DISTINCT tenant_id, subject_id FROM changed ORDER BY tenant_id, subject_id) AS c
    WHERE EXISTS (SELECT FROM subjects WHERE tenant_id = c.tenant_id AND subject_id = c.subject_id)
    ON CONFLICT (tenant_id, subject_id) DO UPDATE SET stamp = excluded.stamp
    WHERE s.stamp <> excluded.stamp;
    RETURN NULL;
END $$
"""
TRIGGERS = {"INSERT": "NEW", "UPDATE": "NEW", "DELETE": "OLD"}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.create_table(
        "subject_stamps",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id"],
            ["subjects.tenant_id", "subjects.subject_id"],
            name=op.f("subject_stamps_tenant_id_subject_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", name=op.f("subject_stamps_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
    op.execute("ALTER TABLE subject_stamps ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE subject_stamps FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON subject_stamps TO mneme_app")
    op.execute(
        "CREATE POLICY subject_stamps_of_tenant ON subject_stamps TO mneme_app"
        f" USING (tenant_id = {TENANT}) WITH CHECK (tenant_id = {TENANT})"
    )
    op.execute("GRANT SELECT ON subject_stamps TO mneme_worker")
    op.execute("CREATE POLICY subject_stamps_of_worker ON subject_stamps TO mneme_worker USING (true)")
    op.execute(STAMP_SUBJECTS)
    for event, rows in TRIGGERS.items():
        op.execute(
            f"CREATE TRIGGER memories_stamp_{event.lower()} AFTER {event} ON memories"
            f" REFERENCING {rows} TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION stamp_subjects()"
        )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    for event in TRIGGERS:
        op.execute(f"DROP TRIGGER memories_stamp_{event.lower()} ON memories")
    op.execute("DROP FUNCTION stamp_subjects()")
    op.drop_table("subject_stamps")
