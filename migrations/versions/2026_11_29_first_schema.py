"""First schema: tables, roles, row-level security, append-only audit.

Roles belong to the cluster, so a downgrade leaves them; so it does the extension, which other schemas may use.
"""

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    for role in ("mneme_app", "mneme_worker"):
        op.execute(CREATE_ROLE.format(role=role))
    create_tables()
    # Before row security is forced, under which an owner without power could not write it.
    op.execute(
        "INSERT INTO tenants (tenant_id, name, created_at)"
        " VALUES ('00000000-0000-7000-8000-000000000001', 'default', now())"
    )
    secure_tables()


def create_tables() -> None:
    op.create_table(
        "embedding_generations",
        sa.Column("generation_id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("query_prompt", sa.Text(), nullable=False),
        sa.Column("document_prompt", sa.Text(), nullable=False),
        sa.Column("tokenizer_version", sa.SmallInteger(), nullable=False),
        sa.Column("query_window", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("pair_window", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('active', 'retired')", name=op.f("embedding_generations_state_check")),
        sa.PrimaryKeyConstraint("generation_id", name=op.f("embedding_generations_pkey")),
    )
    op.create_index(
        "embedding_generations_active_key",
        "embedding_generations",
        ["state"],
        unique=True,
        postgresql_where=sa.text("state = 'active'"),
    )
    op.create_table(
        "job_runs",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("slot", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("counts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('running', 'succeeded', 'failed')", name=op.f("job_runs_state_check")),
        sa.PrimaryKeyConstraint("job", "slot", name=op.f("job_runs_pkey")),
    )
    op.create_table(
        "memory_events",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "event_id", name=op.f("memory_events_pkey")),
    )
    op.create_index("memory_events_memory_idx", "memory_events", ["tenant_id", "subject_id", "memory_id"], unique=False)
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("tenants_pkey")),
        sa.UniqueConstraint("name", name=op.f("tenants_name_key")),
    )
    op.create_table(
        "api_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret_hmac", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("api_keys_tenant_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "key_id", name=op.f("api_keys_pkey")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("idempotency_keys_tenant_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "key", name=op.f("idempotency_keys_pkey")),
    )
    op.create_index("idempotency_keys_created_idx", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "operations",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("request", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("operations_state_check")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("operations_tenant_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "operation_id", name=op.f("operations_pkey")),
    )
    op.create_index(
        "operations_due_idx",
        "operations",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "subjects",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("ann", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("ann_ready", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("memory_count", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("mean_word_count", sa.REAL(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("subjects_tenant_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", name=op.f("subjects_pkey")),
        sa.UniqueConstraint(
            "tenant_id", "user_id", name=op.f("subjects_tenant_id_user_id_key"), postgresql_nulls_not_distinct=True
        ),
    )
    op.create_index("subjects_large_idx", "subjects", ["tenant_id"], unique=False, postgresql_where=sa.text("ann"))
    op.create_table(
        "memories",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("importance", sa.REAL(), nullable=False),
        sa.Column("tags", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("event_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=True),
        sa.Column("valid_to", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deprecated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("keywords", pgvector.sqlalchemy.SPARSEVEC(dim=1000000000), nullable=False),
        sa.Column("word_count", sa.Integer(), nullable=False),
        sa.Column("tokenizer_version", sa.SmallInteger(), nullable=False),
        sa.Column("embedding", pgvector.sqlalchemy.HALFVEC(), nullable=True),
        sa.Column("generation_id", sa.SmallInteger(), nullable=True),
        sa.Column("window_count", sa.SmallInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("ann", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(
            "(status = 'deprecated') = (deprecated_at IS NOT NULL)", name=op.f("memories_deprecated_check")
        ),
        sa.CheckConstraint(
            "content_type IN ('text', 'image', 'audio', 'video')", name=op.f("memories_content_type_check")
        ),
        sa.CheckConstraint(
            "status IN ('active', 'deprecated', 'duplicate', 'quarantined', 'archived')",
            name=op.f("memories_status_check"),
        ),
        sa.CheckConstraint("(embedding IS NULL) = (generation_id IS NULL)", name=op.f("memories_generation_check")),
        sa.CheckConstraint("importance BETWEEN 1 AND 5", name=op.f("memories_importance_check")),
        sa.ForeignKeyConstraint(
            ["generation_id"], ["embedding_generations.generation_id"], name=op.f("memories_generation_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id"],
            ["subjects.tenant_id", "subjects.subject_id"],
            name=op.f("memories_tenant_id_subject_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", name=op.f("memories_pkey")),
        postgresql_with={"toast_tuple_target": "8160"},
    )
    op.create_index(
        "memories_content_key",
        "memories",
        ["tenant_id", "subject_id", "content_hash", "agent_id"],
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=sa.text("status = 'active'"),
    )
    op.create_index("memories_id_idx", "memories", ["tenant_id", "memory_id"], unique=False)
    op.create_index(
        "memories_slot_key",
        "memories",
        ["tenant_id", "subject_id", "key", "agent_id"],
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=sa.text("status = 'active' AND key IS NOT NULL"),
    )
    op.create_index("memories_subject_status_idx", "memories", ["tenant_id", "subject_id", "status"], unique=False)
    op.create_table(
        "term_statistics",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("term_id", sa.Integer(), nullable=False),
        sa.Column("document_count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id"],
            ["subjects.tenant_id", "subjects.subject_id"],
            name=op.f("term_statistics_tenant_id_subject_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "term_id", name=op.f("term_statistics_pkey")),
    )
    op.create_table(
        "embedding_queue",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("embedding_queue_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", name=op.f("embedding_queue_pkey")),
    )
    op.create_index("embedding_queue_due_idx", "embedding_queue", ["due_at"], unique=False)
    op.create_table(
        "memory_links",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("relation", sa.Text(), nullable=False),
        sa.Column("other_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("relation IN ('duplicate_of', 'supersedes')", name=op.f("memory_links_relation_check")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_links_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "other_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_links_tenant_id_subject_id_other_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "subject_id", "memory_id", "relation", "other_id", name=op.f("memory_links_pkey")
        ),
    )
    op.create_index("memory_links_other_idx", "memory_links", ["tenant_id", "subject_id", "other_id"], unique=False)
    op.create_table(
        "memory_terms",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("term_id", sa.Integer(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_terms_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "term_id", "memory_id", name=op.f("memory_terms_pkey")),
    )
    op.create_index("memory_terms_memory_idx", "memory_terms", ["tenant_id", "subject_id", "memory_id"], unique=False)
    op.create_table(
        "memory_usage",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("access_count", sa.BigInteger(), nullable=False),
        sa.Column("hit_streak", sa.Integer(), nullable=False),
        sa.Column("last_accessed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_usage_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", name=op.f("memory_usage_pkey")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_table(
        "memory_versions",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("snapshot", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("replaced_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_versions_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id", "memory_id", "version", name=op.f("memory_versions_pkey")),
    )
    op.create_table(
        "memory_windows",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
        sa.Column("window_number", sa.SmallInteger(), nullable=False),
        sa.Column("embedding", pgvector.sqlalchemy.HALFVEC(), nullable=False),
        sa.CheckConstraint("window_number >= 2", name=op.f("memory_windows_window_number_check")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "subject_id", "memory_id"],
            ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
            name=op.f("memory_windows_tenant_id_subject_id_memory_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "subject_id", "memory_id", "window_number", name=op.f("memory_windows_pkey")
        ),
    )


CREATE_ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
    -- One login for migrations and service (a first try-out): it must be able to step down into the role.
    IF NOT pg_has_role(current_user, '{role}', 'SET') THEN
        GRANT {role} TO CURRENT_USER WITH SET TRUE, INHERIT FALSE;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;  -- another migrator of the same cluster was faster
END $$
"""

# The vector index of a generation: partial, so that only rows of large subjects pay for it. Made when the generation is
# claimed, while no row is in it. The owner's right is lent for this one statement, whose only input is a number.
ENSURE_ANN_INDEX = """
CREATE FUNCTION ensure_ann_index(generation smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    dimensions integer;
BEGIN
    SELECT dimension INTO STRICT dimensions FROM embedding_generations WHERE generation_id = generation;
    IF to_regclass(format('memories_ann_g%s', generation)) IS NULL AND dimensions <= 4000 THEN
        EXECUTE format(
            'CREATE INDEX IF NOT EXISTS %I ON memories USING hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)'
            ' WHERE ann AND generation_id = %s',
            format('memories_ann_g%s', generation), dimensions, generation
        );
    END IF;
END $$
"""

# table -> what the application role may do with the rows of its tenant
APP_RIGHTS = {
    "tenants": "SELECT, INSERT, UPDATE",
    "api_keys": "SELECT, INSERT, UPDATE",
    "subjects": "SELECT, INSERT, UPDATE, DELETE",
    "memories": "SELECT, INSERT, UPDATE, DELETE",
    "memory_windows": "SELECT, INSERT, UPDATE, DELETE",
    "memory_terms": "SELECT, INSERT, DELETE",
    "memory_usage": "SELECT, INSERT, UPDATE, DELETE",
    "memory_links": "SELECT, INSERT, UPDATE, DELETE",
    "memory_versions": "SELECT, INSERT, DELETE",
    "memory_events": "SELECT, INSERT",
    "idempotency_keys": "SELECT, INSERT, DELETE",
    "embedding_queue": "SELECT, INSERT, UPDATE, DELETE",
    "operations": "SELECT, INSERT, UPDATE",
    "term_statistics": "SELECT, INSERT, UPDATE, DELETE",
}
# table -> what the worker role may do across tenants: queues, counters and the names of tenants, never memories
WORKER_RIGHTS = {
    "tenants": "SELECT",
    "api_keys": "SELECT (tenant_id, key_id, expires_at, revoked_at)",
    "memory_usage": "SELECT, UPDATE",
    "embedding_queue": "SELECT, UPDATE, DELETE",
    "operations": "SELECT, UPDATE",
    "idempotency_keys": "SELECT, UPDATE, DELETE",  # UPDATE: to lock what it deletes
    "subjects": "SELECT (tenant_id, subject_id, ann, ann_ready)",
}
# tables without a tenant
GLOBAL_RIGHTS = {"job_runs": "SELECT, INSERT, UPDATE, DELETE", "embedding_generations": "SELECT, INSERT, UPDATE"}
TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"  # a sub-select: read once, not per row


def secure_tables() -> None:
    for table, rights in APP_RIGHTS.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT {rights} ON {table} TO mneme_app")
        op.execute(
            f"CREATE POLICY {table}_of_tenant ON {table} TO mneme_app"
            f" USING (tenant_id = {TENANT}) WITH CHECK (tenant_id = {TENANT})"
        )
    for table, rights in WORKER_RIGHTS.items():
        op.execute(f"GRANT {rights} ON {table} TO mneme_worker")
        op.execute(f"CREATE POLICY {table}_of_worker ON {table} TO mneme_worker USING (true)")
    for table, rights in GLOBAL_RIGHTS.items():
        op.execute(f"GRANT {rights} ON {table} TO mneme_worker")
    op.execute("GRANT SELECT ON embedding_generations TO mneme_app")
    op.execute("GRANT SELECT ON alembic_version TO mneme_app, mneme_worker")
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'memory_events is append-only' USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER memory_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON memory_events"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute(ENSURE_ANN_INDEX)
    op.execute("REVOKE ALL ON FUNCTION ensure_ann_index(smallint) FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION ensure_ann_index(smallint) TO mneme_worker")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.drop_table("memory_terms")
    op.drop_table("memory_windows")
    op.drop_table("memory_versions")
    op.drop_table("memory_usage")
    op.drop_table("memory_links")
    op.drop_table("embedding_queue")
    op.drop_table("term_statistics")
    op.drop_table("memories")
    op.drop_table("subjects")
    op.drop_table("operations")
    op.drop_table("idempotency_keys")
    op.drop_table("api_keys")
    op.drop_table("tenants")
    op.drop_table("memory_events")
    op.drop_table("job_runs")
    op.drop_table("embedding_generations")
    op.execute("DROP FUNCTION refuse_change()")
    op.execute("DROP FUNCTION ensure_ann_index(smallint)")
