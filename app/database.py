"""The one door to PostgreSQL: a pool, and transactions that know whose rows they may touch.

Invariant: every statement runs inside a transaction that first takes a role without rights of its own over other
tenants' rows (SET LOCAL ROLE) and names the tenant (SET LOCAL app.tenant_id); nothing outlives that transaction.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import blake2b
from types import TracebackType
from typing import Any, Final
from uuid import UUID

import asyncpg
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from app import telemetry
from app.connections import DatabaseConfig, make_engine, opening
from app.errors import DatabaseUnavailable, PoolExhausted, StartupRefused
from app.failures import of_driver, raise_translated, refuse_start, translated
from app.statements import Meanwhile, Statement, Transaction, sql

__all__ = [
    "APP_ROLE",
    "MIN_PGVECTOR",
    "WORKER_ROLE",
    "Database",
    "Scope",
    "Statement",
    "Transaction",
    "counted_commits",
    "note_commit",
    "sql",
    "subject_lock",
]

APP_ROLE = "mneme_app"
WORKER_ROLE = "mneme_worker"
MIN_POSTGRESQL = 16
MIN_PGVECTOR = (0, 8, 4)


class Scope:
    """`async with` around one transaction: begins with role and tenant in one packet, commits on a clean exit.

    Who only read does not wait for the end.
    """

    __slots__ = ("_begin", "_changes", "_database", "_driver", "_meanwhile", "_pooled", "_seconds")

    def __init__(
        self, database: "Database", begin: str, *, changes: bool, seconds: float | None = None,
        meanwhile: Iterable[Callable[[], object]] = (),
    ) -> None:  # fmt: skip
        self._database, self._begin, self._changes, self._seconds = database, begin, changes, seconds
        self._meanwhile = Meanwhile(meanwhile)
        self._pooled: PoolProxiedConnection | None = None
        self._driver: Any = None

    async def __aenter__(self) -> Transaction:
        try:
            await self._checkout()
            try:
                opened = await self._meanwhile.answer(self._driver.execute(self._begin, timeout=self._seconds))
            except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
                # A pooled connection died unnoticed, its neighbours probably too: start afresh. Nothing has happened
                # yet, so a second try is safe and costs nothing while all is well, as a ping per checkout would.
                self._discard()
                await self._database.start_afresh()
                async with asyncio.timeout(self._database.patience_seconds):  # it may be the server that is silent
                    await self._checkout()
                    opened = await self._driver.execute(self._begin)
        except BaseException as error:
            self._discard()
            raise_translated(error)
        return Transaction(self._driver, opened, self._beside, self._meanwhile)

    def _beside(self) -> "Scope | None":
        if self._changes or not self._database.has_spare:
            return None
        return Scope(self._database, self._begin, changes=False, seconds=self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._changes:
            self._database.finish(self._end())  # what was read stands, however its transaction ends: nobody waits
            return
        try:
            if error is None:
                note_commit()
                await self._driver.execute("COMMIT")
            elif not isinstance(error, Exception) or isinstance(error, TimeoutError) or self._driver.is_closed():
                # Interrupted between command and answer: the connection may be one answer behind. Never reuse it.
                self._discard()
            else:
                await self._driver.execute("ROLLBACK")
        except BaseException as failure:
            self._discard()
            if error is None or not isinstance(failure, Exception):
                # Whether a COMMIT without an answer was done nobody knows; a deadline would say that it was not.
                raise_translated(ConnectionError() if isinstance(failure, TimeoutError) else failure)
        finally:
            self._give_back()
        if error is not None and (problem := translated(error)) is not error:
            raise problem from error

    async def _end(self) -> None:
        try:
            with suppress(Exception):
                await self._driver.execute("COMMIT")
                self._give_back()
        finally:
            self._discard()  # unless it was given back

    def _give_back(self) -> None:
        if self._pooled is not None:
            self._database.idle.append(self._pooled)
            self._pooled = None
            self._database.turns.release()

    async def _checkout(self) -> None:
        started = time.perf_counter()
        await self._database.turn()
        try:
            self._pooled = await self._database.take()
        except Exception as error:
            if isinstance(refusal := of_driver(error), asyncpg.PostgresError):  # whatever it has against a new one
                raise DatabaseUnavailable(type(refusal).__name__) from error
            raise
        finally:
            if self._pooled is None:
                self._database.turns.release()
        telemetry.DB_POOL_ACQUIRE_SECONDS.observe(time.perf_counter() - started)
        self._driver = self._pooled.driver_connection

    def _discard(self) -> None:
        if self._pooled is not None:
            self._pooled.invalidate()
            self._pooled = None
            self._database.turns.release()


class Database:
    """The pool of one process. Open transactions with read(), write() or work()."""

    def __init__(self, config: DatabaseConfig, *, spares: bool = True) -> None:
        if config.url is None:
            raise StartupRefused("no database: set MNEME_DATABASE__URL (postgresql+asyncpg://…) or use `mneme up`")
        self._spares = spares and not config.pooler  # there all may hold one connection and wait for a second
        self.engine = make_engine(config, config.url.get_secret_value())
        self._opening = opening(config)
        self._opening_seconds = config.lock_timeout_ms / 1000 + 1  # where it takes no lock of ours; else a statement's
        self.statement_seconds = config.statement_timeout_ms / 1000
        # The pool gives a returned connection to whoever asks next, though others wait: some would wait for too long.
        self.turns = asyncio.Semaphore(config.pool_size)
        # Given back, but not to the pool, whose ways in and out take a twentieth of a small request.
        self.idle: list[PoolProxiedConnection] = []
        self.patience_seconds = config.pool_timeout_seconds
        self._counting: Any = None  # the connection of count(), and what the pool knows of it
        self._kept: PoolProxiedConnection | None = None
        self._count_turn = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @staticmethod
    async def connect(config: DatabaseConfig) -> "Database":
        """Open the pool and check server, extension and roles; raises StartupRefused with a plain message."""
        database = Database(config)
        deadline = time.monotonic() + config.start_timeout_seconds
        try:
            while True:
                try:
                    await database._check()
                    return database
                except DatabaseUnavailable as error:
                    if time.monotonic() > deadline:
                        raise StartupRefused(f"database not reachable: {error.detail}", dependency=True) from error
                    await asyncio.sleep(0.5)
        except BaseException:
            await database.close()
            raise

    def read(
        self, tenant_id: UUID, *, snapshot: bool = False, ordered: bool = False,
        meanwhile: Iterable[Callable[[], object]] = (),
    ) -> Scope:  # fmt: skip
        """A READ ONLY transaction that sees one tenant's rows; with `snapshot` all statements see the same moment.

        `ordered`: what is asked for in an order comes by the index that has it, as in write(). `meanwhile` as there.
        """
        level, order = "ISOLATION LEVEL REPEATABLE READ " if snapshot else "", _IN_ORDER_OF_INDEX if ordered else ""
        begin = f"BEGIN {level}READ ONLY; {self._opening}{order}{_as_tenant(tenant_id)}"
        return Scope(self, begin, changes=False, seconds=self._opening_seconds, meanwhile=meanwhile)

    def write(
        self, tenant_id: UUID, *locks: int, patient: bool = True, meanwhile: Iterable[Callable[[], object]] = ()
    ) -> Scope:
        """A transaction that sees and changes one tenant's rows; `meanwhile` is done while it begins (see Meanwhile).

        The int64 `locks` are taken in the order given (sort them) in the opening packet and held until the end. An
        impatient one takes those that are free (see Transaction.locked) and waits for a row for a moment only.
        """
        begin = f"BEGIN; {self._opening}{_IN_ORDER_OF_INDEX}{_as_tenant(tenant_id)}"
        if locks:
            keys = ", ".join(f"('{int(key)}'::bigint)" for key in locks)
            take, free = ("SELECT pg_advisory_xact_lock(key)", "") if patient else _IF_FREE
            begin += f"; {take} FROM (VALUES {keys}) AS taken (key){free}"
        seconds = None if locks else self._opening_seconds
        return Scope(self, begin, changes=True, seconds=seconds, meanwhile=meanwhile)

    def work(self, *, changes: bool = True) -> Scope:
        """A transaction over queues, usage counters, jobs and generations of all tenants, never over memories."""
        begin = f"BEGIN{'' if changes else ' READ ONLY'}; {self._opening}SET LOCAL ROLE {WORKER_ROLE}"
        return Scope(self, begin, changes=changes, seconds=self._opening_seconds)

    async def count(self, select: str) -> int:
        """How many rows a SELECT of literals finds among what work() sees, in one packet; raises what that raises."""
        packet = f"{self._opening}SET LOCAL ROLE {WORKER_ROLE}; {select}"  # one message, so one transaction
        async with self._count_turn:
            try:
                try:
                    done = await (self._counting or await self._own()).execute(packet)
                except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):  # as in Scope
                    await self.start_afresh()
                    done = await (await self._own()).execute(packet)
            except BaseException as error:
                self._hang_up()
                raise_translated(error)
        return int(done.removeprefix("SELECT "))

    async def _own(self) -> Any:
        """A new connection for count(), kept with its turn; a pool of one gives it away."""
        self._hang_up()
        await self.turn()
        try:
            pooled = await self.take()
            self._counting, self._kept = pooled.driver_connection, pooled
            if self.size == 1:
                self._kept = None
                pooled.detach()
        finally:
            if self._kept is None:
                self.turns.release()
        return self._counting

    def _hang_up(self) -> None:
        if self._counting is not None:
            self._counting.terminate()
        if self._kept is not None:
            self._kept.invalidate()
            self.turns.release()
        self._counting = self._kept = None

    async def ping(self) -> None:
        """One round trip; raises DatabaseUnavailable, PoolExhausted or DeadlineExceeded."""
        async with self.work():
            pass

    async def take(self) -> PoolProxiedConnection:
        """A connection for whoever has its turn."""
        return self.idle.pop() if self.idle else await self.engine.raw_connection()

    async def start_afresh(self) -> None:
        """Let go of all connections that nobody uses now."""
        while self.idle:
            self.idle.pop().invalidate()
        await self.engine.dispose(close=False)

    async def turn(self) -> None:
        """Wait for a connection's turn, first come, first served; whoever has it releases `turns`."""
        if not self.turns.locked():
            await self.turns.acquire()
            return
        try:
            async with asyncio.timeout(self.patience_seconds):
                await self.turns.acquire()
        except TimeoutError as error:
            telemetry.DB_POOL_TIMEOUTS.inc()
            raise PoolExhausted(type(error).__name__) from error

    def finish(self, end: Coroutine[Any, Any, None]) -> None:
        """Let a transaction that only read end while its reader goes on."""
        task = asyncio.create_task(end)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)
        self._hang_up()
        while self.idle:
            self.idle.pop().close()
        await self.engine.dispose()

    @property
    def checked_out(self) -> int:
        out = self.engine.pool.checkedout() if isinstance(self.engine.pool, QueuePool) else 0
        return max(0, out - len(self.idle) - (self._kept is not None))

    @property
    def has_spare(self) -> bool:
        """Whether a connection lies idle while one at most is out: then nobody waits who would need its processor."""
        pooled = self.engine.pool.checkedin() if isinstance(self.engine.pool, QueuePool) else 0
        idle = len(self.idle) + pooled
        return self._spares and idle > 0 and self.checked_out <= 1 and not self.turns.locked()

    @property
    def size(self) -> int:
        return self.engine.pool.size() if isinstance(self.engine.pool, QueuePool) else 0

    async def _check(self) -> None:
        pooled: PoolProxiedConnection | None = None
        try:
            pooled = await self.engine.raw_connection()
            driver: Any = pooled.driver_connection
            row = await driver.fetchrow(_CHECK)
        except BaseException as error:
            if pooled is not None:
                pooled.invalidate()
            refuse_start(error)
            raise_translated(error)
        pooled.close()
        if row["version"] // 10_000 < MIN_POSTGRESQL:
            raise StartupRefused(
                f"PostgreSQL {MIN_POSTGRESQL} or newer is needed, this server is {row['version'] // 10_000}"
            )
        if row["pgvector"] is None:
            raise StartupRefused("the extension `vector` is not in this database: run `mneme db migrate`")
        if tuple(map(int, row["pgvector"].split("."))) < MIN_PGVECTOR:
            wanted = ".".join(map(str, MIN_PGVECTOR))
            raise StartupRefused(f"pgvector {wanted} or newer is needed, this database has {row['pgvector']}")
        if row["member"] is None:
            raise StartupRefused(f"the roles {APP_ROLE} and {WORKER_ROLE} do not exist: run `mneme db migrate`")
        if not row["member"]:
            raise StartupRefused(
                f"the login role must be a member of {APP_ROLE} and {WORKER_ROLE}: see docs/operations.md"
            )
        if row["powerful"]:
            raise StartupRefused(f"{APP_ROLE} or {WORKER_ROLE} is a superuser, bypasses row security or owns tables")


@contextmanager
def counted_commits() -> Iterator[list[None]]:
    """An element for each transaction that may have changed something since, in whatever this task calls."""
    commits: list[None] = []
    token = _COMMITS.set(commits)
    try:
        yield commits
    finally:
        _COMMITS.reset(token)


def note_commit() -> None:
    """Say that something was committed for the sake of this task, by whomever."""
    if (commits := _COMMITS.get()) is not None:
        commits.append(None)


_COMMITS: Final[ContextVar[list[None] | None]] = ContextVar("mneme_commits", default=None)


def subject_lock(tenant_id: UUID, user_id: str | None) -> int:
    """The int64 of the advisory lock under which the writes of one subject take turns."""
    name = "" if user_id is None else f"u{user_id}"
    return int.from_bytes(blake2b(tenant_id.bytes + name.encode(), digest_size=8).digest(), "big", signed=True)


def _as_tenant(tenant_id: UUID) -> str:
    # UUID(int=…) so that only hexadecimal digits can reach the text, whatever subclass was handed in.
    return f"SET LOCAL ROLE {APP_ROLE}; SET LOCAL app.tenant_id = '{UUID(int=tenant_id.int)}'"


# One plan takes every subject for one of mean size, and would read and sort all of a large one, if it could, instead of
# the vector index: sorting is for where no index gives the order.
_IN_ORDER_OF_INDEX = "SET LOCAL enable_sort = off; "
_IF_FREE = ("SET LOCAL lock_timeout = 200; SELECT", " WHERE pg_try_advisory_xact_lock(key)")
_CHECK = """
SELECT current_setting('server_version_num')::int AS version,
       (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS pgvector,
       (SELECT bool_and(pg_has_role(session_user, oid, 'SET')) FROM pg_roles
        WHERE rolname IN ('mneme_app', 'mneme_worker') HAVING count(*) = 2) AS member,
       EXISTS (SELECT FROM pg_roles WHERE rolname IN ('mneme_app', 'mneme_worker') AND (rolsuper OR rolbypassrls))
       OR EXISTS (SELECT FROM pg_tables WHERE tableowner IN ('mneme_app', 'mneme_worker')) AS powerful
"""
