"""One set through the API: write its memories under users of this run only, ask its questions in every arm."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from app.cli.eval.sets import Measures, RetrievalSet, fuse, measure
from app.errors import Invalid, StartupRefused

BATCH = 16  # a batch is embedded before its deadline also on a slow machine
DEPTH = 100  # ranks that rank fusion sees
ATTEMPTS = 8
PENDING_WAIT_SECONDS = 0.5
PENDING_WAITS = 1200

ARMS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "dense": {"fusion": "similarity", "top_k": DEPTH},
    "keyword": {"weights": {"similarity": 0, "time": 0, "importance": 0, "keyword": 1}, "top_k": DEPTH},
}
FUSED = "rank fusion"


@dataclass(slots=True)
class Outcome:
    """What a set's run gave: measures by arm, and how many rows were stored as what or answered in a degraded way."""

    name: str
    queries: int
    measures: dict[str, Measures] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    degraded: int = 0


@asynccontextmanager
async def connected(url: str, key: str | None, concurrency: int) -> AsyncIterator["Api"]:
    """A client of the API that keeps at most `concurrency` requests under way."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=120) as client:
        yield Api(client, asyncio.Semaphore(concurrency))


@dataclass(frozen=True, slots=True)
class Api:
    """The two calls that an evaluation needs, patient with a busy service."""

    client: httpx2.AsyncClient
    slots: asyncio.Semaphore

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer; 429 and 503 are tried again after what Retry-After says. Raises Invalid on any other refusal."""
        async with self.slots:
            answer = await self.client.post(path, json=body)
        for attempt in range(ATTEMPTS):
            if answer.status_code not in {429, 503}:
                break
            await asyncio.sleep(float(answer.headers.get("Retry-After", 2**attempt * 0.1)))
            async with self.slots:
                answer = await self.client.post(path, json=body)
        if answer.status_code >= 400:
            raise Invalid(f"POST {path} answered {answer.status_code}: {_reason(answer)}")
        document: dict[str, Any] = answer.json()
        return document

    async def ready(self, memory_id: str) -> bool:
        """Whether a memory has its vector."""
        async with self.slots:
            answer = await self.client.get(f"/v1/memories/{memory_id}")
        return answer.status_code == 200 and answer.json().get("embedding") == "ready"


def _reason(answer: httpx2.Response) -> str:
    try:
        problem = answer.json()
        return str(problem.get("code") or problem.get("title"))
    except ValueError:
        return "no problem document"


async def evaluate_set(
    api: Api, retrieval: RetrievalSet, run: str, advance: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Load a set, ask all its questions and judge; `advance` is told about every row and question done.

    A row that the service keeps as the duplicate of another counts as found when that other is found.
    """
    prefix = f"eval-{run}-{retrieval.name}-"
    outcome = Outcome(retrieval.name, len(retrieval.questions))
    memory_of = await _load(api, retrieval, prefix, outcome, advance)
    gold = [frozenset(memory_of.get(one, one) for one in question.gold) for question in retrieval.questions]

    async def ask(text: str, user_id: str) -> dict[str, list[str]]:
        body = {"query": text, "user_id": prefix + user_id, "include_shared": False}
        answers = [await api.post("/v1/memories:search", body | arm) for arm in ARMS.values()]
        outcome.degraded += sum(bool(answer["degraded"]) for answer in answers)
        advance(1)
        ranked = [[hit["memory"]["id"] for hit in answer["hits"]] for answer in answers]
        return dict(zip(ARMS, ranked, strict=True)) | {FUSED: fuse(ranked[1:])}

    answers = await asyncio.gather(*(ask(question.text, question.user_id) for question in retrieval.questions))
    for arm in (*ARMS, FUSED):
        outcome.measures[arm] = measure([answer[arm] for answer in answers], gold)
    return outcome


async def _load(
    api: Api, retrieval: RetrievalSet, prefix: str, outcome: Outcome, advance: Callable[[int], None]
) -> dict[str, str]:
    """Write all memories, each user's in their order; return memory id by corpus id."""
    by_user: dict[str, list[str]] = {}
    for corpus_id, memory in retrieval.memories.items():
        by_user.setdefault(memory["user_id"], []).append(corpus_id)
    memory_of: dict[str, str] = {}
    pending: list[str] = []

    async def load(corpus_ids: list[str]) -> None:
        for start in range(0, len(corpus_ids), BATCH):
            part = corpus_ids[start : start + BATCH]
            items = [retrieval.memories[one] | {"user_id": prefix + retrieval.memories[one]["user_id"]} for one in part]
            answer = await api.post("/v1/memories:batch", {"items": items})
            for corpus_id, item in zip(part, answer["items"], strict=True):
                name = item.get("outcome") or f"refused ({item['status']})"
                outcome.stored[name] = outcome.stored.get(name, 0) + 1
                if item.get("id"):
                    memory_of[corpus_id] = item["id"]
                    if item["memory"]["embedding"] == "pending":
                        pending.append(item["id"])
            advance(len(part))

    writers = asyncio.Semaphore(2)  # more only wait for the one embedding thread

    async def one_by_one(corpus_ids: list[str]) -> None:
        async with writers:
            await load(corpus_ids)

    await asyncio.gather(*map(one_by_one, by_user.values()))
    await _until_ready(api, pending)
    return memory_of


async def _until_ready(api: Api, memory_ids: Iterable[str]) -> None:
    """Wait for the worker to embed what was accepted without a vector; raises StartupRefused if it does not."""
    waits = iter(range(PENDING_WAITS))
    for memory_id in memory_ids:
        while not await api.ready(memory_id):
            if next(waits, None) is None:
                raise StartupRefused("memories stay without vectors: does a worker run?", dependency=True)
            await asyncio.sleep(PENDING_WAIT_SECONDS)
