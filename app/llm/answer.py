"""From what a model wrote to an object of the wanted shape: bare, fenced, wrapped in prose, with small faults; pure.

Invariant: the time is bounded whatever the text; what was cut off is never completed, because its rest is not known.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

Shape = TypeVar("Shape", bound=BaseModel)
Fault = Literal["empty", "cut_off", "not_json", "wrong_shape"]

CHARACTERS: Final = 200_000
STARTS: Final = 16
"""Places in a text where a JSON object may begin; more is no answer."""

_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```(?:json\w*)?\s*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.?))', re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_decoder = json.JSONDecoder(strict=False)  # a raw line break within a string is understood


class Unreadable(Exception):
    """An answer without a value of the wanted shape; `hint` tells the model what was wrong, in words of ours."""

    def __init__(self, fault: Fault, hint: str) -> None:
        super().__init__(hint)
        self.fault: Fault = fault
        self.hint = hint


def read(text: str, shape: type[Shape], *, cut_off: bool = False) -> tuple[Shape, bool]:
    """The first value of `shape` in a text, and whether anything stood around it or had to be mended.

    Raises Unreadable. `cut_off`: the endpoint says that the text was ended by a limit, so part of it may be missing.
    """
    bare = _THOUGHT.sub("", text).strip()
    if not bare:
        raise Unreadable("empty", "the answer was empty")
    if len(bare) > CHARACTERS:
        raise Unreadable("not_json", "the answer was far too long")
    wrong: list[str] = []
    for value, mended in _values(bare, cut_off=cut_off):
        if _not_text(value):
            wrong = wrong or ["characters that are no text"]
            continue
        try:
            return shape.model_validate(_unwrapped(value, shape)), mended or bare != text.strip()
        except ValidationError as error:
            wrong = wrong or [f"{'.'.join(map(str, e['loc']))}: {e['type']}" for e in error.errors()[:5]]
    if wrong:
        raise Unreadable("wrong_shape", f"the JSON does not match the schema ({'; '.join(wrong)})")
    raise Unreadable("not_json", "the answer holds no JSON")


def _values(text: str, *, cut_off: bool) -> Iterator[tuple[Any, bool]]:
    """JSON values of a text, the likeliest first, and whether something stood around them or had to be mended."""
    if (value := _load(text)) is not None:
        yield value, False
    for candidate in (*_FENCE.findall(text), text):
        if (value := _mended(candidate)) is not None:
            yield value, True
    # A part of a cut-off value can look like a whole one: an empty list within says nothing about the facts.
    if cut_off or _ends_inside(text):
        raise Unreadable("cut_off", "the answer was cut off: write less")
    for start in list(re.finditer("{", text))[:STARTS]:
        for rest in (text[start.start() :], _mend(text[start.start() :])):
            try:
                value, _ = _decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                continue
            yield value, True


def _load(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def _mended(text: str) -> Any:
    value = _load(text)
    return _load(_mend(text)) if value is None else value


def _mend(text: str) -> str:
    """Escapes that JSON does not know (\\d, \\u4e) as the characters they are; no comma before a closing bracket."""
    return _TRAILING_COMMA.sub(r"\1", _BAD_ESCAPE.sub(lambda m: m[0] if m[1] else "\\\\" + m[2], text))


def _not_text(value: Any) -> bool:
    """Whether a string in it holds half of a surrogate pair or NUL, which neither UTF-8 nor PostgreSQL can hold."""
    try:
        return b"\\u0000" in orjson.dumps(value)
    except (TypeError, ValueError):
        return True


def _unwrapped(value: Any, shape: type[BaseModel]) -> Any:
    """A bare list where an object with one list was asked for."""
    required = [name for name, field in shape.model_fields.items() if field.is_required()]
    return {required[0]: value} if isinstance(value, list) and len(required) == 1 else value


def _ends_inside(text: str) -> bool:
    """Whether brackets are still open at the end, strings left out."""
    depth, inside, escaped = 0, False, False
    for character in text:
        if inside:
            inside = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            inside = depth > 0
        else:
            depth += (character in "{[") - (character in "}]" and depth > 0)
    return depth > 0
