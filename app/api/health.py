"""What operations asks: is it alive, is it ready, what does it measure, which version is it.

Invariant: /livez touches nothing, so that no outage of a dependency gets a healthy process killed.
"""

import asyncio
from dataclasses import asdict
from time import perf_counter
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json

from app import telemetry
from app.api.deps import Anybody, Mneme, Operator, Services, walled_router
from app.api.middleware import count_connections
from app.clock import now
from app.errors import MnemeError
from app.indexes import IndexFaults, index_faults

PATIENCE_SECONDS: Final = 2.0
FRESH_SECONDS: Final = 1.0

probes = APIRouter(tags=["health"])
router = walled_router(tags=["health"])

_STATUS: Final = {"application/json": {"example": {"status": "ready"}}}
_DOWN: Final[dict[int | str, dict[str, Any]]] = {
    503: {"description": "Not ready.", "content": {"application/json": {"example": {"status": "unready"}}}}
}


@probes.get("/livez", operation_id="livez", summary="Is the process alive?", responses={200: {"content": _STATUS}})
async def livez() -> dict[str, str]:
    """Answers without any I/O; restart the process when this fails, and only then."""
    return {"status": "alive"}


@probes.get("/readyz", operation_id="readyz", summary="Should it get requests?", responses=_DOWN)
@probes.get("/healthz", operation_id="healthz", summary="The same as /readyz", responses=_DOWN)
async def readyz(
    request: Request,
    services: Mneme,
    verbose: Annotated[str | None, Query(description="Present: show every check.")] = None,
) -> Response:
    """503 while the database does not answer, its schema is another one than the program's, or the process is ending.

    An index that is missing, invalid or damaged (`mneme repair`) leaves it ready: searches compare exactly instead.
    A failing embedder leaves it ready: writes are kept as pending and searches use keywords.
    """
    readiness: Readiness = request.app.state.readiness
    checks = await readiness.checks(services)
    ready = not services.switch.draining and checks["db"]["ok"] and checks["migrations"]["ok"]
    body: dict[str, Any] = {"status": "ready" if ready else "draining" if services.switch.draining else "unready"}
    if verbose is not None:
        body["checks"] = checks
    return Response(to_json(body), 200 if ready else 503, media_type="application/json")


@router.get("/metrics", operation_id="metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(_: Operator, services: Mneme) -> Response:
    """Everything the API counts; needs the scope `ops`. No label names a tenant, a user or a text."""
    count_connections(services.database)
    return Response(await asyncio.to_thread(telemetry.exposition), media_type=CONTENT_TYPE_LATEST)


@router.get("/version", operation_id="version", summary="What is running?")
async def version(_: Anybody, services: Mneme) -> dict[str, str]:
    """The version of this program."""
    return {"name": "mneme", "version": services.version}


class Readiness:
    """The checks, at most a second old: however often a probe calls, the pool keeps its connections."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._checked_at = -FRESH_SECONDS
        self._checks: dict[str, Any] = {}

    async def checks(self, services: Services) -> dict[str, Any]:
        """Every check by name; `db` and `migrations` decide whether the process is ready."""
        async with self._lock:
            if perf_counter() - self._checked_at > FRESH_SECONDS:
                self._checks = await _check(services)
                self._checked_at = perf_counter()
        embedder = services.embedder
        embedding = {
            "state": embedder.state,
            "model": embedder.spec.model,
            "dim": embedder.spec.dimension,
            "generation": services.generation.generation_id,
        }
        recaller = services.recaller
        return self._checks | {
            "embedding": embedding,
            "rerank": {"state": recaller.reranker.state},
            "replica": {"state": recaller.replica.state},
        }


async def _check(services: Services) -> dict[str, Any]:
    database = services.database
    started = perf_counter()
    db: dict[str, Any] = {"ok": False, "pool_size": database.size, "pool_checked_out": database.checked_out}
    migrations: dict[str, Any] = {"ok": False}
    indexes: dict[str, Any] = {"ok": False}
    auth = "unknown"
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            revisions = await services.revisions()
            db |= {"ok": True, "round_trip_ms": round((perf_counter() - started) * 1000, 2)}
            migrations = asdict(revisions) | {"ok": revisions.database == revisions.code}
            wrong = await index_faults(database)
            damaged = services.recaller.large.is_distrusted
            indexes = asdict(wrong) | {"damaged": damaged, "ok": wrong == IndexFaults() and not damaged}
            auth = "keys" if await services.keyring.closed(now=now()) else "open"
    except Exception as error:  # a probe answers, whatever is broken
        db |= {"ok": False, "error": error.code if isinstance(error, MnemeError) else type(error).__name__}
    return {"db": db, "migrations": migrations, "indexes": indexes, "auth": auth}
