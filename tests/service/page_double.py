"""A stand-in for the coordinator: the page's files, and made-up answers that keep the wire.

A test says what happens and when: nothing here has a clock of its own, but for
``python -m tests.service.page_double``, which plays a campaign for a person to look at.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.resources import files
from math import exp
from typing import Any

from tests.support.http_server import Handler, http_server

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'"
)
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
CERTIFICATE = {
    "epsilon": 0.2505022389725925,
    "epsilon_lower": 0.2502631852099479,
    "delta": 1e-06,
    "adjacency": "add-remove",
    "unit": "one client's whole contribution",
    "method": "exact-population",
    "rounding": "epsilon is rounded up, epsilon_lower down",
    "assumptions": [
        "the server is trusted, clients are honest, their channels hidden; every release is seen",
        "each client takes part with probability at most 1 and draws its slot uniformly from 200,"
        " independently of all else",
        "updates are clipped, and the Gaussian noise is drawn exactly on the declared grid",
        "every slot sums exactly 176 reports, dummies included",
        "clients do not disclose whether they were chosen",
        "at most 20,000 clients exist, each of which checks in to any one slot with probability"
        " at most 1.0/200",
    ],
    "alternatives": [
        {
            "method": "exact",
            "epsilon": 2.6237897294840318,
            "note": "holds for any number of clients and any model",
            "proves": True,
        },
        {
            "method": "poisson",
            "epsilon": 0.28314619581400474,
            "note": "a server samples each client with probability 0.005 in each of 200 steps",
            "proves": False,
        },
    ],
}


def hash_of(text: object) -> str:
    return sha256(str(text).encode()).hexdigest()


def moment(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass
class Run:
    """One campaign as its server would tell of it; ``changes`` are laid over the view."""

    name: str = "patients"
    slots: int = 200
    slot_s: float = 3600.0
    choose_s: float = 1200.0
    closed: int = 0
    status: str = "running"
    start_in_s: float = -60.0
    ahead_s: float = 0.0
    """How far the server's clock is ahead of everyone else's."""
    curve_every: int | None = 5
    affordable: int | None = None
    task: Mapping[str, Any] = field(
        default_factory=lambda: {"data": "patients", "model": "logistic"}
    )
    changes: dict[str, Any] = field(default_factory=dict)
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = self.now() + timedelta(seconds=self.start_in_s)
        self.seal = hash_of(self.name)
        self.id = f"{self.seal[:12]}-1"

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def epsilon_after(self, slots: int) -> float:
        return CERTIFICATE["epsilon"] * (slots / self.slots) ** 0.46

    def spending(self) -> list[dict[str, Any]]:
        step = max(1, self.slots // 40)
        counts = sorted({1, *range(step, self.slots + 1, step), self.slots})
        return [{"slots": count, "epsilon": self.epsilon_after(count)} for count in counts]

    def spent(self) -> dict[str, Any] | None:
        if self.closed == 0:
            return None
        return next(one for one in self.spending() if one["slots"] >= self.closed)

    def metrics(self, slots: int) -> dict[str, float]:
        learned = 1.0 - exp(-8.0 * slots / self.slots)
        wobble = int(hash_of((self.name, slots))[:4], 16) / 65536 - 0.5
        return {
            "auc": 0.5 + 0.34 * learned + 0.02 * wobble * (slots > 0),
            "accuracy": 0.62 + 0.19 * learned + 0.01 * wobble,
            "loss": 0.6931 - 0.25 * learned + 0.01 * wobble * (slots > 0),
        }

    def curve(self) -> list[dict[str, Any]]:
        if self.curve_every is None:
            return []
        return [
            {"slots": slots, "metrics": self.metrics(slots)}
            for slots in range(0, self.closed + 1, self.curve_every)
        ]

    def head(self) -> str:
        return hash_of((self.name, "head", self.closed))

    def model_hash(self) -> str:
        return hash_of((self.name, "model", self.closed))

    def canonical(self) -> str:
        return json.dumps(
            {
                "budget": {"adjacency": "add-remove", "delta": 1e-06, "epsilon": 0.5},
                "name": self.name,
                "population_id": "clinic",
                "protocol": {"capacity": 176, "kind": "fixed", "slots": self.slots},
                "randomizer": {"kind": "gaussian", "noise_at": "client"},
                "task": dict(self.task),
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    def summary(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "run": 1,
            "repeats": 1,
            "slots": self.slots,
            "slots_closed": self.closed,
            "start": moment(self.start),
            "slot_s": self.slot_s,
        }

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "seal": f"sha256:{self.seal}",
            "population_id": "clinic",
            "run": 1,
            "repeats": 1,
            "status": self.status,
            "campaign": self.canonical(),
            "schedule": {
                "start": moment(self.start),
                "slot_s": self.slot_s,
                "choose_s": self.choose_s,
                "slots": self.slots,
            },
            "server_time": moment(self.now()),
            "slots_closed": self.closed,
            "affordable": self.slots if self.affordable is None else self.affordable,
            "dimension": 31,
            "tensors": [{"name": "weights", "shape": [30]}, {"name": "bias", "shape": [1]}],
            "model_hash": self.model_hash(),
            "ledger": {"entries": 1 + self.closed, "head": self.head()},
            "epoch": 1,
            "budget": {"epsilon": 0.5, "delta": 1e-06, "adjacency": "add-remove"},
            "certificate": CERTIFICATE,
            "spent": self.spent(),
            "promises": [
                "Your data stays on your device; one report leaves it, clipped and with noise.",
                "Your token is spent at your check-in, whether you were chosen or not.",
            ],
            "assumptions": [
                *CERTIFICATE["assumptions"],
                "The learning curve is measured on a public holdout: it is not protected.",
            ],
            "next": None,
        } | self.changes

    def progress(self) -> dict[str, Any]:
        latest = range(max(1, self.closed - 199), self.closed + 1)
        return {
            "curve": self.curve(),
            "spending": self.spending(),
            "releases": [{"slot": i, "model_hash": hash_of((self.name, i))} for i in latest],
        }


@dataclass
class Double:
    """The stand-in server. What happens to a run is said with ``release``, ``end``, ``tell``."""

    runs: list[Run]
    port: int = 0
    asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.listeners: list[tuple[str, queue.Queue[bytes | None]]] = []
        self.lock = threading.Lock()
        self.server = ExitStack()
        self.answers = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"double": self})
        url = self.server.enter_context(http_server(handler, self.port))
        self.port, self.answers = int(url.rpartition(":")[2]), True

    def stop(self) -> None:
        """Gone, as after a crash: nobody answers, and every stream ends."""
        self.answers = False
        self.server.close()
        with self.lock:
            for _, stream in self.listeners:
                stream.put(None)
            self.listeners.clear()

    def run(self, wanted: str) -> Run | None:
        return next((run for run in self.runs if run.id == wanted), None)

    def state(self, run: Run) -> dict[str, Any]:
        """What an event of this name says."""
        return {
            "slots_closed": run.closed,
            "model_hash": run.model_hash(),
            "head": run.head(),
            "entries": 1 + run.closed,
            "spent": run.spent(),
        }

    def release(self, run: Run, *, told: bool = True) -> None:
        run.closed += 1
        if not told:
            return
        self.tell(run, "release", {"slot": run.closed, **self.state(run)})
        if run.curve_every is not None and run.closed % run.curve_every == 0:
            point = {"slots": run.closed, "metrics": run.metrics(run.closed)}
            self.tell(run, "curve", point)

    def end(self, run: Run, status: str = "completed") -> None:
        run.status = status
        self.tell(run, "status", {"status": status})

    def tell(self, run: Run, event: str, data: Mapping[str, Any]) -> None:
        text = f"id: {run.closed}\nevent: {event}\ndata: {json.dumps(data)}\n\n"
        with self.lock:
            for wanted, stream in self.listeners:
                if wanted == run.id:
                    stream.put(text.encode())

    def listen(self, run: Run) -> queue.Queue[bytes | None]:
        stream: queue.Queue[bytes | None] = queue.Queue()
        with self.lock:
            self.listeners.append((run.id, stream))
        return stream


class _Handler(Handler):
    protocol_version = "HTTP/1.1"
    double: Double

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        self.double.asked[path] += 1
        if not self.double.answers:  # an old connection, after the crash
            self.close_connection = True
            return
        try:
            self._answer(path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, path: str) -> None:
        match path.strip("/").split("/"):
            case [""]:
                self._file("index.html")
            case ["page", name]:
                self._file(name)
            case ["campaigns"]:
                self._json({"campaigns": [run.summary() for run in self.double.runs]})
            case ["campaigns", wanted, *rest] if run := self.double.run(wanted):
                self._campaign(run, rest)
            case ["campaigns", *_]:
                problem = {"type": "urn:checkins:unknown-campaign", "status": 404}
                self._json(problem, status=404)
            case _:
                self._json({"type": "about:blank", "status": 404}, status=404)

    def _campaign(self, run: Run, rest: list[str]) -> None:
        match rest:
            case []:
                self._json(run.view())
            case ["progress"]:
                self._json(run.progress())
            case ["events"]:
                self._stream(run)
            case ["ledger"]:
                self._send(b'{"entry":1}\n', "application/x-ndjson")
            case _:
                self._json({"type": "about:blank", "status": 404}, status=404)

    def _file(self, name: str) -> None:
        found = files("checkins.service").joinpath("page", name)
        if not found.is_file():
            self._json({"type": "about:blank", "status": 404}, status=404)
            return
        self._send(found.read_bytes(), f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8")

    def _json(self, value: object, *, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status=status)

    def _head(self, kind: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")

    def _send(self, body: bytes, kind: str, *, status: int = 200) -> None:
        self._head(kind, status=status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, run: Run) -> None:
        stream = self.double.listen(run)
        self._head("text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b": welcome\n\n")
        self.wfile.flush()
        self.close_connection = True
        while (said := stream.get()) is not None:
            self.wfile.write(said)
            self.wfile.flush()


@contextmanager
def running(*runs: Run) -> Iterator[Double]:
    double = Double(list(runs))
    double.start()
    try:
        yield double
    finally:
        double.stop()


def _play(slots: int, slot_s: float) -> None:
    run = Run(slots=slots, slot_s=slot_s, choose_s=0.3 * slot_s, start_in_s=5.0, status="waiting")
    with running(run) as double:
        print(double.url)
        for slot in range(1, slots + 1):
            due = run.start + timedelta(seconds=slot * slot_s)
            time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
            run.status = "running"
            double.release(run)
        double.end(run)
        input("over; enter to leave")


if __name__ == "__main__":
    _play(int(sys.argv[1]), float(sys.argv[2]))
