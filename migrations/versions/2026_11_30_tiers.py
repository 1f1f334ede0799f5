"""Cold memories: without vector and keywords, and out of the index that search reads.

Expand only: until a run cools something, every row is warm.
"""

from alembic import op

revision = "0012"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMNS = ("cooled_by uuid", "signs bit varying", "signs_generation_id integer")
COLD = {
    "memories_warm_idx": "(tenant_id, subject_id, status) WHERE cooled_by IS NULL",
    "memories_cold_idx": "(tenant_id, cooled_by, memory_id) WHERE cooled_by IS NOT NULL",
}
WARM = {"memories_subject_status_idx": "(tenant_id, subject_id, status)"}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for column in COLUMNS:
        op.execute(f"ALTER TABLE memories ADD COLUMN IF NOT EXISTS {column}")
    index(WARM, COLD)


def downgrade() -> None:
    """What is cold stays without vector and keywords: bring it back before, by `mneme jobs undo` of the runs."""
    index(COLD, WARM)
    op.execute("SET LOCAL lock_timeout = '4s'")
    for column in reversed(COLUMNS):
        op.execute(f"ALTER TABLE memories DROP COLUMN IF EXISTS {column.partition(' ')[0]}")


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
