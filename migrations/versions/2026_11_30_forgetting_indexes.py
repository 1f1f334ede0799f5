"""What the rules of forgetting look for, as indexes; due dates of what was stored before; queued runs of jobs.

Expand only. CREATE INDEX CONCURRENTLY, so that nobody waits while a filled table is read. Due dates are set tenant by
tenant, as the role that may, for the owner of the tables sees no rows.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INDEXES = {
    "memory_usage_forget_idx": "memory_usage (tenant_id, forget_at, memory_id) WHERE forget_at IS NOT NULL",
    "memories_expires_idx": "memories (tenant_id, expires_at, memory_id)"
    " WHERE status = 'active' AND expires_at IS NOT NULL",
    "memories_idle_idx": "memories (tenant_id, updated_at, memory_id)"
    " WHERE status = 'active' AND NOT pinned AND importance < 3",
    "memories_task_idx": "memories (tenant_id, updated_at, memory_id)"
    " WHERE status = 'active' AND NOT pinned AND kind = 'task_state'",
    "memories_retired_idx": "memories (tenant_id, (coalesce(deprecated_at, updated_at)), memory_id)"
    " WHERE status IN ('deprecated', 'duplicate')",
    "job_runs_run_key": "job_runs (run_id)",
    "job_runs_open_idx": "job_runs (state, slot) WHERE state IN ('queued', 'running')",
}
# The curve as it was when this was written; what is due is looked at again before it is forgotten.
DATE_AND_ARCHIVE = """
DO $$
DECLARE
    tenants uuid[];
    tenant uuid;
BEGIN
    SET ROLE mneme_worker;
    tenants := ARRAY(SELECT tenant_id FROM tenants);
    SET ROLE mneme_app;
    FOREACH tenant IN ARRAY tenants LOOP
        PERFORM set_config('app.tenant_id', tenant::text, false);
        UPDATE memory_usage u
        SET forget_at = greatest(m.updated_at, u.last_accessed_at) + interval '1 day' * 4.3219 * (
            CASE m.kind WHEN 'task_state' THEN 45 WHEN 'interaction_history' THEN 60 WHEN 'profile' THEN 730
            ELSE 365 END
        ) * 2 ^ ((m.importance - 3) / 2) * least(1 + ln(1 + u.access_count) / ln(2) / 4, 3)
        FROM memories m
        WHERE u.tenant_id = tenant AND m.tenant_id = tenant AND m.subject_id = u.subject_id
          AND m.memory_id = u.memory_id AND m.status = 'active' AND NOT m.pinned;
        INSERT INTO memory_archive (tenant_id, subject_id, memory_id, was, rule, archived_at)
        SELECT tenant, subject_id, memory_id, 'active', 'asked', updated_at FROM memories
        WHERE tenant_id = tenant AND status = 'archived'
        ON CONFLICT DO NOTHING;
        COMMIT;
    END LOOP;
    RESET app.tenant_id;
    RESET ROLE;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    # The wider one follows in the same transaction.
    op.execute(
        "-- squawk-ignore ban-drop-constraint\nALTER TABLE job_runs DROP CONSTRAINT IF EXISTS job_runs_state_check"
    )
    op.execute(
        "ALTER TABLE job_runs ADD CONSTRAINT job_runs_state_check"
        " CHECK (state IN ('queued', 'running', 'succeeded', 'failed')) NOT VALID"
    )
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        op.execute("ALTER TABLE job_runs VALIDATE CONSTRAINT job_runs_state_check")
        for name, definition in INDEXES.items():
            unique = "UNIQUE " if name.endswith("_key") else ""
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE {unique}INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        op.execute(DATE_AND_ARCHIVE)
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("DELETE FROM job_runs WHERE state = 'queued'")
    op.execute("ALTER TABLE job_runs DROP CONSTRAINT job_runs_state_check")
    op.execute(
        "ALTER TABLE job_runs ADD CONSTRAINT job_runs_state_check CHECK (state IN ('running', 'succeeded', 'failed'))"
    )
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = 0")
        for name in INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")
