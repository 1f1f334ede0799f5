"""Old memories told in short: once, beside their sources, within user and agent, and only while they are true."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from app.consolidate import summarise_old, undo_consolidation
from app.errand import Errand
from app.errors import EmbeddingUnavailable
from app.forget import ForgetConfig, forget
from app.llm import LanguageModel
from app.remember import Filler
from tests.consolidate.conftest import NOON, Store, days_ago, says
from tests.embed.server import Endpoint, status

TRIP = (
    "第一次讨论杭州出差的酒店和行程", "第二次讨论杭州出差的酒店价格和行程", "再次讨论杭州出差的行程和高铁",
    "最后确认杭州出差的行程和酒店",
)  # fmt: skip
PRINTER = (
    "Asked about the office printer being offline", "The office printer was offline again and restarted",
    "Complained that the office printer is offline", "Reported the office printer offline once more",
)  # fmt: skip
EASY: dict[str, Any] = {"summary_similarity": 0.2}


async def old(store: Store, texts: tuple[str, ...], **fields: Any) -> list[UUID]:
    return [await store.add(text, at=days_ago(200 - number), **fields) for number, text in enumerate(texts)]


@pytest.mark.parametrize(("texts", "heading"), [(TRIP, "摘要（2026-05-14 至"), (PRINTER, "Summary (2026-05-14 to")])
async def test_old_memories_that_belong_together_get_one_summary(
    store: Store, texts: tuple[str, ...], heading: str
) -> None:
    sources = await old(store, texts, tags=("a",))
    await store.alter(sources[0], importance=4.0, tags=["a", "b"])
    await store.alter(sources[1], trust=40)
    young = await store.add(texts[0] + "!?", at=days_ago(5))
    before = [await store.look(memory_id) for memory_id in sources]
    dry = (await store.run(summarise_old, dry_run=True, **EASY))[1]
    assert await store.active("summary") == []
    errand, told = await store.run(summarise_old, **EASY)
    assert sorted(dry) == sorted(told) == sorted((one, "active", "active") for one in sources)
    assert errand.counts["summaries"] == 1
    (summary,) = await store.active("summary")
    assert summary["content"].startswith(heading)
    assert (summary["importance"], summary["tags"], summary["source"]) == (4.0, ["a"], "consolidation")
    assert summary["trust"] == 40, "that of its least trusted source"
    assert summary["metadata"]["summary"]["of"] == 4
    assert summary["event_at"] == days_ago(197)
    assert {link for link in await store.links() if link[1] == "derived_from"} == {
        (summary["memory_id"], "derived_from", one) for one in sources
    }
    assert (await store.look(summary["memory_id"]))["embedded"]
    assert [await store.look(memory_id) for memory_id in sources] == before, "sources are never changed"
    assert (await store.run(summarise_old, **EASY))[1] == []
    assert await store.statuses(young) == ["active"]


async def test_a_source_that_is_trusted_less_ends_its_summary(store: Store) -> None:
    sources = await old(store, TRIP)
    await store.run(summarise_old, **EASY)
    (first,) = await store.active("summary")
    assert first["trust"] == 100
    await store.alter(sources[2], trust=100, importance=2.0)
    assert await store.active("summary") == [first]
    await store.alter(sources[2], trust=99)
    assert await store.active("summary") == []
    await store.run(summarise_old, **EASY)
    (second,) = await store.active("summary")
    assert second["trust"] == 99
    assert (second["memory_id"], "supersedes", first["memory_id"]) in await store.links()


async def test_users_and_agents_are_told_apart(store: Store) -> None:
    await old(store, PRINTER[:2], agent_id="a")
    await old(store, PRINTER[2:], agent_id="b")
    await old(store, TRIP[:2], user_id="lin")
    await old(store, TRIP[2:], user_id="wang")
    assert (await store.run(summarise_old, **EASY))[1] == []
    await old(store, PRINTER[2:], agent_id="a")
    assert len((await store.run(summarise_old, **EASY))[1]) == 4
    assert [one["agent_id"] for one in await store.active("summary")] == ["a"]


@pytest.mark.parametrize(
    "fields",
    [{"pinned": True}, {"key": "k"}, {"kind": "profile"}, {"valid_to": NOON}, {"expires_at": NOON + timedelta(9)}],
)
async def test_what_has_a_place_or_an_end_of_its_own_is_not_told(store: Store, fields: dict[str, Any]) -> None:
    await old(store, PRINTER[:3])
    await old(store, PRINTER[3:], **fields)
    assert (await store.run(summarise_old, **EASY))[1] == []


async def retired(store: Store, sources: list[UUID], how: str) -> None:
    caller, one = store.caller, sources[1]
    if how == "amend":
        await store.shelf.amend(caller, one, {"content": "The coffee machine leaks"}, now=NOON)
    elif how == "end":
        await store.shelf.amend(caller, one, {"valid_to": NOON}, now=NOON)
    elif how == "erase":
        await store.shelf.erase(caller, one, now=NOON)
    else:
        await store.alter(one, status=how, deprecated_at=NOON if how == "deprecated" else None, updated_at=NOON)


@pytest.mark.parametrize("how", ["amend", "end", "erase", "deprecated", "duplicate", "quarantined"])
async def test_a_summary_ends_with_what_it_tells_and_is_made_anew(store: Store, how: str) -> None:
    sources = await old(store, (*PRINTER, "Somebody said that the office printer is offline"))
    await store.run(summarise_old, **EASY)
    (summary,) = await store.active("summary")
    await retired(store, sources, how)
    assert await store.active("summary") == [], "in the transaction of the change"
    seen = await store.look(summary["memory_id"])
    assert (seen["status"], seen["deprecated_at"]) == ("deprecated", NOON)
    assert await store.events(summary["memory_id"]) == ["created", "deprecated"]
    await store.run(summarise_old, **EASY)
    (new,) = await store.active("summary")
    assert (new["memory_id"], "supersedes", summary["memory_id"]) in await store.links()
    assert PRINTER[1] not in new["content"]


async def test_what_changes_nothing_of_it_leaves_it(store: Store) -> None:
    sources = await old(store, PRINTER)
    await store.run(summarise_old, **EASY)
    await store.shelf.amend(store.caller, sources[1], {"importance": 5, "tags": ["x"]}, now=NOON)
    assert len(await store.active("summary")) == 1


async def test_what_is_forgotten_lives_on_in_its_summary(store: Store) -> None:
    """That is what it is for; until somebody asks for the source to be erased."""
    sources = await old(store, PRINTER)
    await store.run(summarise_old, **EASY)
    later = Errand(NOON + timedelta(days=700), tenant_id=store.tenant_id)
    assert await forget(store.database, ForgetConfig(), later) == 4
    assert await store.statuses(*sources) == ["archived"] * 4
    assert len(await store.active("summary")) == 1


async def test_a_run_is_undone_and_what_was_put_away_is_not_told_again(store: Store) -> None:
    sources = await old(store, TRIP)
    errand, _ = await store.run(summarise_old, **EASY)
    (summary,) = await store.active("summary")
    made = summary["memory_id"]
    assert sorted(await store.touched(errand)) == sorted(
        [(source, "summarise", None, "active", "active", made) for source in sources]
        + [(made, "summarise", None, None, "active", None)]
    )
    undone = await undo_consolidation(store.database, store.tenant_id, errand.run_id, actor="key:1", now=NOON)
    assert (undone.restored, undone.left) == (1, 0)
    assert (await store.look(summary["memory_id"]))["status"] == "archived"
    assert (await store.run(summarise_old, **EASY))[1] == []


async def test_nothing_new_is_a_duplicate_of_a_summary(store: Store) -> None:
    """Or it would end with it."""
    await old(store, TRIP)
    await store.run(summarise_old, **EASY)
    (summary,) = await store.active("summary")
    again = await store.add(summary["content"].partition("：")[2])
    assert again != summary["memory_id"]
    assert await store.statuses(again) == ["active"]


async def test_without_vectors_it_waits_for_another_night(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await old(store, TRIP)

    async def away(*_: Any) -> None:
        raise EmbeddingUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(store.rememberer.embedder, "embed_documents", away)
        errand, told = await store.run(summarise_old, **EASY)
    assert (told, errand.counts["embedder_unavailable"]) == ([], 1)
    assert len((await store.run(summarise_old, **EASY))[1]) == 4


async def test_a_summary_whose_text_was_edited_overrules_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets its vector from the worker, who judges everything else."""
    home = await store.add("I live in Boston", kind="profile")
    await old(store, PRINTER)
    await store.run(summarise_old, **EASY)
    (summary,) = await store.active("summary")

    async def away(*_: Any) -> None:
        raise EmbeddingUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(store.rememberer.embedder, "embed_documents", away)
        await store.shelf.amend(store.caller, summary["memory_id"], {"content": "I moved to Denver"}, now=NOON)
    assert not (await store.look(summary["memory_id"]))["embedded"]
    one = store.rememberer
    while await Filler(one.database, one.embedder, one.generation, one.config).fill_pending(now=NOON, limit=32):
        pass
    assert (await store.look(summary["memory_id"]))["embedded"]
    assert await store.statuses(home, summary["memory_id"]) == ["active", "active"]


async def test_time_alone_makes_memories_old_enough(store: Store) -> None:
    for number, text in enumerate(PRINTER):
        await store.add(text, at=days_ago(number))
    assert (await store.run(summarise_old, **EASY))[1] == []
    asked = store.asked_for
    assert (await store.run(summarise_old, now=NOON + timedelta(days=80), **EASY))[1] == []
    assert store.asked_for == asked
    assert len((await store.run(summarise_old, now=NOON + timedelta(days=91), **EASY))[1]) == 4


async def test_a_model_tells_it_and_what_it_makes_up_is_left_out(
    store: Store, endpoint: Endpoint, model: LanguageModel
) -> None:
    await old(store, PRINTER)
    await old(store, TRIP)
    endpoint.scripts = [
        says('{"summary": "The office printer was offline 17 times in Paris."}'),
        says('{"summary": "多次讨论并确认了杭州出差的酒店和行程。"}'),
    ]
    errand, told = await store.run(summarise_old, model=model, **EASY)
    assert len(told) == 8
    contents = [one["content"] for one in await store.active("summary")]
    by = sorted(one["metadata"]["summary"]["by"] for one in await store.active("summary"))
    assert by == ["llm", "rule"]
    assert not any("17 times" in content or "Paris" in content for content in contents)
    assert any("：多次讨论并确认了杭州出差的酒店和行程。" in content for content in contents)
    assert errand.counts["invented"] == 1


async def test_a_model_that_is_away_is_asked_another_night(
    store: Store, endpoint: Endpoint, model: LanguageModel, fresh: LanguageModel
) -> None:
    await old(store, PRINTER)
    await old(store, TRIP, user_id="wang")
    endpoint.scripts = [status(500)]
    errand, told = await store.run(summarise_old, model=model, **EASY)
    assert (told, errand.counts["llm_unavailable"]) == ([], 1)
    endpoint.scripts = [says('{"summary": "It was about the same thing again and again."}')]
    assert len((await store.run(summarise_old, model=fresh, **EASY))[1]) == 8
