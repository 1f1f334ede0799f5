"""JSON answers, straight to bytes: the hot routes answer dictionaries that were validated when they were written."""

from typing import Any

import orjson
from fastapi import Response

REMOVED_HEADER = "Mneme-Removed"
"""Where an answer has no other place to say that a part of the text was not taken, and why."""


def as_bytes(document: Any) -> bytes:
    """JSON in UTF-8; times in RFC 3339 with Z."""
    return orjson.dumps(document, default=str, option=orjson.OPT_UTC_Z)


def reply(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_bytes(document), status, headers, "application/json")
