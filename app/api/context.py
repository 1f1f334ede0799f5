"""`POST /v1/context` and the profile of a subject: what to paste into a prompt, or to hand to a colleague."""

from time import perf_counter
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path, Response
from pydantic import BaseModel, Field

from app import telemetry
from app.api.body import Identifier
from app.api.deps import Mneme, Reader, Services, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.api.schemas import ContextIn, ProfileParameters, ProfileQuery
from app.api.sessions import as_items
from app.clock import now
from app.guard import Caller
from app.language import zone_of
from app.memory import Memory
from app.recall import Context, ContextRequest, Query, make_context
from app.remember import Conversation

router = walled_router(prefix="/v1", tags=["context"])

IMPORTANT = 3.0
"""Least importance in the profile of a context of what is neither pinned nor keyed; the default of most kinds."""


class LeftOut(BaseModel):
    """Memories that were considered and found no room; `more`: the subject's profile has others, not considered."""

    count: int
    ids: list[UUID]
    more: bool


class Cited(BaseModel):
    """A memory in the text, or a message of the conversation: by which citation the text names it and in which part;
    `score` only of hits."""

    citation: str = Field(examples=["9f3a1c2e"])
    id: UUID
    part: Literal["profile", "tasks", "recalled", "session", "recent"]
    score: float | None


class ContextAnswer(BaseModel):
    """The text (empty if nothing is known or fits), what stands in it and what does not."""

    text: str
    format: Literal["block", "brief"]
    language: Literal["zh", "en"]
    tokens: int = Field(description="Of the whole text, counted by the embedding model's tokenizer.")
    items: list[Cited]
    left_out: LeftOut
    degraded: list[str] = Field(examples=[[], ["embedding_unavailable"]])
    took_ms: float


class ProfileEntry(BaseModel):
    """A memory of the profile and its citation in the text."""

    citation: str
    memory: Memory


class ProfileGroups(BaseModel):
    """Each memory stands in the first group that it belongs to."""

    pinned: list[ProfileEntry]
    keyed: list[ProfileEntry]
    important: list[ProfileEntry]


class ProfileAnswer(BaseModel):
    """The profile of a subject as memories and as text; of an unknown subject it is empty."""

    user_id: str | None
    groups: ProfileGroups
    text: str
    language: Literal["zh", "en"]
    tokens: int
    left_out: LeftOut


@router.post("/context", operation_id="make_context", response_model=ContextAnswer, responses=problems(422))
async def post_context(services: Mneme, caller: Reader, body: ContextIn) -> Response:
    """Hits for the query, the subject's profile and what was said in the session in one text within a budget of tokens.

    Of a session without a window its stored memories are told.
    """
    started = perf_counter()
    telemetry.annotate(operation="context")
    user_id, agent_id = caller.bind(body.user_id, body.agent_id)
    query = None if body.query is None else Query(
        tenant_id=caller.tenant_id, user_id=user_id, agent_id=agent_id, text=body.query, top_k=body.top_k,
        similarity_threshold=body.similarity_threshold, filters=body.filters.to_filters(),
        include_shared=body.include_shared,
    )  # fmt: skip
    moment, said = now(), []
    parts = ["profile"] if body.format == "block" else ["profile", "tasks"]
    if body.session_id is not None:
        conversation = Conversation(caller.tenant_id, user_id, agent_id, body.session_id)
        said = as_items(await services.sessions.read(conversation, now=moment), body.session_id)
        parts += [] if said else ["session"]
    elif body.format == "brief":
        parts.append("recent")
    request = ContextRequest(
        tenant_id=caller.tenant_id, user_id=user_id, agent_id=agent_id,
        parts=tuple(parts), query=query, session_id=body.session_id, said=said, least_importance=IMPORTANT,
        style=body.format, language=None if body.language == "auto" else body.language, zone=zone_of(body.timezone),
        most_tokens=body.max_memory_tokens,
    )  # fmt: skip
    context = await make_context(services.recaller, request, now=moment)
    telemetry.annotate(hits=len(context.block.placed))
    if context.degraded:
        telemetry.annotate(degraded=",".join(context.degraded))
    return reply(
        {
            "text": context.block.text,
            "format": body.format,
            "language": context.language,
            "tokens": context.block.tokens,
            "items": [
                {
                    "citation": each.citation,
                    "id": each.memory["id"],
                    "part": each.part,
                    "score": context.scores.get(each.memory["id"]),
                }
                for each in context.block.placed
            ],
            "left_out": _left_out(context),
            "degraded": context.degraded,
            "took_ms": round((perf_counter() - started) * 1000, 2),
        }
    )


@router.get(
    "/subjects/{user_id:path}/profile",
    operation_id="get_profile",
    response_model=ProfileAnswer,
    responses=problems(422),
)
async def get_profile(
    services: Mneme, caller: Reader, user_id: Annotated[Identifier, Path()], parameters: ProfileQuery
) -> Response:
    """The pinned, keyed and most important memories about a user, as of the last commit, without a model."""
    return await _profile(services, caller, user_id, parameters)


@router.get("/shared/profile", operation_id="get_shared_profile", response_model=ProfileAnswer, responses=problems(422))
async def get_shared_profile(services: Mneme, caller: Reader, parameters: ProfileQuery) -> Response:
    """The same of the tenant's shared memories."""
    return await _profile(services, caller, None, parameters)


async def _profile(services: Services, caller: Caller, user_id: str | None, parameters: ProfileParameters) -> Response:
    telemetry.annotate(operation="profile")
    # A bound key reads shared memories, too, but of users only its own.
    bound, agent_id = caller.bind(user_id, parameters.agent_id)
    request = ContextRequest(
        tenant_id=caller.tenant_id, user_id=None if user_id is None else bound, agent_id=agent_id, parts=("profile",),
        language=None if parameters.language == "auto" else parameters.language, zone=zone_of(parameters.timezone),
        most_tokens=parameters.max_tokens,
    )  # fmt: skip
    context = await make_context(services.recaller, request, now=now())
    telemetry.annotate(hits=len(context.block.placed))
    groups: dict[str, list[Any]] = {"pinned": [], "keyed": [], "important": []}
    for each in context.block.placed:
        memory = each.memory
        group = "pinned" if memory["pinned"] else "important" if memory["key"] is None else "keyed"
        groups[group].append({"citation": each.citation, "memory": memory})
    return reply(
        {
            "user_id": user_id,
            "groups": groups,
            "text": context.block.text,
            "language": context.language,
            "tokens": context.block.tokens,
            "left_out": _left_out(context),
        }
    )


def _left_out(context: Context) -> dict[str, Any]:
    return {"count": len(context.block.left_out), "ids": context.block.left_out, "more": context.more}
