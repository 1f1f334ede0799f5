"""The process: opens what it needs or refuses with a plain message, serves, and drains when it is told to end.

Invariant: a service that nobody locked (no API key exists) only ever listens on loopback.
"""

import asyncio
import gc
import platform
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path
from time import monotonic
from typing import Final

import uvicorn
from alembic.script import ScriptDirectory
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from app import telemetry
from app.api import (
    compat,
    context,
    feedback,
    forgetting,
    health,
    jobs,
    lineage,
    memories,
    operations,
    reviews,
    search,
    sessions,
    tenant,
    webhooks,
)
from app.api.deps import Limits, Revisions, Services, Switch, is_loopback, straight
from app.api.docs import add_docs
from app.api.health import Readiness
from app.api.middleware import Application, Frame, sample
from app.api.openapi import describe
from app.api.problems import HANDLERS
from app.clock import now
from app.database import Database, sql
from app.embed import Embedder, Generation, active_generation_id, load_nli, load_reranker, open_embedder
from app.errors import MnemeError, StartupRefused
from app.forget import Quotas
from app.guard import Keyring, derive_secret, load_pepper
from app.language import TOKENIZER_VERSION
from app.llm import LanguageModel, load_language_model
from app.operations import Desk, Operator, Queue, Tools
from app.recall import Recaller, RecallProbe, Replica, Residents, SmallTalk, UsageBuffer
from app.remember import LlmOpinion, Opinion, Rememberer, Sessions, Shelf
from app.settings import Settings, load_settings
from app.webhooks import Webhooks

MIGRATIONS: Final = Path(__file__).parents[1] / "migrations"
ROUTERS: Final = (  # the busiest first
    search.router, memories.router, context.router, sessions.router, compat.router, feedback.router, lineage.router,
    reviews.router,
    health.probes, operations.router, webhooks.router, tenant.router, forgetting.router, jobs.router, health.router,
)  # fmt: skip
FOLLOW_SECONDS: Final = 2.0
"""How often a process looks which generation of vectors it is to serve."""

YOUNG_OBJECTS: Final = 10_000
"""New objects after which cycles are looked for; Python's own 700 are made by every few memories of a batch."""
RETRY_SECONDS: Final = 30.0
LONGEST_REQUEST_SECONDS: Final = 60.0
_NO_TELEMETRY: Final[TelemetryConfig] = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}
_REVISION: Final = sql("SELECT version_num FROM alembic_version")
_DESCRIPTION: Final = """Long-term memory of AI agents: store statements about users, find them by meaning and words.

Every refusal is an RFC 9457 problem with a stable `code`. Times carry a zone; answers are in UTC."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application, which opens its services when an ASGI server starts it and closes them when it stops.

    Settings that are not handed over are read, so that any ASGI server can call it as a factory.
    """
    settings = settings or load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with follow(app, settings):
            yield

    app = Application(
        title="Mneme",
        version=installed_version("mneme"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        exception_handlers=HANDLERS,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry=_NO_TELEMETRY,  # ours is in app.telemetry; FastAPI's own doubles the time of a request
    )
    app.state.readiness = Readiness()
    for router in ROUTERS:
        app.router.routes.extend(router.routes)  # include_router() would match every request twice
    app.straight = straight(app.router.routes)
    app.add_middleware(Frame, straight=app.straight)
    if settings.api.docs:
        add_docs(app)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def follow(app: FastAPI, settings: Settings) -> AsyncIterator[Services]:
    """Give the application its services, and others when the store is switched to another model; raises StartupRefused.

    The new ones are opened beside the old, which serve until then and are closed when their requests have ended.
    """
    opened: list[AsyncExitStack] = []
    try:
        services = await _open(app, settings, opened)
        following = asyncio.create_task(_follow(app, settings, opened))
        try:
            yield services
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    finally:
        for stack in reversed(opened):
            await stack.aclose()


async def _open(
    app: FastAPI, settings: Settings, opened: list[AsyncExitStack], switch: Switch | None = None
) -> Services:
    stack = AsyncExitStack()
    services = await stack.enter_async_context(open_services(settings, switch))
    opened.append(stack)
    app.state.mneme = services
    return services


async def _follow(app: FastAPI, settings: Settings, opened: list[AsyncExitStack]) -> None:
    closing = retrying = monotonic()
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        services: Services = app.state.mneme
        if len(opened) > 1 and monotonic() >= closing:
            await opened.pop(0).aclose()
        with suppress(MnemeError):  # a database that is away for a moment
            active = await active_generation_id(services.database)
            if active in (None, services.generation.generation_id) or monotonic() < retrying:
                continue
            try:
                fresh = await _open(app, settings, opened, services.switch)
            except Exception as error:  # what serves goes on serving
                reason = {"reason": error.message} if isinstance(error, StartupRefused) else {}
                telemetry.log().error("embedding_generation_not_followed", **reason, **telemetry.frames(error))
                retrying = monotonic() + RETRY_SECONDS
                continue
            closing = monotonic() + LONGEST_REQUEST_SECONDS
            if fresh.embedder.spec.model != services.embedder.spec.model:
                _show_build(services.embedder.spec.model, 0)
            telemetry.log().info("embedding_generation_followed", generation=fresh.generation.generation_id)


def _show_build(model: str, value: int) -> None:
    telemetry.BUILD_INFO.labels(installed_version("mneme"), platform.python_version(), model).set(value)


@asynccontextmanager
async def open_services(settings: Settings, switch: Switch | None = None) -> AsyncIterator[Services]:
    """Connect, check and start everything, and close it again in the other order; raises StartupRefused."""
    pepper = load_pepper(
        settings.auth.pepper.get_secret_value() if settings.auth.pepper else None,
        settings.data_dir,
        production=settings.env == "production",
    )
    async with AsyncExitStack() as stack:
        database = await Database.connect(settings.database)
        stack.push_async_callback(database.close)
        head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
        revisions = partial(_revisions, database, head)
        _check_schema(await revisions())
        keyring = Keyring(database, pepper, required=settings.auth.required)
        await _check_door(keyring, settings.api.host)
        embedder, generation = await open_embedder(
            database, settings.embed, settings.data_dir, TOKENIZER_VERSION, now()
        )
        await embedder.start()
        stack.push_async_callback(embedder.close)
        recaller = await _open_recaller(settings, database, embedder, generation, stack)
        stack.callback(asyncio.create_task(sample(database)).cancel)
        language_model = _open_language_model(settings, stack)
        opinions = _open_opinions(settings, language_model, stack)
        rememberer = Rememberer(database, embedder, generation, settings.remember, opinions)
        desk = _open_desk(settings, rememberer, language_model, stack)
        _show_build(embedder.spec.model, 1)
        yield Services(
            database=database,
            embedder=embedder,
            generation=generation,
            rememberer=rememberer,
            shelf=Shelf(database, embedder, generation, settings.remember),
            sessions=Sessions(database, embedder.count_tokens, settings.sessions),
            operations=desk,
            quotas=Quotas(database, settings.forget),
            webhooks=Webhooks(database, pepper, settings.webhooks),
            recaller=recaller,
            forget=settings.forget,
            keyring=keyring,
            cursor_secret=derive_secret(pepper, "cursor"),
            limits=Limits(
                settings.api.body_limit_bytes, settings.api.batch_body_limit_bytes, settings.api.require_if_match
            ),
            revisions=revisions,
            version=installed_version("mneme"),
            switch=switch or Switch(),
        )


async def _open_recaller(
    settings: Settings, database: Database, embedder: Embedder, generation: Generation, stack: AsyncExitStack
) -> Recaller:
    reranker = load_reranker(settings.rerank, threads=settings.embed.threads)
    await reranker.start()
    stack.push_async_callback(reranker.close)
    small_talk = SmallTalk(embedder)
    await small_talk.prepare()
    stack.push_async_callback(small_talk.close)
    residents = Residents(database, generation, settings.recall)
    stack.push_async_callback(residents.close)
    replica = Replica(settings.database, residents.stamps)
    stack.push_async_callback(replica.close)
    usage = UsageBuffer(database, settings.recall, residents.used)
    await usage.start()
    stack.push_async_callback(usage.close)
    probe = RecallProbe(database, settings.recall)
    stack.push_async_callback(probe.close)
    return Recaller(
        database, embedder, generation, usage, residents, replica, small_talk, reranker, probe, settings.recall
    )


def _open_language_model(settings: Settings, stack: AsyncExitStack) -> LanguageModel | None:
    language_model = load_language_model(settings.llm)
    if language_model is not None:
        stack.push_async_callback(language_model.close)
    return language_model


def _open_opinions(
    settings: Settings, language_model: LanguageModel | None, stack: AsyncExitStack
) -> tuple[Opinion, ...]:
    """Who is asked about conflicts, the strongest first."""
    opinions: list[Opinion] = []
    if (nli := load_nli(settings.nli, settings.embed.threads)) is not None:
        stack.push_async_callback(nli.close)
        opinions.append(nli)
    if settings.remember.ask_llm and language_model is not None:
        opinions.append(LlmOpinion(language_model))
    return tuple(opinions)


def _open_desk(
    settings: Settings, rememberer: Rememberer, language_model: LanguageModel | None, stack: AsyncExitStack
) -> Desk:
    """Where operations are asked for; what is in hand at the end is put back before the database closes."""
    queue = Queue(rememberer.database, rememberer.subscriptions, settings.operations)
    tools = Tools(rememberer, language_model, settings.extract)
    operator = Operator(queue, tools, settings.operations, clock=now)
    stack.push_async_callback(operator.close)
    return Desk(rememberer.database, operator, rememberer.subscriptions, settings.operations)


def serve(settings: Settings, *, shared_port: bool = False) -> None:
    """Run the API until SIGTERM or SIGINT and let running requests end; raises StartupRefused.

    On a shared port, other processes may listen, too, and the system deals out connections.
    """
    telemetry.configure_logging(service="mneme-api", version=installed_version("mneme"), level=settings.log.level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, shared_port))


async def _serve(settings: Settings, shared_port: bool) -> None:
    # The services are opened out here, not in uvicorn's lifespan, so that a refusal reaches the caller as itself.
    listener = bind(settings.api.host, settings.api.port, shared=shared_port)
    app = create_app(settings)
    async with follow(app, settings) as services:
        gc.collect()
        gc.freeze()  # what lives as long as the process need not be visited by every full garbage collection
        gc.set_threshold(YOUNG_OBJECTS)
        config = uvicorn.Config(
            app,
            lifespan="off",
            http="httptools",
            proxy_headers=False,  # the wall asks who really connects
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,  # longer than load balancers keep theirs: who hangs up first crosses no request
            timeout_graceful_shutdown=max(1, round(settings.api.drain_seconds)),
        )
        await _Server(config, services.switch).serve([listener])


class _Server(uvicorn.Server):
    """uvicorn, which by itself would end the process by the signal before the services are closed."""

    def __init__(self, config: uvicorn.Config, switch: Switch) -> None:
        super().__init__(config)
        self._switch = switch

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port, *_ = listener.getsockname()
            telemetry.log().info("listening", host=host, port=port)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, self._drain)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _drain(self) -> None:
        self.force_exit = self._switch.draining  # asked a second time: at once
        self._switch.draining = self.should_exit = True


def _check_schema(revisions: Revisions) -> None:
    if revisions.database != revisions.code:
        raise StartupRefused(
            f"the database is at migration {revisions.database}, this program needs {revisions.code}: "
            "run `mneme db migrate`",
            dependency=True,
        )


async def _check_door(keyring: Keyring, host: str) -> None:
    if await keyring.closed(now=now()):
        return
    if not is_loopback(host):
        raise StartupRefused(
            f"no API key exists, so anybody who reaches {host} could read and change everything: "
            "make one with `mneme keys create`, or listen on 127.0.0.1"
        )
    telemetry.log().warning("open_door", detail="no API key exists: every request from this machine is let in")


async def _revisions(database: Database, head: str | None) -> Revisions:
    async with database.work() as transaction:
        return Revisions(await transaction.fetch_value(_REVISION), head)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Take the address before the slow part of the start, but listen only after it; raises StartupRefused."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise StartupRefused(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _loop_factory() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - not on Windows
    except ImportError:
        return asyncio.SelectorEventLoop
    return uvloop.Loop
