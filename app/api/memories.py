"""The resource `memories`: write one or many, read, list, amend, erase, history."""

from hashlib import blake2b
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import Header, Path, Request, Response
from fastapi import Query as Parameter
from pydantic import BaseModel, Field, ValidationError

from app import telemetry
from app.api.cursor import next_cursor, place_of
from app.api.deps import Deleter, Mneme, Reader, Services, Writer, walled_router
from app.api.problems import ItemProblem, invalid, item_problem, problems
from app.api.reply import REMOVED_HEADER, reply
from app.api.schemas import BatchIn, ListQuery, MemoryIn, MemoryPatch
from app.clock import now
from app.errors import (
    FieldError,
    Forbidden,
    Invalid,
    MnemeError,
    PreconditionRequired,
    QuotaExceeded,
    VersionConflict,
)
from app.extract import NOTHING_SAID
from app.guard import Caller
from app.idempotency import Answer, Idempotency
from app.memory import Memory, as_bytes
from app.remember import Listing, Written

router = walled_router(prefix="/v1", tags=["memories"])

MemoryId = Annotated[UUID, Path(description="Id of a memory.")]
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", description="Repeats with the same key and body give the first answer.")
]
IfMatch = Annotated[str | None, Header(alias="If-Match", description='The ETag that was seen, such as "v3".')]


class Related(BaseModel):
    """Another memory and how it stands to this one: `duplicate` is what was offered, kept beside the one that says it;
    this one `supersedes` it or is `superseded_by` it; it may say the same (`candidate`); this one would have overruled
    it, but that needs a decision (`review`)."""

    id: UUID
    relation: Literal["duplicate", "supersedes", "superseded_by", "candidate", "review"]


class WriteAnswer(BaseModel):
    """What became of a memory. For a duplicate, `id` and `memory` are those of the one that already says it; `filtered`
    was not stored and has none; `outdated` is kept for history only, because a newer memory overrules it."""

    id: UUID | None
    outcome: Literal["created", "duplicate", "superseded", "outdated", "filtered", "quarantined"]
    memory: Memory | None
    related: list[Related]
    reason: Literal["served_memory", "greeting", "thanks", "filler", "pleasantry", "calculation"] | None = Field(
        description="Why all of the text (`filtered`) or a part of it was not taken: it was served by Mneme itself, or "
        "is small talk."
    )
    degraded: list[Literal["nli_unavailable", "llm_unavailable", "llm_unusable"]] = Field(
        default=[], description="Models that could not be asked about conflicts: rules alone judged."
    )


class BatchItem(BaseModel):
    """One item of a batch: the answer it would have got alone, or its problem."""

    index: int
    status: int
    id: UUID | None = None
    outcome: str | None = None
    memory: Memory | None = None
    related: list[Related] | None = None
    reason: str | None = None
    degraded: list[str] | None = None
    problem: ItemProblem | None = None


class BatchAnswer(BaseModel):
    """Per-item results, in the order of the request."""

    items: list[BatchItem]


class ListAnswer(BaseModel):
    """One page; `next_cursor` is null on the last."""

    items: list[Memory]
    next_cursor: str | None


class HistoryEntry(BaseModel):
    """One event; `replaced` holds the fields as they were before an amendment."""

    version: int
    action: str
    actor: str
    at: str
    detail: dict[str, Any]
    replaced: dict[str, Any] | None


class HistoryAnswer(BaseModel):
    """What happened to a memory, oldest first."""

    items: list[HistoryEntry]


@router.post(
    "/memories",
    operation_id="write_memory",
    status_code=HTTPStatus.CREATED,
    response_model=WriteAnswer,
    responses={
        200: {"model": WriteAnswer, "description": "Nothing new: duplicate, outdated or filtered."},
        **problems(409, 422),
    },
)
async def write_memory(
    services: Mneme, caller: Writer, request: Request, body: MemoryIn, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store one memory. 201 when a new active memory exists, 200 otherwise."""
    telemetry.annotate(operation="write")
    user_id, agent_id = caller.bind(body.user_id, body.agent_id)
    await services.quotas.admit(caller.tenant_id, user_id)
    shown: dict[str, Any] = {}

    def answer(written: list[Written]) -> Answer:
        shown.update(_shown(written[0]))
        return Answer(_status(written[0]), as_bytes(shown))

    result = await services.rememberer.remember(
        caller, [body.to_new(user_id, agent_id)], answer, now=now(),
        idempotency=await idempotency_of(request, caller, idempotency_key),
    )  # fmt: skip
    memory_id = (shown or orjson.loads(result.body))["id"]  # replayed: as it was stored
    telemetry.annotate(memory_id=memory_id)
    return _answered(result, {"Location": f"/v1/memories/{memory_id}"} if result.status == HTTPStatus.CREATED else {})


@router.post(
    "/memories:batch",
    operation_id="write_memories",
    response_model=BatchAnswer,
    responses=problems(409, 422),
)
async def write_memories(
    services: Mneme, caller: Writer, request: Request, body: BatchIn, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store up to 500 memories; each stands or falls alone, and one that is refused takes no other with it."""
    telemetry.annotate(operation="write_batch", items=len(body.items))
    refused: dict[int, MnemeError] = {}
    accepted = []
    for index, item in enumerate(body.items):
        if isinstance(item, MnemeError):
            refused[index] = item
            continue
        try:
            memory = MemoryIn.model_validate(item)
            new = memory.to_new(*caller.bind(memory.user_id, memory.agent_id))
            await services.quotas.admit(caller.tenant_id, new.user_id)
            accepted.append((index, new))
        except ValidationError as error:
            refused[index] = invalid([{**found, "loc": ("body", *found["loc"])} for found in error.errors()])
        except (Forbidden, QuotaExceeded) as error:
            refused[index] = error

    def answer(written: list[Written]) -> Answer:
        results: dict[int, dict[str, Any]] = {
            index: {"index": index, "status": _status(one), **_shown(one)}
            for (index, _), one in zip(accepted, written, strict=True)
        }
        for index, error in refused.items():
            results[index] = {"index": index, "status": error.status, "problem": item_problem(error)}
        return Answer(HTTPStatus.OK, as_bytes({"items": [results[index] for index in sorted(results)]}))

    if not accepted:
        return _answered(answer([]), {})
    result = await services.rememberer.remember(
        caller, [new for _, new in accepted], answer, now=now(),
        idempotency=await idempotency_of(request, caller, idempotency_key),
    )  # fmt: skip
    return _answered(result, {})


@router.get("/memories", operation_id="list_memories", response_model=ListAnswer, responses=problems(422))
async def list_memories(services: Mneme, caller: Reader, parameters: ListQuery) -> Response:
    """Memories that match, newest first; without user_id those of all users, if the key is not bound to one."""
    telemetry.annotate(operation="list")
    user_id, _ = caller.bind(parameters.user_id, parameters.agent_id)
    if parameters.shared and parameters.user_id is not None:
        raise Invalid(errors=[FieldError("query:shared", "exclusive", "either user_id or shared")])
    place = place_of(services, caller, parameters, parameters.cursor, 16)
    listing = Listing(
        user_id=None if parameters.shared else user_id, shared_only=parameters.shared, agent_id=parameters.agent_id,
        kind=parameters.kind, key=parameters.key, tag=parameters.tag, session_id=parameters.session_id,
        status=parameters.status, created_from=parameters.created_from, created_to=parameters.created_to,
        before=None if place is None else UUID(bytes=place), limit=parameters.limit + 1,
    )  # fmt: skip
    items = await services.shelf.browse(caller, listing)
    page = items[: parameters.limit]
    telemetry.annotate(hits=len(page))
    more = len(items) > parameters.limit
    cursor = next_cursor(services, caller, parameters, page[-1]["id"].bytes) if more else None
    return reply({"items": page, "next_cursor": cursor})


@router.get("/memories/{memory_id}", operation_id="get_memory", response_model=Memory, responses=problems(404, 422))
async def get_memory(
    services: Mneme,
    caller: Reader,
    memory_id: MemoryId,
    include: Annotated[Literal["vector"] | None, Parameter()] = None,
) -> Response:
    """One memory; `?include=vector` adds its vector."""
    telemetry.annotate(operation="read", memory_id=memory_id)
    memory = await services.shelf.get(caller, memory_id, with_vector=include == "vector")
    services.recaller.usage.wake(caller.tenant_id, [memory], now())
    return reply(memory, headers={"ETag": etag(memory)})


@router.get(
    "/memories/{memory_id}/history",
    operation_id="get_memory_history",
    response_model=HistoryAnswer,
    responses=problems(404, 422),
)
async def get_memory_history(services: Mneme, caller: Reader, memory_id: MemoryId) -> Response:
    """Everything that happened to a memory, with the text of every replaced version; also after it was deleted."""
    telemetry.annotate(operation="history", memory_id=memory_id)
    return reply({"items": await services.shelf.history(caller, memory_id)})


@router.patch(
    "/memories/{memory_id}",
    operation_id="amend_memory",
    response_model=Memory,
    responses=problems(404, 409, 412, 422, 428),
)
async def amend_memory(
    services: Mneme, caller: Writer, memory_id: MemoryId, body: MemoryPatch, if_match: IfMatch = None
) -> Response:
    """Change a memory: text, vector and keywords together; the old version stays in its history."""
    telemetry.annotate(operation="update", memory_id=memory_id)
    version = _version(services, if_match)
    memory = await services.shelf.amend(caller, memory_id, body.changes(), now=now(), version=version)
    removed = {} if body.content in (None, memory["content"]) else {REMOVED_HEADER: NOTHING_SAID.code}
    return reply(memory, headers={"ETag": etag(memory), **removed})


@router.delete(
    "/memories/{memory_id}",
    operation_id="delete_memory",
    status_code=HTTPStatus.NO_CONTENT,
    response_class=Response,
    responses=problems(404, 412, 422, 428),
)
async def delete_memory(services: Mneme, caller: Deleter, memory_id: MemoryId, if_match: IfMatch = None) -> Response:
    """Archive a memory: it is in no answer any more, and restorable by operations for a grace time."""
    telemetry.annotate(operation="delete", memory_id=memory_id)
    await services.shelf.erase(caller, memory_id, now=now(), version=_version(services, if_match))
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _status(written: Written) -> int:
    return 201 if written.outcome in {"created", "superseded"} else 200  # to orjson a member of HTTPStatus is work


def _shown(written: Written) -> dict[str, Any]:
    return {
        "id": None if written.memory is None else written.memory["id"],
        "outcome": written.outcome,
        "memory": written.memory,
        "related": [{"id": memory_id, "relation": relation} for memory_id, relation in written.related],
        "reason": written.reason,
        "degraded": written.degraded,
    }


def _answered(answer: Answer, headers: dict[str, str]) -> Response:
    if answer.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(answer.body, answer.status, headers, "application/json")


async def idempotency_of(request: Request, caller: Caller, key: str | None) -> Idempotency | None:
    """The Idempotency-Key of a request, bound to its path and body; raises Invalid."""
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise Invalid(errors=[FieldError("header:Idempotency-Key", "format", "1 to 255 printable ASCII characters")])
    # An item that cannot be kept is the same as any other with the same fault: it gets the same answer.
    document = orjson.dumps([request.url.path, await request.json()], default=str, option=orjson.OPT_SORT_KEYS)
    return Idempotency(caller.actor, key, blake2b(document, digest_size=32).digest())


def etag(memory: dict[str, Any]) -> str:
    """The entity tag of a memory's version."""
    return f'"v{memory["version"]}"'


def _version(services: Services, if_match: str | None) -> int | None:
    if if_match is None:
        if services.limits.require_if_match:
            raise PreconditionRequired
        return None
    if if_match.strip() == "*":
        return None
    tag = if_match.strip()
    if not (tag.startswith('"v') and tag.endswith('"') and tag[2:-1].isdecimal() and len(tag) < 13):
        raise VersionConflict
    return int(tag[2:-1])
