"""`mneme search`: asks a running service what it finds, and why it finds it or not, as any agent would over HTTP."""

import sys
from typing import Annotated, Any

import httpx2
import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.errors import FieldError, Invalid, StartupRefused
from app.settings import API_KEY

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 30.0


def search(  # noqa: PLR0913, PLR0917 - the options of a command are its user's
    query: Annotated[str, typer.Argument(help="What to look for.")],
    user: Annotated[str | None, typer.Option(help="Whose memories; without: only the tenant's shared ones.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only what this agent may see.")] = None,
    top_k: Annotated[int, typer.Option(min=1, max=100, help="Most hits.")] = 10,
    as_of: Annotated[
        str | None, typer.Option(help="Ask as if at this moment, with its zone: 2026-11-29T08:00:00+08:00.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show of what each score is made.")] = False,
    why_not: Annotated[
        list[str] | None, typer.Option(help="Id of a memory: where it is and why (may be repeated).")
    ] = None,
    url: Annotated[str, typer.Option(help="The service.")] = DEFAULT_URL,
    key: Annotated[str | None, typer.Option(envvar=API_KEY, help="API key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as it is.")] = False,
) -> None:
    """Search memories; with --explain and --why-not, find out why the hits are these."""
    body = {
        "query": query, "user_id": user, "agent_id": agent, "top_k": top_k, "as_of": as_of, "explain": explain,
        "why_not": why_not or [],
    }  # fmt: skip
    answer = _ask(url, key, body)
    if as_json:
        print(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(answer)


def _ask(url: str, key: str | None, body: dict[str, Any]) -> dict[str, Any]:
    """The service's answer; raises Invalid with what it had against the request, StartupRefused if there is none."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        address = f"{url.rstrip('/')}/v1/memories:search"
        response = httpx2.post(address, json=body, headers=headers, timeout=TIMEOUT_SECONDS)
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise StartupRefused(
            f"no answer from {url} ({type(error).__name__}): is it running?", dependency=True
        ) from None
    try:
        document: dict[str, Any] = response.json()
    except ValueError:
        raise Invalid(f"{url} answered {response.status_code} without a document: is that Mneme?") from None
    if response.status_code >= 400:
        wrong = [FieldError(one["pointer"], one["code"], one["detail"]) for one in document.get("errors", ())]
        raise Invalid(f"{response.status_code} {document.get('code')}: {document.get('detail')}", errors=wrong)
    return document


def _print(answer: dict[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    hits, absent = answer["hits"], answer.get("why_not", [])
    table = Table("#", "score", box=None)
    signals = list(hits[0].get("signals", {})) if hits else []
    for heading in signals:
        table.add_column(heading, justify="right")
    for heading in ("time", "kind"):
        table.add_column(heading, no_wrap=True)
    table.add_column("content", overflow="fold", ratio=1)
    table.add_column("id", no_wrap=True)  # to be copied
    for number, hit in enumerate(hits, 1):
        memory = hit["memory"]
        said = memory["content"] if memory["status"] == "active" else f"({memory['status']}) {memory['content']}"
        parts = [_part(hit["signals"][name]) for name in signals]
        when = (memory["event_at"] or memory["created_at"])[:16].replace("T", " ")
        cells = (str(number), f"{hit['score']:.3f}", *parts, when, memory["kind"], said, memory["id"])
        table.add_row(*map(Text, cells))  # Text: what a memory says is not markup
    console.print(table if hits else "no hits")
    for one in absent:
        measured = "".join(f", {name} {one[name]:.4g}" for name in ("rank", "score") if one.get(name) is not None)
        console.print(
            Text(f"{one['id']}: {one['reason']}{measured}" + (f" ({one['detail']})" if one["detail"] else ""))
        )
        if one.get("signals"):
            parts = [f"{name} {_part(part)}" for name, part in one["signals"].items()]
            console.print(Text(f"  {', '.join(parts)}"))
    if answer["degraded"]:
        console.print(Text(f"degraded: {', '.join(answer['degraded'])}"))


def _part(part: dict[str, Any]) -> str:
    """A signal as value × weight; of what has no weight (a reranker) the value alone."""
    value = "–" if part["value"] is None else f"{part['value']:.2f}"
    return f"{value} × {part['weight']:.2f}" if "weight" in part else value
