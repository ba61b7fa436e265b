"""Prometheus metrics of a service, for its operator only.

The metrics reveal how many clients checked in and when, so reading them requires the operator's
token. The value of a label is the id of a run, the template of a route such as /campaigns/{run}, or
a fixed word. It is never a client, a token, a receipt or a slot number.

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

# A metric's creation time would show when the first check-in came.
disable_created_metrics()  # type: ignore[no-untyped-call]

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder in which worker processes share their metrics."""
NO_ROUTE = "none"
"""Label of requests that match no route."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
"""HTTP methods that are used as labels. All other methods have the label ``other``."""
OUTCOMES = frozenset({"waiting", "chosen", "dismissed"})
"""Outcomes of a long poll that are used as labels."""

MetricType = TypeVar("MetricType", Counter, Gauge, Histogram)
_REQUEST_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
)
_COMMIT_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_CLOSING_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCH_SIZE_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """The metrics of one app. Each app has a separate registry, so several apps do not collide.

    ``descriptions`` holds the type, name, labels and meaning of each metric, for the documentation.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.descriptions: list[tuple[type, str, list[str], str]] = []
        counter, histogram = partial(self._add, Counter), partial(self._add, Histogram)
        sum_gauge = partial(self._add, Gauge, multiprocess_mode="livesum")
        latest_gauge = partial(self._add, Gauge, multiprocess_mode="mostrecent")
        self._requests = counter(
            "requests_total{route,method,status}", "requests by status class: 2xx, 4xx"
        )
        self._request_s = histogram(
            "request_seconds{route}",
            "time from the head of a request to the end of its response",
            buckets=_REQUEST_BUCKETS_S,
        )
        self._refused = counter("refused_total{reason}", "requests refused by limits or for load")
        self._connections = sum_gauge("connections", "open connections")
        self.waiters = sum_gauge("waiters", "long polls and event streams waiting now")
        self._long_polls = counter(
            "long_polls_total{outcome}",
            "responses to long polls by outcome: waiting, chosen, dismissed",
        )
        self._batch_size = histogram(
            "batch_size", "writes that one group commit made durable", buckets=_BATCH_SIZE_BUCKETS
        )
        self._commit_s = histogram(
            "commit_seconds", "time of one group commit", buckets=_COMMIT_BUCKETS_S
        )
        self._slots_closed = counter("slots_closed_total", "slots that this process closed")
        duration = "time from the start of closing a slot to its commit"
        self._closing_s = histogram("closing_seconds", duration, buckets=_CLOSING_BUCKETS_S)
        lateness = "time from the end of a slot to the start of closing it"
        self._closing_lateness_s = histogram(
            "closing_late_seconds", lateness, buckets=_CLOSING_BUCKETS_S
        )
        self._slot_lateness_s = latest_gauge(
            "slot_late_seconds",
            "how late the next step of a run is now; the largest of all runs; 0 if none is late",
        )
        self._free_bytes = latest_gauge(
            "store_free_bytes", "free space on the disk of a SQLite store; NaN with PostgreSQL"
        )
        jump = "how far the calendar clock has jumped; 0 if it has not jumped"
        self._clock_jump = self._add(Gauge, "clock_off_seconds", jump, multiprocess_mode="livemax")
        self._certificate_expiry = latest_gauge(
            "certificate_expiry_timestamp_seconds",
            "when the TLS certificate expires, in seconds since 1970; 0 with plain HTTP",
        )
        self._lost_lines = counter("log_lines_lost_total", "log lines that could not be written")
        self._task_restarts = counter(
            "task_restarts_total{task}",
            "failures of background tasks; a task is restarted after a failure",
        )
        self._run_slots = latest_gauge("campaign_slots_closed{campaign}", "slots released so far")
        self._run_epsilon_spent = latest_gauge(
            "campaign_epsilon_spent{campaign}", "upper bound on epsilon so far"
        )
        self._run_epsilon_budget = latest_gauge(
            "campaign_epsilon_budget{campaign}", "epsilon of the population's budget"
        )
        self._request_metrics: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def _add(self, kind: type[MetricType], name: str, meaning: str, **options: Any) -> MetricType:
        """Create a metric. ``name`` is given without ``checkins_``, with its labels in braces."""
        name, *labels = re.findall(r"\w+", f"checkins_{name}")
        self.descriptions.append((kind, name, labels, meaning))
        return kind(name, meaning, labels, registry=self.registry, **options)

    def record_request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Record one request; ``route`` is the template of a route, never a path."""
        key = (route, method if method in METHODS else "other", status // 100)
        metrics = self._request_metrics.get(key)
        if metrics is None:
            # The metrics are cached, because looking them up by label takes longer than counting.
            counter = self._requests.labels(route, key[1], f"{key[2]}xx")
            metrics = self._request_metrics[key] = (counter, self._request_s.labels(route))
        metrics[0].inc()
        metrics[1].observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count a request that was refused by a limit, or because of too much load.

        ``reason`` is a fixed word, and never text from the request.
        """
        self._refused.labels(reason).inc()

    def set_connections(self, number: int) -> None:
        self._connections.set(number)

    def set_clock_jump(self, seconds: float) -> None:
        """Record how far the calendar clock has jumped; 0 if it has not jumped."""
        self._clock_jump.set(seconds)

    def set_slot_lateness(self, seconds: float) -> None:
        """Record how late the next step of a slot is now."""
        self._slot_lateness_s.set(max(0.0, seconds))

    def set_free_bytes(self, size: float) -> None:
        """Record the free space on the disk of the store; NaN if it is unknown."""
        self._free_bytes.set(size)

    def set_certificate_expiry(self, moment: float) -> None:
        """Record when the TLS certificate expires, in seconds since 1970."""
        self._certificate_expiry.set(moment)

    def count_long_poll(self, outcome: str) -> None:
        self._long_polls.labels(outcome if outcome in OUTCOMES else "other").inc()

    def record_commit(self, writes: int, seconds: float) -> None:
        """Record the number of writes of one group commit, and its duration."""
        self._batch_size.observe(writes)
        self._commit_s.observe(seconds)

    def record_slot_closed(self, *, seconds: float, lateness_s: float) -> None:
        """Record that closing a slot took ``seconds`` and began ``lateness_s`` after its end."""
        self._slots_closed.inc()
        self._closing_s.observe(seconds)
        self._closing_lateness_s.observe(max(0.0, lateness_s))

    def count_lost_log_line(self) -> None:
        self._lost_lines.inc()

    def count_task_restart(self, task: str) -> None:
        """Count a failure of a background task; ``task`` is a fixed word."""
        self._task_restarts.labels(task).inc()

    def record_run(
        self, run: str, *, slots_closed: int, epsilon_spent: float, epsilon_budget: float
    ) -> None:
        """Record the progress of a run; ``run`` is its public id."""
        self._run_slots.labels(run).set(slots_closed)
        self._run_epsilon_spent.labels(run).set(epsilon_spent)
        self._run_epsilon_budget.labels(run).set(epsilon_budget)

    def render(self) -> tuple[bytes, str]:
        """Return the metrics of all workers in Prometheus format, and the content type."""
        registry = self.registry
        if FOLDER_VARIABLE in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


class RequestMetrics:
    """ASGI middleware that counts and times each request under the template of its route."""

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
            self.metrics.record_request(
                route=route_template(scope), method=method, status=status, seconds=seconds
            )


def route_template(scope: Scope) -> str:
    """Return the template of the route that matched a request; ``NO_ROUTE`` if none matched."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else NO_ROUTE


def forget_worker(process_id: int) -> None:
    """Remove the gauges of a worker process that has ended."""
    if FOLDER_VARIABLE in os.environ:
        mark_process_dead(process_id)  # type: ignore[no-untyped-call]
