"""Prometheus metrics of a service, for its operator only.

They count requests, and so check-ins, over time: keep them behind the operator's token. No label
carries a client, a token, a receipt or a slot number; a campaign's id and a route's template do.

<!-- table of metrics -->
| metric | kind | labels | meaning |
|---|---|---|---|
| checkins_requests_total | counter | route, method, status | requests by status class: 2xx, 4xx |
| checkins_request_seconds | histogram | route | from head to whole answer, waits included |
| checkins_refused_total | counter | reason | what was refused before the app saw it |
| checkins_connections | gauge | | open connections |
| checkins_waiters | gauge | | long polls and event streams waiting now |
| checkins_long_polls_total | counter | outcome | answers: waiting, chosen, dismissed |
| checkins_batch_size | histogram | | writes that one group commit made durable |
| checkins_commit_seconds | histogram | | time of one group commit |
| checkins_slots_closed_total | counter | | slots this process closed |
| checkins_closing_seconds | histogram | | time from the start of closing a slot to its commit |
| checkins_closing_late_seconds | histogram | | how long after its end a slot was closed |
| checkins_clock_off_seconds | gauge | | by how much the clock jumped, while it holds; else 0 |
| checkins_log_lines_lost_total | counter | | log lines that could not be written |
| checkins_task_restarts_total | counter | task | background tasks that died, each started again |
| checkins_campaign_slots_closed | gauge | campaign | slots released so far |
| checkins_campaign_epsilon_spent | gauge | campaign | upper bound of the epsilon spent so far |
| checkins_campaign_epsilon_budget | gauge | campaign | epsilon the population's budget allows |
<!-- end of table -->

With several workers, ``PROMETHEUS_MULTIPROC_DIR`` must name an empty folder before this module is
imported, in every worker; ``render`` then adds up all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

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

from checkins.service.http.request_limits import App, Message, Receive, Scope, Send

disable_created_metrics()  # type: ignore[no-untyped-call]  # the moment of a first check-in

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OUTCOMES = frozenset({"waiting", "chosen", "dismissed"})

_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_CLOSING_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """The metrics of one app; each has a registry of its own, so that apps never collide."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "checkins_requests",
            "Requests answered",
            ("route", "method", "status"),
            registry=registry,
        )
        self._request_s = Histogram(
            "checkins_request_seconds",
            "Time from head to whole answer",
            ("route",),
            buckets=_REQUEST_S,
            registry=registry,
        )
        self._refused = Counter(
            "checkins_refused", "Refused before the app saw it", ("reason",), registry=registry
        )
        self._connections = _live("checkins_connections", "Open connections", registry)
        self.waiters = _live("checkins_waiters", "Long polls and event streams waiting", registry)
        self._long_polls = Counter(
            "checkins_long_polls", "Long polls answered", ("outcome",), registry=registry
        )
        self._batch_size = Histogram(
            "checkins_batch_size",
            "Writes that one group commit made durable",
            buckets=_SIZES,
            registry=registry,
        )
        self._commit_s = Histogram(
            "checkins_commit_seconds", "Time of a commit", buckets=_COMMIT_S, registry=registry
        )
        self._slots = Counter(
            "checkins_slots_closed", "Slots this process closed", registry=registry
        )
        self._closing_s = Histogram(
            "checkins_closing_seconds",
            "Time to close a slot",
            buckets=_CLOSING_S,
            registry=registry,
        )
        self._late_s = Histogram(
            "checkins_closing_late_seconds",
            "How long after its end a slot was closed",
            buckets=_CLOSING_S,
            registry=registry,
        )
        self._clock_off = Gauge(
            "checkins_clock_off_seconds",
            "By how much the clock jumped",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._lines_lost = Counter(
            "checkins_log_lines_lost", "Log lines that could not be written", registry=registry
        )
        self._restarts = Counter(
            "checkins_task_restarts",
            "Background tasks that died and were started again",
            ("task",),
            registry=registry,
        )
        self._campaign_slots = _of_campaign("slots_closed", "Slots released", registry)
        self._campaign_spent = _of_campaign(
            "epsilon_spent", "Upper bound of the epsilon spent", registry
        )
        self._campaign_budget = _of_campaign("epsilon_budget", "Epsilon of the budget", registry)
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """One request was answered; ``route`` is a template, never a path."""
        key = (route, method if method in METHODS else "other", status // 100)
        known = self._known.get(key)
        if known is None:
            # Looking a labelled metric up costs more than counting in it.
            counter = self._requests.labels(route, key[1], f"{key[2]}xx")
            known = self._known[key] = (counter, self._request_s.labels(route))
        known[0].inc()
        known[1].observe(seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal before the app was called; ``reason`` is one of a few fixed words."""
        self._refused.labels(reason).inc()

    def connections(self, number: int) -> None:
        """So many connections are open now in this process."""
        self._connections.set(number)

    def clock_off(self, seconds: float) -> None:
        """The clock holds because the calendar jumped by so much; 0: it does not hold."""
        self._clock_off.set(seconds)

    def long_poll(self, outcome: str) -> None:
        """A long poll was answered."""
        self._long_polls.labels(outcome if outcome in OUTCOMES else "other").inc()

    def committed(self, *, writes: int, seconds: float) -> None:
        """One group commit made so many writes durable."""
        self._batch_size.observe(writes)
        self._commit_s.observe(seconds)

    def slot_closed(self, *, seconds: float, late_s: float) -> None:
        """This process closed a slot, ``late_s`` after the slot's end."""
        self._slots.inc()
        self._closing_s.observe(seconds)
        self._late_s.observe(max(0.0, late_s))

    def log_line_lost(self) -> None:
        """A line of the log could not be written."""
        self._lines_lost.inc()

    def task_restarted(self, kind: str) -> None:
        """A background task died and is started again; ``kind`` is one of a few fixed words."""
        self._restarts.labels(kind).inc()

    def campaign(
        self, campaign: str, *, slots_closed: int, epsilon_spent: float, epsilon_budget: float
    ) -> None:
        """Where a campaign stands; ``campaign`` is its public id."""
        self._campaign_slots.labels(campaign).set(slots_closed)
        self._campaign_spent.labels(campaign).set(epsilon_spent)
        self._campaign_budget.labels(campaign).set(epsilon_budget)

    def render(self) -> tuple[bytes, str]:
        """Return the metrics of all workers in Prometheus format, and their content type."""
        registry = self.registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


class RequestMetrics:
    """ASGI middleware that counts and times each request under its route's template."""

    def __init__(
        self, app: App, *, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start = self.clock()
        try:
            await self.app(scope, receive, noting)
        finally:
            self.metrics.request(
                route=template(scope),
                method=scope["method"],
                status=status,
                seconds=self.clock() - start,
            )


def template(scope: Scope) -> str:
    """Return the template of the route of a request; ``NO_ROUTE`` if no route matched."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else NO_ROUTE


def forget_worker(process_id: int) -> None:
    """Remove the gauges of a worker process that has ended."""
    if FOLDER in os.environ:
        mark_process_dead(process_id)  # type: ignore[no-untyped-call]


def _live(name: str, meaning: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(name, meaning, registry=registry, multiprocess_mode="livesum")


def _of_campaign(name: str, meaning: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(
        f"checkins_campaign_{name}",
        meaning,
        ("campaign",),
        registry=registry,
        multiprocess_mode="mostrecent",
    )
