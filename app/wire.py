"""The binary forms in which vectors, documents and ids travel to PostgreSQL.

Invariant: vectors go as bytes made from numpy; text forms would cost more than the statements that carry them.
"""

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import numpy as np
import orjson
import uuid_utils
from asyncpg.pgproto import pgproto

KEYWORD_DIMENSIONS = 1_000_000_000  # pgvector's limit for sparsevec


async def register_codecs(connection: "asyncpg.Connection[Any]") -> None:
    """Teach a connection the binary forms of jsonb, halfvec and sparsevec."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: b"\x01" + orjson.dumps(value),
        decoder=lambda value: orjson.loads(value[1:]),
        format="binary",
    )
    schema = await connection.fetchval(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'"
    )
    if schema is None:
        return  # before the first migration; Database._check says so
    await connection.set_type_codec("halfvec", schema=schema, encoder=bytes, decoder=_vector, format="binary")
    await connection.set_type_codec("sparsevec", schema=schema, encoder=bytes, decoder=bytes, format="binary")


# pgvector's own HalfVector and SparseVector build Python lists on the way; these speak its wire format from numpy. They
# give bytes, because asyncpg takes an ndarray or a tuple inside an array parameter for one more dimension.
def halfvec(vector: np.ndarray) -> bytes:
    """A float vector as a parameter."""
    return struct.pack(">HH", len(vector), 0) + vector.astype(">f2").tobytes()


def halfvecs(vectors: np.ndarray) -> list[bytes]:
    """Float vectors of one length (rows) as parameters."""
    head = struct.pack(">HH", vectors.shape[1], 0)
    return [head + row.tobytes() for row in vectors.astype(">f2")]


def sparsevec(ids: Sequence[int], weights: Sequence[float]) -> bytes:
    """A sparse vector (ids ascending from 0) as a parameter."""
    return struct.pack(f">iii{len(ids)}i{len(ids)}f", KEYWORD_DIMENSIONS, len(ids), 0, *ids, *weights)


def sparsevec_of(ids: np.ndarray, weights: np.ndarray) -> bytes:
    """The same of arrays."""
    head = struct.pack(">iii", KEYWORD_DIMENSIONS, len(ids), 0)
    return head + ids.astype(">i4").tobytes() + weights.astype(">f4").tobytes()


def new_id() -> UUID:
    """A UUIDv7 in the driver's own type, as rows bring it: made, hashed and sent in a third of the time."""
    made: UUID = pgproto.UUID(uuid_utils.uuid7().bytes)
    return made


def _vector(data: bytes) -> np.ndarray:
    return np.frombuffer(data, ">f2", offset=4).astype(np.float32)
