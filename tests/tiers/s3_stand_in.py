"""An object store in this process, as small as can be, for answers that a real one does not give on demand.

A test derives a class from ``StandIn`` and answers some requests in its own way. Every bucket is there but
the one called ``away``.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StandIn(http.server.BaseHTTPRequestHandler):
    """Knows the lengths of objects alone, by their paths: ``lengths``, one dict a ``serving``."""

    protocol_version = "HTTP/1.1"
    lengths: dict[str, int]

    def do_HEAD(self) -> None:
        self.head()

    def do_GET(self) -> None:
        self.get()

    def do_PUT(self) -> None:
        self.put()

    def do_DELETE(self) -> None:
        self.delete()

    def head(self) -> None:
        if self.is_bucket():
            self.answer(404 if self.path.strip("/").endswith("away") else 200)
        elif self.path in self.lengths:
            self.answer(200, length=self.lengths[self.path])
        else:
            self.answer(404)

    def get(self) -> None:
        self.refuse(404, "NoSuchKey")

    def put(self) -> None:
        self.take()
        self.answer(200)

    def delete(self) -> None:
        self.lengths.pop(self.path, None)
        self.answer(204)

    def is_bucket(self) -> bool:
        return not self.path.endswith("_g0")

    def take(self) -> None:
        """What a put does, but for its answer."""
        length = int(self.headers["Content-Length"])
        assert len(self.rfile.read(length)) == length
        self.lengths[self.path] = length

    def answer(self, status: int, body: bytes = b"", *, length: int | None = None) -> None:
        """``length``: as if the body had so many bytes, for an answer to HEAD."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if self.is_bucket():
            self.send_header("Connection", "close")  # what is next has to connect anew
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        """As S3 does, with a code that says more than the status."""
        self.answer(status, f"<Error><Code>{code}</Code><Message>Because.</Message></Error>".encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[StandIn]) -> Iterator[str]:
    """A server of that kind, empty, by its address."""
    fresh = type(handler.__name__, (handler,), {"lengths": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), fresh) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
