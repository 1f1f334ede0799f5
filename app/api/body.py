"""Reading a JSON body with suspicion, and the types that requests are made of.

Invariant: whatever passes can be stored by PostgreSQL and written back unchanged: valid UTF-8 without NUL, finite
numbers, 64-bit integers, bounded depth and no key twice.
"""

import math
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError, from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from app.errors import Malformed, TooLarge, UnsupportedMedia

LONGEST_IDENTIFIER: Final = 255
_STRINGS_AND_KEYS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*+:)?')
_NUL: Final = "the character U+0000 is not accepted"
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)?")


class Wire(BaseModel):
    """Base of all request models: unknown fields are refused, and nothing is turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # Frozen, so a default can be shared; pydantic would copy it for every request, at a tenth of its time.
        return self


def _identifier(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise PydanticCustomError("blank", "must be printable, not blank, and without outer blanks")
    return text


def _written_moment(value: object) -> object:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise PydanticCustomError("moment", "must be an RFC 3339 time such as 2026-11-29T08:00:00+08:00")
    return value


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("moment", "must be between the years 1 and 9999 in UTC") from None


Identifier = Annotated[str, Field(min_length=1, max_length=LONGEST_IDENTIFIER), AfterValidator(_identifier)]
"""A user, agent or session: 1 to 255 printable characters without outer blanks. A blank one never means "all"."""

Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_moment), AfterValidator(_in_utc)]
"""A time with its zone, turned into UTC; one without a zone is refused."""


async def read_json(scope: Scope, receive: Receive, limit_bytes: int, *, by_item: bool = False) -> Any:
    """The document in the body of a request; `by_item` as for parse_json.

    Raises UnsupportedMedia, TooLarge (as soon as the limit is passed, before the rest is read) or Malformed.
    """
    _check_headers(scope, limit_bytes)
    body, more = b"", True
    chunks: list[bytes] = []
    size = 0
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > limit_bytes:
            raise TooLarge(f"at most {limit_bytes} bytes are accepted here")
        chunks.append(chunk)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return parse_json(body, by_item=by_item)


def parse_json(body: bytes, *, by_item: bool = False) -> Any:
    """The document in these bytes; raises Malformed with the place of the fault, never with what stands there.

    With `by_item`, a Malformed stands in `items` for each one that no store can keep, and the others are as sent.
    """
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Malformed(f"the body is not valid JSON in UTF-8: {error}") from None
    members, fault = _walked(document, b"\\u0000" in body)  # in JSON U+0000 is always written so
    # Every member has its own colon, so equal counts prove that no key was dropped; else count the keys themselves.
    if members != body.count(b":") and members != sum(map(bool, _STRINGS_AND_KEYS.findall(body))):
        raise Malformed("an object names the same key twice")
    if fault is not None:
        items = document.get("items") if by_item and isinstance(document, dict) else None
        if not isinstance(items, list) or _walked(document | {"items": None})[1]:
            raise fault
        document["items"] = [_walked(item)[1] or item for item in items]
    return document


def _check_headers(scope: Scope, limit_bytes: int) -> None:
    media = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            media = value
        elif name == b"content-length" and (not value.isdigit() or int(value) > limit_bytes):
            raise TooLarge(f"at most {limit_bytes} bytes are accepted here")
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMedia("compressed bodies are not accepted")
    if media != b"application/json" and not _is_json(media.decode("latin-1")):
        raise UnsupportedMedia("send `Content-Type: application/json`, in UTF-8")


def _is_json(media: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in media.split(";"))
    charsets = [part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset=")]
    return (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))) and all(
        charset in ("utf-8", "utf8") for charset in charsets
    )


def _walked(document: Any, may_hold_nul: bool = True) -> tuple[int, Malformed | None]:
    """How many object members a document has, and what is wrong with a value that no store can keep."""
    members, fault = 0, None
    rest: list[Any] = [[document]]
    while rest:
        values = rest.pop()
        if type(values) is dict:
            members += len(values)
            if may_hold_nul and any("\0" in name for name in values):
                fault = Malformed(_NUL)
            values = values.values()
        for value in values:
            kind = type(value)
            if kind is str:
                if may_hold_nul and "\0" in value:
                    fault = Malformed(_NUL)
            elif kind is dict or kind is list:
                rest.append(value)
            elif (kind is float and not math.isfinite(value)) or (kind is int and not -(1 << 63) <= value < 1 << 63):
                fault = Malformed("a number is out of range: integers have 64 bits, others are finite")
    return members, fault
