"""Prometheus metrics of a service, for its operator only.

The metrics reveal how many clients checked in and when, so reading them requires the operator's
token. A label holds the id of a campaign, the template of a route or a fixed word. It never holds a
client, a token, a receipt or a slot number.

With several workers, the variable ``PROMETHEUS_MULTIPROC_DIR`` of every worker must name the same
empty folder before this module is imported. ``render`` then returns the sums over all workers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

disable_created_metrics()  # type: ignore[no-untyped-call]  # they show when a first check-in came

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OUTCOMES = frozenset({"waiting", "chosen", "dismissed"})

Kind = TypeVar("Kind", Counter, Gauge, Histogram)
_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_CLOSING_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """The metrics of one app. Each app has its own registry, so that apps never collide.

    ``descriptions`` holds the type, name, labels and meaning of each metric, for the documentation.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.descriptions: list[tuple[type, str, list[str], str]] = []
        counter, histogram = partial(self._add, Counter), partial(self._add, Histogram)
        live = partial(self._add, Gauge, multiprocess_mode="livesum")
        newest = partial(self._add, Gauge, multiprocess_mode="mostrecent")
        self._requests = counter(
            "requests_total{route,method,status}", "requests by status class: 2xx, 4xx"
        )
        self._request_s = histogram(
            "request_seconds{route}",
            "time from request head to end of response",
            buckets=_REQUEST_S,
        )
        self._refused = counter("refused_total{reason}", "requests refused before the app saw them")
        self._connections = live("connections", "open connections")
        self.waiters = live("waiters", "long polls and event streams waiting now")
        self._long_polls = counter(
            "long_polls_total{outcome}", "responses: waiting, chosen, dismissed"
        )
        self._batch_size = histogram(
            "batch_size", "writes that one group commit made durable", buckets=_SIZES
        )
        self._commit_s = histogram("commit_seconds", "time of one group commit", buckets=_COMMIT_S)
        self._slots = counter("slots_closed_total", "slots that this process closed")
        seconds = "time from the start of closing a slot to its commit"
        self._closing_s = histogram("closing_seconds", seconds, buckets=_CLOSING_S)
        late = "delay from the end of a slot to its closing"
        self._late_s = histogram("closing_late_seconds", late, buckets=_CLOSING_S)
        jump = "how far the clock has jumped; 0 if it has not"
        self._clock_off = self._add(Gauge, "clock_off_seconds", jump, multiprocess_mode="livemax")
        self._lines_lost = counter("log_lines_lost_total", "log lines that could not be written")
        self._restarts = counter(
            "task_restarts_total{task}", "failures of background tasks, each restarted"
        )
        self._campaign_slots = newest("campaign_slots_closed{campaign}", "slots released so far")
        self._campaign_spent = newest(
            "campaign_epsilon_spent{campaign}", "upper bound on epsilon so far"
        )
        self._campaign_budget = newest(
            "campaign_epsilon_budget{campaign}", "epsilon of the population's budget"
        )
        self._labelled: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def _add(self, kind: type[Kind], name: str, meaning: str, **options: Any) -> Kind:
        """Create a metric. ``name`` lacks the prefix, and lists the labels in braces."""
        name, *labels = re.findall(r"\w+", f"checkins_{name}")
        self.descriptions.append((kind, name, labels, meaning))
        return kind(name, meaning, labels, registry=self.registry, **options)

    def request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Record one request; ``route`` is the template of a route, never a path."""
        key = (route, method if method in METHODS else "other", status // 100)
        labelled = self._labelled.get(key)
        if labelled is None:
            # Looking up a labelled metric takes longer than counting in it.
            counter = self._requests.labels(route, key[1], f"{key[2]}xx")
            labelled = self._labelled[key] = (counter, self._request_s.labels(route))
        labelled[0].inc()
        labelled[1].observe(seconds)

    def refused(self, reason: str) -> None:
        """Count a request that was refused before it reached the app; ``reason`` is fixed."""
        self._refused.labels(reason).inc()

    def connections(self, number: int) -> None:
        self._connections.set(number)

    def clock_off(self, seconds: float) -> None:
        """Record how far the calendar clock has jumped; 0 if the clocks agree."""
        self._clock_off.set(seconds)

    def long_poll(self, outcome: str) -> None:
        self._long_polls.labels(outcome if outcome in OUTCOMES else "other").inc()

    def committed(self, writes: int, seconds: float) -> None:
        """Record the number of writes of one group commit, and its duration."""
        self._batch_size.observe(writes)
        self._commit_s.observe(seconds)

    def slot_closed(self, *, seconds: float, late_s: float) -> None:
        """Record that this process closed a slot.

        ``seconds`` is the duration, and ``late_s`` the delay from the slot's end to the start.
        """
        self._slots.inc()
        self._closing_s.observe(seconds)
        self._late_s.observe(max(0.0, late_s))

    def log_line_lost(self) -> None:
        self._lines_lost.inc()

    def task_restarted(self, kind: str) -> None:
        """Count a failure of a background task; ``kind`` is a fixed word."""
        self._restarts.labels(kind).inc()

    def campaign(
        self, campaign: str, *, slots_closed: int, epsilon_spent: float, epsilon_budget: float
    ) -> None:
        """Record the progress of a run; ``campaign`` is its public id."""
        self._campaign_slots.labels(campaign).set(slots_closed)
        self._campaign_spent.labels(campaign).set(epsilon_spent)
        self._campaign_budget.labels(campaign).set(epsilon_budget)

    def render(self) -> tuple[bytes, str]:
        """Return the metrics of all workers in Prometheus format, and the content type."""
        registry = self.registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


class RequestMetrics:
    """ASGI middleware that counts and times each request under its route's template."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start = self.clock()
        try:
            await self.app(scope, receive, record_status)
        finally:
            seconds, method = self.clock() - start, scope["method"]
            self.metrics.request(
                route=template(scope), method=method, status=status, seconds=seconds
            )


def template(scope: Scope) -> str:
    """Return the template of the route that matched a request; ``NO_ROUTE`` if none matched."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else NO_ROUTE


def forget_worker(process_id: int) -> None:
    """Remove the gauges of a worker process that has ended."""
    if FOLDER in os.environ:
        mark_process_dead(process_id)  # type: ignore[no-untyped-call]
