"""Cold memories: without vector and keywords, and out of the index that search reads.

Expand only: until a run cools something, every row is warm.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0014"
branch_labels = None
depends_on = None

COLD = {
    "memories_warm_idx": "(tenant_id, subject_id, status) WHERE cooled_by IS NULL",
    "memories_cold_idx": "(tenant_id, cooled_by, memory_id) WHERE cooled_by IS NOT NULL",
}
WARM = {"memories_subject_status_idx": "(tenant_id, subject_id, status)"}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.add_column("memories", sa.Column("cooled_by", sa.Uuid(), nullable=True))
    op.add_column("memories", sa.Column("signs", postgresql.BIT(varying=True), nullable=True))
    op.add_column("memories", sa.Column("signs_generation_id", sa.SmallInteger(), nullable=True))
    index(WARM, COLD)


def downgrade() -> None:
    """What is cold stays without vector and keywords: bring it back before, by `mneme jobs undo` of the runs."""
    index(COLD, WARM)
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.drop_column("memories", "signs_generation_id")
    op.drop_column("memories", "signs")
    op.drop_column("memories", "cooled_by")


def index(old: dict[str, str], new: dict[str, str]) -> None:
    """The new ones before the old ones go: search is never without."""
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        for name, definition in new.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON memories {definition}")
        for name in old:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
