"""A vector index that is damaged on disk can be dropped by the service, so that writes go on without it.

Expand only: one more function.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# The owner's right is lent for one thing: a vector index whose file the server itself complained of (`reported`: its
# path), or that cannot be read now. It holds nothing that is not in the table.
DROP_DAMAGED = """
CREATE FUNCTION drop_damaged_ann_indexes(reported text) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s'
SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
    one record;
    damaged boolean;
    dropped text[] := '{}';
BEGIN
    -- One after the other: the second finds nothing to do.
    PERFORM pg_advisory_xact_lock(hashtextextended('drop_damaged_ann_indexes', 0));
    FOR one IN
        SELECT g.generation_id, g.dimension, format('memories_ann_g%s', g.generation_id) AS name
        FROM embedding_generations g ORDER BY g.generation_id
    LOOP
        CONTINUE WHEN to_regclass(one.name) IS NULL;
        damaged := coalesce(pg_relation_filepath(to_regclass(one.name)) = reported, false);
        IF NOT damaged THEN
            BEGIN
                EXECUTE format(
                    'SELECT FROM memories WHERE ann AND generation_id = %s ORDER BY embedding::halfvec(%s)'
                    ' <=> array_fill(1::real, ARRAY[%s])::halfvec(%s) LIMIT 1',
                    one.generation_id, one.dimension, one.dimension, one.dimension
                );
            EXCEPTION WHEN data_corrupted OR index_corrupted OR internal_error OR undefined_file OR io_error THEN
                damaged := true;
            END;
        END IF;
        IF damaged THEN
            EXECUTE format('DROP INDEX IF EXISTS %I', one.name);
            dropped := dropped || one.name;
        END IF;
    END LOOP;
    RETURN dropped;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute(DROP_DAMAGED)
    op.execute("REVOKE ALL ON FUNCTION drop_damaged_ann_indexes(text) FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION drop_damaged_ann_indexes(text) TO mneme_worker")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("DROP FUNCTION drop_damaged_ann_indexes(text)")
