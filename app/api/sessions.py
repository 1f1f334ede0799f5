"""Session windows: what was said last in a conversation, for the next turn of any process; it ends without a trace."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import Path, Response
from fastapi import Query as Parameter
from pydantic import AfterValidator, BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from app import telemetry
from app.api.body import Identifier, Moment, Wire
from app.api.deps import Mneme, Reader, Writer, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.api.schemas import TOKENS_MAX, ZoneName, not_blank
from app.clock import now
from app.database import Transaction
from app.extract import Message
from app.guard import Caller
from app.language import zone_of
from app.operations import Order, extraction_order
from app.recall import ContextRequest, make_context
from app.remember import Conversation, Window

router = walled_router(prefix="/v1", tags=["sessions"])

MESSAGE_CHARACTERS = 32_000
MESSAGES_MAX = 100
Role = Literal["user", "assistant", "tool", "system"]
SessionId = Annotated[Identifier, Path(description="Any name of a conversation; the first message begins it.")]
Said = Annotated[str, Field(max_length=MESSAGE_CHARACTERS), AfterValidator(not_blank)]


class MessageIn(Wire):
    """One message of a conversation."""

    role: Role
    content: Said = Field(examples=["我对芒果过敏，请记住"])
    at: Moment | None = Field(None, description="When it was said; null: now.")
    tool: Identifier | None = Field(
        None, description="Name of the tool whose result this is.", examples=["order_lookup"]
    )
    reference: Identifier | None = Field(
        None, description="The caller's own name for it; one that is held already is not taken twice, so retry freely."
    )

    def to_message(self) -> Message:
        return Message(self.role, self.content, self.at, self.tool, self.reference)


class MessagesIn(Wire):
    """One message (its fields at the top), or several in their order (`messages`)."""

    user_id: Identifier | None = Field(None, description="Whose conversation; null: of nobody in particular.")
    agent_id: Identifier | None = Field(None, description="An agent's conversations are its own; null: of all agents.")
    role: Role | None = None
    content: Said | None = Field(None, examples=["我对芒果过敏，请记住"])
    at: Moment | None = None
    tool: Identifier | None = None
    reference: Identifier | None = None
    messages: list[MessageIn] | None = Field(None, min_length=1, max_length=MESSAGES_MAX)
    extract: Literal["asked", "never"] = Field(
        "asked", description="Make memories of messages in which the user asks to (请记住…, remember that …)."
    )
    timezone: ZoneName = Field("UTC", description="Zone in which 明天 and tomorrow are meant.")

    @model_validator(mode="after")
    def one_form(self) -> Self:
        single = {"role", "content", "at", "tool", "reference"} & self.model_fields_set
        if self.messages is not None and single:
            raise PydanticCustomError("exclusive", "either one message's fields or messages")
        if self.messages is None and (self.role is None or self.content is None):
            raise PydanticCustomError("missing", "role and content, or messages")
        return self

    def to_messages(self) -> list[Message]:
        if self.messages is not None:
            return [message.to_message() for message in self.messages]
        assert self.role is not None
        assert self.content is not None
        return [Message(self.role, self.content, self.at, self.tool, self.reference)]


class WhoseParameters(Wire):
    """Whose conversation it is."""

    user_id: Identifier | None = None
    agent_id: Identifier | None = None


class WindowParameters(WhoseParameters):
    """How to show a window; the last four count for a block."""

    format: Literal["messages", "block"] = "messages"
    max_tokens: Annotated[int, Field(strict=False, ge=1, le=TOKENS_MAX)] = 4_000
    language: Literal["auto", "zh", "en"] = "auto"
    timezone: ZoneName = "UTC"


class Held(BaseModel):
    """How full the window is; it ends at `ends_at` unless something is said before."""

    messages: int
    turns: int
    tokens: int
    ends_at: datetime | None


class AppendAnswer(BaseModel):
    """What became of the messages. `known` were held already, `filtered` only repeated what Mneme had served, `evicted`
    older ones gave way. `operation_id`: the extraction of what the user asked to remember."""

    taken: int
    known: int
    filtered: int
    evicted: int
    window: Held
    operation_id: UUID | None


class HeldMessage(BaseModel):
    """A message in the window; `turn` counts what the user said."""

    id: UUID
    role: Role
    content: str
    at: datetime
    tool: str | None
    reference: str | None
    turn: int
    tokens: int


class WindowAnswer(BaseModel):
    """The window, oldest first; of an unknown or ended conversation it is empty. `text` is a block for a prompt."""

    session_id: str
    messages: list[HeldMessage]
    text: str | None
    window: Held


def conversation_of(caller: Caller, session_id: str, user_id: str | None, agent_id: str | None) -> Conversation:
    """The conversation that a caller means; raises Forbidden when the key is bound to somebody else."""
    return Conversation(caller.tenant_id, *caller.bind(user_id, agent_id), session_id)


def as_items(window: Window, session_id: str) -> list[dict[str, Any]]:
    """Messages in the shape of memories, latest first, for a text."""
    return [
        {
            "id": message.id,
            "kind": message.role,
            "content": message.content if message.tool is None else f"{message.tool}: {message.content}",
            "event_at": message.at,
            "created_at": message.at,
            "source": None,
            "session_id": session_id,
        }
        for message in reversed(window.messages)
    ]


@router.post(
    "/sessions/{session_id:path}/messages",
    operation_id="append_messages",
    status_code=HTTPStatus.CREATED,
    response_model=AppendAnswer,
    responses=problems(422),
)
async def append_messages(services: Mneme, caller: Writer, session_id: SessionId, body: MessagesIn) -> Response:
    """Add to a conversation. Over the limits, plain dialogue gives way before results of tools, the oldest first.

    What a user asks to remember becomes an operation in the same transaction, and outlives the conversation.
    """
    telemetry.annotate(operation="session", items=len(body.messages or [body]))
    conversation = conversation_of(caller, session_id, body.user_id, body.agent_id)
    moment = now()

    async def keep(transaction: Transaction, messages: Sequence[Message]) -> UUID:
        prepare = extraction_order(messages, body.timezone, session_id)
        order = Order("extract", conversation.user_id, conversation.agent_id, prepare)
        operation_id: UUID = (await services.operations.accept(transaction, caller, order, now=moment))["operation_id"]
        return operation_id

    appended = await services.sessions.append(
        conversation, body.to_messages(), now=moment, keep=keep if body.extract == "asked" else None
    )
    document = {name: getattr(appended, name) for name in ("taken", "known", "filtered", "evicted", "operation_id")}
    return reply(document | {"window": _held(appended.window)}, HTTPStatus.CREATED)


@router.get(
    "/sessions/{session_id:path}", operation_id="get_session", response_model=WindowAnswer, responses=problems(422)
)
@router.get(
    "/sessions/{session_id:path}/messages",
    operation_id="get_messages",
    response_model=WindowAnswer,
    responses=problems(422),
)
async def get_messages(
    services: Mneme, caller: Reader, session_id: SessionId, parameters: Annotated[WindowParameters, Parameter()]
) -> Response:
    """The window of a conversation, as messages or as a `<memory>` block."""
    telemetry.annotate(operation="session")
    conversation = conversation_of(caller, session_id, parameters.user_id, parameters.agent_id)
    moment = now()
    window = await services.sessions.read(conversation, now=moment)
    document: dict[str, Any] = {"session_id": session_id, "messages": [], "text": None, "window": _held(window)}
    if parameters.format == "messages":
        document["messages"] = window.messages
        return reply(document)
    request = ContextRequest(
        tenant_id=caller.tenant_id, user_id=conversation.user_id, agent_id=conversation.agent_id, parts=(),
        said=as_items(window, session_id), language=None if parameters.language == "auto" else parameters.language,
        zone=zone_of(parameters.timezone), most_tokens=parameters.max_tokens,
    )  # fmt: skip
    context = await make_context(services.recaller, request, now=moment)
    return reply(document | {"text": context.block.text})


def _held(window: Window) -> dict[str, Any]:
    return {
        "messages": len(window.messages),
        "turns": window.turns,
        "tokens": window.tokens,
        "ends_at": window.ends_at,
    }
