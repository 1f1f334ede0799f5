"""Open reviews of a tenant, operations that failed, and whose turn it is: each by an index of its own.

The index of what is due becomes one by tenant, so that a claim asks each tenant for its oldest.
"""

from alembic import op

revision = "0014"
down_revision = "0010"
branch_labels = None
depends_on = None

NEW = {
    "memory_links_review_idx": "memory_links (tenant_id, memory_id, other_id) WHERE relation = 'review'",
    "operations_turn_idx": "operations (tenant_id, due_at) WHERE state IN ('queued', 'running')",
    "operations_ended_badly_idx": "operations (tenant_id, operation_id) WHERE state IN ('failed', 'cancelled')",
}
OLD = {"operations_due_idx": "operations (due_at) WHERE state IN ('queued', 'running')"}


def upgrade() -> None:
    replace(OLD, NEW)


def downgrade() -> None:
    replace(NEW, OLD)


def replace(old: dict[str, str], new: dict[str, str]) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        for name in new:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        for name, definition in new.items():
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        for name in old:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
