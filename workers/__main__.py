"""`python -m workers`: the background process; its clock, its /metrics, and a gentle end on SIGTERM."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta
from importlib.metadata import version
from typing import Final

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import start_http_server

from app import telemetry
from app.clock import now
from app.database import Database
from app.errors import StartupRefused
from app.settings import Settings, load_settings
from workers.context import Context
from workers.jobs import JOBS, Job
from workers.runner import Runner

OFFER_SECONDS: Final = 30.0
ASKED_SECONDS: Final = 1.0
REGISTER_SECONDS: Final = 60.0


async def work(settings: Settings, jobs: Sequence[Job] = JOBS) -> None:
    """Run the jobs until SIGTERM or SIGINT; raises StartupRefused when the database or the port is not to be had."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    database = await Database.connect(settings.database)
    context = Context(settings, database)
    try:
        runner = Runner(context, timedelta(seconds=settings.worker.lease_seconds), jobs)
        with _metrics(settings):
            scheduler = _scheduler(runner, settings)
            telemetry.log().info("worker_started", jobs=len(jobs))
            await stop.wait()
            scheduler.pause()
            await runner.drain(settings.worker.drain_seconds)
            scheduler.shutdown(wait=False)
    finally:
        await context.close()
        await database.close()
    telemetry.log().info("worker_stopped")


def _scheduler(runner: Runner, settings: Settings) -> AsyncIOScheduler:
    scheduler = AsyncIOScheduler(timezone=UTC)
    for job in runner.jobs:
        # A once-a-slot job is offered more often than its slots: that is how a run whose worker died is taken over, and
        # how one whose time passed while no worker ran is made up for, once.
        seconds = min(job.every_seconds or OFFER_SECONDS, settings.worker.lease_seconds)
        scheduler.add_job(runner.tick, "interval", [job], seconds=seconds, next_run_time=now(), coalesce=True)
    for act, seconds in ((runner.tick_asked, ASKED_SECONDS), (runner.register, REGISTER_SECONDS)):
        scheduler.add_job(act, "interval", seconds=seconds, next_run_time=now(), coalesce=True, max_instances=1)
    scheduler.start()
    return scheduler


@contextmanager
def _metrics(settings: Settings) -> Iterator[None]:
    host, port = settings.worker.metrics_host, settings.worker.metrics_port
    try:
        server, thread = start_http_server(port, host)
    except OSError as error:
        raise StartupRefused(f"{host}:{port} cannot be used for metrics ({error.strerror})", dependency=True) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Read the settings, run, and turn a refusal into its message and exit code."""
    try:
        settings = load_settings()
        telemetry.configure_logging(service="mneme-worker", version=version("mneme"), level=settings.log.level)
        asyncio.run(work(settings))
    except StartupRefused as error:
        sys.stderr.write(f"mneme: {error.message}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
