"""Keys and the pepper: what is stored proves nothing, what is shown once opens one tenant, until it ends."""

import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.errors import Conflict, DatabaseUnavailable, Invalid, NotFound, StartupRefused, Unauthenticated
from app.guard import (
    SCOPES,
    Caller,
    KeyGrant,
    Keyring,
    create_key,
    create_tenant,
    derive_secret,
    list_keys,
    list_tenants,
    load_pepper,
    revoke_key,
)
from app.guard.keyring import LARGEST, TRUST
from app.guard.keys import _decode, _encode, parse

PEPPER = b"a pepper for tests only"
ALL = frozenset(SCOPES)
SECOND = timedelta(seconds=1)


async def test_a_key_stands_for_what_it_was_granted(database: Database, tenant: UUID) -> None:
    scopes = frozenset({"read", "write"})
    grant = KeyGrant(tenant, "bot", scopes, agent_id="a1", user_id="小明", expires_at=now() + 9 * SECOND)
    issued = await create_key(database, PEPPER, grant, now=now())
    caller = await Keyring(database, PEPPER).authenticate(issued.text, now=now())
    assert caller == Caller(tenant, issued.key_id, "a1", "小明", scopes)
    assert parse(issued.text) == (tenant, issued.key_id)
    assert [record.name for record in await list_keys(database, tenant)] == ["bot"]


async def test_the_stored_row_holds_no_part_of_the_secret(database: Database, tenant: UUID) -> None:
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "bot", ALL), now=now())
    async with database.read(tenant) as transaction:
        row = await transaction.fetch_row(sql("SELECT * FROM api_keys WHERE tenant_id = :tenant"), tenant=tenant)
    assert row is not None
    assert len(row["secret_hmac"]) == 32
    assert issued.text.rpartition("_")[2] not in repr(dict(row))


async def test_a_row_moved_to_another_key_opens_nothing(database: Database, tenant: UUID) -> None:
    mine, other = [await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now()) for _ in range(2)]
    async with database.write(tenant) as transaction:
        await transaction.execute(
            sql("""UPDATE api_keys SET secret_hmac = (SELECT secret_hmac FROM api_keys WHERE key_id = :mine)
                   WHERE key_id = :other AND tenant_id = :tenant"""),
            mine=mine.key_id, other=other.key_id, tenant=tenant,
        )  # fmt: skip
    keyring = Keyring(database, PEPPER)
    for text in (other.text, other.text[:49] + mine.text[49:]):
        with pytest.raises(Unauthenticated):
            await keyring.authenticate(text, now=now())


async def test_another_pepper_opens_nothing(database: Database, tenant: UUID) -> None:
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now())
    with pytest.raises(Unauthenticated):
        await Keyring(database, b"another pepper of ours").authenticate(issued.text, now=now())


async def test_a_revoked_key_is_believed_for_five_more_seconds_at_most(database: Database, tenant: UUID) -> None:
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now())
    keyring, start = Keyring(database, PEPPER), now()
    await keyring.authenticate(issued.text, now=start)
    await revoke_key(database, tenant, issued.key_id, now=start)
    assert timedelta(seconds=5) >= TRUST
    await keyring.authenticate(issued.text, now=start + TRUST - SECOND)
    for moment in (start + TRUST, start - SECOND):  # a clock set back does not stretch the trust
        with pytest.raises(Unauthenticated):
            await keyring.authenticate(issued.text, now=moment)
    with pytest.raises(NotFound):
        await revoke_key(database, tenant, UUID(int=1), now=start)


async def test_a_key_ends_at_its_moment_also_while_it_is_remembered(database: Database, tenant: UUID) -> None:
    start = now()
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL, expires_at=start + 2 * SECOND), now=start)
    keyring = Keyring(database, PEPPER)
    await keyring.authenticate(issued.text, now=start)
    await keyring.authenticate(issued.text, now=start + SECOND)
    with pytest.raises(Unauthenticated):
        await keyring.authenticate(issued.text, now=start + 2 * SECOND)


async def test_the_keyring_forgets_the_oldest_when_it_is_full(
    database: Database, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LARGEST == 10_000
    monkeypatch.setattr("app.guard.keyring.LARGEST", 2)
    keyring = Keyring(database, PEPPER)
    keys = [(await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now())).text for _ in range(4)]
    for text in keys:
        await keyring.authenticate(text, now=now())
    assert len(keyring._known) == 2


async def test_a_database_that_is_down_is_not_a_wrong_key(database: Database, tenant: UUID) -> None:
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now())
    nowhere = Database(DatabaseConfig(url=SecretStr("postgresql+asyncpg://mneme@127.0.0.1:1/mneme")))
    with pytest.raises(DatabaseUnavailable):
        await Keyring(nowhere, PEPPER).authenticate(issued.text, now=now())
    await nowhere.close()


@pytest.mark.parametrize(
    ("pointer", "wrong"),
    [
        ("/scopes", {"scopes": frozenset()}),
        ("/scopes", {"scopes": frozenset({"read", "everything"})}),
        ("/name", {"name": "  "}),
        ("/name", {"name": "x" * 201}),
        ("/name", {"name": "a\0b"}),
        ("/user_id", {"user_id": ""}),
        ("/user_id", {"user_id": " amy"}),
        ("/trust", {"trust": -1}),
        ("/trust", {"trust": 101}),
        ("/agent_id", {"agent_id": "\u3000"}),
        ("/agent_id", {"agent_id": "a" * 256}),
        ("/expires_at", {"expires_at": now() - SECOND}),
        ("/expires_at", {"expires_at": datetime(2999, 1, 1)}),  # noqa: DTZ001 - naive on purpose
    ],
)
async def test_a_wrong_grant_makes_no_key(
    database: Database, tenant: UUID, pointer: str, wrong: dict[str, Any]
) -> None:
    grant: dict[str, Any] = {"tenant_id": tenant, "name": "k", "scopes": ALL} | wrong
    with pytest.raises(Invalid) as refusal:
        await create_key(database, PEPPER, KeyGrant(**grant), now=now())
    assert [error.pointer for error in refusal.value.errors] == [pointer]
    assert await list_keys(database, tenant) == []


async def test_tenants(database: Database, tenant: UUID) -> None:
    made = await create_tenant(database, f" 云启科技 {tenant} ", now=now())
    assert made in await list_tenants(database)
    assert made.name == f"云启科技 {tenant}"
    with pytest.raises(Conflict):
        await create_tenant(database, made.name, now=now())
    with pytest.raises(NotFound):
        await create_key(database, PEPPER, KeyGrant(UUID(int=7), "k", ALL), now=now())


@given(st.uuids())
def test_ids_survive_the_key_text(identifier: UUID) -> None:
    assert len(_encode(identifier)) == 22
    assert _decode(_encode(identifier)) == identifier


@given(st.text())
def test_any_text_is_a_key_or_none(text: str) -> None:
    assert parse(text) is None


# --- the open door -------------------------------------------------------------------------------------


async def test_the_door_closes_with_the_first_key_and_never_opens_again(database: Database, tenant: UUID) -> None:
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now())
    await revoke_key(database, tenant, issued.key_id, now=now())
    assert await Keyring(database, PEPPER).closed(now=now())  # a revoked key still counts


async def test_a_demanded_key_closes_the_door_without_asking_the_database() -> None:
    nowhere = Database(DatabaseConfig(url=SecretStr("postgresql+asyncpg://mneme@127.0.0.1:1/mneme")))
    assert await Keyring(nowhere, PEPPER, required=True).closed(now=now())
    await nowhere.close()


# --- the pepper ----------------------------------------------------------------------------------------


def test_a_pepper_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        peppers = set(threads.map(lambda _: load_pepper(None, tmp_path / "data", production=False), range(16)))
    assert len(peppers) == 1
    assert len(peppers.pop()) == 64
    files = list((tmp_path / "data").iterdir())
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600]


def test_peppers_that_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupRefused, match="MNEME_AUTH__PEPPER"):
        load_pepper(None, tmp_path, production=True)
    with pytest.raises(StartupRefused, match="16 characters"):
        load_pepper("short", tmp_path, production=False)
    load_pepper(None, tmp_path, production=False)
    (tmp_path / "pepper").chmod(0o604)
    with pytest.raises(StartupRefused, match="chmod 600"):
        load_pepper(None, tmp_path, production=False)
    (tmp_path / "pepper").chmod(0o600)
    (tmp_path / "pepper").write_text("")
    with pytest.raises(StartupRefused, match="holds no pepper"):
        load_pepper(None, tmp_path, production=False)


def test_derived_secrets_differ_by_purpose_and_pepper() -> None:
    secrets = {derive_secret(pepper, purpose) for pepper in (b"p" * 16, b"q" * 16) for purpose in ("cursor", "export")}
    assert len(secrets) == 4


async def test_keys_of_one_moment_are_verified_side_by_side(database: Database, tenant: UUID) -> None:
    issued = await create_key(database, PEPPER, KeyGrant(tenant, "k", ALL), now=now())
    keyring = Keyring(database, PEPPER)
    callers = await asyncio.gather(*(keyring.authenticate(issued.text, now=now()) for _ in range(30)))
    assert len(set(callers)) == 1
