"""The jobs of the workers over HTTP: which there are, what they did, asking for a run, and undoing one.

Invariant: a caller asks for runs of its own tenant only, and hears of no run that another tenant asked for.
"""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path, Response
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from app import telemetry
from app.api.body import Wire
from app.api.deps import Admin, Mneme, Operator, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.clock import now
from app.consolidate import undo_consolidation
from app.errors import Conflict, FieldError, Invalid, NotFound
from app.forget import undo_cooling, undo_run
from app.runs import Slot, ask, history, known_jobs, touched

router = walled_router(prefix="/v1/admin", tags=["jobs"])

JobName = Annotated[str, Path(description="Name of a job.", max_length=64)]
RunId = Annotated[UUID, Path(description="Id of a run.")]
PAGE = 200


class Run(BaseModel):
    """One run of a job. `abandoned`: its process died; another takes it over. `counts`: what it did so far, by name."""

    run_id: UUID | None
    job: str
    slot: datetime
    state: Literal["queued", "running", "succeeded", "failed"]
    started_at: datetime
    finished_at: datetime | None
    counts: dict[str, int]
    error: str | None
    actor: str | None = Field(description="Who asked for it; null: the schedule.")
    tenant_id: UUID | None = Field(description="Null: all tenants.")
    dry_run: bool
    attempts: int
    abandoned: bool


class JobAnswer(BaseModel):
    """A job as the workers last said it; `by_tenant`: a run for one tenant can be asked for."""

    job: str
    meaning: str
    schedule: str = Field(examples=["0 3 * * * (Asia/Shanghai)"])
    next_at: datetime | None
    seen_at: datetime
    by_tenant: bool
    can_be_dry: bool
    last_run: Run | None


class JobList(BaseModel):
    """Every job, by name; empty before the first worker started."""

    items: list[JobAnswer]


class RunList(BaseModel):
    """Runs, the latest first."""

    items: list[Run]


class RunIn(Wire):
    """`dry_run`: only say what would be done, by exactly the same steps."""

    dry_run: bool


@router.get("/jobs", operation_id="list_jobs", response_model=JobList)
async def list_jobs(services: Mneme, caller: Operator) -> Response:
    """The jobs of the workers, when they run next and how they ran last."""
    telemetry.annotate(operation="job")
    return reply({"items": await known_jobs(services.database, caller.tenant_id)})


@router.get("/jobs/{name}/runs", operation_id="list_runs", response_model=RunList, responses=problems(422))
async def list_runs(
    services: Mneme, caller: Operator, name: JobName, limit: Annotated[int, Parameter(ge=1, le=PAGE)] = 50
) -> Response:
    """The runs of a job in the last 30 days."""
    telemetry.annotate(operation="job")
    return reply({"items": await history(services.database, job=name, tenant_id=caller.tenant_id, limit=limit)})


@router.post(
    "/jobs/{name}:run", operation_id="run_job", status_code=HTTPStatus.ACCEPTED, response_model=Run,
    responses=problems(404, 409, 422),
)  # fmt: skip
async def run_job(services: Mneme, caller: Admin, name: JobName, body: RunIn) -> Response:
    """Ask for a run of a job for this tenant; a worker begins it within seconds, after a run that goes on."""
    telemetry.annotate(operation="job")
    caller.act_for_all()
    job = next((job for job in await known_jobs(services.database, caller.tenant_id) if job["job"] == name), None)
    if job is None:
        raise NotFound
    if not job["by_tenant"]:
        raise Conflict("this job is of all tenants at once and runs by itself")
    if body.dry_run and not job["can_be_dry"]:
        raise Invalid(errors=[FieldError("/dry_run", "not_dry", "this job cannot say what it would do")])
    slot = Slot(name, now(), actor=caller.actor, tenant_id=caller.tenant_id, dry_run=body.dry_run)
    run_id = await ask(services.database, slot)
    (run,) = await history(services.database, run_id=run_id, tenant_id=caller.tenant_id)
    return reply(run, HTTPStatus.ACCEPTED, {"Location": f"/v1/admin/runs/{run_id}"})


@router.get("/runs/{run_id}", operation_id="get_run", response_model=Run, responses=problems(404, 422))
async def get_run(services: Mneme, caller: Operator, run_id: RunId) -> Response:
    """A run and how far it is."""
    telemetry.annotate(operation="job")
    runs = await history(services.database, run_id=run_id, tenant_id=caller.tenant_id)
    if not runs:
        raise NotFound
    return reply(runs[0])


class TouchedMemory(BaseModel):
    """A memory and what a run made of it, by which rule and why; `before` null: the run made it.

    `other_id`: what overruled it, what it was merged into, or the summary that tells it.
    """

    memory_id: UUID
    user_id: str | None
    agent_id: str | None
    kind: str
    rule: str = Field(examples=["stale"])
    reason: str | None
    before: str | None
    after: str
    other_id: UUID | None
    at: datetime | None = Field(description="Null: when the run was.")


class TouchedList(BaseModel):
    """One page, by id; `next_after` is null on the last."""

    items: list[TouchedMemory]
    next_after: UUID | None


@router.get("/runs/{run_id}/memories", operation_id="list_touched", response_model=TouchedList, responses=problems(422))
async def list_touched(
    services: Mneme,
    caller: Admin,
    run_id: RunId,
    after: Annotated[UUID | None, Parameter(description="Continue after this memory.")] = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE)] = 100,
) -> Response:
    """What a run archived, merged, overruled, summarised or made cold of this tenant, as far as it still stands.

    `:restore` brings back a single one of what went.
    """
    telemetry.annotate(operation="job")
    caller.act_for_all()
    items = await touched(services.database, caller.tenant_id, run_id, after=after, limit=limit + 1)
    page = items[:limit]
    document: dict[str, Any] = {"items": page, "next_after": page[-1]["memory_id"] if len(items) > limit else None}
    return reply(document)


class UndoneAnswer(BaseModel):
    """How many memories came back; `left`: others stand in their place by now."""

    restored: int
    left: int


@router.post(
    "/runs/{run_id}:undo", operation_id="undo_run", response_model=UndoneAnswer, responses=problems(422)
)  # fmt: skip
async def post_undo(services: Mneme, caller: Admin, run_id: RunId) -> Response:
    """Bring back all that a run archived, merged, overruled or made cold of this tenant; put away its summaries.

    A second time nothing is left to bring back. What was cold is warm as soon as the worker has made its vector.
    """
    telemetry.annotate(operation="restore")
    caller.act_for_all()
    done = [
        await undo(services.database, caller.tenant_id, run_id, actor=caller.actor, now=now())
        for undo in (undo_run, undo_consolidation)
    ]
    queued = await undo_cooling(services.database, caller.tenant_id, run_id, now=now())
    return reply({"restored": queued + sum(one.restored for one in done), "left": sum(one.left for one in done)})
