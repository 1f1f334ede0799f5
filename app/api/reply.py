"""JSON answers, straight to bytes: the hot routes answer dictionaries that were validated when they were written."""

from typing import Any

from fastapi import Response

from app.memory import as_bytes

REMOVED_HEADER = "Mneme-Removed"
"""Where an answer has no other place to say that a part of the text was not taken, and why."""


def reply(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_bytes(document), status, headers, "application/json")
