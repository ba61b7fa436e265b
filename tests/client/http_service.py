"""The fake service behind httpx without a network, and behind a socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.client.fake_service import FakeService

Script = Callable[[int], str]


class Virtual:
    """Time that passes only when somebody sleeps or sends."""

    def __init__(self, begins_s: float) -> None:
        self.now_s = begins_s

    def steady(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.now_s += seconds


def transport(
    service: FakeService, clock: Virtual, script: Script = lambda number: "fine"
) -> httpx.MockTransport:
    """Answers as the service does; ``script`` says what befalls each request."""
    numbers = iter(range(10**6))

    def handle(request: httpx.Request) -> httpx.Response:
        clock.now_s += 0.01
        what = script(next(numbers))
        if what == "lost":
            raise httpx.ConnectError("nobody there")
        path = request.url.raw_path.decode()
        reply = service.handle(request.method, path, dict(request.headers), request.content)
        if what == "unanswered":
            raise httpx.ReadTimeout("too slow")
        return httpx.Response(reply.status, content=reply.body, headers=reply.headers)

    return httpx.MockTransport(handle)


@contextmanager
def on_a_socket(service: FakeService) -> Iterator[str]:
    """Serve on a free port, in real time."""
    lock = threading.Lock()

    def wait(most_s: float, done: Callable[[], bool]) -> None:
        lock.release()
        until = time.monotonic() + most_s
        while not done() and time.monotonic() < until:
            time.sleep(0.005)
        lock.acquire()

    service.wait = wait

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                reply = service.handle(self.command, self.path, dict(self.headers), body)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 1024

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
