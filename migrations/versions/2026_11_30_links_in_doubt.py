"""Links: what may be the same, what would have been overruled, and what was made of what.

Expand only: rows of before satisfy the wider check.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BEFORE = "relation IN ('duplicate_of', 'supersedes')"
AFTER = "relation IN ('duplicate_of', 'supersedes', 'candidate', 'review', 'derived_from')"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    # The wider one follows in the same transaction.
    op.execute(
        "-- squawk-ignore ban-drop-constraint\n"
        "ALTER TABLE memory_links DROP CONSTRAINT IF EXISTS memory_links_relation_check"
    )
    op.execute(f"ALTER TABLE memory_links ADD CONSTRAINT memory_links_relation_check CHECK ({AFTER}) NOT VALID")
    with op.get_context().autocommit_block():  # reading all links locks nobody out, once the first lock is gone
        op.execute("ALTER TABLE memory_links VALIDATE CONSTRAINT memory_links_relation_check")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("DELETE FROM memory_links WHERE relation IN ('candidate', 'review', 'derived_from')")
    op.execute("ALTER TABLE memory_links DROP CONSTRAINT memory_links_relation_check")
    op.execute(f"ALTER TABLE memory_links ADD CONSTRAINT memory_links_relation_check CHECK ({BEFORE})")
