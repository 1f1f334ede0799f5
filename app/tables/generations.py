"""The models whose vectors are in the store: one is served, and at most one other stands beside it."""

from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    SmallInteger,
    Table,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.tables.base import metadata, one_of, text_column, time_column

embedding_generations = Table(
    "embedding_generations",
    metadata,
    Column("generation_id", SmallInteger, primary_key=True, autoincrement=False),
    text_column("model"),
    text_column("revision"),
    Column("dimension", Integer, nullable=False),
    text_column("query_prompt"),
    text_column("document_prompt"),
    Column("tokenizer_version", SmallInteger, nullable=False),
    Column("query_window", ARRAY(Double), nullable=False),
    Column("pair_window", ARRAY(Double), nullable=False),
    text_column("state"),
    time_column("created_at"),
    # Where the model comes from; and of one that a store moves to or has left: whether only what is used gets its
    # vectors, how many a second (null: no limit), how many are lacking; when it was switched to or from, and when the
    # last of its vectors had gone.
    Column("source", JSONB, nullable=True),
    Column("only_used", Boolean, nullable=True),
    Column("rate", REAL, nullable=True),
    Column("lacking", BigInteger, nullable=True),
    time_column("switched_at", nullable=True),
    time_column("purged_at", nullable=True),
    one_of("state", ("active", "building", "previous", "retired")),
    Index("embedding_generations_active_key", "state", unique=True, postgresql_where=text("state = 'active'")),
    Index(
        "embedding_generations_other_key",
        text("(state = 'building' OR state = 'previous')"),
        unique=True,
        postgresql_where=text("state = 'building' OR state = 'previous'"),
    ),
)
