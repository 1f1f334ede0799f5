"""`mneme serve`, `mneme worker`, `mneme openapi`: the two processes of the service, and its description."""

import json
import os
import runpy
import signal
import sys
import threading
from typing import Annotated

import typer

from app.cli.connect import use_running_server
from app.main import create_app
from app.main import serve as run_api
from app.settings import load_settings

SupervisedOption = Annotated[bool, typer.Option("--supervised", hidden=True)]


def serve(supervised: SupervisedOption = False) -> None:
    """Run the API alone; the database must be there."""
    use_running_server(load_settings())
    if supervised:
        end_with_supervisor()
    run_api(load_settings())


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
