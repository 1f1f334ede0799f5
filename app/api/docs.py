"""The interactive documentation and the OpenAPI document, behind the same wall as everything else."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse

from app.api.deps import Anybody, walled_router

OPENAPI_PATH = "/openapi.json"


def add_docs(app: FastAPI) -> None:
    """Serve /docs and /openapi.json."""
    router = walled_router(include_in_schema=False)

    @router.get(OPENAPI_PATH)
    async def openapi(_: Anybody) -> dict[str, Any]:
        return app.openapi()

    @router.get("/docs", response_class=HTMLResponse)
    async def docs(_: Anybody) -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=OPENAPI_PATH, title=f"{app.title} {app.version}")

    app.router.routes.extend(router.routes)
