"""The OpenAPI document: what FastAPI derives, plus keys, scopes and every refusal that the walls can answer with."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from app.api.deps import WalledRoute, wall_of
from app.api.problems import Problem, problems

_KEYS: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer mnk_…`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key in a header."},
}
_EVERY_WALL: Final = (401, 403, 500, 503, 504)
_EVERY_BODY: Final = (400, 413, 415)


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the document of an application once and keep it."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _complete(document["paths"][route.path_format][method.lower()], route)
    components = document.setdefault("components", {})
    components["securitySchemes"] = _KEYS
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs")
    schemas["Problem"] = problem
    app.openapi_schema = document
    return document


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    responses = operation["responses"]
    has_input = responses.pop("422", None) is not None  # FastAPI's own has another shape than our problems
    statuses = list(_EVERY_WALL) if isinstance(route, WalledRoute) else []
    statuses += _EVERY_BODY if route.body_field is not None else ()
    statuses += [400, 422] if has_input else []
    for status, answer in problems(*statuses).items():
        responses.setdefault(str(status), answer)
    if isinstance(route, WalledRoute):
        operation["security"] = [{name: []} for name in _KEYS]
        wall = wall_of(route.dependant)
        scope = wall.scope if wall is not None else None
        operation["description"] = (
            operation.get("description", "") + f"\n\nScope: `{scope or 'any valid key'}`."
        ).strip()
