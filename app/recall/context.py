"""What a model or a colleague is to know before the next word: profile, tasks, hits and history in one text.

Invariant: no connection is held while the model works; what a search missed is said in `degraded`, as in a search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any
from uuid import UUID

from app.recall.block import Block, Language, Setting, Style, compose, language_of
from app.recall.profile import PROFILE_ROWS, read
from app.recall.query import Query
from app.recall.search import Recaller


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """For whom a text is, what it is made of and how large it may be.

    `parts` names profile.READS; without a query nothing is searched and no model is asked. In the profile stand pinned
    and keyed memories and those of at least `least_importance`. `said` are the messages of the conversation, latest
    first, in the shape of memories whose kind is their role. `language` None: that of the query, else of the text.
    """

    tenant_id: UUID
    user_id: str | None
    agent_id: str | None
    parts: tuple[str, ...]
    query: Query | None = None
    session_id: str | None = None
    said: Sequence[Mapping[str, Any]] = ()
    least_importance: float = 1.0
    style: Style = "block"
    language: Language | None = None
    zone: tzinfo
    most_tokens: int


@dataclass(frozen=True, slots=True)
class Context:
    """A finished text, the scores of its hits, what was missing while it was made, and whether the profile has more
    memories than were looked at."""

    block: Block
    language: Language
    scores: Mapping[UUID, float]
    degraded: tuple[str, ...]
    more: bool


async def make_context(recaller: Recaller, request: ContextRequest, *, now: datetime) -> Context:
    """The text with the parts of a request and the hits for its query. Raises what `Recaller.recall` raises."""
    parts: dict[str, Sequence[Mapping[str, Any]]] = {}
    if request.parts:
        async with recaller.database.read(request.tenant_id, ordered=True) as transaction:
            parts |= await read(
                transaction, request.parts, tenant_id=request.tenant_id, user_id=request.user_id,
                agent_id=request.agent_id, session_id=request.session_id, now=now,
            )  # fmt: skip
    more = len(parts.get("profile", ())) > PROFILE_ROWS
    if "profile" in parts:
        parts["profile"] = [
            memory
            for memory in parts["profile"][:PROFILE_ROWS]
            if memory["pinned"] or memory["key"] is not None or memory["importance"] >= request.least_importance
        ]
    if request.said:
        parts["session"] = request.said
    scores: dict[UUID, float] = {}
    degraded: tuple[str, ...] = ()
    if request.query is not None:
        recalled = await recaller.recall(request.query, now=now)
        parts["recalled"] = [hit.memory for hit in recalled.hits]
        scores = {hit.memory["id"]: hit.score for hit in recalled.hits}
        degraded = recalled.degraded
    language = request.language or language_of(
        " ".join(memory["content"] for memories in parts.values() for memory in memories)
        if request.query is None
        else request.query.text
    )
    setting = Setting(request.style, language, request.zone, request.user_id, now)
    block = compose(parts, setting, request.most_tokens, recaller.embedder.count_tokens)
    return Context(block, language, scores, degraded, more)
