"""A worker process with one job that writes down each of its runs: `python probe.py FILE JOB SECONDS [hang]`.

Started by test_processes.py with the worker's own settings in the environment.
"""

import asyncio
import os
import sys

from app import telemetry
from app.errand import Errand
from app.settings import load_settings
from workers.__main__ import work
from workers.context import Context
from workers.jobs import Job

FILE, NAME, SECONDS, *HANG = sys.argv[1:]


async def note(context: Context, errand: Errand) -> int:
    """Write down the slot in one piece, as several processes do."""
    file = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{errand.now.timestamp() // float(SECONDS):.0f} {errand.run_id}\n".encode())
    os.close(file)
    if HANG:
        await asyncio.Event().wait()
    return 1


if __name__ == "__main__":
    telemetry.configure_logging(service="probe", version="0")
    asyncio.run(work(load_settings(), (Job(NAME, note, every_seconds=float(SECONDS)),)))
