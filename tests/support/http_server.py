"""Serve a handler of ``http.server`` on a free port, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """A handler that logs nothing; ``answer`` answers a request of any method."""

    def answer(self) -> None:
        raise NotImplementedError

    def _dispatch(self) -> None:
        self.answer()

    do_GET = do_POST = do_PUT = do_DELETE = _dispatch  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a whole response."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are part of many tests."""


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Serve until the block ends; the address. Port 0: a free one."""
    with _Server(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
