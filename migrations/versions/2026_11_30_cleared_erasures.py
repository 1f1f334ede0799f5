"""Erasures say when the archive outside the database was cleared of their subject: a job does what is open.

Expand only: of the erasures there are it is not known, so all are open, and the job looks at each once.
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

INDEX = "erasures_open_idx"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("ALTER TABLE erasures ADD COLUMN IF NOT EXISTS cleared_at timestamptz")
    op.execute("GRANT UPDATE (cleared_at) ON erasures TO mneme_app")
    op.execute("GRANT SELECT ON erasures TO mneme_worker")
    op.execute("DROP POLICY IF EXISTS erasures_of_worker ON erasures")
    op.execute("CREATE POLICY erasures_of_worker ON erasures TO mneme_worker USING (true)")
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
        op.execute(
            f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {INDEX} ON erasures (tenant_id, subject_id)"
            " WHERE cleared_at IS NULL"
        )
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("DROP POLICY IF EXISTS erasures_of_worker ON erasures")
    op.execute("REVOKE SELECT ON erasures FROM mneme_worker")
    op.execute("REVOKE UPDATE (cleared_at) ON erasures FROM mneme_app")
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("ALTER TABLE erasures DROP COLUMN IF EXISTS cleared_at")
