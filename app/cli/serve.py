"""`mneme serve`, `mneme worker`, `mneme openapi`: the processes of the service, and its description.

An API of several processes is a supervisor and children that share a port: the system deals out connections.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from typing import Annotated

import typer

from app import telemetry
from app.cli.children import Child
from app.cli.connect import use_running_server
from app.main import bind, create_app
from app.main import serve as run_api
from app.settings import Settings, load_settings

SupervisedOption = Annotated[bool, typer.Option("--supervised", hidden=True)]
SiblingOption = Annotated[bool, typer.Option("--sibling", hidden=True)]


def serve(supervised: SupervisedOption = False, sibling: SiblingOption = False) -> None:
    """Run the API alone; the database must be there."""
    use_running_server(load_settings())
    if supervised:
        end_with_supervisor()
    settings = load_settings()
    if settings.api.processes == 1 or sibling:
        run_api(settings, shared_port=sibling)
    else:
        _serve_by_several(settings)


def _serve_by_several(settings: Settings) -> None:
    """Keep `api.processes` processes running until SIGTERM or SIGINT; raises StartupRefused."""
    bind(settings.api.host, settings.api.port).close()  # of another program's port the children would hear nothing
    with tempfile.TemporaryDirectory(prefix="mneme-metrics-") as directory:
        environment = os.environ | {telemetry.SHARED_DIRECTORY: directory}
        children: list[Child] = []
        try:
            children += [Child.start("serve", environment, "--sibling") for _ in range(settings.api.processes)]
            while True:
                for child in children:
                    if child.process.poll() is not None:
                        telemetry.forget_process(child.process.pid, directory)
                    child.revive()
                time.sleep(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            for child in children:
                child.end()
            for child in children:
                child.stop(settings.api.drain_seconds + 5)


def worker(supervised: SupervisedOption = False) -> None:
    """Run the worker alone; the database must be there."""
    use_running_server(load_settings())
    if supervised:
        end_with_supervisor()
    runpy.run_module("workers", run_name="__main__")  # by name: no room of the app imports the workers


def openapi() -> None:
    """Print the OpenAPI description of the API as JSON."""
    json.dump(create_app(load_settings()).openapi(), sys.stdout, indent=2, ensure_ascii=False, sort_keys=True)
    print()


def end_with_supervisor() -> None:
    """Stop gently when standard input closes: the supervisor holds its other end, and may be killed."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)  # not the buffered stream: its lock would trouble the interpreter at its end
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
