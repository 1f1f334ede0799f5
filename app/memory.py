"""The memory as the world sees it: its shape, the columns that fill it, its JSON, and how a line in a prompt begins.

Invariant: every answer of the API shows a memory in exactly this shape; app/memory_schema.json is generated from it.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["user_preference", "task_state", "domain_knowledge", "interaction_history", "profile", "summary"]
ContentType = Literal["text", "image", "audio", "video"]
Status = Literal["active", "deprecated", "duplicate", "quarantined", "archived"]


class Memory(BaseModel):
    """One self-contained statement about a subject."""

    model_config = ConfigDict(extra="forbid", title="Memory")

    id: UUID = Field(description="UUIDv7.")
    user_id: str | None = Field(description="Whom it is about; null: the tenant's shared subject.")
    agent_id: str | None = Field(description="Null: for all agents; else private to this agent.")
    content: str
    content_type: ContentType
    kind: Kind
    key: str | None = Field(description="Slot name; at most one active memory per user, agent and key.")
    importance: float = Field(ge=1, le=5)
    tags: list[str]
    metadata: dict[str, Any]
    source: str | None
    session_id: str | None
    status: Status
    access_count: int = Field(ge=0)
    last_accessed_at: datetime | None
    created_at: datetime
    updated_at: datetime
    event_at: datetime | None = Field(description="When that happened of which it speaks.")
    valid_from: datetime | None
    valid_to: datetime | None
    expires_at: datetime | None
    pinned: bool
    version: int = Field(ge=1)
    embedding: Literal["ready", "pending", "cold"] = Field(
        description="cold: unused for long, found with include_cold and by id; back to ready once it is used."
    )
    trust: int = Field(
        ge=0, le=100, description="That of the key it was written with; of a summary, its sources' lowest."
    )
    importance_score: float = Field(ge=0, le=1, description="The importance once more, from 0 to 1.")
    vector: list[float] | None = Field(None, description="Only with ?include=vector; null while pending.")


# For `FROM memories m JOIN subjects s … JOIN memory_usage u …`; the order is that of Memory. By way of numeric a real
# of 4.8 is 4.8 again and not 4.800000190734863.
MEMORY_COLUMNS = """
    m.memory_id AS id, s.user_id, m.agent_id, m.content, m.content_type, m.kind, m.key,
    cast(cast(m.importance AS numeric) AS float8) AS importance, m.tags, m.metadata, m.source, m.session_id, m.status,
    u.access_count, u.last_accessed_at, m.created_at, m.updated_at, m.event_at, m.valid_from, m.valid_to, m.expires_at,
    m.pinned, m.version,
    CASE WHEN m.embedding IS NOT NULL THEN 'ready' WHEN m.cooled_by IS NULL THEN 'pending' ELSE 'cold' END AS embedding,
    m.trust
"""
MEMORY_SOURCE = """
    memories m
    JOIN subjects s ON s.tenant_id = m.tenant_id AND s.subject_id = m.subject_id
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
"""
MEMORY_ALIVE = """
    (m.expires_at IS NULL OR m.expires_at > :now)
    AND (m.valid_from IS NULL OR m.valid_from <= :now) AND (m.valid_to IS NULL OR m.valid_to > :now)
"""
_FIELDS = tuple(name for name in Memory.model_fields if name not in {"importance_score", "vector"})
_values = itemgetter(*_FIELDS)
_ACCESS = _FIELDS.index("access_count")  # followed by last_accessed_at
_HALVES = _FIELDS[:_ACCESS], (*_FIELDS[_ACCESS + 2 :], "importance_score")


class Shown(dict[str, Any]):
    """The JSON object of a memory, for one that is shown again and again.

    Invariant: once it was encoded nothing in it changes but how often and when it was accessed.
    """

    __slots__ = ("_halves",)
    _halves: tuple[bytes, bytes]

    def encoded(self) -> orjson.Fragment:
        """It as bytes, made once but for the access."""
        try:
            before, after = self._halves
        except AttributeError:
            parts = [{name: self[name] for name in names} for names in _HALVES]
            before, after = self._halves = as_bytes(parts[0])[:-1], as_bytes(parts[1])[1:]
        accessed = self["access_count"], as_bytes(self["last_accessed_at"])
        return orjson.Fragment(b'%b,"access_count":%d,"last_accessed_at":%b,%b' % (before, *accessed, after))


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a row of MEMORY_COLUMNS (or of a mapping with the same names)."""
    shown = dict(zip(_FIELDS, _values(row), strict=True))
    shown["importance_score"] = importance_score(row["importance"])
    return shown


def as_bytes(document: Any) -> bytes:
    """JSON in UTF-8; times in RFC 3339 with Z."""
    return orjson.dumps(document, default=str, option=orjson.OPT_UTC_Z)


def importance_score(importance: float) -> float:
    """An importance in [0, 1]: 1 is 0, 5 is 1."""
    return round((importance - 1) / 4, 4)


def json_schema() -> str:
    """The JSON Schema of a memory, as it stands in app/memory_schema.json (`python -m app.memory` writes it)."""
    return json.dumps(Memory.model_json_schema(mode="serialization"), ensure_ascii=False, indent=2) + "\n"


# What recall writes into a prompt and remember recognises there: a `<memory>` block of lines that begin with a label.
SERVED_TAG = "memory"
SERVED_LABEL = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d[+-]\d\d:\d\d(?::\d\d)? \| [^|\[\]\n]{1,40} \| [0-9a-f]{8}(?:[0-9a-f]{24})?\]"
)


def served_label(at: datetime, kind: str, citation: str) -> str:
    """The label of a line in a prompt: an absolute time with its offset, the kind in words, 8 or 32 hex digits."""
    return f"[{at.isoformat(sep=' ', timespec='minutes')} | {kind} | {citation}]"


SCHEMA_FILE = Path(__file__).with_name("memory_schema.json")

if __name__ == "__main__":
    SCHEMA_FILE.write_text(json_schema(), encoding="utf-8")
