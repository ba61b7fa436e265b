"""Prometheus metrics of a service, for its operator only.

The metrics reveal how many clients checked in and when, so reading them requires the operator's
token. A label holds the id of a campaign, the template of a route or a fixed word. It never holds a
client, a token, a receipt or a slot number.

<!-- table of metrics -->
| metric | kind | labels | meaning |
|---|---|---|---|
| checkins_requests_total | counter | route, method, status | requests by status class: 2xx, 4xx |
| checkins_request_seconds | histogram | route | time from request head to end of response |
| checkins_refused_total | counter | reason | requests refused before the app saw them |
| checkins_connections | gauge | | open connections |
| checkins_waiters | gauge | | long polls and event streams waiting now |
| checkins_long_polls_total | counter | outcome | responses: waiting, chosen, dismissed |
| checkins_batch_size | histogram | | writes that one group commit made durable |
| checkins_commit_seconds | histogram | | time of one group commit |
| checkins_slots_closed_total | counter | | slots that this process closed |
| checkins_closing_seconds | histogram | | time from the start of closing a slot to its commit |
| checkins_closing_late_seconds | histogram | | delay from the end of a slot to its closing |
| checkins_clock_off_seconds | gauge | | how far the clock has jumped; 0 if it has not |
| checkins_log_lines_lost_total | counter | | log lines that could not be written |
| checkins_task_restarts_total | counter | task | failures of background tasks, each restarted |
| checkins_campaign_slots_closed | gauge | campaign | slots released so far |
| checkins_campaign_epsilon_spent | gauge | campaign | upper bound on epsilon so far |
| checkins_campaign_epsilon_budget | gauge | campaign | epsilon of the population's budget |
<!-- end of table -->

With several workers, the variable ``PROMETHEUS_MULTIPROC_DIR`` of every worker must name the same
empty folder before this module is imported. ``render`` then returns the sums over all workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

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

disable_created_metrics()  # type: ignore[no-untyped-call]  # they show when a first check-in came

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OUTCOMES = frozenset({"waiting", "chosen", "dismissed"})

_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_CLOSING_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """The metrics of one app. Each app has its own registry, so that apps never collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        live = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        newest = partial(
            Gauge,
            labelnames=("campaign",),
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )
        self._requests = counter(
            "checkins_requests", "Requests answered", ("route", "method", "status")
        )
        self._request_s = histogram(
            "checkins_request_seconds",
            "Time from request head to end of response",
            ("route",),
            buckets=_REQUEST_S,
        )
        self._refused = counter("checkins_refused", "Refused before the app saw it", ("reason",))
        self._connections = live("checkins_connections", "Open connections")
        self.waiters = live("checkins_waiters", "Long polls and event streams waiting")
        self._long_polls = counter("checkins_long_polls", "Long polls answered", ("outcome",))
        self._batch_size = histogram(
            "checkins_batch_size", "Writes that one group commit made durable", buckets=_SIZES
        )
        self._commit_s = histogram("checkins_commit_seconds", "Time of a commit", buckets=_COMMIT_S)
        self._slots = counter("checkins_slots_closed", "Slots that this process closed")
        self._closing_s = histogram(
            "checkins_closing_seconds", "Time to close a slot", buckets=_CLOSING_S
        )
        self._late_s = histogram(
            "checkins_closing_late_seconds",
            "Delay from the end of a slot to its closing",
            buckets=_CLOSING_S,
        )
        self._clock_off = Gauge(
            "checkins_clock_off_seconds",
            "How far the clock has jumped",
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._lines_lost = counter("checkins_log_lines_lost", "Log lines that could not be written")
        self._restarts = counter(
            "checkins_task_restarts", "Failures of background tasks", ("task",)
        )
        campaign = "checkins_campaign_"
        self._campaign_slots = newest(f"{campaign}slots_closed", "Slots released")
        self._campaign_spent = newest(f"{campaign}epsilon_spent", "Upper bound on epsilon so far")
        self._campaign_budget = newest(f"{campaign}epsilon_budget", "Epsilon of the budget")
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Record one request; ``route`` is the template of a route, never a path."""
        key = (route, method if method in METHODS else "other", status // 100)
        known = self._known.get(key)
        if known is None:
            # Looking up a labelled metric takes longer than counting in it.
            counter = self._requests.labels(route, key[1], f"{key[2]}xx")
            known = self._known[key] = (counter, self._request_s.labels(route))
        known[0].inc()
        known[1].observe(seconds)

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

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start = self.clock()
        try:
            await self.app(scope, receive, send_and_note)
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
