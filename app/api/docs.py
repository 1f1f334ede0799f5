"""The interactive documentation and the OpenAPI document, behind the same wall as everything else."""

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

from app.api.deps import Anybody, walled_router

OPENAPI_PATH = "/openapi.json"
ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
"""Swagger UI as fastapi-offline carries it: the page needs no other server."""


def add_docs(app: FastAPI) -> None:
    """Serve /docs and /openapi.json."""
    router = walled_router(include_in_schema=False)

    @router.get(OPENAPI_PATH)
    async def openapi(_: Anybody) -> dict[str, Any]:
        return app.openapi()

    @router.get("/docs", response_class=HTMLResponse)
    async def docs(_: Anybody) -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=OPENAPI_PATH,
            title=f"{app.title} {app.version}",
            swagger_js_url="/docs/swagger-ui-bundle.js",
            swagger_css_url="/docs/swagger-ui.css",
            swagger_favicon_url="data:,",
        )

    for name, media_type in ASSETS.items():
        _add_asset(router, name, media_type)
    app.router.routes.extend(router.routes)


def _add_asset(router: APIRouter, name: str, media_type: str) -> None:
    path = str(files("fastapi_offline") / "static" / name)

    @router.get(f"/docs/{name}", response_class=FileResponse)
    async def asset(_: Anybody) -> FileResponse:
        return FileResponse(path, media_type=media_type)
