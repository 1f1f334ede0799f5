"""Indexes that answer without a query: the profile of a subject, and the latest memories of a session.

Expand only. CREATE INDEX CONCURRENTLY, so that nobody waits while a filled table is read; one that was broken off is
dropped and made again.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INDEXES = {
    "memories_profile_idx": "(tenant_id, subject_id, pinned, (key IS NOT NULL), importance, memory_id)"
    " WHERE status = 'active'",
    "memories_session_idx": "(tenant_id, subject_id, session_id, memory_id)"
    " WHERE status = 'active' AND session_id IS NOT NULL",
}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")  # as long as the table is large
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON memories {definition}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        for name in INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
