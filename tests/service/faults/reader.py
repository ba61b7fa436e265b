"""Someone who watches: every release and every ledger line that was ever shown, as it was shown."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from tests.support.journal import Event, Note

READER = -1


@dataclass(slots=True)
class Reader:
    """Listens to the events, reads the ledger as it grows, and asks for the latest model."""

    url: str
    campaign: str
    notes: list[Note] = field(default_factory=list)
    ledger: bytearray = field(default_factory=bytearray)
    entries: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the campaign is over, as the service says."""
    slots_closed: int = 0
    epochs: list[int] = field(default_factory=list)
    pause_s: float = 0.25

    @contextlib.contextmanager
    def watching(self) -> Iterator[Reader]:
        stop = threading.Event()
        threads = [
            threading.Thread(target=work, args=(stop,), daemon=True)
            for work in (self._follow_ledger, self._listen)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)

    def finish(self) -> list[bytes]:
        """The whole ledger at the end, by its lines."""
        with httpx.Client(base_url=self.url, timeout=60) as http:
            answer = http.get(f"/campaigns/{self.campaign}/ledger").raise_for_status()
            self._look(http)
            return answer.content.splitlines(keepends=True)

    def _follow_ledger(self, stop: threading.Event) -> None:
        with httpx.Client(base_url=self.url, timeout=20) as http:
            while not stop.wait(self.pause_s):
                with contextlib.suppress(httpx.TransportError, httpx.HTTPStatusError):
                    self._read_ledger(http)
                    self._look(http)

    def _read_ledger(self, http: httpx.Client) -> None:
        answer = http.get(f"/campaigns/{self.campaign}/ledger", params={"after": self.entries})
        answer.raise_for_status()
        assert answer.content.endswith(b"\n") or not answer.content, "a line was cut"
        self.ledger += answer.content
        self.entries += answer.content.count(b"\n")

    def _look(self, http: httpx.Client) -> None:
        latest = http.get(f"/campaigns/{self.campaign}/models/latest").raise_for_status()
        said = json.loads(latest.content[8 : 8 + int.from_bytes(latest.content[:8], "little")])
        told = said["__metadata__"]
        self._saw(int(told["slot"]), str(told["model_hash"]))
        view = http.get(f"/campaigns/{self.campaign}").raise_for_status().json()
        self.slots_closed = max(self.slots_closed, int(view["slots_closed"]))
        self.epochs.append(int(view["epoch"]))
        if view["status"] in ("completed", "stopped"):
            self.over.set()

    def _listen(self, stop: threading.Event) -> None:
        timeout = httpx.Timeout(5.0, read=2.0)
        with httpx.Client(base_url=self.url, timeout=timeout) as http:
            while not stop.is_set():
                with (
                    contextlib.suppress(httpx.TransportError),
                    http.stream("GET", f"/campaigns/{self.campaign}/events") as stream,
                ):
                    self._hear(stream, stop)
                stop.wait(self.pause_s)

    def _hear(self, stream: httpx.Response, stop: threading.Event) -> None:
        kind = ""
        for line in stream.iter_lines():
            if stop.is_set():
                return
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            elif line.startswith("data:") and kind == "release":
                told = json.loads(line.removeprefix("data:"))
                self._saw(int(told["slot"]), str(told["model_hash"]))

    def _saw(self, slot: int, model_hash: str) -> None:
        self.notes.append(Note(READER, Event.RELEASED, slot=slot, model_hash=model_hash))
