"""A real HTTP server that plays a model's endpoint by script, well or badly."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], Any]
Script = Callable[[dict[str, Any]], Answer]


class Endpoint:
    """What the server received, and the scripts of its next answers (the last one repeats)."""

    def __init__(self, well: Script) -> None:
        self.raw: list[bytes] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.scripts: list[Script] = [well]
        self.asked = threading.Semaphore(0)
        self.released = threading.Event()
        self.url = ""
        self._well = well

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        self.bodies.append(body)
        self.headers.append(headers)
        self.asked.release()
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        return script(body)

    def silent(self, body: dict[str, Any]) -> Answer:
        self.released.wait(10)
        return self._well(body)


def status(code: int, **headers: str) -> Script:
    return lambda _: (code, {name.replace("_", "-"): value for name, value in headers.items()}, {"error": "no"})


@contextmanager
def serving(path: str, well: Script) -> Iterator[Endpoint]:
    """Serve on a free port; `url` of the endpoint ends with `path`."""
    endpoint = Endpoint(well)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint.raw.append(self.rfile.read(int(self.headers["content-length"])))
            body = json.loads(endpoint.raw[-1])
            code, headers, answer = endpoint.answer(
                body, {**{key.lower(): value for key, value in self.headers.items()}, "path": self.path}
            )
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that gave up are the point here
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        yield endpoint
    finally:
        endpoint.released.set()
        server.shutdown()
        server.server_close()
