"""The constraints of the second vectors hold for all rows: read in a transaction of its own, which locks nobody out."""

from alembic import op

revision = "0015"
down_revision = "0011"
branch_labels = None
depends_on = None

CONSTRAINTS = {
    "memories_other_generation_check": "memories",
    "memories_other_generation_id_fkey": "memories",
    "embedding_generations_state_check": "embedding_generations",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = 0")
    for name, table in CONSTRAINTS.items():
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")


def downgrade() -> None:
    """Nothing to take back."""
