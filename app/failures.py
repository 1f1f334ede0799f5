"""What a failure of the driver means: the service's own error for it, or none.

Invariant: an error says `Undone` only when the server said so; whatever ends without an answer may have been done.
"""

from collections.abc import Callable
from typing import NoReturn

import asyncpg
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app import telemetry
from app.errors import (
    DatabaseUnavailable,
    DeadlineExceeded,
    MnemeError,
    PoolExhausted,
    Silent,
    StartupRefused,
    StorageDamaged,
    StorageFull,
    Undone,
)


def refuse_start(error: BaseException) -> None:
    """Raise StartupRefused for what no waiting helps against; the messages name role and database, never a password."""
    error = of_driver(error)
    if isinstance(error, (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)):
        raise StartupRefused(f"the database refuses the login: {error}", dependency=True) from error
    if isinstance(error, asyncpg.ProtocolViolationError) and "startup parameter" in str(error):
        raise StartupRefused("the URL leads to a pooler: set MNEME_DATABASE__POOLER=true") from error


def raise_translated(error: BaseException) -> NoReturn:
    """Raise the service's own error for a database failure, any other error as it is."""
    problem = translated(error)
    if problem is error:
        raise error
    raise problem from error


def of_driver(error: BaseException) -> BaseException:
    """The driver's own error inside SQLAlchemy's; any other error is returned as it is."""
    while error.__cause__ is not None and type(error).__module__.startswith("sqlalchemy"):
        error = error.__cause__
    return error


def translated(error: BaseException) -> BaseException:
    """The service's own error for a database failure; any other error is returned as it is."""
    error = of_driver(error)
    for kinds, problem in _TRANSLATIONS:
        if isinstance(error, kinds):
            sqlstate = getattr(error, "sqlstate", None)
            telemetry.DB_ERRORS.labels(
                sqlstate_class=(sqlstate or "connection")[:2] if sqlstate else "connection"
            ).inc()
            return problem(f"{type(error).__name__}")
    return error


_TRANSLATIONS: tuple[tuple[tuple[type[BaseException], ...], Callable[[str], MnemeError]], ...] = (
    ((PoolTimeout,), PoolExhausted),
    ((asyncpg.DiskFullError,), StorageFull),
    ((asyncpg.InternalServerError, asyncpg.UndefinedFileError, asyncpg.PostgresIOError), StorageDamaged),
    ((asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError), DeadlineExceeded),
    ((TimeoutError,), Silent),
    ((asyncpg.DeadlockDetectedError, asyncpg.SerializationError), Undone),
    (
        (
            asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InsufficientResourcesError,
            asyncpg.TransactionRollbackError, asyncpg.IdleInTransactionSessionTimeoutError, asyncpg.InterfaceError,
            asyncpg.InternalClientError, OSError,
            asyncpg.ReadOnlySQLTransactionError,  # a server that is still recovering, or has become a standby
        ),
        DatabaseUnavailable,
    ),
)  # fmt: skip
