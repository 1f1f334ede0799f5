"""A second vector for each memory: of the model that a store moves to, or has left and may go back to.

Expand only; the next revision validates its constraints. The switch between the two is a change of their names
(app/cli/switch.py), so both have the same columns.
"""

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0012"
branch_labels = None
depends_on = None

TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"
STATES_BEFORE = "state IN ('active', 'retired')"
STATES = "state IN ('active', 'building', 'previous', 'retired')"
CHECKS = {
    "memories_other_generation_check": (
        "memories",
        "CHECK ((other_embedding IS NULL) = (other_generation_id IS NULL))",
    ),
    "memories_other_generation_id_fkey": (
        "memories",
        "FOREIGN KEY (other_generation_id) REFERENCES embedding_generations (generation_id)",
    ),
    "embedding_generations_state_check": ("embedding_generations", f"CHECK ({STATES})"),
}

# The owner's right is lent for one thing: indexes of a generation that is not in use any more. What waits for a vector
# of the active one is still looked for while some does.
DROP_GENERATION_INDEXES = """
CREATE FUNCTION drop_generation_indexes(generation smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    IF EXISTS (SELECT FROM embedding_generations WHERE generation_id = generation AND state = 'retired') THEN
        EXECUTE format('DROP INDEX IF EXISTS %I', format('memories_ann_g%s', generation));
        EXECUTE format('DROP INDEX IF EXISTS %I', format('memories_lacking_g%s', generation));
    END IF;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.add_column("memories", sa.Column("other_embedding", pgvector.sqlalchemy.HALFVEC(), nullable=True))
    op.add_column("memories", sa.Column("other_generation_id", sa.SmallInteger(), nullable=True))
    op.add_column(
        "memories", sa.Column("other_window_count", sa.SmallInteger(), server_default=sa.text("1"), nullable=False)
    )
    for column in (
        sa.Column("source", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("only_used", sa.Boolean(), nullable=True),
        sa.Column("rate", sa.REAL(), nullable=True),
        sa.Column("lacking", sa.BigInteger(), nullable=True),
        sa.Column("switched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True),
    ):
        op.add_column("embedding_generations", column)
    op.execute(
        "-- squawk-ignore ban-drop-constraint\n"
        "ALTER TABLE embedding_generations DROP CONSTRAINT IF EXISTS embedding_generations_state_check"
    )
    for name, (table, check) in CHECKS.items():
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {check} NOT VALID")
    # Of the few generations that there ever are, at most one stands beside the active one.
    op.execute(
        "-- squawk-ignore require-concurrent-index-creation\n"
        "CREATE UNIQUE INDEX embedding_generations_other_key ON embedding_generations"
        " ((state = 'building' OR state = 'previous')) WHERE state = 'building' OR state = 'previous'"
    )
    op.create_table(
        "other_windows",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("window_number", sa.SmallInteger(), nullable=False),
        sa.Column("embedding", pgvector.sqlalchemy.HALFVEC(), nullable=False),
        sa.CheckConstraint("window_number >= 2", name=op.f("other_windows_window_number_check")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("other_windows_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "subject_id", "memory_id", "window_number", name=op.f("other_windows_pkey")
        ),
    )
    op.execute("ALTER TABLE other_windows ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE other_windows FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON other_windows TO mneme_app")
    op.execute(
        "CREATE POLICY other_windows_of_tenant ON other_windows TO mneme_app"
        f" USING (tenant_id = {TENANT}) WITH CHECK (tenant_id = {TENANT})"
    )
    op.execute(DROP_GENERATION_INDEXES)
    op.execute("REVOKE ALL ON FUNCTION drop_generation_indexes(smallint) FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION drop_generation_indexes(smallint) TO mneme_worker")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("DROP FUNCTION drop_generation_indexes(smallint)")
    op.drop_table("other_windows")
    op.execute("DROP INDEX embedding_generations_other_key")
    op.execute("UPDATE embedding_generations SET state = 'retired' WHERE state <> 'active'")
    op.execute("ALTER TABLE embedding_generations DROP CONSTRAINT embedding_generations_state_check")
    op.execute(
        f"ALTER TABLE embedding_generations ADD CONSTRAINT embedding_generations_state_check CHECK ({STATES_BEFORE})"
    )
    for column in ("purged_at", "switched_at", "lacking", "rate", "only_used", "source"):
        op.drop_column("embedding_generations", column)
    for column in ("other_window_count", "other_generation_id", "other_embedding"):
        op.drop_column("memories", column)
