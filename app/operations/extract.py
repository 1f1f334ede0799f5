"""The operation `extract`: messages of a conversation become memories, with what they were made of beside them.

Invariant: facts take the path of every memory; they, their sources and the operation's success commit together.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from app import work_metrics
from app.database import Transaction, sql
from app.errors import NotFound
from app.extract import Extraction, Fact, Message, extract_facts
from app.idempotency import Answer
from app.language import zone_of
from app.operations.queue import Claim
from app.operations.tools import Tools
from app.remember import Conversation, NewMemory, Written, end_in, held_in

Prepare = Callable[[Transaction], Awaitable[Mapping[str, Any]]]


def extraction_order(messages: Sequence[Message], zone: str, session_id: str | None) -> Prepare:
    """The input of an extraction of these messages."""

    async def prepare(_: Transaction) -> Mapping[str, Any]:
        return {"messages": [_plain(message) for message in messages], "zone": zone, "session_id": session_id}

    return prepare


def session_order(conversation: Conversation, zone: str, *, now: datetime, end: bool = False) -> Prepare:
    """The input of an extraction of what a window holds; with `end` the conversation ends in the same transaction.

    Raises NotFound (when it is prepared) where nothing is held.
    """

    async def prepare(transaction: Transaction) -> Mapping[str, Any]:
        window = await held_in(transaction, conversation, now=now)
        if not window.messages:
            raise NotFound("no such conversation, or it has ended")
        if end:
            await end_in(transaction, conversation, now=now)
        messages = [_plain(message.as_message()) for message in window.messages]
        return {"messages": messages, "zone": zone, "session_id": conversation.session_id}

    return prepare


async def extract_memories(claim: Claim, tools: Tools, now: datetime) -> Mapping[str, Any] | None:
    """Find the facts and write them; the result says what became of each, and what was passed over and why."""
    messages = [_message(each) for each in claim.request["messages"]]
    extraction = await extract_facts(
        messages, zone=zone_of(claim.request["zone"]), llm=tools.language_model, config=tools.extract
    )
    claim.total = len(extraction.facts)
    if not extraction.facts:
        work_metrics.EXTRACTIONS.labels("no_facts").inc()
        return _result(extraction, ())

    async def finish(transaction: Transaction, written: Sequence[Written]) -> None:
        await _keep_sources(transaction, claim, messages, extraction.facts, written, now)
        claim.done = len(written)
        await claim.succeed(transaction, _result(extraction, written), now=now)

    items = [_memory(claim, fact) for fact in extraction.facts]
    await tools.rememberer.remember(claim.caller, items, _no_answer, now=now, within=finish)
    work_metrics.EXTRACTIONS.labels("facts").inc()
    return None


def _no_answer(_: list[Written]) -> Answer:
    return Answer(200, b"")


def _memory(claim: Claim, fact: Fact) -> NewMemory:
    source = {"operation_id": str(claim.operation_id), "message": fact.message_index, "role": fact.role}
    return NewMemory(
        user_id=claim.user_id,
        agent_id=claim.agent_id,
        content=fact.content,
        kind=fact.kind,
        key=fact.key,
        importance=fact.importance,
        metadata={"extracted_from": source} | ({"entities": list(fact.entities)} if fact.entities else {}),
        session_id=claim.request["session_id"],
        event_at=fact.event_at,
    )


def _result(extraction: Extraction, written: Sequence[Written]) -> dict[str, Any]:
    facts = [
        {
            "memory_id": None if one.memory is None else str(one.memory["id"]),
            "outcome": one.outcome,
            "reason": one.reason,
            "kind": fact.kind,
            "key": fact.key,
            "message": fact.message_index,
            "role": fact.role,
            "trigger": fact.trigger,
        }
        for fact, one in zip(extraction.facts, written, strict=True)
    ]
    for one in facts:
        work_metrics.EXTRACTED_MEMORIES.labels(one["outcome"]).inc()
    skipped = [{"message": each.message_index, "reason": each.reason} for each in extraction.skipped]
    return {"facts": facts, "skipped": skipped, "degraded": list(extraction.degraded)}


async def _keep_sources(
    transaction: Transaction,
    claim: Claim,
    messages: Sequence[Message],
    facts: Sequence[Fact],
    written: Sequence[Written],
    now: datetime,
) -> None:
    """Beside each new row, also one that is kept as a duplicate, the message that it was made of."""
    rows = [
        (memory_id, fact.message_index, messages[fact.message_index])
        for fact, one in zip(facts, written, strict=True)
        for memory_id in _new_rows(one)
    ]
    if rows:
        await transaction.execute(
            _KEEP_SOURCES,
            tenant_id=claim.tenant_id,
            subject_id=claim.subject_id,
            operation_id=claim.operation_id,
            session_id=claim.request["session_id"],
            memories=[memory_id for memory_id, _, _ in rows],
            sources=[uuid7() for _ in rows],
            numbers=[number for _, number, _ in rows],
            names=[message.id for _, _, message in rows],
            roles=[message.role for _, _, message in rows],
            contents=[message.content for _, _, message in rows],
            moments=[message.at for _, _, message in rows],
            now=now,
        )


def _new_rows(written: Written) -> list[UUID]:
    if written.outcome in {"created", "superseded", "outdated"} and written.memory is not None:
        return [written.memory["id"]]
    return [memory_id for memory_id, relation in written.related if relation == "duplicate"]


def _plain(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "at": None if message.at is None else message.at.isoformat(),
        "tool": message.tool,
        "reference": message.id,
    }


def _message(stored: Mapping[str, Any]) -> Message:
    at = None if stored["at"] is None else datetime.fromisoformat(stored["at"])
    return Message(stored["role"], stored["content"], at, stored["tool"], stored["reference"])


_KEEP_SOURCES = sql("""
    INSERT INTO memory_sources (
        tenant_id, subject_id, memory_id, source_id, operation_id, session_id, number, reference, role, content,
        said_at, created_at
    )
    SELECT :tenant_id, :subject_id, item.memory_id, item.source_id, :operation_id, :session_id, item.number,
           item.reference, item.role, item.content, item.said_at, :now
    FROM unnest(
        cast(:memories AS uuid[]), cast(:sources AS uuid[]), cast(:numbers AS int[]), cast(:names AS text[]),
        cast(:roles AS text[]), cast(:contents AS text[]), cast(:moments AS timestamptz[])
    ) AS item (memory_id, source_id, number, reference, role, content, said_at)
""")
