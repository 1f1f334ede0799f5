"""The only reader of the wall clock; everything below the API, the command line and the workers gets `now`."""

from datetime import UTC, datetime


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)
