"""The shape of a memory and its published schema are one."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import orjson

from app.memory import SCHEMA_FILE, Memory, Shown, as_bytes, as_json, json_schema
from app.remember import KINDS
from app.tables import CONTENT_TYPES, STATUSES


def test_the_published_schema_is_that_of_the_model() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == json_schema(), "run `python -m app.memory`"


def test_the_shape_knows_every_kind_status_and_content_type() -> None:
    schema = json_schema()
    for name in (*KINDS, *STATUSES, *CONTENT_TYPES):
        assert f'"{name}"' in schema


def test_what_is_shown_again_is_encoded_as_if_it_were_new_whatever_was_accessed_since() -> None:
    row = dict.fromkeys(Memory.model_fields) | {
        "id": UUID(int=7), "content": '"access_count":9, 我对芒果过敏', "importance": 4.8, "tags": ["a", "芒"],
        "metadata": {"access_count": 5, "last_accessed_at": "never"}, "access_count": 0,
        "created_at": datetime(2026, 11, 30, 8, tzinfo=timezone(timedelta(hours=8))),
    }  # fmt: skip
    shown = Shown(as_json(row))
    assert isinstance(shown, Shown)
    for count in range(3):
        assert orjson.dumps(shown.encoded()) == as_bytes(dict(shown))
        shown |= {"access_count": count + 1, "last_accessed_at": datetime(2026, 12, 1, count, 0, 0, 500, UTC)}
