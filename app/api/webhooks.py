"""Webhooks: a tenant names where its events go, and looks up what became of them."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from fastapi import Path, Response
from fastapi import Query as Parameter
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from app import telemetry
from app.api.body import Wire
from app.api.deps import Admin, Mneme, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.clock import now
from app.webhooks import NewWebhook

router = walled_router(prefix="/v1", tags=["webhooks"])

EventKind = Literal["memory.created", "memory.deprecated", "operation.finished"]
WebhookId = Annotated[UUID, Path(description="Id of a webhook.")]


def _once_each(kinds: list[EventKind]) -> list[EventKind]:
    if len(set(kinds)) < len(kinds):
        raise PydanticCustomError("twice", "names an event twice")
    return kinds


class WebhookIn(Wire):
    """Where events shall go."""

    url: str = Field(min_length=1, max_length=2_000, examples=["https://hooks.example.com/mneme"])
    events: Annotated[list[EventKind], AfterValidator(_once_each)] = Field(
        min_length=1, default=list(get_args(EventKind)), description="Which events; default: all."
    )
    description: str | None = Field(None, max_length=500)


class Webhook(BaseModel):
    """Where events go. `failing_since`: nothing was heard there since; `disabled_at`: nothing is sent any more."""

    id: UUID
    url: str
    events: list[EventKind]
    description: str | None
    created_at: datetime
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: Literal["failing", "gone"] | None


class NewWebhookAnswer(Webhook):
    """A new webhook and the secret of its signatures, which is shown this once."""

    secret: str = Field(examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])


class WebhookList(BaseModel):
    """Every webhook of the tenant, oldest first."""

    items: list[Webhook]


class Delivery(BaseModel):
    """An event on its way to a webhook, or the end of that way."""

    event_id: UUID = Field(description="The `webhook-id` that the receiver sees.")
    event: EventKind
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: datetime
    finished_at: datetime | None
    next_attempt_at: datetime | None
    last_status: int | None
    last_error: Literal["status", "redirect", "timeout", "connection", "protocol", "dns", "private_target"] | None
    took_ms: int | None


class DeliveryList(BaseModel):
    """Deliveries, newest event first; `next_before` goes on, null on the last page."""

    items: list[Delivery]
    next_before: UUID | None


class DeliveryParameters(Wire):
    """Conditions and page of a delivery log."""

    state: Literal["pending", "delivered", "failed"] | None = None
    before: Annotated[UUID, Field(strict=False)] | None = Field(None, description="`next_before` of the last page.")
    limit: Annotated[int, Field(strict=False, ge=1, le=200)] = 50


@router.post(
    "/webhooks",
    operation_id="create_webhook",
    status_code=HTTPStatus.CREATED,
    response_model=NewWebhookAnswer,
    responses=problems(409, 422),
)
async def create_webhook(services: Mneme, caller: Admin, body: WebhookIn) -> Response:
    """Register a webhook. It takes a second: from the answer on, every event is told."""
    telemetry.annotate(operation="webhook")
    new = NewWebhook(body.url, tuple(body.events), body.description)
    webhook, secret = await services.webhooks.register(caller, new, now=now())
    return reply(webhook | {"secret": secret}, HTTPStatus.CREATED, {"Location": f"/v1/webhooks/{webhook['id']}"})


@router.get("/webhooks", operation_id="list_webhooks", response_model=WebhookList)
async def list_webhooks(services: Mneme, caller: Admin) -> Response:
    """Every webhook of the tenant."""
    telemetry.annotate(operation="webhook")
    return reply({"items": await services.webhooks.browse(caller)})


@router.get("/webhooks/{webhook_id}", operation_id="get_webhook", response_model=Webhook, responses=problems(404, 422))
async def get_webhook(services: Mneme, caller: Admin, webhook_id: WebhookId) -> Response:
    """One webhook."""
    telemetry.annotate(operation="webhook")
    return reply(await services.webhooks.get(caller, webhook_id))


@router.post(
    "/webhooks/{webhook_id}:enable", operation_id="enable_webhook", response_model=Webhook, responses=problems(404, 422)
)
async def enable_webhook(services: Mneme, caller: Admin, webhook_id: WebhookId) -> Response:
    """Send again to a webhook that was switched off; what still waits for it is sent, too."""
    telemetry.annotate(operation="webhook")
    return reply(await services.webhooks.enable(caller, webhook_id))


@router.delete(
    "/webhooks/{webhook_id}",
    operation_id="delete_webhook",
    status_code=HTTPStatus.NO_CONTENT,
    response_class=Response,
    responses=problems(404, 422),
)
async def delete_webhook(services: Mneme, caller: Admin, webhook_id: WebhookId) -> Response:
    """Forget a webhook, its log, and what still waits for it."""
    telemetry.annotate(operation="webhook")
    await services.webhooks.remove(caller, webhook_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get(
    "/webhooks/{webhook_id}/deliveries",
    operation_id="list_deliveries",
    response_model=DeliveryList,
    responses=problems(404, 422),
)
async def list_deliveries(
    services: Mneme, caller: Admin, webhook_id: WebhookId, parameters: Annotated[DeliveryParameters, Parameter()]
) -> Response:
    """What was sent to a webhook and what will be, and how it went."""
    telemetry.annotate(operation="webhook")
    found: list[dict[str, Any]] = await services.webhooks.deliveries(
        caller, webhook_id, state=parameters.state, before=parameters.before, limit=parameters.limit + 1
    )
    page = found[: parameters.limit]
    more = len(found) > parameters.limit
    return reply({"items": page, "next_before": page[-1]["event_id"] if more else None})
