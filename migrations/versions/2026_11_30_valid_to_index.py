"""What is no longer valid is found along an index, each night."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NAME = "memories_valid_to_idx"
DEFINITION = "(tenant_id, valid_to, memory_id) WHERE status = 'active' AND valid_to IS NOT NULL"


def upgrade() -> None:
    change(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {NAME} ON memories {DEFINITION}")


def downgrade() -> None:
    change()


def change(*statements: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        for statement in (f"DROP INDEX CONCURRENTLY IF EXISTS {NAME}", *statements):
            op.execute(statement)
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
