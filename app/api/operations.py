"""Operations: slow work that was accepted, how far it is, its result; and what asks for it: extraction."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path, Request, Response
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from app import telemetry
from app.api.body import Identifier, Wire
from app.api.cursor import next_cursor, place_of
from app.api.deps import Mneme, Reader, Services, Writer, walled_router
from app.api.memories import IdempotencyKey, idempotency_of
from app.api.problems import problems
from app.api.reply import reply
from app.api.schemas import ZoneName
from app.api.sessions import MESSAGES_MAX, MessageIn, SessionId, WhoseParameters, conversation_of
from app.clock import now
from app.guard import Caller
from app.operations import Order, Wanted, extraction_order, session_order

router = walled_router(prefix="/v1", tags=["operations"])

OperationId = Annotated[UUID, Path(description="Id of an operation.")]
Wait = Annotated[bool, Parameter(description="Answer when it has ended, or when the longest wait is over (202).")]


OperationKindName = Literal["extract"]
OperationState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class Progress(BaseModel):
    """How far it is; `total` is null while nobody knows."""

    done: int
    total: int | None


class OperationError(BaseModel):
    """Why it failed, or why the last attempt did that will be followed by another."""

    code: str = Field(examples=["llm_unavailable"])
    detail: str


class ExtractedFact(BaseModel):
    """What became of a fact: `memory_id` is that of the memory that now says it (null: not stored, see `reason`);
    `message` is the number of the message that it was found in, from 0."""

    memory_id: UUID | None
    outcome: Literal["created", "duplicate", "superseded", "outdated", "filtered", "quarantined"]
    reason: str | None
    kind: str
    key: str | None
    message: int
    role: str
    trigger: str


class PassedOver(BaseModel):
    """A message, or a part of one, that gave no fact, and why."""

    message: int
    reason: str


class ExtractResult(BaseModel):
    """Facts in the order of the conversation. None at all is a result: nothing worth keeping was said."""

    facts: list[ExtractedFact]
    skipped: list[PassedOver]
    degraded: list[str] = Field(examples=[[], ["llm_unavailable"]])


class Operation(BaseModel):
    """Slow work. `result` is there when it has succeeded; `error` when it failed, or will be tried once more."""

    id: UUID
    kind: OperationKindName
    state: OperationState
    user_id: str | None
    agent_id: str | None
    progress: Progress
    attempts: int
    result: ExtractResult | None
    error: OperationError | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class ExtractIn(Wire):
    """A conversation, or a part of one, of which memories shall be made."""

    user_id: Identifier | None = Field(None, description="Who the user in it is; null: the tenant's shared subject.")
    agent_id: Identifier | None = None
    session_id: Identifier | None = Field(None, description="Noted on the memories.")
    messages: list[MessageIn] = Field(
        min_length=1,
        max_length=MESSAGES_MAX,
        examples=[[{"role": "user", "content": "请记住：我对芒果过敏", "at": "2026-11-29T08:00:00+08:00"}]],
    )
    timezone: ZoneName = Field("UTC", description="Zone in which 明天 and tomorrow are meant.")


class ExtractSessionIn(Wire):
    """Whose conversation it is."""

    user_id: Identifier | None = None
    agent_id: Identifier | None = None
    timezone: ZoneName = "UTC"


class EndParameters(WhoseParameters):
    """Whose conversation ends, and whether memories are made of it first."""

    keep: Annotated[bool, Field(strict=False)] = Field(False, description="Make memories of what it holds (202).")
    timezone: ZoneName = "UTC"


class OperationParameters(Wire):
    """Conditions and page of a list of operations."""

    user_id: Identifier | None = Field(None, description="Null: of all users, if the key is not bound to one.")
    kind: OperationKindName | None = None
    state: OperationState | None = None
    session_id: Identifier | None = None
    limit: Annotated[int, Field(strict=False, ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=512)] | None = None


class OperationList(BaseModel):
    """One page; `next_cursor` is null on the last."""

    items: list[Operation]
    next_cursor: str | None


ACCEPTED: dict[int | str, dict[str, Any]] = {202: {"model": Operation, "description": "Accepted, and not ended yet."}}
ENDING: dict[str, Any] = {
    "response_class": Response,
    "status_code": HTTPStatus.NO_CONTENT,
    "responses": {**ACCEPTED, **problems(404, 422)},
}


@router.post(
    "/memories:extract",
    operation_id="extract_memories",
    response_model=Operation,
    responses={**ACCEPTED, **problems(409, 422)},
)
async def extract_memories(
    services: Mneme,
    caller: Writer,
    request: Request,
    body: ExtractIn,
    wait: Wait = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make memories of messages, which are stored before the answer: none is lost, whatever happens to the work."""
    telemetry.annotate(operation="extract", items=len(body.messages))
    user_id, agent_id = caller.bind(body.user_id, body.agent_id)
    messages = [message.to_message() for message in body.messages]
    order = Order("extract", user_id, agent_id, extraction_order(messages, body.timezone, body.session_id))
    return await _submit(services, caller, request, order, wait, idempotency_key)


@router.post(
    "/sessions/{session_id:path}:extract",
    operation_id="extract_session",
    response_model=Operation,
    responses={**ACCEPTED, **problems(404, 409, 422)},
)
async def extract_session(
    services: Mneme,
    caller: Writer,
    request: Request,
    session_id: SessionId,
    body: ExtractSessionIn,
    wait: Wait = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make memories of what a conversation's window holds; the conversation goes on. 404 where nothing is held."""
    telemetry.annotate(operation="extract")
    conversation = conversation_of(caller, session_id, body.user_id, body.agent_id)
    prepare = session_order(conversation, body.timezone, now=now())
    order = Order("extract", conversation.user_id, conversation.agent_id, prepare)
    return await _submit(services, caller, request, order, wait, idempotency_key)


@router.delete("/sessions/{session_id:path}", operation_id="end_session", **ENDING)
@router.delete("/sessions/{session_id:path}/messages", operation_id="end_messages", **ENDING)
async def end_session(
    services: Mneme, caller: Writer, session_id: SessionId, parameters: Annotated[EndParameters, Parameter()]
) -> Response:
    """End a conversation; nothing of it stays. With `keep` memories are made of it; then 404 where nothing is held."""
    telemetry.annotate(operation="session")
    conversation = conversation_of(caller, session_id, parameters.user_id, parameters.agent_id)
    if not parameters.keep:
        await services.sessions.end(conversation, now=now())
        return Response(status_code=HTTPStatus.NO_CONTENT)
    prepare = session_order(conversation, parameters.timezone, now=now(), end=True)
    order = Order("extract", conversation.user_id, conversation.agent_id, prepare)
    operation, _ = await services.operations.submit(caller, order, now=now())
    return _answer(operation)


@router.get("/operations", operation_id="list_operations", response_model=OperationList, responses=problems(422))
async def list_operations(
    services: Mneme, caller: Reader, parameters: Annotated[OperationParameters, Parameter()]
) -> Response:
    """Operations that match, the newest first."""
    telemetry.annotate(operation="operation")
    user_id, _ = caller.bind(parameters.user_id, None)
    place = place_of(services, caller, parameters, parameters.cursor, 16)
    wanted = Wanted(
        user_id=user_id, kind=parameters.kind, state=parameters.state, session_id=parameters.session_id,
        before=None if place is None else UUID(bytes=place), limit=parameters.limit + 1,
    )  # fmt: skip
    found = await services.operations.browse(caller, wanted)
    page = found[: parameters.limit]
    more = len(found) > parameters.limit
    cursor = next_cursor(services, caller, parameters, page[-1]["id"].bytes) if more else None
    return reply({"items": page, "next_cursor": cursor})


@router.get(
    "/operations/{operation_id}", operation_id="get_operation", response_model=Operation, responses=problems(404, 422)
)
async def get_operation(services: Mneme, caller: Reader, operation_id: OperationId, wait: Wait = False) -> Response:
    """An operation as it is now; with `wait` when it has ended, or when the longest wait is over."""
    telemetry.annotate(operation="operation")
    return reply(await services.operations.get(caller, operation_id, wait=wait))


@router.post(
    "/operations/{operation_id}:cancel",
    operation_id="cancel_operation",
    response_model=Operation,
    responses=problems(404, 409, 422),
)
async def cancel_operation(services: Mneme, caller: Writer, operation_id: OperationId) -> Response:
    """Stop an operation that has not ended; what it was about to write is not written. Its input stays for a retry."""
    telemetry.annotate(operation="operation")
    return reply(await services.operations.cancel(caller, operation_id, now=now()))


@router.post(
    "/operations/{operation_id}:retry",
    operation_id="retry_operation",
    status_code=HTTPStatus.ACCEPTED,
    response_model=Operation,
    responses=problems(404, 409, 422),
)
async def retry_operation(services: Mneme, caller: Writer, operation_id: OperationId) -> Response:
    """Queue an operation that failed or was cancelled once more, with the input it had."""
    telemetry.annotate(operation="operation")
    return _answer(await services.operations.retry(caller, operation_id, now=now()))


async def _submit(
    services: Services, caller: Caller, request: Request, order: Order, wait: bool, key: str | None
) -> Response:
    idempotency = await idempotency_of(request, caller, key)
    operation, replayed = await services.operations.submit(caller, order, now=now(), wait=wait, idempotency=idempotency)
    return _answer(operation, {"Idempotency-Replayed": "true"} if replayed else {})


def _answer(operation: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """202 while it has not ended, else 200; it says itself whether it succeeded."""
    ended = operation["state"] in ("succeeded", "failed", "cancelled")
    place = {"Location": f"/v1/operations/{operation['id']}"}
    return reply(operation, HTTPStatus.OK if ended else HTTPStatus.ACCEPTED, place | (headers or {}))
