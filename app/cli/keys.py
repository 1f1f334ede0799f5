"""`mneme keys`: the keys that open the API; a key's text is shown once, when it is made."""

import sys
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer

from app.cli.connect import with_database
from app.clock import now
from app.database import Database
from app.guard import DEFAULT_TENANT_ID, FULL_TRUST, SCOPES, KeyGrant, create_key, list_keys, load_pepper, revoke_key
from app.settings import Settings

app = typer.Typer(no_args_is_help=True)

TenantOption = Annotated[UUID, typer.Option("--tenant", help="Id of the tenant.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: TenantOption = DEFAULT_TENANT_ID,
    scope: Annotated[list[str], typer.Option(help=f"One of {', '.join(SCOPES)}; may be repeated.")] = [  # noqa: B006
        "read",
        "write",
        "delete",
    ],
    user: Annotated[str | None, typer.Option(help="Bind the key to this user.")] = None,
    agent: Annotated[str | None, typer.Option(help="Bind the key to this agent.")] = None,
    trust: Annotated[
        int, typer.Option(help="How far what is written with it is to be believed, 0 to 100.", min=0, max=100)
    ] = FULL_TRUST,
    days: Annotated[float | None, typer.Option(help="Days until the key ends; default: never.", min=0)] = None,
) -> None:
    """Make a key and print it; it cannot be shown again."""

    async def action(settings: Settings, database: Database) -> None:
        moment = now()
        expires_at = None if days is None else moment + timedelta(days=days)
        grant = KeyGrant(
            tenant, name, frozenset(scope), agent_id=agent, user_id=user, expires_at=expires_at, trust=trust
        )
        issued = await create_key(database, pepper(settings), grant, now=moment)
        print(issued.text)
        print(f"key id {issued.key_id}; keep the key, it is not stored and cannot be shown again", file=sys.stderr)

    with_database(action)


@app.command("list")
def list_all(tenant: TenantOption = DEFAULT_TENANT_ID) -> None:
    """Print a tenant's keys: id, state, scopes, bonds and name."""

    async def action(_: Settings, database: Database) -> None:
        for key in await list_keys(database, tenant):
            ended = key.expires_at is not None and key.expires_at <= now()
            state = "revoked" if key.revoked_at else "expired" if ended else "valid"
            bonds = " ".join(
                f"{kind}={bond}" for kind, bond in (("user", key.user_id), ("agent", key.agent_id)) if bond
            )
            if key.trust < FULL_TRUST:
                bonds = f"{bonds} trust={key.trust}".lstrip()
            print(f"{key.key_id}  {state:7}  {','.join(key.scopes)}  {bonds or '-'}  {key.name}")

    with_database(action)


@app.command()
def revoke(
    key: Annotated[UUID, typer.Argument(help="Id of the key, from `mneme keys list`.")],
    tenant: TenantOption = DEFAULT_TENANT_ID,
) -> None:
    """End a key for good; running services notice within seconds."""

    async def action(_: Settings, database: Database) -> None:
        await revoke_key(database, tenant, key, now=now())
        print("revoked")

    with_database(action)


def pepper(settings: Settings) -> bytes:
    """Return the secret under which keys are stored, from the settings or the data directory."""
    configured = settings.auth.pepper
    return load_pepper(
        None if configured is None else configured.get_secret_value(),
        settings.data_dir,
        production=settings.env == "production",
    )
