"""Facets: what filters ask for, by row of large subjects.

Expand only. GIN on tags would be no index condition behind row security; equality of uuid and int is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0015"
branch_labels = None
depends_on = None

TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"  # a sub-select: read once, not per row
FACET = """
CREATE FUNCTION facet(name text, value text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtext(name || ':' || value)
"""
# Numbers in metadata have no facet, for 1 and 1.0 are equal; nor has the content type that nearly all have.
FACETS_OF = """
CREATE FUNCTION facets_of(tags text[], kind text, content_type text, metadata jsonb) RETURNS SETOF integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT facet('tag', tag) FROM unnest(tags) AS tag
    UNION SELECT facet('kind', kind)
    UNION SELECT facet('content_type', content_type) WHERE content_type <> 'text'
    UNION SELECT facet('metadata', key || '=' || value) FROM jsonb_each(metadata) AS pair (key, value)
          WHERE jsonb_typeof(value) IN ('string', 'boolean');
END
"""
KEEP_FACETS = """
CREATE FUNCTION keep_facets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ann THEN
        DELETE FROM memory_facets
        WHERE tenant_id = OLD.tenant_id AND subject_id = OLD.subject_id AND memory_id = OLD.memory_id
          AND facet = ANY (ARRAY(SELECT facets_of(OLD.tags, OLD.kind, OLD.content_type, OLD.metadata)));
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ann THEN
        INSERT INTO memory_facets (tenant_id, subject_id, facet, memory_id)
        SELECT NEW.tenant_id, NEW.subject_id, one, NEW.memory_id
        FROM facets_of(NEW.tags, NEW.kind, NEW.content_type, NEW.metadata) AS one
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$
"""
OF = "(%s.ann, %s.tags, %s.kind, %s.content_type, %s.metadata)"
# Rows of small subjects cost the test of a boolean.
TRIGGERS = {
    "INSERT": "INSERT ON memories FOR EACH ROW WHEN (NEW.ann)",
    "UPDATE": "UPDATE OF ann, tags, kind, content_type, metadata ON memories FOR EACH ROW"
    " WHEN ((OLD.ann OR NEW.ann) AND"
    f" {OF.replace('%s', 'OLD')} IS DISTINCT FROM {OF.replace('%s', 'NEW')})",
    "DELETE": "DELETE ON memories FOR EACH ROW WHEN (OLD.ann)",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = 0")
    op.create_table(
        "memory_facets",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("facet", sa.Integer(), nullable=False),
        sa.Column("memory_id", sa.Uuid(), nullable=False),
    )
    op.execute("ALTER TABLE memory_facets ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE memory_facets FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, DELETE ON memory_facets TO mneme_app")
    op.execute(
        "CREATE POLICY memory_facets_of_tenant ON memory_facets TO mneme_app"
        f" USING (tenant_id = {TENANT}) WITH CHECK (tenant_id = {TENANT})"
    )
    for function in (FACET, FACETS_OF, KEEP_FACETS):
        op.execute(function)
    for event, trigger in TRIGGERS.items():
        op.execute(f"CREATE TRIGGER memories_facets_{event.lower()} AFTER {trigger} EXECUTE FUNCTION keep_facets()")
    # The triggers hold their lock until this ends, so that no row is missed between them and here.
    op.execute(
        "INSERT INTO memory_facets SELECT m.tenant_id, m.subject_id, one, m.memory_id FROM memories m"
        " CROSS JOIN LATERAL facets_of(m.tags, m.kind, m.content_type, m.metadata) AS one WHERE m.ann"
    )
    op.create_primary_key(
        op.f("memory_facets_pkey"), "memory_facets", ["tenant_id", "subject_id", "facet", "memory_id"]
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    for event in TRIGGERS:
        op.execute(f"DROP TRIGGER memories_facets_{event.lower()} ON memories")
    op.execute("DROP FUNCTION keep_facets()")
    op.execute("DROP FUNCTION facets_of(text[], text, text, jsonb)")
    op.execute("DROP FUNCTION facet(text, text)")
    op.drop_table("memory_facets")
