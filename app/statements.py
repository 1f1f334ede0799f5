"""Statements with named parameters, and the open transaction that runs them."""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")


class Statement:
    """SQL with `:named` parameters, turned once into the driver's numbered form; made for module-level constants."""

    __slots__ = ("names", "sql")

    def __init__(self, sql_text: str) -> None:
        names: dict[str, None] = {}

        def numbered(match: re.Match[str]) -> str:
            names.setdefault(match[1])
            return f"${list(names).index(match[1]) + 1}"

        self.sql = _PARAMETER.sub(numbered, sql_text)
        self.names = tuple(names)

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] for name in self.names]


_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")  # not the casts `::type`
sql = Statement


class Meanwhile:
    """Small pieces of work, done one after the other while answers are waited for.

    Nobody can rely on them: they only make early what is made anyway when it is asked for.
    """

    __slots__ = ("_pieces", "_turn")

    def __init__(self, pieces: Iterable[Callable[[], object]] = ()) -> None:
        self._pieces = deque(pieces)
        self._turn: asyncio.Handle | None = None

    def put(self, pieces: Iterable[Callable[[], object]]) -> None:
        """Do these from now on; they take the place of those that are left."""
        self._pieces = deque(pieces)

    async def answer(self, asked: Awaitable[T]) -> T:
        """The answer to what was asked, and the pieces that could be done before it came."""
        if self._pieces:  # the first of them comes after the statement was sent
            self._turn = asyncio.get_running_loop().call_soon(self._piece)
        try:
            return await asked
        finally:
            if self._turn is not None:
                self._turn.cancel()

    def _piece(self) -> None:
        if self._pieces:
            self._pieces.popleft()()
            self._turn = asyncio.get_running_loop().call_soon(self._piece)


class Transaction:
    """One open transaction; its methods take the statement's named parameters."""

    __slots__ = ("_connection", "_meanwhile", "_timeout_seconds", "beside", "locked")

    def __init__(
        self,
        connection: "asyncpg.Connection[asyncpg.Record]",
        opened: str,
        beside: "Callable[[], AbstractAsyncContextManager[Transaction] | None]" = lambda: None,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        self._connection = connection
        self.beside = beside
        """A further transaction that begins like this one, for statements of one question to run at once; or None.

        Each statement sees what was committed before it began. There is none unless a connection lies idle and nobody
        else has one: it must not be waited for, nor keep others waiting.
        """
        self.locked = int(opened[7:]) if opened.startswith("SELECT ") else 0  # how many of the locks it holds
        self._timeout_seconds: float | None = None  # the pool's
        self._meanwhile = meanwhile or Meanwhile()

    def meanwhile(self, pieces: Iterable[Callable[[], object]]) -> None:
        """Do these pieces (see Meanwhile) while the answers to the next statements are waited for."""
        self._meanwhile.put(pieces)

    async def allow(self, seconds: float) -> None:
        """Let the statements of this transaction take longer than usual: for jobs, never for requests."""
        await self._connection.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
        self._timeout_seconds = 2 * seconds

    async def fetch(self, statement: Statement, **values: Any) -> "list[asyncpg.Record]":
        rows: list[asyncpg.Record] = await self._meanwhile.answer(
            self._connection.fetch(statement.sql, *statement.arguments(values), timeout=self._timeout_seconds)
        )
        return rows

    async def fetch_row(self, statement: Statement, **values: Any) -> "asyncpg.Record | None":
        return await self._connection.fetchrow(
            statement.sql, *statement.arguments(values), timeout=self._timeout_seconds
        )

    async def fetch_value(self, statement: Statement, **values: Any) -> Any:
        return await self._connection.fetchval(
            statement.sql, *statement.arguments(values), timeout=self._timeout_seconds
        )

    async def execute(self, statement: Statement, **values: Any) -> int:
        """Run a statement and return how many rows it touched."""
        done: str = await self._meanwhile.answer(
            self._connection.execute(statement.sql, *statement.arguments(values), timeout=self._timeout_seconds)
        )
        return int(done.rpartition(" ")[2]) if done[-1:].isdigit() else 0
