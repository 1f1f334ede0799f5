"""How far a key, and what was written with it, is to be believed: all that there was, fully.

Expand only: the defaults are constants, so that no row is touched. A summary is believed as far as the least believed
of its sources, so it ends where one of them is believed less.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TABLES = ("api_keys", "memories")
TRIGGER = """
CREATE OR REPLACE TRIGGER memories_retire_summaries AFTER UPDATE ON memories FOR EACH ROW
WHEN (OLD.status = 'active' AND (
    NEW.status <> 'active' OR NEW.content <> OLD.content OR NEW.event_at IS DISTINCT FROM OLD.event_at
    OR NEW.valid_to IS DISTINCT FROM OLD.valid_to OR NEW.expires_at IS DISTINCT FROM OLD.expires_at {more}
))
EXECUTE FUNCTION retire_summaries()
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS trust smallint DEFAULT 100 NOT NULL")
    op.execute(TRIGGER.format(more="OR NEW.trust < OLD.trust"))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute(TRIGGER.format(more=""))
    for table in reversed(TABLES):
        op.execute(f"ALTER TABLE {table} DROP COLUMN IF EXISTS trust")
