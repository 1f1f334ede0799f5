"""What a handler may ask for: the services of the process and the caller, who passed a wall before anything was read.

Invariant: every route is a WalledRoute, whose wall is asked before its body is read; a route without a wall is refused
when it is declared. Only the probes in health.py are made differently.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, NoReturn, get_type_hints

from fastapi import APIRouter, Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from app import telemetry
from app.again import again
from app.api.body import read_json
from app.api.problems import HANDLERS
from app.clock import now
from app.database import Database
from app.embed import Embedder, Generation
from app.errors import Forbidden, Unauthenticated
from app.forget import ForgetConfig, Quotas
from app.guard import OPEN_DOOR, Caller, Keyring
from app.operations import Desk
from app.recall import Recaller
from app.remember import Rememberer, Sessions, Shelf
from app.webhooks import Webhooks

CALLER: Final = "mneme.caller"
"""Where a wall leaves the Caller in the ASGI scope."""
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may weigh and must bring; sizes in bytes."""

    body_bytes: int = 1 << 20
    batch_body_bytes: int = 8 << 20
    require_if_match: bool = False


@dataclass(frozen=True, slots=True)
class Revisions:
    """Migrations: where the database stands and what this program was written for."""

    database: str | None
    code: str | None


@dataclass(slots=True)
class Switch:
    """Whether the process is on its way out: it still answers, but wants no new clients."""

    draining: bool = False


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that lives as long as the process; `app.state.mneme`."""

    database: Database
    embedder: Embedder
    generation: Generation
    rememberer: Rememberer
    shelf: Shelf
    sessions: Sessions
    operations: Desk
    webhooks: Webhooks
    recaller: Recaller
    forget: ForgetConfig
    quotas: Quotas
    keyring: Keyring
    cursor_secret: bytes
    limits: Limits
    revisions: Callable[[], Awaitable[Revisions]]
    version: str
    switch: Switch


class Wall:
    """Lets a request pass if its key holds `scope` (None: any valid key); as a dependency it yields the Caller."""

    __slots__ = ("scope",)

    def __init__(self, scope: str | None) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Caller:
        caller: Caller = request.scope[CALLER]
        return caller

    async def admit(self, request: Request) -> None:
        """Find out who asks; raises Unauthenticated or Forbidden."""
        keyring: Keyring = request.app.state.mneme.keyring
        moment = now()
        text = _key_text(request.scope["headers"])
        if text is not None:
            caller = await keyring.authenticate(text, now=moment)
        elif await keyring.closed(now=moment) or not _from_this_machine(request.scope):
            _refuse("missing")
        else:
            caller = OPEN_DOOR
        if self.scope is not None and self.scope not in caller.scopes:
            telemetry.AUTH_FAILURES.labels("scope").inc()
            raise Forbidden(f"this key lacks the scope `{self.scope}`")
        telemetry.annotate(tenant_id=caller.tenant_id, key_id=caller.key_id)
        request.scope[CALLER] = caller


class WalledRoute(APIRoute):
    """A route that first asks its wall, then reads a strict JSON body, and only then runs FastAPI's own steps.

    A handler of nothing but services, caller, request, body and optional headers is called directly: what FastAPI does
    for it comes to the same and costs a third of a small request.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if _is_direct(self.dependant):
            self.app = self._direct()

    @property
    def _wall(self) -> Wall:
        wall = wall_of(self.dependant)
        if wall is None:
            raise TypeError(f"{self.path} has no wall: take a Reader, Writer, Deleter, Operator, Admin or Anybody")
        return wall

    def _direct(self) -> ASGIApp:
        dependant, wall, body_field = self.dependant, self._wall, self.body_field
        names = [(str(each.name), each.call is wall) for each in dependant.dependencies]
        headers = [(field.name, field.alias) for field in dependant.header_params]
        bodies = [field.name for field in dependant.body_params]
        batch = self.path.endswith(":batch")

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            await wall.admit(request)
            mneme: Services = request.app.state.mneme
            values: dict[str, Any] = {name: scope[CALLER] if is_wall else mneme for name, is_wall in names}
            for name, header in headers:
                values[name] = request.headers.get(header)
            if dependant.request_param_name:
                values[dependant.request_param_name] = request
            if body_field is not None:
                limit_bytes = mneme.limits.batch_body_bytes if batch else mneme.limits.body_bytes
                request._json = document = await read_json(  # noqa: SLF001 - where Starlette keeps what was parsed
                    scope, receive, limit_bytes, by_item=batch
                )
                body, errors = body_field.validate(document, {}, loc=("body",))
                if errors:
                    raise RequestValidationError(errors, body=document)
                values |= dict.fromkeys(bodies, body)
            response: Response = await again(mneme.database, lambda: self.endpoint(**values))
            await response(scope, receive, send)

        return app

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner, wall = super().get_route_handler(), self._wall
        has_body, batch = self.body_field is not None, self.path.endswith(":batch")

        async def walled(request: Request) -> Response:
            await wall.admit(request)
            if has_body:
                limits: Limits = request.app.state.mneme.limits
                limit_bytes = limits.batch_body_bytes if batch else limits.body_bytes
                request._json = await read_json(  # noqa: SLF001 - where Starlette keeps what was parsed
                    request.scope, request.receive, limit_bytes, by_item=batch
                )
                request._body = b"read"  # noqa: SLF001 - where Starlette keeps what was read, so it reads no more
            database: Database = request.app.state.mneme.database
            return await again(database, lambda: inner(request))

        return walled


def straight(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], tuple[WalledRoute, ASGIApp]]:
    """By method and path the routes that are called directly and whose path is only itself, as what answers there.

    Looking for a route, trying one after the other, takes longer than all else that FastAPI does for these.
    """
    return {
        (method, route.path): (route, ExceptionMiddleware(route.app, handlers=HANDLERS))
        for route in routes
        if isinstance(route, WalledRoute) and _is_direct(route.dependant)
        for method in route.methods or ()
    }


def _is_direct(dependant: Dependant) -> bool:
    known = all(isinstance(each.call, Wall) or each.call is _services for each in dependant.dependencies)
    others = dependant.path_params or dependant.query_params or dependant.cookie_params
    return (
        known
        and not others
        and len(dependant.body_params) <= 1
        and all(field.default is None for field in dependant.header_params)
        and get_type_hints(dependant.call).get("return") is Response
    )


def wall_of(dependant: Dependant) -> Wall | None:
    """The wall among a route's dependencies."""
    walls = [each.call for each in dependant.dependencies if isinstance(each.call, Wall)]
    return walls[0] if walls else None


def walled_router(**options: Any) -> APIRouter:
    """A router whose routes all need a wall."""
    return APIRouter(route_class=WalledRoute, **options)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.mneme
    return services


Mneme = Annotated[Services, Depends(_services)]
Reader = Annotated[Caller, Depends(Wall("read"))]
Writer = Annotated[Caller, Depends(Wall("write"))]
Deleter = Annotated[Caller, Depends(Wall("delete"))]
Operator = Annotated[Caller, Depends(Wall("ops"))]
Admin = Annotated[Caller, Depends(Wall("admin"))]
Anybody = Annotated[Caller, Depends(Wall(None))]


def _key_text(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The key that a request brings, in `Authorization: Bearer` or `X-API-Key`; None if it brings no credentials."""
    for name, value in headers:
        if name == b"authorization":
            kind, _, text = value.decode("latin-1").partition(" ")
            if kind.lower() != "bearer":
                _refuse("malformed")
            return text.strip()
        if name == b"x-api-key":
            return value.decode("latin-1").strip()
    return None


def _from_this_machine(scope: Any) -> bool:
    """Whether the open door may answer: to a client here, not to a proxy, nor to a web page (DNS rebinding)."""
    name, proxied = "", False
    for header, value in scope["headers"]:
        if header == b"host":
            host = value.decode("latin-1").lower()
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
        proxied = proxied or header in (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"via")
    return name in _LOOPBACK_NAMES and not proxied and scope["client"] is not None and is_loopback(scope["client"][0])


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refuse(reason: str) -> NoReturn:
    telemetry.AUTH_FAILURES.labels(reason).inc()
    raise Unauthenticated
