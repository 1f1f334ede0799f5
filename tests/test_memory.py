"""The shape of a memory and its published schema are one."""

from app.memory import SCHEMA_FILE, json_schema
from app.remember import KINDS
from app.tables import CONTENT_TYPES, STATUSES


def test_the_published_schema_is_that_of_the_model() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == json_schema(), "run `python -m app.memory`"


def test_the_shape_knows_every_kind_status_and_content_type() -> None:
    schema = json_schema()
    for name in (*KINDS, *STATUSES, *CONTENT_TYPES):
        assert f'"{name}"' in schema
