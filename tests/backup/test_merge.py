"""One tenant or one subject comes back into a running system: what is newer stays, nothing is lost, walls hold."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2
import pytest
from alembic import command
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app.backup import Manifest, Wanted
from app.backup.fates import FATES
from app.cli import schema
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database
from app.errors import Conflict, NotFound
from app.tables import metadata
from tests.backup.conftest import Site, found, product, tell

MOMENT = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
NOBODY = UUID(int=0)
COUNTED = ("memory_usage", "kind_searches", "reinforcement_queue")  # searches change them
QUERIES = [
    ("lin", "对什么食物过敏？"), ("lin", "invoices as PDF"), ("mary", "the sister in Porto"), ("mary", "固件版本"),
]  # fmt: skip


def test_every_table_has_a_fate() -> None:
    assert set(FATES) == set(metadata.tables)


@pytest.fixture
async def client(site: Site) -> AsyncIterator[httpx2.AsyncClient]:
    """The service of the first tenant, which runs all the time."""
    async with product(site.url, site.tenants[0], site.data_dir) as client:
        yield client


@pytest.fixture
async def made(site: Site, client: httpx2.AsyncClient) -> Manifest:
    """A backup of what the site was when the test began; the client's key is in it."""
    return await site.backups().create(version="1", now=MOMENT)


async def bring(site: Site, made: Manifest, wanted: Wanted) -> dict[str, int]:
    database = await Database.connect(DatabaseConfig(url=SecretStr(site.url)))
    try:
        counts = await site.backups().bring_back(made, database, wanted, migrate=schema.upgrade, now=now())
    finally:
        await database.close()
    return {name: count for name, count in counts.items() if count}


async def listed(client: httpx2.AsyncClient, user: str) -> dict[str, dict[str, Any]]:
    answer = await client.get("/v1/memories", params={"user_id": user, "limit": 100})
    assert answer.status_code == 200, answer.text
    counted = ("access_count", "last_accessed_at")  # searches change them a moment later
    return {
        memory["id"]: {name: value for name, value in memory.items() if name not in counted}
        for memory in answer.json()["items"]
    }


async def content(site: Site, but: UUID = NOBODY) -> dict[str, list[Any]]:
    """Every row of the other tenant, and of other subjects than `but` of the first one if that is given."""
    rows = {}
    for table in metadata.sorted_tables:
        if "tenant_id" in table.columns and table.name not in COUNTED:
            others = "tenant_id = $1 AND $2::uuid IS NOT NULL"
            if "subject_id" in table.columns and but != NOBODY:
                others = "tenant_id = $1 OR subject_id <> $2"
            query = f"SELECT to_jsonb(t)::text FROM {table.name} t WHERE {others} ORDER BY 1"
            rows[table.name] = await site.ask(query, site.tenants[1], but)
    return rows


async def subject_of(site: Site, user: str) -> UUID:
    asked = await site.ask(
        "SELECT subject_id FROM subjects WHERE tenant_id = $1 AND user_id = $2", site.tenants[0], user
    )
    subject_id: UUID = asked[0][0]
    return subject_id


async def test_a_user_who_was_deleted_comes_back_as_before_and_the_running_service_finds_it_at_once(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    one = Wanted(site.tenants[0], one=True, user_id="lin")
    before = [await found(client, *query) for query in QUERIES for _ in range(3)]  # until the subject is in memory
    memories, subject_id = await listed(client, "lin"), await subject_of(site, "lin")
    others = await content(site, subject_id)
    await site.ask("DELETE FROM subjects WHERE subject_id = $1", subject_id)
    assert not set(await found(client, *QUERIES[0])) & set(memories)
    assert await bring(site, made, replace(one, dry_run=True)) == {"subjects": 1, "restored": 6}
    assert not set(await found(client, *QUERIES[0])) & set(memories)
    assert await bring(site, made, one) == {"subjects": 1, "restored": 6}
    assert [await found(client, *query) for query in QUERIES for _ in range(3)] == before
    assert await listed(client, "lin") == memories
    assert await content(site, subject_id) == others
    recovered = "SELECT count(*) FROM memory_events WHERE action = 'recovered' AND subject_id = $1"
    assert await site.ask(recovered, subject_id) == [(6,)]
    assert await bring(site, made, one) == {"subjects": 1, "kept": 6}


@pytest.mark.parametrize("replaced", [False, True], ids=["merge", "replace"])
async def test_of_two_versions_the_newer_stays_unless_all_is_replaced(
    site: Site, client: httpx2.AsyncClient, made: Manifest, replaced: bool
) -> None:
    ids = {memory["content"]: id_ for id_, memory in (await listed(client, "mary")).items()}
    edited, deleted = (
        ids["She prefers calls on Thursday afternoons"],
        ids["Her sister lives in Porto and teaches physics"],
    )
    answer = await client.patch(f"/v1/memories/{edited}", json={"content": "她现在更希望用邮件联系"})
    assert answer.status_code == 200, answer.text
    await site.ask("DELETE FROM memories WHERE memory_id = $1", UUID(deleted))
    (new,) = await tell(client, "mary", {"content": "She has adopted a dog named 豆豆"})
    counts = await bring(site, made, Wanted(site.tenants[0], one=True, user_id="mary", replace=replaced))
    there = await listed(client, "mary")
    assert deleted in there
    if replaced:
        assert counts == {"subjects": 1, "removed": 4, "restored": 4}
        assert (new in there, there[edited]["content"]) == (False, "She prefers calls on Thursday afternoons")
        assert new not in await found(client, "mary", "dog named 豆豆")
    else:
        assert counts == {"subjects": 1, "restored": 1, "kept": 3}
        assert (new in there, there[edited]["content"]) == (True, "她现在更希望用邮件联系")
    assert deleted in await found(client, "mary", "the sister in Porto")


async def test_what_is_under_a_legal_hold_is_not_replaced(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    held, other = await tell(
        client, "mary", {"content": "她的合同争议还没有结束"}, {"content": "She likes green tea best"}
    )
    await site.ask(
        "INSERT INTO legal_holds (tenant_id, subject_id, hold_id, memory_id, reason, actor, created_at)"
        " VALUES ($1, $2, $3, $4, 'dispute', 'test', now())",
        site.tenants[0], await subject_of(site, "mary"), UUID(str(uuid7())), UUID(held),
    )  # fmt: skip
    counts = await bring(site, made, Wanted(site.tenants[0], one=True, user_id="mary", replace=True))
    assert counts == {"subjects": 1, "removed": 5, "restored": 4}
    there = await listed(client, "mary")
    assert (held in there, other in there) == (True, False)


async def test_whose_place_is_taken_comes_back_as_history_with_a_link(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    await site.ask("DELETE FROM memories WHERE subject_id = $1", await subject_of(site, "lin"))
    same, other = await tell(
        client, "lin", {"content": "Please send invoices as PDF, never as paper"},
        {"content": "公司名称是星河软件", "key": "profile.company_name"},
    )  # fmt: skip
    counts = await bring(site, made, Wanted(site.tenants[0], one=True, user_id="lin"))
    assert counts == {"subjects": 1, "restored": 6, "demoted": 2}
    links = "SELECT relation, memory_id, other_id FROM memory_links WHERE $1 IN (memory_id, other_id)"
    ((relation, twin, kept),) = await site.ask(links, UUID(same))
    assert (relation, kept) == ("duplicate_of", UUID(same))
    status = "SELECT status, content FROM memories WHERE memory_id = $1"
    assert await site.ask(status, twin) == [("duplicate", "Please send invoices as PDF, never as paper")]
    ((relation, kept, overruled),) = await site.ask(links, UUID(other))
    assert (relation, kept) == ("supersedes", UUID(other))
    assert await site.ask(status, overruled) == [("deprecated", "公司名称是云启智能")]
    assert (await client.get(f"/v1/memories/{other}")).json()["content"] == "公司名称是星河软件"


async def test_a_user_who_was_deleted_and_came_again_has_one_identity(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    await site.ask("DELETE FROM subjects WHERE subject_id = $1", await subject_of(site, "lin"))
    (new,) = await tell(client, "lin", {"content": "新的一年想学打网球"})
    assert await bring(site, made, Wanted(site.tenants[0], one=True, user_id="lin")) == {"subjects": 1, "restored": 6}
    assert len(await listed(client, "lin")) == 6  # five active of before, and the new one
    assert new in await found(client, "lin", "想学打网球")
    assert await found(client, "lin", "对什么食物过敏？")


async def test_a_tenant_that_is_gone_comes_back_with_its_keys_and_another_is_not_touched(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    before = [await found(client, *query) for query in QUERIES]
    others = await content(site)
    await site.ask("DELETE FROM tenants WHERE tenant_id = $1", site.tenants[0])
    key = client.headers["Authorization"].removeprefix("Bearer ")
    wanted = Wanted(site.tenants[0])
    dry = await bring(site, made, replace(wanted, dry_run=True))
    assert await site.ask("SELECT count(*) FROM tenants") == [(2,)]
    assert await bring(site, made, wanted) == dry == {"subjects": 3, "restored": 11}
    async with product(site.url, site.tenants[0], site.data_dir, key) as again:
        assert [await found(again, *query) for query in QUERIES] == before
    assert await content(site) == others


async def test_a_revoked_key_stays_revoked(site: Site, client: httpx2.AsyncClient, made: Manifest) -> None:
    await site.ask("UPDATE api_keys SET revoked_at = now() WHERE tenant_id = $1", site.tenants[0])
    await bring(site, made, Wanted(site.tenants[0], replace=True))
    asked = "SELECT count(*) FROM api_keys WHERE tenant_id = $1 AND revoked_at IS NULL"
    assert await site.ask(asked, site.tenants[0]) == [(0,)]


async def test_who_was_erased_stays_erased_unless_asked_for_by_name_and_on_purpose(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    erased = await subject_of(site, "mary")
    await site.ask("DELETE FROM subjects WHERE subject_id = $1", erased)
    await site.ask(
        "INSERT INTO erasures (tenant_id, subject_id, erasure_id, actor, counts, created_at)"
        " VALUES ($1, $2, $3, 'test', '{}', now())", site.tenants[0], erased, UUID(str(uuid7())),
    )  # fmt: skip
    assert await bring(site, made, Wanted(site.tenants[0])) == {"subjects": 2, "kept": 7, "erased": 1}
    assert await listed(client, "mary") == {}
    one = Wanted(site.tenants[0], one=True, user_id="mary")
    with pytest.raises(Conflict, match="was erased"):
        await bring(site, made, one)
    assert await bring(site, made, replace(one, even_erased=True)) == {"subjects": 1, "restored": 4}


async def test_vectors_of_another_model_are_made_anew_and_large_subjects_are_indexed(
    site: Site, client: httpx2.AsyncClient, made: Manifest
) -> None:
    lin, mary = await subject_of(site, "lin"), await subject_of(site, "mary")
    await site.ask("UPDATE subjects SET ann = true WHERE subject_id = $1", mary)
    await site.ask("DELETE FROM memories WHERE subject_id = $1", mary)
    await bring(site, made, Wanted(site.tenants[0], one=True, user_id="mary"))
    assert await site.ask("SELECT count(*), bool_and(ann) FROM memories WHERE subject_id = $1", mary) == [(4, True)]
    words = "SELECT count(DISTINCT memory_id) FROM memory_terms WHERE subject_id = $1"
    assert await site.ask(words, mary) == [(4,)]

    await site.ask("DELETE FROM memories WHERE subject_id = $1", lin)
    await site.ask("UPDATE embedding_generations SET revision = 'another'")
    await bring(site, made, Wanted(site.tenants[0], one=True, user_id="lin"))
    counted = "SELECT count(*), count(embedding), count(generation_id) FROM memories WHERE subject_id = $1"
    assert await site.ask(counted, lin) == [(6, 0, 0)]
    queued = "SELECT count(*) FROM embedding_queue WHERE subject_id = $1"
    assert await site.ask(queued, lin) == [(5,)]  # those that are active


async def test_a_backup_of_an_older_schema_is_migrated_aside(site: Site) -> None:
    await asyncio.to_thread(command.downgrade, schema._alembic(site.owner_url), "0005")
    backups = site.backups()
    made = await backups.create(version="1", now=MOMENT)
    assert (made.content.revision, made.content.erasures) == ("0005", ())
    await backups.verify(made.backup, now=MOMENT)
    await asyncio.to_thread(schema.upgrade, site.owner_url)
    await site.ask("DELETE FROM subjects WHERE tenant_id = $1", site.tenants[0])
    assert await bring(site, made, Wanted(site.tenants[0])) == {"subjects": 3, "restored": 11}


async def test_what_the_backup_does_not_have_is_said(site: Site, made: Manifest) -> None:
    for wanted in (Wanted(UUID(int=7)), Wanted(site.tenants[0], one=True, user_id="nobody")):
        with pytest.raises(NotFound):
            await bring(site, made, wanted)
    await site.ask("DELETE FROM tenants WHERE tenant_id = $1", site.tenants[0])
    await site.ask("UPDATE tenants SET name = 'one' WHERE tenant_id = $1", site.tenants[1])
    with pytest.raises(Conflict, match="name"):
        await bring(site, made, Wanted(site.tenants[0]))
