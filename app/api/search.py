"""`POST /v1/memories:search`: recall over HTTP."""

from time import perf_counter
from typing import Any, Literal
from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, Field

from app import telemetry
from app.api.deps import Mneme, Reader, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.api.schemas import SearchIn
from app.clock import now
from app.guard import Caller
from app.memory import Memory, Shown
from app.recall import Absence, Query, Recalled

router = walled_router(prefix="/v1", tags=["search"])


class HitAnswer(BaseModel):
    """A memory with its score; `signals` only with explain=true."""

    memory: Memory
    score: float = Field(ge=0, le=1)
    signals: dict[str, Any] | None = None


class AbsenceAnswer(BaseModel):
    """Where a memory is, and why; rank (among all that qualify), score and signals only if it was measured."""

    id: UUID
    reason: Literal[
        "unknown", "other_agent", "wrong_status", "not_yet_known", "expired", "not_valid_then", "filtered",
        "cold", "not_proposed", "no_evidence", "below_threshold", "hit", "same_source", "displaced_by_diversity",
        "below_top_k",
    ]  # fmt: skip
    detail: str | None
    rank: int | None = None
    score: float | None = None
    signals: dict[str, Any] | None = None


class SearchAnswer(BaseModel):
    """Hits, best first, and what was missing while they were found; `why_not` only if it was asked for."""

    hits: list[HitAnswer]
    degraded: list[str] = Field(examples=[[], ["embedding_unavailable"]])
    why_not: list[AbsenceAnswer] | None = None
    took_ms: float


@router.post("/memories:search", operation_id="search_memories", response_model=SearchAnswer, responses=problems(422))
async def search_memories(services: Mneme, caller: Reader, body: SearchIn) -> Response:
    """Find memories by meaning, keyword, time and importance. Fewer hits than top_k rather than unrelated ones."""
    started = perf_counter()
    telemetry.annotate(operation="search")
    user_id, agent_id = caller.bind(body.user_id, body.agent_id)
    query = Query(
        tenant_id=caller.tenant_id,
        user_id=user_id,
        agent_id=agent_id,
        text=body.query,
        top_k=body.top_k,
        weights=body.weights.model_dump(),
        fusion=body.fusion,
        similarity_threshold=body.similarity_threshold,
        filters=body.filters.to_filters(),
        include_shared=body.include_shared,
        include_deprecated=body.include_deprecated,
        include_cold=body.include_cold,
        as_of=body.as_of,
        time_decay=body.time_decay.to_decay(),
        diversity=body.diversity,
        max_share_per_source=body.max_share_per_source,
        rerank=body.rerank,
    )
    recalled = await services.recaller.recall(query, now=now(), explain=body.explain, why_not=body.why_not)
    note(recalled)
    shown = [hit.memory.encoded() if isinstance(hit.memory, Shown) else hit.memory for hit in recalled.hits]
    absences = {"why_not": [_absence(one, caller) for one in recalled.why_not]} if body.why_not else {}
    return reply(
        absences
        | {
            "hits": [
                {"memory": memory, "score": hit.score} | ({} if hit.signals is None else {"signals": hit.signals})
                for hit, memory in zip(recalled.hits, shown, strict=True)
            ],
            "degraded": recalled.degraded,
            "took_ms": round((perf_counter() - started) * 1000, 2),
        }
    )


def _absence(one: Absence, caller: Caller) -> dict[str, Any]:
    if one.reason == "other_agent" and caller.agent_id is not None:
        return {"id": one.memory_id, "reason": "unknown", "detail": None}  # a bound key is not told of other agents'
    measured = {} if one.score is None else {"rank": one.rank, "score": one.score, "signals": one.signals}
    return {"id": one.memory_id, "reason": one.reason, "detail": one.detail} | measured


def note(recalled: Recalled) -> None:
    """Put what is worth counting on the access line."""
    telemetry.annotate(hits=len(recalled.hits))
    if recalled.degraded:
        telemetry.annotate(degraded=",".join(recalled.degraded))
