"""The nearest and all else that a search of a large subject proposes, found at once where a connection lies idle.

Invariant: it finds what the one statement of both finds; where the two saw different moments, a memory counts as the
walk saw it, and what is shown is read once more anyway.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

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
        walked = await walking
        if walked is None:
            walked = await transaction.fetch_row(near, **values)
    except BaseException:
        walking.cancel()
        await asyncio.gather(walking, return_exceptions=True)  # no connection is in use any more when this ends
        raise
    if walked is None or others is None:
        return None
    return _together(walked["packed"] or b"", others, record_bytes(shape), worded)


def _together(near: bytes, others: Mapping[str, Any], size: int, worded: int) -> Mapping[str, Any]:
    """The nearest, the best-worded beyond them, and what else is neither."""
    layout = np.dtype([("id", f"V{ID_BYTES}"), ("measures", f"V{size - ID_BYTES}")])
    seen: set[bytes] = set(np.frombuffer(near, layout)["id"].tolist())
    kept = [near]
    for packed, most in ((others["worded"] or b"", worded), (others["packed"] or b"", None)):
        records = np.frombuffer(packed, layout)
        ids = records["id"].tolist()
        fresh = [row for row, one in enumerate(ids) if one not in seen][:most]
        kept.append(records[fresh].tobytes())
        seen.update([ids[row] for row in fresh])
    return {"packed": b"".join(kept), "nearest": len(near) // size, "counted": others["counted"]}
