"""Cursors of lists: the place where the next page begins, signed for one caller and one set of conditions."""

import base64
import hmac

from pydantic import BaseModel

from app.api.deps import Services
from app.errors import FieldError, Invalid
from app.guard import Caller

SIGNATURE_BYTES = 16


def next_cursor(services: Services, caller: Caller, parameters: BaseModel, place: bytes) -> str:
    """A cursor to a place of this list; `parameters` are all that the list was asked for."""
    return base64.urlsafe_b64encode(place + _signature(services, caller, parameters, place)).decode().rstrip("=")


def place_of(services: Services, caller: Caller, parameters: BaseModel, cursor: str | None, size: int) -> bytes | None:
    """The place (`size` bytes) that a cursor of this very list names; None without one. Raises Invalid."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    place, signature = raw[:size], raw[size:]
    if len(place) != size or not hmac.compare_digest(signature, _signature(services, caller, parameters, place)):
        raise Invalid(errors=[FieldError("query:cursor", "cursor", "not a cursor of this list")])
    return place


def _signature(services: Services, caller: Caller, parameters: BaseModel, place: bytes) -> bytes:
    """Of this caller and these conditions only, so that a cursor cannot be moved to another list."""
    conditions = f"{type(parameters).__name__}{parameters.model_dump_json(exclude={'cursor', 'limit'})}"
    context = f"{caller.tenant_id}|{caller.user_id}|{caller.agent_id}|{conditions}".encode()
    return hmac.digest(services.cursor_secret, place + context, "sha256")[:SIGNATURE_BYTES]
