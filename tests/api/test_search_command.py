"""`mneme search` against a running service: hits, reasons, JSON, and what it says when something is wrong."""

import asyncio
import json
import re
import sys
from typing import Any

import httpx2
import pytest

from app.cli import main
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service
from tests.api.test_search import fill


@pytest.fixture
def run(service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `mneme search …` beside the service, which answers from this event loop."""

    async def command(*arguments: str, url: str = str(service.client.base_url)) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mneme", "search", *arguments, "--url", url])
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(main)
        captured = capsys.readouterr()
        printed = "".join(line for line in captured.out.splitlines(keepends=True) if not line.startswith('{"ts"'))
        return int(ended.value.code or 0), printed, captured.err

    return command


async def test_hits_and_reasons(agent: httpx2.AsyncClient, make_key: MakeKey, run: Any) -> None:
    mango, tea = await fill(agent, "我对芒果过敏 [bold]", "likes green tea")
    key = await make_key()
    code, out, _ = await run("芒果过敏", "--user", "amy", "--key", key, "--explain", "--top-k", "1", "--why-not", tea)
    assert code == 0
    assert re.search(rf"1 +0\.\d+ .*\d\.\d\d × \d\.\d\d.* interaction_history +我对芒果过敏 \[bold\] +{mango}", out), (
        out
    )
    assert re.search(rf"^{tea}: (below_top_k|no_evidence)", out, re.MULTILINE), out
    code, out, _ = await run("芒果", "--user", "nobody", "--key", key)
    assert (code, out.strip()) == (0, "no hits")


async def test_json_and_the_key_of_the_environment(
    agent: httpx2.AsyncClient, make_key: MakeKey, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tea] = await fill(agent, "likes green tea")
    monkeypatch.setenv("MNEME_API_KEY", await make_key())
    code, out, _ = await run(
        "tea", "--user", "amy", "--json", "--why-not", UNKNOWN_ID, "--as-of", "2099-01-01T00:00:00Z"
    )
    answer = json.loads(out)
    assert code == 0
    assert [hit["memory"]["id"] for hit in answer["hits"]] == [tea]
    assert answer["why_not"] == [{"id": UNKNOWN_ID, "reason": "unknown", "detail": None}]


async def test_refusals_are_told_plainly(make_key: MakeKey, run: Any) -> None:
    code, out, err = await run("tea", "--key", await make_key(), "--as-of", "yesterday")
    assert (code, out) == (1, "")
    assert "422 validation_failed" in err
    assert "as_of: must be an RFC 3339 time" in err
    code, _, err = await run("tea")
    assert (code, "401 unauthenticated" in err) == (1, True)
    code, _, err = await run("tea", url="http://127.0.0.1:9")
    assert (code, "is it running?" in err) == (4, True)
