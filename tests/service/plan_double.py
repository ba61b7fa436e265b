"""Stand-ins for the planner: a made-up plan that keeps the contract, a server of the page, and

``python -m tests.service.plan_double``, which answers questions as the planner's process does. It
tells by the question's dimension what to do: 13 refuses, 17 dies, 19 works until interrupted, 23
works on whatever happens.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from math import exp, sqrt
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.service.page_double import CERTIFICATE, KINDS, POLICY
from tests.support.http_server import Handler, http_server

TOML = 'schema = 1\nname = "planned"\n\n[protocol]\nkind = "fixed"\nslots = {slots}\n'


def noise_of(epsilon: float, clients: float, slots: float) -> float:
    return 4.0 / epsilon * sqrt(slots) / clients * (1.0 + slots / 3000.0)


def proxy_of(epsilon: float, clients: float, slots: float) -> float:
    return noise_of(epsilon, clients, slots) + 0.4 / sqrt(slots)


def design(
    *, epsilon: float, delta: float, adjacency: str, clients: float, slots: int, dimension: int
) -> dict[str, Any]:
    """Numbers that move as real ones do, and are no more than that."""
    capacity = max(1, round(0.9 * clients / slots))
    return {
        "label": f"fixed window, {slots:,} slots of {capacity:,}",
        "protocol": "fixed",
        "slots": slots,
        "participation": 1.0,
        "capacity": capacity,
        "window": None,
        "minibatch": 1,
        "repeats": 1,
        "bands": 1,
        "noise_at": "client",
        "randomizer": "gaussian",
        "noise_multiplier": 40.0 / epsilon / sqrt(clients),
        "local_epsilon": None,
        "epsilon": 0.998 * epsilon,
        "delta": delta,
        "adjacency": adjacency,
        "method": "exact-population",
        "proxy": proxy_of(epsilon, clients, slots),
        "proxy_kind": "theorem",
        "noise_per_step": noise_of(epsilon, clients, slots),
        "steps": slots,
        "clients_per_step": float(capacity),
        "dummies_share": 0.08 * exp(-clients / slots / 40),
        "duration_s": 86_400.0,
        "slot_s": 86_400.0 / slots,
        "upload_bytes_per_client": 4.0 * dimension,
        "share_of_clients_that_upload": 0.9,
        "server_updates_per_s": clients / 86_400,
    }


def plan_for(asked: dict[str, str]) -> dict[str, Any]:
    """A plan for a query."""
    low, _, high = asked["population"].partition("..")
    n = sqrt(int(low) * int(high or low))
    epsilon, delta = float(asked["epsilon"]), float(asked["delta"])
    shared: dict[str, Any] = {
        "delta": delta,
        "adjacency": asked["adjacency"],
        "dimension": int(asked.get("dimension", 14)),
    }
    counts = [round(10 ** (1 + 3 * i / 18)) for i in range(19)]
    best = min(counts, key=lambda slots: proxy_of(epsilon, n, slots))
    slots = int(asked.get("slots", best))
    recommended = design(epsilon=epsilon, clients=n, slots=slots, **shared)
    front = [recommended]
    for factor in (0.25, 0.5, 2, 4):
        other = design(epsilon=epsilon, clients=n, slots=max(1, round(slots * factor)), **shared)
        other["upload_bytes_per_client"] *= (1 / factor) ** 0.3
        other["share_of_clients_that_upload"] = 0.9 / (1 + 0.2 * factor)
        front.append(other)
    budgets = [epsilon * 10 ** ((i - 6) / 6) for i in range(13)]
    return {
        "question": {
            "population": [int(low), int(high or low)],
            "epsilon": epsilon,
            **shared,
            "devices": {},
            "server": {},
            "fixed": {},
        },
        "recommended": recommended,
        "front": sorted(front, key=lambda one: one["proxy"]),
        "reasons": [
            {
                "sentence": "Each client draws its slot itself, so releases are amplified without"
                " anyone being called.",
                "theorem": "docs/theory/one-likelihood-ratio.md",
            },
            {
                "sentence": f"{slots:,} slots balance steps against noise: with more, each step"
                " averages fewer reports.",
                "theorem": "paper, Theorem 3.5",
            },
        ],
        "sensitivity": [
            {
                "population": round(n * factor),
                "factor": factor,
                "proxy": proxy_of(epsilon, n * factor, slots),
                "dummies_share": 0.4 if factor < 1 else 0.02,
                "epsilon": epsilon,
                "sentence": f"With {n * factor:,.0f} clients the noise of one step stays"
                f" {noise_of(epsilon, n, slots):.3g} clips, and dummies fill the slots.",
            }
            for factor in (0.5, 1, 2)
        ],
        "curves": {
            "slots": [
                {
                    "slots": one,
                    "noise_multiplier": 1.0,
                    "noise_per_step": noise_of(epsilon, n, one),
                    "dummies_share": 0.01,
                    "proxy": proxy_of(epsilon, n, one),
                }
                for one in sorted({*counts, slots})
            ],
            "budget": [
                {
                    "epsilon": one,
                    "noise_per_step": noise_of(one, n, slots),
                    "proxy": proxy_of(one, n, slots),
                }
                for one in budgets
            ],
        },
        "campaign": TOML.format(slots=slots),
        "certificate": {**CERTIFICATE, "epsilon": 0.998 * epsilon, "delta": delta},
        "seconds": 0.31,
        "versions": {"checkins": "0"},
    }


@dataclass
class Double:
    """A server of the page whose answers a test decides."""

    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """What to say instead, each once: status, body, headers."""
    changes: dict[str, Any] = field(default_factory=dict)
    held: threading.Event = field(default_factory=threading.Event)
    """Answers wait while it is not set."""


@contextmanager
def planning() -> Iterator[Double]:
    """The page, served with made-up plans."""
    double = Double()
    double.held.set()

    class OfPage(Handler):
        def answer(self) -> None:
            path, query = urlsplit(self.path).path, urlsplit(self.path).query
            if path == "/plan/answer":
                self.plan(query)
                return
            name = "plan.html" if path == "/plan" else path.removeprefix("/page/")
            place = files("checkins.service") / "page" / name
            found = "/" not in name and place.is_file()
            body = place.read_bytes() if found else b""
            kind = KINDS.get(name.rpartition(".")[2], "text/plain")
            self.page(200 if found else 404, body, kind)

        def plan(self, query: str) -> None:
            texts = parse_qs(query, keep_blank_values=True)
            asked = {name: values[0] for name, values in texts.items()}
            double.asked.append(asked)
            assert double.held.wait(60)
            if double.answers:
                status, body, headers = double.answers.pop(0)
                self.page(status, json.dumps(body).encode(), "application/problem+json", headers)
                return
            plan = plan_for(asked) | double.changes
            self.page(200, json.dumps(plan).encode(), "application/json")

        def page(
            self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
        ) -> None:
            own = {"content-type": kind, "content-security-policy": POLICY}
            with suppress(OSError):  # the page has asked something else meanwhile
                self.say(status, body, own | (headers or {}))

    with http_server(OfPage) as double.url:
        try:
            yield double
        finally:
            double.held.set()


class Interrupted(BaseException):
    pass


def main() -> None:
    busy = False

    def interrupt(*_: object) -> None:
        nonlocal busy
        if busy:
            busy = False
            raise Interrupted

    signal.signal(signal.SIGUSR1, interrupt)
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        told = None
        if question["dimension"] == 17:
            sys.exit(1)
        if question["dimension"] == 13:
            told = {"invalid": ["slots", 7, "must be what this double wants"]}
        if question["dimension"] == 29:
            told = {"invalid": ["duration_s", 86400.0, "leaves no time"]}
        if question["dimension"] in (19, 23):
            busy = question["dimension"] == 19
            try:
                time.sleep(600)
            except Interrupted:
                told = {"interrupted": True}
            busy = False
        if told is None:
            low, high = question["population"]
            plain = {key: str(value) for key, value in question.items()}
            told = {"plan": plan_for({**plain, "population": f"{low}..{high}"})}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
