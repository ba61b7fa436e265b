"""Networks that lose and repeat, devices that die at every step, clocks that are wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.service.faults.findings import Findings
from tests.service.faults.history import check
from tests.service.faults.reader import Reader
from tests.support.campaigns import Plan
from tests.support.coordinator import Coordinator
from tests.support.crashing_devices import STEPS
from tests.support.crowd import Crowd, finished
from tests.support.forks import Forked
from tests.support.journal import read
from tests.support.postgres import Postgres
from tests.support.proxy import Fate, Proxy, Seen, each_in_turn
from tests.support.waiting import PATIENCE_S

FAULTS = [fate for fate in Fate if fate is not Fate.PASS]
ROUTES = ("POST enrolments", "POST check-ins", "GET check-ins", "GET model", "PUT report")
LIVES = 3
"""Devices that die first at one and the same step."""


SLOWER = (1.0, 3.0, 9.0)
"""Factors by which slots are lengthened where a busy machine reached too little in shorter ones."""


def slow_enough(
    start_s: float, slower: float, *, slots: int, clients: int, capacity: int | None
) -> Plan:
    """Slots that leave time for a retry on a machine as slow as this one."""
    slot_s = round(slower * max(0.6, 0.35 * start_s), 2)
    return Plan(slots=slots, slot_s=slot_s, choose_s=slot_s / 2, capacity=capacity, clients=clients)


def judged(reader: Reader, journal: Path) -> Findings:
    findings = check(reader.finish(), [*read([journal]), *reader.notes], shown=[reader.ledger])
    print(f"\n{findings}")
    assert not findings.violations, str(findings)
    assert findings.chance <= 1e-9
    return findings


@pytest.mark.slow
def test_every_fault_on_every_route_changes_nothing(
    tmp_path: Path, start_s: float, postgres: Postgres
) -> None:
    """With three workers: a request that is sent twice meets two of them at once."""
    all_faults = {(route, fate) for route in ROUTES for fate in FAULTS}
    for slower in SLOWER:
        folder = tmp_path / f"{slower}"
        folder.mkdir()
        plan = slow_enough(start_s, slower, slots=20, clients=100, capacity=4)
        findings, seen = through_faults(plan, folder, postgres.create(), start_s)
        check_retries(seen)
        met = {(one.route, one.fate) for one in seen}
        if findings.acknowledged > 0 and all_faults <= met:
            return
    raise AssertionError(f"too little happened: {all_faults - met} not met, {findings}")


def through_faults(
    plan: Plan, folder: Path, store: str, start_s: float
) -> tuple[Findings, list[Seen]]:
    """Run devices through a network that loses and repeats; judge it, and list its requests."""
    start = f"+{4 * start_s + 1:.0f}"
    coordinator = Coordinator(
        plan.write(folder), store, workers=3, start=start, forked_workers=True
    )
    journal = folder / "journal.jsonl"
    with coordinator.running():
        campaign = coordinator.campaign
        reader = Reader(coordinator.url, campaign)
        network = Proxy(coordinator.port, each_in_turn(FAULTS, passes=2), drops_model=True)
        with network.open() as proxy, reader.watching():
            crowd = Crowd(proxy.url, campaign, plan.clients, journal, state=folder / "state")
            with crowd.running() as process:
                outcomes = finished(crowd, process, timeout_s=plan.slots * plan.slot_s + PATIENCE_S)
            assert reader.over.wait(PATIENCE_S)
        print(f"\n{outcomes}")
        return judged(reader, journal), network.seen


def check_retries(seen: list[Seen]) -> None:
    """On the wire: one slot for each token, one report for each receipt, to the last byte."""
    slots, reports = defaultdict(set), defaultdict(set)
    for request in seen:
        if request.route == "POST check-ins":
            slots[request.key].add(request.path.partition("?")[0])
        if request.route == "PUT report":
            reports[request.key].add((request.path, request.body_sha256))
    assert all(len(paths) == 1 for paths in slots.values())
    assert all(len(bodies) == 1 for bodies in reports.values())


@pytest.mark.slow
def test_devices_that_die_at_every_step_take_part_once_at_most(
    tmp_path: Path, start_s: float
) -> None:
    """Averaged updates: every device is used, and every total is known to the last unit."""
    for slower in SLOWER:
        folder = tmp_path / f"{slower}"
        folder.mkdir()
        findings, died = with_dying_devices(folder, start_s, slower)
        if findings.acknowledged > 0 and died == set(STEPS):
            return
    raise AssertionError(f"too little happened: none died {set(STEPS) - died}, {findings}")


def with_dying_devices(folder: Path, start_s: float, slower: float) -> tuple[Findings, set[str]]:
    """Run devices that die; judge the campaign, and list the steps at which a device died."""
    clients = LIVES * len(STEPS)
    plan = slow_enough(start_s, slower, slots=12, clients=clients, capacity=None)
    store = f"sqlite:///{folder}/store.db"
    coordinator = Coordinator(plan.write(folder), store, start=f"+{2 * start_s + 3:.0f}")
    journal = folder / "journal.jsonl"
    with coordinator.running():
        campaign = coordinator.campaign
        reader = Reader(coordinator.url, campaign)
        with reader.watching():
            command = [coordinator.url, campaign, "--clients", str(clients)]
            command += ["--journal", str(journal), "--state", str(folder / "state")]
            complaints = folder / "devices.err"
            with (
                complaints.open("wb") as errors,
                Forked(command, module="tests.support.crashing_devices", stderr=errors) as devices,
            ):
                said = devices.communicate(timeout=plan.slots * plan.slot_s + PATIENCE_S)
            assert devices.returncode == 0, complaints.read_text()[-3000:]
            assert reader.over.wait(PATIENCE_S)
        findings = judged(reader, journal)
    told = json.loads(said)
    print(told)
    assert not told["failed"], complaints.read_text()[-3000:]
    return findings, set(told["died"])
