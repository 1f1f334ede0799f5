"""What PostgreSQL undid whole is done again: the victim of a deadlock, and what met a damaged vector index.

Invariant: nothing is done twice: what has committed anything is not begun anew, unless it goes on where it stopped.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

from app import work_metrics
from app.database import Database, counted_commits
from app.errors import StorageDamaged, Undone
from app.indexes import drop_damaged

MOST_TRIES: Final = 3
LONGEST_PAUSE_SECONDS: Final = 0.05
"""Two that were in each other's way do not begin again in the same moment."""

T = TypeVar("T")


async def again(database: Database, work: Callable[[], Awaitable[T]], *, resumes: bool = False) -> T:
    """Await `work()`, at most MOST_TRIES times, the last of which begins within the time limit of one statement.

    `resumes`: it goes on after what it committed, and may take its time, as jobs do. Raises what the last try raises.
    """
    started, tries = monotonic(), 0
    while True:
        tries += 1
        with counted_commits() as commits:
            try:
                return await work()
            except (Undone, StorageDamaged) as error:
                late = monotonic() - started > database.statement_seconds
                if tries == MOST_TRIES or (not resumes and (commits or late)):
                    raise
                if isinstance(error, StorageDamaged) and not await drop_damaged(database, error):
                    raise
                reason = "damaged" if isinstance(error, StorageDamaged) else "undone"
        work_metrics.WORK_REPEATED.labels(reason).inc()
        await asyncio.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))  # noqa: S311 - no secret
