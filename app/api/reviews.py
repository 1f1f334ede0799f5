"""Reviews: what a memory would have overruled; listed, accepted, rejected."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import Query as Parameter
from fastapi import Response
from pydantic import BaseModel, Field

from app import telemetry
from app.api.body import Identifier, Wire
from app.api.cursor import next_cursor, place_of
from app.api.deps import Mneme, Reader, Writer, walled_router
from app.api.memories import etag
from app.api.problems import problems
from app.api.reply import reply
from app.clock import now
from app.memory import Memory
from app.remember import Pair, accept_review, open_reviews, reject_review

router = walled_router(prefix="/v1", tags=["reviews"])

ID_BYTES = 16


class ReviewParameters(Wire):
    """Whose reviews, and which page."""

    user_id: Identifier | None = Field(None, description="Null: of all users, if the key is not bound to one.")
    limit: Annotated[int, Field(strict=False, ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=512)] | None = None


class ReviewAnswer(BaseModel):
    """Two active memories; `newer` would have overruled `older` for this reason (null: the reason is not known)."""

    newer: Memory
    older: Memory
    reason: str | None = Field(examples=["update_words"])
    at: datetime


class ReviewList(BaseModel):
    """One page; `next_cursor` is null on the last."""

    items: list[ReviewAnswer]
    next_cursor: str | None


class ReviewIn(Wire):
    """Which review: the two memories of it."""

    newer_id: Annotated[UUID, Field(strict=False)]
    older_id: Annotated[UUID, Field(strict=False)]


class DecidedAnswer(BaseModel):
    """The older memory as it is now."""

    older: Memory


@router.get("/reviews", operation_id="list_reviews", response_model=ReviewList, responses=problems(422))
async def list_reviews(
    services: Mneme, caller: Reader, parameters: Annotated[ReviewParameters, Parameter()]
) -> Response:
    """What waits for a decision, newest first: memories that were pinned, or too many, to be overruled by one write."""
    telemetry.annotate(operation="review")
    user_id, _ = caller.bind(parameters.user_id, None)
    place = place_of(services, caller, parameters, parameters.cursor, 2 * ID_BYTES)
    before = None if place is None else Pair(UUID(bytes=place[:ID_BYTES]), UUID(bytes=place[ID_BYTES:]))
    found = await open_reviews(services.database, caller, user_id, before=before, limit=parameters.limit + 1)
    page = found[: parameters.limit]
    more = len(found) > parameters.limit
    cursor = next_cursor(services, caller, parameters, b"".join(one.bytes for one in page[-1].pair)) if more else None
    items = [{"newer": one.newer, "older": one.older, "reason": one.reason, "at": one.at} for one in page]
    return reply({"items": items, "next_cursor": cursor})


@router.post(
    "/reviews:accept", operation_id="accept_review", response_model=DecidedAnswer, responses=problems(404, 409, 422)
)
async def post_accept(services: Mneme, caller: Writer, body: ReviewIn) -> Response:
    """The newer memory is right: the older one is deprecated, linked and audited; `:restore` takes it back. Accepted
    again it answers the same; 409 `review_decided` if it was rejected."""
    telemetry.annotate(operation="review", memory_id=body.older_id)
    older = await accept_review(services.database, caller, Pair(body.newer_id, body.older_id), now=now())
    return reply({"older": older}, headers={"ETag": etag(older)})


@router.post(
    "/reviews:reject", operation_id="reject_review", response_model=DecidedAnswer, responses=problems(404, 409, 422)
)
async def post_reject(services: Mneme, caller: Writer, body: ReviewIn) -> Response:
    """Both are true: the review is closed, and no job of the night retires the older one by itself any more. Rejected
    again it answers the same; 409 `review_decided` if it was accepted."""
    telemetry.annotate(operation="review", memory_id=body.older_id)
    older = await reject_review(services.database, caller, Pair(body.newer_id, body.older_id), now=now())
    return reply({"older": older}, headers={"ETag": etag(older)})
