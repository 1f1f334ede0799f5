"""How connections to PostgreSQL are made and what holds on them, directly or through a transaction pooler.

Invariant: what a statement relies on is set for it: on a connection of our own once, behind a pooler, where the next
transaction may be on another server connection, in the packet that opens the transaction.
"""

import socket
from typing import Any, Final

from pydantic import BaseModel, Field, SecretStr
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.wire import register_codecs


class DatabaseConfig(BaseModel, extra="forbid"):
    """Where the database is and how patient the service is with it."""

    url: SecretStr | None = Field(None, description="postgresql+asyncpg://… of the login role; empty: embedded server.")
    owner_url: SecretStr | None = Field(None, description="URL of the schema's owner, for migrations; default: url.")
    pooler: bool = Field(
        False, description="The URL leads to a pooler in transaction mode (PgBouncer): nothing is left to the session."
    )
    replica_url: SecretStr | None = Field(
        None, description="URL of a read replica, same role: searches go there where it is not behind."
    )
    replica_patience_seconds: float = Field(
        1.0, gt=0, description="Longest wait for the replica; then the primary answers."
    )
    pool_size: int = Field(12, ge=1, le=200, description="Connections a process keeps.")
    pool_timeout_seconds: float = Field(2.0, gt=0, description="Longest wait for a connection before 503.")
    connect_timeout_seconds: float = Field(5.0, gt=0, description="Longest wait for a new connection.")
    start_timeout_seconds: float = Field(60.0, ge=0, description="How long a start waits for the database.")
    statement_timeout_ms: int = Field(5_000, ge=1, description="Longest statement.")
    lock_timeout_ms: int = Field(2_000, ge=1, description="Longest wait for a row or table lock.")
    idle_in_transaction_timeout_ms: int = Field(10_000, ge=1, description="Longest idle time within a transaction.")


def make_engine(config: DatabaseConfig, url: str) -> AsyncEngine:
    """The pool of one process; nothing is connected yet."""
    settings = {"application_name": "mneme", "timezone": "UTC"}  # a pooler keeps these two for each of its clients
    arguments: dict[str, Any] = {
        "timeout": config.connect_timeout_seconds,
        "command_timeout": config.statement_timeout_ms / 1000 + 1,  # a frozen server answers nothing at all
        "server_settings": settings,
    }
    if config.pooler:
        arguments |= _UNPREPARED
    else:
        settings |= _settings(config)
    engine = create_async_engine(
        url,
        isolation_level="AUTOCOMMIT",  # Scope speaks BEGIN and COMMIT itself, with role and tenant in the same packet
        pool_size=config.pool_size,
        max_overflow=0,
        pool_timeout=config.pool_timeout_seconds,
        pool_use_lifo=True,  # the connection used last has its plans made and its memory at hand
        pool_reset_on_return=None,
        connect_args=arguments,
    )
    event.listen(engine.sync_engine, "connect", _on_connect)
    return engine


def opening(config: DatabaseConfig) -> str:
    """What a transaction must say after its BEGIN, because no connection remembers it; else nothing."""
    if not config.pooler:
        return ""
    return "".join(f"SET LOCAL {name} = '{value}'; " for name, value in _settings(config).items())


def _settings(config: DatabaseConfig) -> dict[str, str]:
    return {
        "statement_timeout": str(config.statement_timeout_ms),
        "lock_timeout": str(config.lock_timeout_ms),
        "idle_in_transaction_session_timeout": str(config.idle_in_transaction_timeout_ms),
        "client_connection_check_interval": "1000",  # what was asked by a client that hung up is not worked out
        "jit": "off",
        # Keys lead every statement, so one plan serves all and an index each; planning takes longer than most.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        # Only where a large subject's vector index is read; relaxed: the rows are sorted again anyway.
        "hnsw.iterative_scan": "relaxed_order",
        "hnsw.ef_search": "300",  # of a million, 100 found 0.87 of the nearest ten, 300 finds 0.97 (decision 0029)
    }


# A statement that is prepared by name stays with the server connection, and the next transaction may be on another one.
_UNPREPARED: Final = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": lambda: "",
}


def _on_connect(adapter: Any, _: Any) -> None:
    adapter.run_async(register_codecs)
    _keep_alive(adapter.driver_connection._transport.get_extra_info("socket"))  # noqa: SLF001 - the driver hides it


def _keep_alive(sock: socket.socket) -> None:
    """Let the system find out within half a minute that a server or the way to it is gone, not within hours."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# Seconds of silence before a probe, seconds between probes, probes; and milliseconds until what was sent is confirmed.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
