"""The session window: the latest messages of a conversation, its short-term working memory, shared by all processes.

Invariant: a window lives in one row of an unlogged table and nowhere else; when it ends, by its user's word or by an
idle time, nothing of it stays.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, Field
from uuid_utils.compat import uuid7

from app import telemetry
from app.database import Database, Transaction, sql, subject_lock
from app.errors import FieldError, Invalid
from app.extract import Message, Role, requests_to_keep, without_served

BLOCKING_CHARACTERS: Final = 20_000  # counting the tokens of more would hold up the event loop


class SessionConfig(BaseModel, extra="forbid"):
    """How much of a conversation is held; a tenant's own settings win."""

    turns: int = Field(
        20, ge=1, le=1_000, description="Latest turns held: what a user says and all up to the user's next word."
    )
    tokens: int = Field(4_000, ge=16, le=100_000, description="Most tokens held, counted by the embedding model.")
    idle_seconds: float = Field(1_800, ge=1, description="A conversation without a new message for so long has ended.")


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """A message in a window: `turn` from 0, `tokens` of its content, `reference` the caller's own name for it."""

    id: UUID
    role: Role
    content: str
    at: datetime
    tool: str | None
    reference: str | None
    turn: int
    tokens: int

    def as_message(self) -> Message:
        return Message(self.role, self.content, self.at, self.tool, self.reference)


@dataclass(frozen=True, slots=True)
class Window:
    """What is held of a conversation, oldest first, and when it ends if nobody says anything; None: it is unknown."""

    messages: tuple[WindowMessage, ...]
    ends_at: datetime | None

    @property
    def turns(self) -> int:
        return len({message.turn for message in self.messages if message.role != "tool"})

    @property
    def tokens(self) -> int:
        return sum(message.tokens for message in self.messages)


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of messages: how many were taken, how many were known already or only repeated what Mneme had served,
    how many older ones gave way, the window after it, and the operation that keeps what the user asked to keep."""

    taken: int
    known: int
    filtered: int
    evicted: int
    window: Window
    operation_id: UUID | None


Keep = Callable[[Transaction, Sequence[Message]], Awaitable[UUID]]
"""Sees to it that messages are kept, in the transaction that holds them; returns the id of the operation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Whose conversation: two agents, or an agent and none, never share one, whatever they call it."""

    tenant_id: UUID
    user_id: str | None
    agent_id: str | None
    session_id: str

    @property
    def lock(self) -> int:
        return subject_lock(self.tenant_id, self.user_id)

    @property
    def names(self) -> dict[str, Any]:
        """The parameters of every statement about it."""
        return {
            "tenant_id": self.tenant_id,
            "user_id": self.user_id,
            "agent_id": self.agent_id or "",
            "session_id": self.session_id,
        }


@dataclass(frozen=True, slots=True)
class Sessions:
    """The conversations of one process's callers; `count_tokens` is the embedder's."""

    database: Database
    count_tokens: Callable[[str], int]
    config: SessionConfig

    async def append(
        self, conversation: Conversation, messages: Sequence[Message], *, now: datetime, keep: Keep | None = None
    ) -> Appended:
        """Add messages, in order, and let the oldest give way; one whose id is held already is not taken twice.

        `keep` gets those in which a user asks to remember something. Raises Invalid for a message that alone is larger
        than the window.
        """
        said = [without_served(message.content) for message in messages]
        tokens = await self._count(said)
        async with self.database.write(conversation.tenant_id, conversation.lock) as transaction:
            row = await transaction.fetch_row(_OPEN, **conversation.names, new_id=uuid7(), now=now)
            assert row is not None
            limits = self.limits(row["settings"])
            held = _messages(row["messages"])
            new, known = _admitted(held, list(zip(messages, said, tokens, strict=True)), limits.tokens, now)
            kept = fit((*held, *new), limits.turns, limits.tokens)
            ends_at = now + timedelta(seconds=limits.idle_seconds)
            await transaction.execute(
                _KEEP, **conversation.names, subject_id=row["subject_id"], now=now, ends_at=ends_at,
                messages=[_plain(message) for message in kept],
            )  # fmt: skip
            asked = _asked(held, new) if keep is not None else []
            operation_id = await keep(transaction, asked) if keep is not None and asked else None
        evicted = len(held) + len(new) - len(kept)
        for taken in new:
            telemetry.SESSION_MESSAGES.labels(taken.role).inc()
        telemetry.SESSION_EVICTIONS.inc(evicted)
        filtered = len(messages) - known - len(new)
        return Appended(len(new), known, filtered, evicted, Window(kept, ends_at), operation_id)

    async def read(self, conversation: Conversation, *, now: datetime) -> Window:
        """What is held; of an unknown or ended conversation, nothing."""
        async with self.database.read(conversation.tenant_id) as transaction:
            return await held_in(transaction, conversation, now=now)

    async def end(self, conversation: Conversation, *, now: datetime) -> bool:
        """Forget a conversation, and its user if nothing else is known of them; tells whether there was one."""
        async with self.database.write(conversation.tenant_id, conversation.lock) as transaction:
            return await end_in(transaction, conversation, now=now)

    def limits(self, settings: Mapping[str, Any]) -> SessionConfig:
        """The limits of a tenant with these settings of its own."""
        return self.config.model_copy(update=dict(settings.get("sessions", {})))

    async def _count(self, texts: Sequence[str]) -> list[int]:
        def count() -> list[int]:
            return [self.count_tokens(text) for text in texts]

        if sum(map(len, texts)) > BLOCKING_CHARACTERS:
            return await asyncio.to_thread(count)
        return count()


async def held_in(transaction: Transaction, conversation: Conversation, *, now: datetime) -> Window:
    """The window as this transaction sees it."""
    row = await transaction.fetch_row(_READ, **conversation.names, now=now)
    return Window((), None) if row is None else Window(_messages(row["messages"]), row["ends_at"])


async def end_in(transaction: Transaction, conversation: Conversation, *, now: datetime) -> bool:
    """Forget the conversation as part of this transaction, which holds the subject's lock."""
    ended = await transaction.execute(_END, **conversation.names)
    await transaction.execute(_FORGET_EMPTY, tenant_id=conversation.tenant_id, user_id=conversation.user_id, now=now)
    if ended:
        telemetry.SESSIONS_ENDED.labels("asked").inc()
    return bool(ended)


async def end_idle_sessions(database: Database, *, now: datetime, limit: int = 200) -> int:
    """Forget up to `limit` conversations whose idle time is over; returns how many (short: none are left)."""
    async with database.work() as transaction:
        idle = await transaction.fetch(_IDLE, now=now, limit=limit)
    for tenant_id, of_tenant in groupby(idle, lambda row: row["tenant_id"]):
        subjects = list({row["subject_id"] for row in of_tenant})
        async with database.read(tenant_id) as transaction:
            users = await transaction.fetch(_USERS, tenant_id=tenant_id, subjects=subjects)
        for user_id in (row["user_id"] for row in users):
            async with database.write(tenant_id, subject_lock(tenant_id, user_id)) as transaction:
                ended = await transaction.execute(_END_IDLE, tenant_id=tenant_id, user_id=user_id, now=now)
                await transaction.execute(_FORGET_EMPTY, tenant_id=tenant_id, user_id=user_id, now=now)
            telemetry.SESSIONS_ENDED.labels("idle").inc(ended)
    return len(idle)


def fit(messages: Sequence[WindowMessage], most_turns: int, most_tokens: int) -> tuple[WindowMessage, ...]:
    """The messages that stay, in their order: at most so many turns and tokens.

    Plain dialogue gives way before results of tools, the oldest first; a turn of which only these are left counts no
    more. A window whose every message fits alone is never left empty.
    """
    kept = list(messages)
    turns = {message.turn: 0 for message in kept if message.role != "tool"}
    for message in kept:
        if message.role != "tool":
            turns[message.turn] += 1
    tokens = sum(message.tokens for message in kept)
    leaving = sorted(range(len(kept) - 1), key=lambda n: (kept[n].role == "tool", n))  # the newest never leaves
    gone = set()
    for number in leaving:
        if len(turns) <= most_turns and tokens <= most_tokens:
            break
        message = kept[number]
        tokens -= message.tokens
        gone.add(number)
        if message.role != "tool":
            turns[message.turn] -= 1
            if not turns[message.turn]:
                del turns[message.turn]
    return tuple(message for number, message in enumerate(kept) if number not in gone)


def _admitted(
    held: Sequence[WindowMessage], offered: Sequence[tuple[Message, str, int]], most_tokens: int, now: datetime
) -> tuple[list[WindowMessage], int]:
    """The new ones of messages with what is left of their text and its tokens, and how many are held already."""
    references = {(message.role, message.reference) for message in held if message.reference is not None}
    new: list[WindowMessage] = []
    known = 0
    for number, (message, content, tokens) in enumerate(offered):
        if tokens > most_tokens:
            too_long = FieldError(f"/messages/{number}/content", "window_tokens", f"{most_tokens} tokens at most")
            raise Invalid(errors=[too_long])
        if (message.role, message.id) in references:
            known += 1
        elif content:
            turn = _turn((*held, *new), message.role)
            at = message.at or now + timedelta(microseconds=number)
            new.append(
                WindowMessage(uuid7(), message.role, content, at, message.tool, message.id, turn, max(1, tokens))
            )
            references |= set() if message.id is None else {(message.role, message.id)}
    return new, known


def _asked(held: Sequence[WindowMessage], new: Sequence[WindowMessage]) -> list[Message]:
    """The new messages in which a user asks to remember something; where one does not say what, the one before, too."""
    said = [message for message in (*held, *new) if message.role == "user"]
    first = len(said) - sum(message.role == "user" for message in new)
    wanted: set[int] = set()
    for number in range(first, len(said)):
        asked = requests_to_keep(said[number].content)
        if asked:
            wanted |= {number} if any(asked) or not number else {number - 1, number}
    return [said[number].as_message() for number in sorted(wanted)]


def _turn(before: Sequence[WindowMessage], role: str) -> int:
    """A turn begins with what a user says, and holds all up to the user's next word."""
    if not before:
        return 0
    last = before[-1]
    return last.turn + 1 if role == "user" else last.turn


def _messages(stored: Sequence[Mapping[str, Any]]) -> tuple[WindowMessage, ...]:
    return tuple(
        WindowMessage(**({**each} | {"id": UUID(each["id"]), "at": datetime.fromisoformat(each["at"])}))
        for each in stored
    )


def _plain(message: WindowMessage) -> dict[str, Any]:
    return asdict(message) | {"id": str(message.id), "at": message.at.isoformat()}


# Of the shared subject (user_id null) the id is the tenant's.
_SUBJECT = """
    CASE WHEN cast(:user_id AS text) IS NULL THEN cast(:tenant_id AS uuid)
    ELSE (SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id) END
"""
_WINDOW = f"""
    tenant_id = :tenant_id AND subject_id = {_SUBJECT} AND session_id = :session_id AND agent_id = :agent_id
"""
_OPEN = sql(f"""
    WITH made AS (
        INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
        SELECT :tenant_id, CASE WHEN cast(:user_id AS text) IS NULL THEN cast(:tenant_id AS uuid) ELSE :new_id END,
               :user_id, :now
        WHERE NOT EXISTS (
            SELECT FROM subjects WHERE tenant_id = :tenant_id AND user_id IS NOT DISTINCT FROM cast(:user_id AS text)
        )
        RETURNING subject_id
    )
    SELECT t.settings, coalesce((SELECT subject_id FROM made), {_SUBJECT}) AS subject_id,
           coalesce((SELECT messages FROM session_windows WHERE {_WINDOW} AND ends_at > :now), '[]') AS messages
    FROM tenants t WHERE t.tenant_id = :tenant_id
""")
_KEEP = sql("""
    INSERT INTO session_windows AS held (
        tenant_id, subject_id, session_id, agent_id, messages, started_at, ends_at
    )
    VALUES (:tenant_id, :subject_id, :session_id, :agent_id, :messages, :now, :ends_at)
    ON CONFLICT (tenant_id, subject_id, session_id, agent_id) DO UPDATE
    SET messages = excluded.messages, ends_at = excluded.ends_at,
        started_at = CASE WHEN held.ends_at > :now THEN held.started_at ELSE excluded.started_at END
""")
_READ = sql(f"SELECT messages, ends_at FROM session_windows WHERE {_WINDOW} AND ends_at > :now")
_END = sql(f"DELETE FROM session_windows WHERE {_WINDOW}")
_IDLE = sql("""
    SELECT tenant_id, subject_id FROM session_windows WHERE ends_at <= :now
    ORDER BY tenant_id, subject_id LIMIT :limit
""")
_USERS = sql("SELECT user_id FROM subjects WHERE tenant_id = :tenant_id AND subject_id = ANY (:subjects)")
_END_IDLE = sql(f"""
    DELETE FROM session_windows WHERE tenant_id = :tenant_id AND subject_id = {_SUBJECT} AND ends_at <= :now
""")
# A user of whom only a conversation was known leaves no trace, either. Under the subject's lock, which whoever gives it
# a memory, an operation or a conversation holds, too.
_FORGET_EMPTY = sql("""
    DELETE FROM subjects s
    WHERE s.tenant_id = :tenant_id AND s.user_id IS NOT DISTINCT FROM cast(:user_id AS text) AND s.created_at <= :now
      AND NOT EXISTS (SELECT FROM session_windows w WHERE w.tenant_id = s.tenant_id AND w.subject_id = s.subject_id)
      AND NOT EXISTS (SELECT FROM memories m WHERE m.tenant_id = s.tenant_id AND m.subject_id = s.subject_id)
      AND NOT EXISTS (SELECT FROM memory_events e WHERE e.tenant_id = s.tenant_id AND e.subject_id = s.subject_id)
      AND NOT EXISTS (SELECT FROM operations o WHERE o.tenant_id = s.tenant_id AND o.subject_id = s.subject_id)
      AND NOT EXISTS (SELECT FROM legal_holds h WHERE h.tenant_id = s.tenant_id AND h.subject_id = s.subject_id)
""")
