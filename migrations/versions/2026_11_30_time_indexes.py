"""Of large subjects, the rows of a time are found along an index."""

from alembic import op

revision = "0016"
down_revision = "0013"
branch_labels = None
depends_on = None

INDEXES = {
    "memories_created_idx": "(tenant_id, subject_id, created_at) WHERE ann",
    "memories_event_idx": "(tenant_id, subject_id, event_at) WHERE ann AND event_at IS NOT NULL",
}


def upgrade() -> None:
    change(create=True)


def downgrade() -> None:
    change(create=False)


def change(*, create: bool) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            if create:
                op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON memories {definition}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
