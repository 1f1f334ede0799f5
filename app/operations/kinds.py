"""OPERATION_KINDS: one row for each kind of slow work. A row names what does it; all logic is in the rooms."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from app.operations.extract import extract_memories
from app.operations.queue import Claim
from app.operations.tools import Tools

Work = Callable[[Claim, Tools, datetime], Awaitable[Mapping[str, Any] | None]]
"""Does the work; returns its result, or None if it finished its claim in the transaction of what it wrote."""


@dataclass(frozen=True, slots=True)
class OperationKind:
    """One row: after so many failed attempts, each waiting four times longer than the last, it has failed."""

    name: str
    meaning: str
    run: Work
    attempts: int = 5
    first_wait_seconds: float = 2.0
    longest_wait_seconds: float = 900.0


OPERATION_KINDS = MappingProxyType(
    {
        kind.name: kind
        for kind in (OperationKind("extract", "makes memories of the messages of a conversation", extract_memories),)
    }
)
