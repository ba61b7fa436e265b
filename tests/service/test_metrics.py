"""What an operator may count."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from prometheus_client.parser import text_string_to_metric_families

from checkins.service import metrics as module
from checkins.service.http import problems
from checkins.service.metrics import Metrics, RequestMetrics
from tests.support.program import output_of


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def app_of(metrics: Metrics) -> RequestMetrics:
    app = FastAPI()
    problems.install_handlers(app)
    router = APIRouter(prefix="/campaigns")

    @router.get("/{campaign}/check-ins/{receipt}")
    async def poll(campaign: str, receipt: str) -> str:
        if receipt == "broken":
            raise RuntimeError("x")
        return campaign

    app.include_router(router)
    return RequestMetrics(app, metrics=metrics)


def ask(app: RequestMetrics, *requests: tuple[str, str]) -> None:
    async def all_of_them() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for method, path in requests:
                await client.request(method, path)

    asyncio.run(all_of_them())


def test_requests_are_counted_by_template_method_and_class():
    metrics = Metrics()
    ask(
        app_of(metrics),
        ("GET", "/campaigns/a/check-ins/r1"),
        ("GET", "/campaigns/b/check-ins/r2"),
        ("PUT", "/campaigns/b/check-ins/r2"),
        ("GET", "/campaigns/b/check-ins/broken"),
        ("GET", "/secret/path"),
        ("BREW", "/secret/path"),
    )
    route = "/campaigns/{campaign}/check-ins/{receipt}"
    found = {
        tuple(dict(labels)[key] for key in ("route", "method", "status")): value
        for (name, labels), value in samples(metrics).items()
        if name == "checkins_requests_total"
    }
    assert found == {
        (route, "GET", "2xx"): 2,
        (route, "PUT", "4xx"): 1,
        (route, "GET", "5xx"): 1,
        ("none", "GET", "4xx"): 1,
        ("none", "other", "4xx"): 1,
    }
    text = metrics.render()[0].decode()
    assert not any(each in text for each in ("r1", "r2", "secret", "BREW"))


def test_a_request_that_fails_without_an_answer_counts_as_a_failure():
    async def broken(scope, receive, send) -> None:
        raise KeyError("x")

    metrics = Metrics()
    clock = iter([10.0, 10.3])
    with pytest.raises(KeyError):
        asyncio.run(
            RequestMetrics(broken, metrics=metrics, clock=lambda: next(clock))(
                {"type": "http", "method": "GET"}, None, None
            )
        )
    found = samples(metrics)
    labels = (("method", "GET"), ("route", "none"), ("status", "5xx"))
    assert found["checkins_requests_total", labels] == 1
    assert found["checkins_request_seconds_sum", (("route", "none"),)] == pytest.approx(0.3)


def test_other_protocols_are_not_counted():
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append(scope["type"])

    metrics = Metrics()
    asyncio.run(RequestMetrics(app, metrics=metrics)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
    assert not any(name == "checkins_requests_total" for name, _ in samples(metrics))


def fill(metrics: Metrics) -> None:
    metrics.record_request(route="/healthz", method="GET", status=200, seconds=0.002)
    metrics.count_refusal("too-many")
    metrics.set_connections(7)
    metrics.waiters.inc(3)
    metrics.count_long_poll("chosen")
    metrics.record_commit(writes=40, seconds=0.01)
    metrics.record_slot_closed(seconds=0.2, lateness_s=-0.001)
    metrics.count_lost_log_line()
    metrics.count_task_restart("clock")
    metrics.record_run("3ca5f3a7c1d2-1", slots_closed=5, epsilon_spent=0.4, epsilon_budget=2.0)


def test_everything_is_counted():
    metrics = Metrics()
    fill(metrics)
    found = samples(metrics)
    campaign = (("campaign", "3ca5f3a7c1d2-1"),)
    assert found["checkins_refused_total", (("reason", "too-many"),)] == 1
    assert found["checkins_connections", ()] == 7
    assert found["checkins_waiters", ()] == 3
    assert found["checkins_long_polls_total", (("outcome", "chosen"),)] == 1
    assert found["checkins_batch_size_sum", ()] == 40
    assert found["checkins_commit_seconds_sum", ()] == 0.01
    assert found["checkins_slots_closed_total", ()] == 1
    assert found["checkins_closing_seconds_count", ()] == 1
    assert found["checkins_closing_late_seconds_sum", ()] == 0
    assert found["checkins_log_lines_lost_total", ()] == 1
    assert found["checkins_task_restarts_total", (("task", "clock"),)] == 1
    assert found["checkins_campaign_slots_closed", campaign] == 5
    assert found["checkins_campaign_epsilon_spent", campaign] == 0.4
    assert found["checkins_campaign_epsilon_budget", campaign] == 2.0


def test_the_documented_table_is_what_is_rendered():
    metrics = Metrics()
    fill(metrics)
    rendered = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        rendered[name] = (family.type, labels)
    documented = {
        name: (kind.__name__.lower(), set(labels)) for kind, name, labels, _ in metrics.descriptions
    }
    assert documented == rendered


def test_no_label_can_name_a_client_or_a_slot():
    metrics = Metrics()
    fill(metrics)
    labels = {key for _, labels in samples(metrics) for key, _ in labels}
    known = {"route", "method", "status", "reason", "outcome", "task", "campaign", "le"}
    assert labels <= known


WORKER = """
import sys
from checkins.service.metrics import Metrics
metrics = Metrics()
for _ in range(int(sys.argv[1])):
    metrics.record_request(route="/healthz", method="GET", status=200, seconds=0.001)
metrics.set_connections(5)
slots_closed = int(sys.argv[1])
metrics.record_run("3ca5f3a7c1d2-1", slots_closed=slots_closed, epsilon_spent=1, epsilon_budget=2)
"""
READER = """
import sys
from pathlib import Path
from checkins.service import metrics
metrics.forget_worker(int(sys.argv[1]))
sys.stdout.write(metrics.Metrics().render()[0].decode())
"""


@pytest.mark.slow
def test_workers_are_added_up_and_ended_ones_hold_nothing_open(tmp_path):
    environment = {**os.environ, module.FOLDER_VARIABLE: str(tmp_path)}
    workers = []
    for count in ("3", "4"):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, count], env=environment)
        assert worker.wait() == 0
        workers.append(worker.pid)
    text = output_of(READER, str(workers[0]), env=environment)
    assert 'checkins_requests_total{method="GET",route="/healthz",status="2xx"} 7.0' in text
    assert "checkins_connections 5.0" in text
    assert 'checkins_campaign_slots_closed{campaign="3ca5f3a7c1d2-1"} 4.0' in text
