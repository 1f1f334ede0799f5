"""Around every request, as one pure ASGI layer: its id, one log line, metrics, headers, and the last resort.

Invariant: whatever a handler raises, the client gets a problem and the log gets type and frames, never a message.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from functools import cached_property
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import telemetry
from app.api.deps import CALLER, WalledRoute
from app.api.problems import problem
from app.database import Database
from app.errors import Malformed, MnemeError, NotFound
from app.guard import OPEN_DOOR

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET: Final = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})
_SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
_LAG_INTERVAL_SECONDS: Final = 0.1
_STALL_SECONDS: Final = 0.25


Straight = Mapping[tuple[str, str], tuple[WalledRoute, ASGIApp]]
"""What is called without looking for its route, by method and path."""


class Application(FastAPI):
    """FastAPI, but straight requests go to the frame at once: the layers that it puts around take as long as the frame.

    `straight` is set before the first request.
    """

    straight: Straight = MappingProxyType({})

    @cached_property
    def _frame(self) -> "Frame":
        return Frame(super().__call__, self.straight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in self.straight:
            scope["app"] = self
            await self._frame(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class Frame:
    """The outermost layer of the application; what `straight` names is called without looking for its route."""

    def __init__(self, app: ASGIApp, straight: Straight) -> None:
        self._app, self._straight = app, straight
        self._meters: dict[tuple[str, str, int, str | None], tuple[Counter, *tuple[Histogram, ...]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        request_id = _request_id(scope)
        note = telemetry.begin_request(request_id)
        status = 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"x-request-id", request_id.encode()), *_SECURITY]
                if scope.get(CALLER) is OPEN_DOOR:
                    headers.append((b"x-mneme-auth", b"open"))
                message["headers"] = headers
            await send(message)

        telemetry.HTTP_REQUESTS_IN_PROGRESS.inc()
        try:
            if (refusal := _unreadable(scope)) is not None:
                await problem(refusal)(scope, receive, framed)
            elif (found := self._straight.get((scope["method"], scope["path"]))) is not None:
                scope["route"] = found[0]
                await found[1](scope, receive, framed)
            else:
                await self._app(scope, receive, framed)
        except Exception as error:
            telemetry.log().error("internal", **telemetry.frames(error))
            if status:
                raise  # half an answer is out: the server must cut the connection
            await problem(MnemeError())(scope, receive, framed)
        finally:
            telemetry.HTTP_REQUESTS_IN_PROGRESS.dec()
            self._record(scope, status, perf_counter() - started, note)

    def _record(self, scope: Scope, status: int, seconds: float, note: dict[str, Any]) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        operation = note.get("operation")
        key = method, route, status // 100, operation
        if key not in self._meters:
            self._meters[key] = _meters(*key)
        counter, *histograms = self._meters[key]
        counter.inc()
        for histogram in histograms:
            histogram.observe(seconds)
        if route not in _QUIET or status >= 400:
            line = telemetry.stamp("request", "info" if 0 < status < 500 else "warning")
            line |= note
            line |= {"method": method, "route": route, "status": status, "duration_ms": round(seconds * 1000, 2)}
            telemetry.write_line(line)


def _meters(
    method: str, route: str, status_class: int, operation: str | None
) -> tuple[Counter, *tuple[Histogram, ...]]:
    counter = telemetry.HTTP_REQUESTS.labels(method, route, f"{status_class}xx")
    histogram = telemetry.HTTP_REQUEST_DURATION_SECONDS.labels(method, route)
    if operation not in telemetry.OPERATIONS:
        return counter, histogram
    outcome = "ok" if status_class in (1, 2, 3) else "refused" if status_class == 4 else "failed"
    return counter, histogram, telemetry.OPERATION_DURATION_SECONDS.labels(operation, outcome)


async def sample(database: Database) -> None:
    """Observe, ten times a second and until cancelled, how late the event loop runs a timer and what the pool has."""
    while True:
        count_connections(database)
        asked = perf_counter()
        await asyncio.sleep(_LAG_INTERVAL_SECONDS)
        lag = max(0.0, perf_counter() - asked - _LAG_INTERVAL_SECONDS)
        telemetry.EVENT_LOOP_LAG_SECONDS.observe(lag)
        if lag > _STALL_SECONDS:
            telemetry.EVENT_LOOP_STALLS.inc()


def count_connections(database: Database) -> None:
    """Show the pool's connections."""
    used = database.checked_out
    telemetry.DB_POOL_CONNECTIONS.labels("checked_out").set(used)
    telemetry.DB_POOL_CONNECTIONS.labels("idle").set(database.size - used)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return secrets.token_hex(16)


def _unreadable(scope: Scope) -> MnemeError | None:
    # PostgreSQL knows no NUL, so no path and no parameter with one can name anything.
    if "\0" in scope["path"]:
        return NotFound()
    return Malformed("a parameter holds the character U+0000") if b"%00" in scope["query_string"] else None
