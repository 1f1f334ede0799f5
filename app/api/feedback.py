"""Feedback on a memory that was shown: useful, wrong or outdated, and taking it back."""

from typing import Literal
from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, Field

from app import telemetry
from app.api.deps import Mneme, Writer, walled_router
from app.api.memories import MemoryId, etag
from app.api.problems import problems
from app.api.reply import reply
from app.api.schemas import FeedbackIn, UndoFeedbackIn
from app.clock import now
from app.memory import Memory
from app.remember import Feedback, give_feedback, undo_feedback

router = walled_router(prefix="/v1", tags=["feedback"])


class Moved(BaseModel):
    """Importance around a change."""

    before: float = Field(ge=1, le=5)
    after: float = Field(ge=1, le=5)


class FeedbackAnswer(BaseModel):
    """What became of a verdict; not `applied`: it had its effect already (or that was taken back already)."""

    feedback_id: UUID
    verdict: Literal["useful", "wrong", "outdated"]
    applied: bool
    importance: Moved
    memory: Memory


@router.post(
    "/memories/{memory_id}:feedback",
    operation_id="give_feedback",
    response_model=FeedbackAnswer,
    responses=problems(404, 422),
)
async def post_feedback(services: Mneme, caller: Writer, memory_id: MemoryId, body: FeedbackIn) -> Response:
    """Judge a memory: useful adds 0.5 to its importance, wrong and outdated take 1, within 1 to 5.

    A caller's verdict counts once a day for each memory. The memory stays retrievable; to overrule it, write the truth.
    """
    telemetry.annotate(operation="feedback", memory_id=memory_id)
    return _answer(await give_feedback(services.database, caller, memory_id, body.verdict, now=now()))


@router.post(
    "/memories/{memory_id}:undo-feedback",
    operation_id="undo_feedback",
    response_model=FeedbackAnswer,
    responses=problems(404, 422),
)
async def post_undo_feedback(services: Mneme, caller: Writer, memory_id: MemoryId, body: UndoFeedbackIn) -> Response:
    """Take back what a verdict moved; what others moved since stays."""
    telemetry.annotate(operation="feedback", memory_id=memory_id)
    return _answer(await undo_feedback(services.database, caller, memory_id, body.feedback_id, now=now()))


def _answer(feedback: Feedback) -> Response:
    return reply(
        {
            "feedback_id": feedback.feedback_id,
            "verdict": feedback.verdict,
            "applied": feedback.applied,
            "importance": {"before": feedback.before, "after": feedback.after},
            "memory": feedback.memory,
        },
        headers={"ETag": etag(feedback.memory)},
    )
