"""A TCP proxy before PostgreSQL that can fall silent: it takes every byte and passes none on.

To whoever is connected that is a server whose host is there and whose processes are stopped.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK = 2**16


@dataclass(slots=True)
class Silence:
    """Listens on ``port`` while it is open; ``silent`` may be set and cleared at any time."""

    target: int
    silent: threading.Event = field(default_factory=threading.Event)
    swallowed: threading.Event = field(default_factory=threading.Event)
    """Set once bytes were not passed on, so that a client of the store waits."""
    port: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def open(self) -> Iterator[Silence]:
        """Serve from threads of its own."""
        with socket.create_server(("127.0.0.1", self.port)) as listener:
            self.port = listener.getsockname()[1]
            listener.settimeout(0.05)
            thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                self._over.set()
                thread.join(30)

    def _accept(self, listener: socket.socket) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                line, _ = listener.accept()
                threading.Thread(target=self._pass_on, args=(line,), daemon=True).start()

    def _pass_on(self, line: socket.socket) -> None:
        with (
            line,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.target)) as server,
            selectors.DefaultSelector() as ready,
        ):
            ready.register(line, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, line)
            while not self._over.is_set():
                for key, _ in ready.select(0.05):
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(CHUNK)
                    if not data:
                        return
                    if self.silent.is_set():
                        self.swallowed.set()
                    else:
                        key.data.sendall(data)
