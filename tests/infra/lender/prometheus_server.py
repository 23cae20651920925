"""A local server with the answers of Prometheus, of which none is installed here."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

T = 1_700_000_000.125


class FakeAnswers(ThreadingHTTPServer):
    """A local HTTP server with an answer to some queries and one to all others; it keeps what is asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.body = b""
        self.answers: dict[str, Any] = {}
        """Data by query, for those that have an answer of their own."""
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, data: Any) -> None:
        self.body = _success(data)


class _Handler(BaseHTTPRequestHandler):
    server: FakeAnswers

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        query = form["query"][0]
        self.server.asked.append((self.path, query))
        own = self.server.answers.get(query)
        body = self.server.body if own is None else _success(own)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not to the tests' output."""


def _success(data: Any) -> bytes:
    return json.dumps({"status": "success", "data": data}).encode()


@contextmanager
def answering() -> Iterator[FakeAnswers]:
    """A server that runs for the length of the block."""
    with FakeAnswers() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sample(value: str) -> list[Any]:
    """A value, measured at T."""
    return [T, value]


def vector(*series: tuple[dict[str, str], str]) -> dict[str, Any]:
    """Return the answer to a query: labels and value of each series."""
    return {"resultType": "vector", "result": [{"metric": m, "value": sample(v)} for m, v in series]}
