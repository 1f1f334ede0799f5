"""RFC 9457: every refusal leaves as application/problem+json through `problem`, with a stable code and no input.

A pointer is an RFC 6901 path into the body (`/tags/0`); parameters are named `query:limit`, `path:…`, `header:…`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from app import telemetry
from app.errors import FieldError, Invalid, MethodNotAllowed, MnemeError, NotFound, Unauthenticated

MEDIA_TYPE: Final = "application/problem+json"
MOST_ERRORS: Final = 20
_LONGEST_POINTER: Final = 200


class WrongField(BaseModel):
    """One wrong field."""

    pointer: str = Field(examples=["/content"])
    code: str = Field(examples=["string_too_long"])
    detail: str


class ItemProblem(BaseModel):
    """Why one item of a batch was refused. `code` is stable; `errors` says which fields are wrong."""

    code: str
    title: str
    status: int
    detail: str
    errors: list[WrongField] | None = None


class Problem(ItemProblem):
    """A refusal (RFC 9457). `code` is stable; `errors` says which fields are wrong."""

    type: str = Field(examples=["urn:mneme:problem:validation_failed"])
    instance: str = Field(description="This very request.", examples=["urn:mneme:request:4f1c…"])
    request_id: str


def problem(error: MnemeError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for an error."""
    request_id = telemetry.request_id() or "none"
    body: dict[str, Any] = {
        "type": f"urn:mneme:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": f"urn:mneme:request:{request_id}",
        "code": error.code,
        "request_id": request_id,
    }
    body |= _wrong_fields(error)
    extra = dict(headers or {})
    if error.retry_after_seconds is not None:
        extra["Retry-After"] = str(math.ceil(error.retry_after_seconds))
    if isinstance(error, Unauthenticated):
        extra["WWW-Authenticate"] = 'Bearer realm="mneme"'
    telemetry.annotate(error_code=error.code)
    return Response(to_json(body), body["status"], extra, MEDIA_TYPE)


def item_problem(error: MnemeError) -> dict[str, Any]:
    """The problem of one item of a batch: like `problem`, without what belongs to the request as a whole."""
    shown = {"code": error.code, "title": error.title, "status": error.status, "detail": error.detail}
    return shown | _wrong_fields(error)


def invalid(found: Sequence[Any]) -> Invalid:
    """The error for what pydantic found: place, code and its sentence; never the value, at most 20."""
    return Invalid(errors=[_field_error(each) for each in found[:MOST_ERRORS]])


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route: these statuses answer with a problem; 401, 403, 503 and those of bodies are added
    to every walled route by themselves."""
    return {status: _documented(status) for status in statuses}


def _wrong_fields(error: MnemeError) -> dict[str, Any]:
    return {"errors": [asdict(field) for field in error.errors]} if error.errors else {}


def _documented(status: int) -> dict[str, Any]:
    kinds = [kind for kind in _kinds(MnemeError) if kind.status == status]
    example: dict[str, Any] = {
        "type": f"urn:mneme:problem:{kinds[0].code}",
        "title": kinds[0].title,
        "status": status,
        "detail": kinds[0].title,
        "instance": "urn:mneme:request:4f1c2a",
        "code": kinds[0].code,
        "request_id": "4f1c2a",
    }
    if status == Invalid.status:
        example["errors"] = [{"pointer": "/content", "code": "missing", "detail": "Field required"}]
    schema = {"$ref": "#/components/schemas/Problem"}
    codes = ", ".join(f"`{code}`" for code in dict.fromkeys(kind.code for kind in kinds))
    return {
        "description": f"{kinds[0].title}. Codes: {codes}.",
        "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
    }


def _kinds(kind: type[MnemeError]) -> list[type[MnemeError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _kinds(child))]


def _field_error(found: Mapping[str, Any]) -> FieldError:
    place, *path = found["loc"]
    if place == "body":
        pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
    else:
        pointer = f"{place}:{'.'.join(map(str, path))}"
    code = str(found["type"])
    # These sentences quote what was sent.
    quoting = code.endswith(("_parsing", "_tag_invalid")) or code == "url_parsing"
    detail = str(found["msg"]).partition(",")[0] if quoting else str(found["msg"])
    if code == "union_tag_invalid":
        detail = "Unknown variant"
    return FieldError(pointer[:_LONGEST_POINTER], code, detail)


async def _on_refusal(_: Request, error: MnemeError) -> Response:
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        telemetry.log().warning("unavailable", error_code=error.code, **telemetry.frames(error.__cause__ or error))
    return problem(error)


async def _on_invalid(_: Request, error: RequestValidationError) -> Response:
    return problem(invalid(error.errors()))


async def _on_http(request: Request, error: HTTPException) -> Response:
    # Raised by the router: an unknown path, or a method that the path does not have.
    if error.status_code == MethodNotAllowed.status:
        # The router names the methods of the first route of this path only.
        path = request.scope["path"]
        routes = [route for route in request.app.routes if isinstance(route, Route) and route.path_regex.match(path)]
        methods = {method for route in routes for method in route.methods or ()}
        return problem(MethodNotAllowed(), {"Allow": ", ".join(sorted(methods))})
    if error.status_code == NotFound.status:
        return problem(NotFound())
    raise error


async def _on_disconnect(_: Request, _error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody reads it; the access line shows that the client left


HANDLERS: Final[dict[Any, Any]] = {
    MnemeError: _on_refusal,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http,
    ClientDisconnect: _on_disconnect,
}
"""For `FastAPI(exception_handlers=…)`: every refusal becomes a problem."""
