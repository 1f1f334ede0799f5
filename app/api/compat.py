"""The tutorial API, unchanged: `POST /memory/add` and `POST /memory/retrieve`, over the same use cases."""

from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from fastapi import Response
from pydantic import BaseModel

from app import telemetry
from app.api.deps import Mneme, Reader, Writer, walled_router
from app.api.problems import problems
from app.api.reply import REMOVED_HEADER, reply
from app.api.schemas import TutorialAdd, TutorialRetrieve
from app.api.search import note
from app.clock import now
from app.errors import Invalid
from app.extract import NOTHING_SAID
from app.idempotency import Answer
from app.memory import as_bytes
from app.recall import Query
from app.remember import DEFAULT_KIND, NewMemory, Written

router = walled_router(prefix="/memory", tags=["tutorial"])


class TutorialMemory(BaseModel):
    """A memory by the tutorial's names."""

    memory_id: UUID
    user_id: str | None
    content: str
    content_type: str
    created_at: datetime
    updated_at: datetime
    last_accessed_at: datetime | None
    access_count: int
    importance: float
    tags: list[str]
    source: str | None


_SAME_NAME = tuple(name for name in TutorialMemory.model_fields if name != "memory_id")


@router.post("/add", operation_id="tutorial_add", response_model=str, responses=problems(422))
async def tutorial_add(services: Mneme, caller: Writer, body: TutorialAdd) -> Response:
    """Store a memory and answer its id; the same text again answers the same id."""
    telemetry.annotate(operation="write")
    user_id, agent_id = caller.bind(body.user_id, None)
    await services.quotas.admit(caller.tenant_id, user_id)
    new = NewMemory(
        user_id=user_id, agent_id=agent_id, content=body.content, content_type=body.content_type, kind=DEFAULT_KIND,
        importance=body.importance, tags=tuple(body.tags), source=body.source,
        # The answer must be an id. Who names an importance of 1 means it; the default must not make all expire.
        if_trivial="expire" if "importance" in body.model_fields_set else "keep",
    )  # fmt: skip

    headers: dict[str, str] = {}

    def answer(written: list[Written]) -> Answer:
        if written[0].memory is None:
            raise Invalid(errors=[NOTHING_SAID])  # the answer must be an id, and there is none
        if written[0].reason is not None:
            headers[REMOVED_HEADER] = written[0].reason
        return Answer(200, as_bytes(written[0].memory["id"]))

    result = await services.rememberer.remember(caller, [new], answer, now=now())
    telemetry.annotate(memory_id=orjson.loads(result.body))
    return Response(result.body, result.status, headers, "application/json")


@router.post(
    "/retrieve", operation_id="tutorial_retrieve", response_model=list[TutorialMemory], responses=problems(422)
)
async def tutorial_retrieve(services: Mneme, caller: Reader, body: TutorialRetrieve) -> Response:
    """The best memories for a query as a plain list."""
    telemetry.annotate(operation="search")
    user_id, agent_id = caller.bind(body.user_id, None)
    weights = body.weights.model_dump()
    named = {"similarity": weights["sim"], "keyword": weights["bm25"]}
    query = Query(
        tenant_id=caller.tenant_id, user_id=user_id, agent_id=agent_id, text=body.query, top_k=body.top_k,
        weights={"time": weights["time"], "importance": weights["importance"], **named},
    )  # fmt: skip
    recalled = await services.recaller.recall(query, now=now())
    note(recalled)
    return reply([_tutorial(hit.memory) for hit in recalled.hits])


def _tutorial(memory: Any) -> dict[str, Any]:
    return {"memory_id": memory["id"], **{name: memory[name] for name in _SAME_NAME}}
