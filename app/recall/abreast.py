"""The nearest and all else that a search of a large subject proposes, found at once where a connection lies idle.

Invariant: it finds what the one statement of both finds; where the two saw different moments, a memory counts as the
walk saw it, and what is shown is read once more anyway.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.database import Statement, Transaction
from app.recall.candidates import ID_BYTES, Shape, record_bytes


async def abreast(
    transaction: Transaction, near: Statement, rest: Statement, values: Mapping[str, Any], shape: Shape, worded: int
) -> Mapping[str, Any] | None:
    """What proposals() would find, the walk `near` on another connection; None if there is none to spare.

    `worded` of the best-worded count that are not among the nearest.
    """
    if transaction.beside() is None:
        return None

    async def walk() -> Any:
        other = transaction.beside()
        if other is None:  # somebody came in this very moment
            return None
        async with other as elsewhere:
            return await elsewhere.fetch_row(near, **values)

    walking = asyncio.create_task(walk())
    try:
        others = await transaction.fetch_row(rest, **values)
        apart = [] if others is None else _apart(others, record_bytes(shape), worded)  # the walk may go on meanwhile
        walked = await walking
        if walked is None:
            walked = await transaction.fetch_row(near, **values)
    except BaseException:
        walking.cancel()
        await asyncio.gather(walking, return_exceptions=True)  # no connection is in use any more when this ends
        raise
    if walked is None or others is None:
        return None
    return _together(walked["packed"] or b"", apart, record_bytes(shape)) | {"counted": others["counted"]}


_Part = tuple[NDArray[np.void], list[bytes], int | None]
"""Records, their ids, and how many of them count at most; None: all."""


def _apart(others: Mapping[str, Any], size: int, worded: int) -> list[_Part]:
    both = (others["worded"] or b"", worded), (others["packed"] or b"", None)
    return [(np.frombuffer(packed, f"V{size}"), _ids(packed, size), most) for packed, most in both]


def _together(near: bytes, apart: Sequence[_Part], size: int) -> dict[str, Any]:
    """The nearest, the best-worded beyond them, and what else is neither."""
    seen = set(_ids(near, size))
    kept = [near]
    for records, ids, most in apart:
        fresh = [row for row, one in enumerate(ids) if one not in seen][:most]
        kept.append(records[fresh].tobytes())
        seen.update([ids[row] for row in fresh])
    return {"packed": b"".join(kept), "nearest": len(near) // size}


def _ids(packed: bytes, size: int) -> list[bytes]:
    layout = np.dtype([("id", f"V{ID_BYTES}"), ("measures", f"V{size - ID_BYTES}")])
    ids: list[bytes] = np.frombuffer(packed, layout)["id"].tolist()
    return ids
