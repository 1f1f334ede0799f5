"""The vector index of a generation in parts, each for the large subjects whose id ends alike.

Where the one index over all is empty, and the table small, the parts are made here. Else it goes on serving the very
same statements until `mneme repair` or `mneme reindex` has built the parts beside it: of a million memories that takes
half an hour.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

PARTS = 8

# As ensure_ann_index() was: made when a generation is claimed, while no row is in it.
ENSURE_PARTS = f"""
CREATE OR REPLACE FUNCTION ensure_ann_index(generation smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    dimensions integer;
BEGIN
    SELECT dimension INTO STRICT dimensions FROM embedding_generations WHERE generation_id = generation;
    IF to_regclass(format('memories_ann_g%s', generation)) IS NULL AND dimensions <= 4000 THEN
        FOR part IN 0..{PARTS - 1} LOOP
            -- Looked for by name: CREATE INDEX IF NOT EXISTS waits for all writers before it finds that there is one.
            CONTINUE WHEN to_regclass(format('memories_ann_g%s_p%s', generation, part)) IS NOT NULL;
            EXECUTE format(
                'CREATE INDEX IF NOT EXISTS %I ON memories USING hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)'
                ' WHERE ann AND generation_id = %s AND (get_byte(uuid_send(subject_id), 15) & {PARTS - 1}) = %s',
                format('memories_ann_g%s_p%s', generation, part), dimensions, generation, part
            );
        END LOOP;
    END IF;
END $$
"""
ENSURE_ONE = """
CREATE OR REPLACE FUNCTION ensure_ann_index(generation smallint) RETURNS void
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
# `name` and `applies` of the vector indexes of a generation: of the one over all (part -1), and of the parts.
INDEXES = f"""
    SELECT g.generation_id, g.dimension, g.state, part,
           format('memories_ann_g%s', g.generation_id) || CASE WHEN part < 0 THEN '' ELSE '_p' || part END AS name,
           format('ann AND generation_id = %s', g.generation_id) || CASE WHEN part < 0 THEN ''
           ELSE format(' AND (get_byte(uuid_send(subject_id), 15) & {PARTS - 1}) = %s', part) END AS applies
    FROM embedding_generations g CROSS JOIN generate_series(-1, {PARTS - 1}) AS part
    ORDER BY g.generation_id, part
"""
DROP_RETIRED = f"""
CREATE OR REPLACE FUNCTION drop_generation_indexes(generation smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM ({INDEXES}) AS i WHERE i.generation_id = generation AND i.state = 'retired' LOOP
        EXECUTE format('DROP INDEX IF EXISTS %I', one.name);
        EXECUTE format('DROP INDEX IF EXISTS %I', format('memories_lacking_g%s', generation));
    END LOOP;
END $$
"""
# Two passes: an index without its file lets no statement on the table through, not even one that reads another index.
DROP_DAMAGED = f"""
CREATE OR REPLACE FUNCTION drop_damaged_ann_indexes(reported text) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s'
SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
    one record;
    damaged boolean;
    dropped text[] := '{{}}';
BEGIN
    -- One after the other: the second finds nothing to do.
    PERFORM pg_advisory_xact_lock(hashtextextended('drop_damaged_ann_indexes', 0));
    FOR pass IN 1..2 LOOP
        FOR one IN {INDEXES} LOOP
            CONTINUE WHEN to_regclass(one.name) IS NULL;
            IF pass = 1 THEN
                damaged := pg_relation_size(to_regclass(one.name)) = 0
                    OR coalesce(pg_relation_filepath(to_regclass(one.name)) = reported, false);
            ELSE
                damaged := false;
                BEGIN
                    EXECUTE format(
                        'SELECT FROM memories WHERE %s ORDER BY embedding::halfvec(%s)'
                        ' <=> array_fill(1::real, ARRAY[%s])::halfvec(%s) LIMIT 1',
                        one.applies, one.dimension, one.dimension, one.dimension
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
    END LOOP;
    RETURN dropped;
END $$
"""
# An index that never had a row has two pages (of the rows themselves an owner sees none, with row security forced). To
# read a small table once for each part takes a moment, in which writes wait.
REPLACE = f"""
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT * FROM ({INDEXES}) AS i WHERE to_regclass(i.name) IS NOT NULL AND i.part {{old}}
    LOOP
        IF pg_relation_size(one.name::regclass) <= 2 * 8192 AND pg_table_size('memories') < 256 * 1024 * 1024 THEN
            EXECUTE format('DROP INDEX %I', one.name);
            IF one.state = 'active' THEN  -- that of another generation is made before the switch to it
                PERFORM ensure_ann_index(one.generation_id);
            END IF;
        END IF;
    END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for statement in (ENSURE_PARTS, DROP_RETIRED, DROP_DAMAGED, REPLACE.format(old="< 0")):
        op.execute(statement)


def downgrade() -> None:
    # The functions that drop know the one index, too, and stay. What serves large subjects does, until it is repaired.
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute(ENSURE_ONE)
    op.execute(REPLACE.format(old=">= 0"))
