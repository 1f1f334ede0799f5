"""The queue in front of a model: order, limits, cancellation, failures, and the event loop's freedom."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embed.batcher import Batcher
from app.embed.embedder import Kind, QueueFull, Vectors
from app.embed.local import Tokens
from app.errors import EmbeddingUnavailable


class Recorder:
    """A model whose tokens are code points, whose windows are four long, and whose passes wait for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.passes: list[list[str]] = []
        self.split_texts: list[str] = []

    def split(self, text: str, kind: Kind) -> list[Tokens]:
        self.split_texts.append(text)
        if "unsplittable" in text:
            raise ValueError("cannot split")
        points = list(map(ord, text))
        return [points[at : at + 4] for at in range(0, len(points), 4)]

    def forward(self, windows: Sequence[Tokens]) -> Vectors:
        self.passes.append(["".join(map(chr, window)) for window in windows])
        self.entered.set()
        assert self.gate.wait(10)
        if any(ord("!") in window for window in windows):
            raise RuntimeError("broken pass")
        return np.array([[window[0], len(window)] for window in windows], np.float32)


def make(model: Recorder, *, batch_size: int = 4, batch_tokens: int = 100, limit: int = 100) -> Batcher[str]:
    batcher = Batcher(model, batch_size=batch_size, batch_tokens=batch_tokens, wait_seconds=0.0, limit=limit)
    batcher.start()
    return batcher


@pytest.fixture
async def model() -> AsyncIterator[Recorder]:
    model = Recorder()
    yield model
    model.gate.set()


async def occupy(model: Recorder, batcher: Batcher[str]) -> "asyncio.Task[list[Vectors]]":
    """Start a pass that lasts until the gate opens, so that what follows queues up."""
    task = asyncio.create_task(batcher.encode(["z"], "document"))
    await asyncio.to_thread(model.entered.wait, 10)
    return task


async def queue(batcher: Batcher[str], text: str, kind: Kind = "document") -> "asyncio.Task[list[Vectors]]":
    task = asyncio.create_task(batcher.encode([text], kind))
    await asyncio.sleep(0)
    return task


async def test_queries_overtake_documents_and_each_pass_is_sorted_by_length(model: Recorder) -> None:
    batcher = make(model)
    tasks = [await occupy(model, batcher)]
    tasks += [await queue(batcher, text) for text in ("ccc", "dd")]
    tasks += [await queue(batcher, text, "query") for text in ("bb", "a")]
    model.gate.set()
    await asyncio.gather(*tasks)
    assert model.passes == [["z"], ["a", "bb"], ["dd", "ccc"]]
    await batcher.close()


async def test_documents_get_a_turn_between_many_queries(model: Recorder) -> None:
    batcher = make(model, batch_size=1)
    tasks = [await occupy(model, batcher), await queue(batcher, "d")]
    tasks += [await queue(batcher, str(number), "query") for number in range(6)]
    model.gate.set()
    await asyncio.gather(*tasks)
    assert model.passes == [["z"], ["0"], ["1"], ["2"], ["3"], ["d"], ["4"], ["5"]]
    await batcher.close()


async def test_a_text_whose_caller_has_gone_is_not_encoded(model: Recorder) -> None:
    batcher = make(model)
    first = await occupy(model, batcher)
    gone = await queue(batcher, "gone")
    kept = await queue(batcher, "kept")
    gone.cancel()
    await asyncio.wait([gone])
    model.gate.set()
    await asyncio.gather(first, kept)
    assert model.passes == [["z"], ["kept"]]
    assert "gone" not in model.split_texts
    await batcher.close()


async def test_a_caller_that_goes_between_two_passes_frees_the_rest_of_its_texts(model: Recorder) -> None:
    batcher = make(model, batch_size=1)
    task = asyncio.create_task(batcher.encode(["a", "b", "c"], "document"))
    await asyncio.to_thread(model.entered.wait, 10)
    task.cancel()
    await asyncio.wait([task])
    model.gate.set()
    await batcher.encode(["z"], "document")
    assert model.passes == [["a"], ["z"]]
    await batcher.close()


async def test_a_full_queue_refuses_and_says_when_to_come_back(model: Recorder) -> None:
    batcher = make(model, limit=2)
    tasks = [await occupy(model, batcher), await queue(batcher, "a")]
    with pytest.raises(QueueFull) as refusal:
        await batcher.encode(["b"], "document")
    assert refusal.value.retry_after_seconds >= 1.0
    model.gate.set()
    await asyncio.gather(*tasks)
    assert len(await batcher.encode(["x", "y", "z"], "document")) == 3  # a large batch may enter an idle queue
    await batcher.close()


async def test_a_failed_pass_fails_its_own_requests_only_and_the_thread_lives(model: Recorder) -> None:
    batcher = make(model, batch_size=2)
    first = await occupy(model, batcher)
    broken, beside, later = [await queue(batcher, text) for text in ("a!", "b", "c")]
    unsplittable = await queue(batcher, "unsplittable")
    model.gate.set()
    answers = await asyncio.gather(first, broken, beside, later, unsplittable, return_exceptions=True)
    assert [type(answer) for answer in answers] == [list, RuntimeError, RuntimeError, list, ValueError]
    assert len(await batcher.encode(["again"], "document")) == 1
    await batcher.close()


async def test_close_fails_what_waits_and_refuses_what_comes(model: Recorder) -> None:
    batcher = make(model, batch_size=1)
    running, waiting = await occupy(model, batcher), await queue(batcher, "waiting")
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    model.gate.set()
    await closing
    answers = await asyncio.gather(running, waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [list, EmbeddingUnavailable]
    with pytest.raises(EmbeddingUnavailable):
        await batcher.encode(["late"], "query")


async def test_who_holds_a_closed_batcher_holds_no_model() -> None:
    recorder = Recorder()
    recorder.gate.set()
    model, batcher = ref(recorder), make(recorder)
    del recorder
    await batcher.encode(["a"], "query")
    assert model() is not None
    await batcher.close()
    assert model() is None


async def test_the_event_loop_runs_on_while_the_model_works(model: Recorder) -> None:
    batcher = make(model)
    task = await occupy(model, batcher)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()  # a blocked loop would have waited for the pass
    model.gate.set()
    await task
    await batcher.close()


async def test_requests_that_end_together_wake_the_loop_once(model: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = make(model, batch_size=32)
    tasks = [await occupy(model, batcher)] + [await queue(batcher, "abc") for _ in range(20)]
    loop = asyncio.get_running_loop()
    wake_ups: list[int] = []
    wake = loop.call_soon_threadsafe

    def count(callback: object, *arguments: object, **options: object) -> object:
        if callback.__module__ == "app.embed.batcher":
            wake_ups.append(len(arguments[0]))  # type: ignore[arg-type]
        return wake(callback, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    model.gate.set()
    await asyncio.gather(*tasks)
    assert wake_ups == [1, 20]
    await batcher.close()


@given(
    texts=st.lists(st.text("abcdefg", min_size=1, max_size=13), min_size=1, max_size=12),
    batch_size=st.integers(1, 5),
    batch_tokens=st.integers(1, 12),
)
def test_every_window_lands_in_its_place_whatever_the_passes(
    texts: list[str], batch_size: int, batch_tokens: int
) -> None:
    async def run() -> None:
        model = Recorder()
        model.gate.set()
        batcher = make(model, batch_size=batch_size, batch_tokens=batch_tokens)
        answers = await batcher.encode(texts, "document")
        await batcher.close()
        for text, vectors in zip(texts, answers, strict=True):
            expected = [[ord(text[at]), min(4, len(text) - at)] for at in range(0, len(text), 4)]
            assert vectors.tolist() == expected
        for windows in model.passes:
            assert len(windows) <= batch_size
            assert len(windows) == 1 or sum(map(len, windows)) <= batch_tokens

    asyncio.run(run())
