"""R30: what was dumped comes back, on a clean server, by a login that is no superuser, or nothing comes at all."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app.backup import Backups
from app.backup.config import BackupConfig
from app.backup.content import plain_connection
from app.backup.programs import programs_for
from app.cli import embedded, schema
from app.errors import Conflict, StartupRefused, VerificationFailed
from app.indexes import PART, ann_index
from tests.backup.conftest import KEY, MakeConfig, Site, _site, fill, found, product
from tests.conftest import administer

MOMENT = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
OWNER = "mneme_owner"
QUERIES = [
    ("lin", "对什么食物过敏？"), ("lin", "出差住在哪里"), ("lin", "how does she want invoices"), ("lin", "公司叫什么"),
    ("lin", "A-1027 退款"), ("lin", "retour goods"), ("mary", "where does the sister live"), ("mary", "打电话的时间"),
    ("mary", "TX-300 固件"), ("mary", "gym"),
]  # fmt: skip


@contextmanager
def server_of(major: int, directory: Path) -> Iterator[embedded.EmbeddedServer]:
    """A server of this major version; the wheel brings more than one."""

    def run(program: str, *arguments: str, **more: Any) -> Any:
        wanted = [one for one in arguments if major >= 17 or one[:8] not in ("--locale", "--builti")]
        return run_of_18(program, *wanted, **more)

    run_of_18 = embedded._run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_programs", lambda: programs_for(major, None).folder)
        patch.setattr(embedded, "_run", run)
        server = embedded.start(directory)
    yield server
    embedded.stop(directory)


@pytest.fixture(scope="module")
def old_server(passable_directory: Path) -> Iterator[embedded.EmbeddedServer]:
    with server_of(16, passable_directory / "sixteen") as server:
        yield server


@pytest.fixture(scope="module")
def clean_server(passable_directory: Path) -> Iterator[embedded.EmbeddedServer]:
    """A PostgreSQL 18 that has never seen Mneme; its only login may make databases and roles, but no extension."""
    with server_of(18, passable_directory / "eighteen") as server:
        administer(server.url(embedded.SUPERUSER, "postgres"), f"CREATE ROLE {OWNER} LOGIN CREATEROLE CREATEDB")
        yield server


@pytest.fixture
async def old_site(old_server: embedded.EmbeddedServer, tmp_path: Path) -> Site:
    """A filled database on the old server whose owner is no superuser, backed up by the backup role."""
    name, superuser = f"mneme_{uuid7().hex[-8:]}", old_server.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(
        administer,
        superuser,
        f"CREATE ROLE {OWNER} LOGIN CREATEROLE",
        f"CREATE DATABASE {name} OWNER {OWNER}",
    )
    await asyncio.to_thread(administer, old_server.url(embedded.SUPERUSER, name), "CREATE EXTENSION vector")
    owner_url = old_server.url(OWNER, name)
    await asyncio.to_thread(schema.upgrade, owner_url)
    await asyncio.to_thread(schema.create_login, owner_url, schema.LOGIN_ROLE)
    await asyncio.to_thread(schema.create_reader, superuser, schema.BACKUP_ROLE)
    site = _site(old_server, name, (UUID(str(uuid7())), UUID(str(uuid7()))), tmp_path)
    for number, tenant_id in enumerate(site.tenants):
        await site.ask(
            "INSERT INTO tenants (tenant_id, name, created_at) VALUES ($1, $2, now())", tenant_id, str(number)
        )
    await fill(site.url, site.tenants, tmp_path)
    return site


async def test_a_backup_of_an_old_server_comes_back_on_a_clean_new_one(
    old_site: Site, clean_server: embedded.EmbeddedServer, s3_config: MakeConfig, tmp_path: Path
) -> None:
    """Row counts by table and tenant, twenty searches over HTTP, keys, the walls and the vector index."""
    backups = old_site.backups(s3_config(key=KEY))
    keys, before = {}, {}
    for tenant_id in old_site.tenants:
        async with product(old_site.url, tenant_id, tmp_path) as client:
            keys[tenant_id] = client.headers["Authorization"].removeprefix("Bearer ")
            before[tenant_id] = [await found(client, *query) for query in QUERIES]
    made = await backups.create(version="1", now=MOMENT)
    assert (made.dump_version, made.content.server_version // 10_000) == (16, 16)
    await backups.verify(made.backup, now=MOMENT)  # as the backup role, in a clone of the scratch database

    target = clean_server.url(OWNER, "mneme")
    needed = "administrator must first run `CREATE EXTENSION vector`"
    for attempt in (backups.check_target, backups.restore_all, backups.check_target):  # without the database, with it
        with pytest.raises(StartupRefused, match=needed):
            await attempt(made, target)
    await asyncio.to_thread(administer, clean_server.url(embedded.SUPERUSER, "mneme"), "CREATE EXTENSION vector")
    await backups.check_target(made, target)
    assert await backups.restore_all(made, target) == 0  # compares counts, walls and searches itself

    await asyncio.to_thread(schema.create_login, target, schema.LOGIN_ROLE)
    new = _site(clean_server, "mneme", old_site.tenants, tmp_path)
    counts = "SELECT tenant_id, subject_id, status, count(*) FROM memories GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    assert await new.ask(counts) == await old_site.ask(counts)
    for tenant_id in old_site.tenants:
        async with product(new.url, tenant_id, tmp_path, keys[tenant_id]) as client:
            assert [await found(client, *query) for query in QUERIES] == before[tenant_id]
    async with plain_connection(new.url) as connection:
        await connection.execute("SET ROLE mneme_app")
        assert await connection.fetchval("SELECT count(*) FROM memories") == 0
        await connection.execute(f"SET app.tenant_id = '{old_site.tenants[0]}'")
        assert await connection.fetchval("SELECT count(*) FROM memories") == 11
    async with plain_connection(new.owner_url) as connection:
        dimension = made.content.generations[0]["dimension"]
        await connection.execute("SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off")
        plan = await connection.fetch(
            f"EXPLAIN SELECT memory_id FROM memories WHERE ann AND generation_id = 1 AND {PART.format('')} = 3"
            f" ORDER BY embedding::halfvec({dimension}) <=>"
            f" (SELECT embedding::halfvec({dimension}) FROM memories LIMIT 1) LIMIT 5"
        )
        assert ann_index(1, 3) in str(plan)
    with pytest.raises(Conflict, match="into an empty one"):
        await backups.restore_all(made, target)


async def test_a_new_dump_does_not_go_into_an_old_server(site: Site, old_server: embedded.EmbeddedServer) -> None:
    backups = site.backups()
    made = await backups.create(version="1", now=MOMENT)
    url = old_server.url(embedded.SUPERUSER, f"older_{uuid7().hex[-8:]}")
    for attempt in (backups.check_target(made, url), backups.restore_all(made, url)):
        with pytest.raises(StartupRefused, match="the dump is of PostgreSQL 18, this server is 16"):
            await attempt


async def test_what_proves_damaged_at_its_very_end_leaves_nothing(site: Site, cluster: embedded.EmbeddedServer) -> None:
    backups = site.backups()
    made = await backups.create(version="1", now=MOMENT)
    path = site.data_dir / "backups" / made.backup / "dump"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    name = f"mneme_back_{uuid7().hex[-8:]}"
    url = cluster.url(embedded.SUPERUSER, name)
    with pytest.raises(VerificationFailed):
        await backups.restore_all(made, url)
    target = _site(cluster, name, site.tenants, site.data_dir)
    assert await target.ask(
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
    ) == [(0,)]
    path.write_bytes(data)
    await backups.check_target(made, url)
    await backups.restore_all(made, url)
    with pytest.raises(Conflict):
        await backups.check_target(made, url)
    await asyncio.to_thread(administer, cluster.url(embedded.SUPERUSER, "postgres"), f"DROP DATABASE {name}")


async def test_a_role_of_the_dump_that_the_server_lacks_is_named(site: Site, cluster: embedded.EmbeddedServer) -> None:
    role = f"grafana_{uuid7().hex[-8:]}"
    await site.ask(f"CREATE ROLE {role}")
    await site.ask(f"GRANT SELECT ON tenants TO {role}")
    backups = site.backups()
    made = await backups.create(version="1", now=MOMENT)
    assert role in made.content.roles
    await site.ask(f"REVOKE SELECT ON tenants FROM {role}")
    await site.ask(f"DROP ROLE {role}")
    with pytest.raises(StartupRefused, match=role):
        await backups.verify(made.backup, now=MOMENT)
    assert (await backups.entries())[0].state == "unverified"  # nothing is known about the backup


async def test_whoever_was_erased_later_stays_erased(site: Site, cluster: embedded.EmbeddedServer) -> None:
    """R16: the ledger of erasures in newer backups is repeated after a whole restore of an older one."""
    backups = site.backups()
    before = await backups.create(version="1", now=MOMENT)
    ((erased,),) = await site.ask(
        "DELETE FROM subjects WHERE tenant_id = $1 AND user_id = 'mary' RETURNING subject_id", site.tenants[0]
    )
    await site.ask(
        "INSERT INTO erasures (tenant_id, subject_id, erasure_id, actor, counts, created_at)"
        " VALUES ($1, $2, $3, 'test', '{}', now())",
        site.tenants[0], erased, UUID(str(uuid7())),
    )  # fmt: skip
    after = await backups.create(version="1", now=MOMENT + timedelta(days=1))
    assert after.content.erasures == ((site.tenants[0], erased),)
    name = f"mneme_back_{uuid7().hex[-8:]}"
    target = _site(cluster, name, site.tenants, site.data_dir)
    assert await backups.restore_all(before, target.owner_url) == 1
    users = "SELECT tenant_id, user_id FROM subjects WHERE user_id IS NOT NULL ORDER BY 1, 2"
    one, two = site.tenants
    assert await target.ask(users) == [(one, "lin"), (two, "lin"), (two, "mary")]
    assert await target.ask("SELECT count(*) FROM memories WHERE subject_id = $1", erased) == [(0,)]
    known = "SELECT tenant_id, subject_id FROM erasures"
    assert await target.ask(known) == [(one, erased)], "so that the archive does not give it back, either"
    forced = "SELECT count(*) FROM pg_class WHERE relforcerowsecurity"
    assert await target.ask(forced) == await site.ask(forced)
    await asyncio.to_thread(administer, cluster.url(embedded.SUPERUSER, "postgres"), f"DROP DATABASE {name}")


async def test_scratch_databases_of_killed_verifications_go(site: Site) -> None:
    old, young = (f"mneme_scratch_{at:%Y%m%d%H%M%S}_abcdef" for at in (MOMENT - timedelta(days=2), MOMENT))
    for name in (old, young):
        await site.ask(f"CREATE DATABASE {name}")
    backups = Backups.open(BackupConfig(scratch_url=SecretStr(site.owner_url)), site.data_dir, site.backup_url)
    made = await backups.create(version="1", now=MOMENT)
    await backups.verify(made.backup, now=MOMENT)
    assert await site.ask("SELECT datname FROM pg_database WHERE datname = ANY ($1)", [old, young]) == [(young,)]
    await site.ask(f"DROP DATABASE {young}")
