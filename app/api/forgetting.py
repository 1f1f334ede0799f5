"""What is forgotten and what must not be: a tenant's policy, legal holds, and the erasure of a user."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Self
from uuid import UUID

from fastapi import Path, Response
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from app import telemetry
from app.api.body import Identifier, Wire
from app.api.deps import Admin, Deleter, Mneme, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.clock import now
from app.errors import Forbidden
from app.forget import erase_subject, list_holds, place_hold, put_policy, read_policy, release_hold

router = walled_router(prefix="/v1", tags=["forgetting"])

HoldId = Annotated[UUID, Path(description="Id of a legal hold.")]
UserId = Annotated[Identifier, Path(description="The user; never blank.")]


class RuleIn(Wire):
    """A rule as the tenant wants it: on or off, and numbers that differ."""

    on: bool | None = None
    numbers: dict[str, float] = Field(default_factory=dict, max_length=16)


class PolicyIn(Wire):
    """What a tenant sets itself; what is left out is as the service says."""

    rules: dict[str, RuleIn] = Field(
        max_length=64,
        examples=[{"stale": {"numbers": {"days": 365, "importance": 0.2}}, "faded": {"on": False}}],
    )  # fmt: skip
    grace_days: float | None = Field(None, ge=0, le=3650)
    subject_quota: int | None = Field(None, ge=0, le=100_000_000, description="0: none.")
    tenant_quota: int | None = Field(None, ge=0, le=10_000_000_000, description="0: none.")
    cold_days: float | None = Field(None, ge=0, le=3650, description="0: nothing gets cold.")
    refuse_at_quota: bool | None = Field(None, description="Refuse writes beyond a quota (409 `quota_exceeded`).")


class RuleInForce(BaseModel):
    """A rule, its numbers and what it says of a memory that it archives."""

    on: bool
    numbers: dict[str, float]
    reason: str = Field(examples=["importance 1 and unchanged for 7 days"])


class PolicyAnswer(BaseModel):
    """The policy in force; `own` names what the tenant has set itself."""

    rules: dict[str, RuleInForce]
    grace_days: float
    subject_quota: int
    tenant_quota: int
    cold_days: float
    refuse_at_quota: bool
    own: list[str] = Field(examples=[["grace_days", "rules.stale"]])


@router.get("/policy", operation_id="get_policy", response_model=PolicyAnswer)
async def get_policy(services: Mneme, caller: Admin) -> Response:
    """Which rules forget what of this tenant, after how long it is gone for good, and its quotas."""
    telemetry.annotate(operation="policy")
    caller.act_for_all()
    return reply(await read_policy(services.database, caller.tenant_id, services.forget))


@router.put("/policy", operation_id="put_policy", response_model=PolicyAnswer, responses=problems(422))
async def replace_policy(services: Mneme, caller: Admin, body: PolicyIn) -> Response:
    """Replace what this tenant has set itself; no rules and nothing else gives all back to the service.

    The next run of the job `forget` follows it.
    """
    telemetry.annotate(operation="policy")
    caller.act_for_all()
    own = body.model_dump(exclude_none=True)
    return reply(await put_policy(services.database, caller.tenant_id, own, services.forget))


class HoldIn(Wire):
    """What to hold: one memory, or all that a user (or `shared`: the tenant itself) has and will have."""

    memory_id: Annotated[UUID, Field(strict=False)] | None = None
    user_id: Identifier | None = None
    shared: bool = False
    reason: Identifier = Field(examples=["case 2026-117"])

    @model_validator(mode="after")
    def of_one(self) -> Self:
        if [self.memory_id is None, self.user_id is None, not self.shared].count(False) != 1:
            raise PydanticCustomError("one_of", "name exactly one of memory_id, user_id and shared")
        return self


class Hold(BaseModel):
    """A legal hold; without `memory_id` of everything of the user (null: the shared memories)."""

    id: UUID
    user_id: str | None
    memory_id: UUID | None
    reason: str
    placed_by: str
    created_at: datetime


class HoldList(BaseModel):
    """Every hold of the tenant, oldest first."""

    items: list[Hold]


@router.post(
    "/holds", operation_id="place_hold", status_code=HTTPStatus.CREATED, response_model=Hold,
    responses=problems(404, 422),
)  # fmt: skip
async def post_hold(services: Mneme, caller: Admin, body: HoldIn) -> Response:
    """Keep a memory, or all of a user, from every rule and purge until the release; only an erasure goes before."""
    telemetry.annotate(operation="hold")
    caller.act_for_all()
    hold = await place_hold(
        services.database, caller, user_id=body.user_id, memory_id=body.memory_id, reason=body.reason, now=now()
    )
    return reply(hold, HTTPStatus.CREATED, {"Location": f"/v1/holds/{hold['id']}"})


@router.get("/holds", operation_id="list_holds", response_model=HoldList)
async def get_holds(services: Mneme, caller: Admin) -> Response:
    """Every legal hold of this tenant."""
    telemetry.annotate(operation="hold")
    caller.act_for_all()
    return reply({"items": await list_holds(services.database, caller)})


@router.delete(
    "/holds/{hold_id}", operation_id="release_hold", status_code=HTTPStatus.NO_CONTENT, response_class=Response,
    responses=problems(404, 422),
)  # fmt: skip
async def delete_hold(services: Mneme, caller: Admin, hold_id: HoldId) -> Response:
    """Release what was held: the rules see it again as if it had never been."""
    telemetry.annotate(operation="hold")
    caller.act_for_all()
    await release_hold(services.database, caller, hold_id, now=now())
    return Response(status_code=HTTPStatus.NO_CONTENT)


class ErasedAnswer(BaseModel):
    """What there was and is no more: `answers` are stored answers of idempotent writes in which the user is named.

    `exported`: of so many memories a copy was moved to the archive outside the database; the worker removes what still
    lies there within minutes, and nothing of it can be restored from now on.
    """

    memories: int
    sessions: int
    operations: int
    events: int
    answers: int
    holds: int
    exported: int


@router.delete(
    "/subjects/{user_id:path}", operation_id="erase_subject", response_model=ErasedAnswer, responses=problems(422)
)
async def delete_subject(services: Mneme, caller: Deleter, user_id: UserId) -> Response:
    """Erase a user at once and for good: memories of any status, conversations, operations, stored answers.

    It goes before pins and legal holds. Ids and actions stay in the audit trail, text does not. Of an unknown user
    nothing is erased.
    """
    telemetry.annotate(operation="erase")
    caller.bind(user_id, None)
    if caller.agent_id is not None:
        raise Forbidden("this key is bound to an agent, and this concerns all of them")
    return reply(await erase_subject(services.database, caller, user_id, now=now()))
