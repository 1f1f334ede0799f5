"""What a tenant sets for itself, where the service's settings leave it the choice."""

from typing import Any, Self

from fastapi import Response
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from app import telemetry
from app.api.body import Wire
from app.api.deps import Admin, Mneme, Services, walled_router
from app.api.problems import problems
from app.api.reply import reply
from app.guard import amend_tenant_settings, tenant_settings

router = walled_router(prefix="/v1", tags=["tenant"])


class SessionSettingsIn(Wire):
    """How much of a conversation is held; null: as the service says."""

    turns: int | None = Field(None, ge=1, le=1_000)
    tokens: int | None = Field(None, ge=16, le=100_000)
    idle_seconds: float | None = Field(None, ge=1, le=30 * 86_400)


class SettingsPatch(Wire):
    """Settings to change; those left out stay as they are."""

    sessions: SessionSettingsIn = Field(examples=[{"turns": 10, "tokens": 2_000}])

    @model_validator(mode="after")
    def sensible(self) -> Self:
        if not self.sessions.model_fields_set:
            raise PydanticCustomError("empty", "name at least one setting")
        return self


class SessionSettings(BaseModel):
    """How much of a conversation is held, and after how much silence it ends."""

    turns: int
    tokens: int
    idle_seconds: float


class SettingsAnswer(BaseModel):
    """The settings in force; `own` names those that the tenant has set itself."""

    sessions: SessionSettings
    own: list[str] = Field(examples=[["sessions.turns"]])


@router.get("/settings", operation_id="get_settings", response_model=SettingsAnswer)
async def get_settings(services: Mneme, caller: Admin) -> Response:
    """The settings in force for this tenant."""
    telemetry.annotate(operation="settings")
    caller.act_for_all()
    return _answer(services, await tenant_settings(services.database, caller.tenant_id))


@router.patch("/settings", operation_id="amend_settings", response_model=SettingsAnswer, responses=problems(422))
async def amend_settings(services: Mneme, caller: Admin, body: SettingsPatch) -> Response:
    """Change this tenant's settings; null gives one back to the service. Running conversations follow at once."""
    telemetry.annotate(operation="settings")
    caller.act_for_all()
    changes = {"sessions": {name: getattr(body.sessions, name) for name in body.sessions.model_fields_set}}
    return _answer(services, await amend_tenant_settings(services.database, caller.tenant_id, changes))


def _answer(services: Services, own: dict[str, dict[str, Any]]) -> Response:
    names = sorted(f"{group}.{name}" for group, values in own.items() for name in values)
    return reply({"sessions": services.sessions.limits(own).model_dump(), "own": names})
