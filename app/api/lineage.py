"""Where a memory comes from and what became of it; bringing one back."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import Query as Parameter
from fastapi import Response
from pydantic import BaseModel, Field

from app import telemetry
from app.api.deps import Mneme, Reader, Writer, walled_router
from app.api.memories import MemoryId, etag
from app.api.problems import problems
from app.api.reply import reply
from app.clock import now
from app.memory import Memory
from app.remember import MOST_STEPS, lineage_of, restore

router = walled_router(prefix="/v1", tags=["memories"])


class MemoryLink(BaseModel):
    """How `from` stands to `to`: it is its duplicate, supersedes it, is perhaps the same (`candidate`), would have
    superseded it (`review`), or was made of it (`derived_from`)."""

    source: UUID = Field(alias="from")
    relation: Literal["duplicate_of", "supersedes", "candidate", "review", "derived_from"]
    to: UUID
    at: datetime


class SourceMessage(BaseModel):
    """A message of a conversation of which a memory was made, as it was said."""

    memory_id: UUID
    operation_id: UUID
    session_id: str | None
    number: int = Field(description="Of the message in its conversation, from 0.")
    reference: str | None = Field(description="The caller's own name for the message.")
    role: str
    content: str
    said_at: datetime | None


class LineageAnswer(BaseModel):
    """All that is linked with a memory, directly or over others; `truncated`: there is more."""

    memories: list[Memory]
    links: list[MemoryLink]
    sources: list[SourceMessage]
    truncated: bool


class RestoreAnswer(BaseModel):
    """The memory as it is now, what it was, and which memory had to leave its slot."""

    memory: Memory
    was: Literal["active", "deprecated", "duplicate", "archived"]
    deprecated: list[UUID]


@router.get(
    "/memories/{memory_id}/lineage",
    operation_id="get_memory_lineage",
    response_model=LineageAnswer,
    responses=problems(404, 422),
)
async def get_lineage(
    services: Mneme,
    caller: Reader,
    memory_id: MemoryId,
    depth: Annotated[int, Parameter(ge=1, le=MOST_STEPS, description="Most links away.")] = MOST_STEPS,
) -> Response:
    """The memories that this one came from and those that came from it, with the messages behind them."""
    telemetry.annotate(operation="lineage", memory_id=memory_id)
    found = await lineage_of(services.database, caller, memory_id, steps=depth)
    return reply(
        {"memories": found.memories, "links": found.links, "sources": found.sources, "truncated": found.truncated}
    )


@router.post(
    "/memories/{memory_id}:restore",
    operation_id="restore_memory",
    response_model=RestoreAnswer,
    responses=problems(404, 409, 422),
)
async def post_restore(services: Mneme, caller: Writer, memory_id: MemoryId) -> Response:
    """Make an overruled, merged or (with scope `admin`) archived memory active again; a second time changes nothing.

    What overruled it stays active as well, unless both hold one `key`: then that one is deprecated in its turn.
    """
    telemetry.annotate(operation="restore", memory_id=memory_id)
    restored = await restore(services.database, caller, memory_id, now=now())
    answer = {"memory": restored.memory, "was": restored.was, "deprecated": restored.deprecated}
    return reply(answer, headers={"ETag": etag(restored.memory)})
