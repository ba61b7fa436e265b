"""A campaign on a real SuperLink, whose nodes are killed. The test moves its clock."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import Spending, campaign_text
from checkins.ledger import Ledger, lines, verify
from checkins.ledger.entry import SlotClosed
from examples.flower.loopback import Loopback
from tests.soak import SOAK
from tests.support.file_clock import FileClock
from tests.support.flower import START_S, flower_campaign
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).parent / "superlink_app"
KILLS = 50 if SOAK else 3
"""How often the node of slot 1 is killed."""
SLOT_S, CHOOSE_S = 30_000.0, 10_000.0
"""Long, because Flower's own limits of a message are real seconds."""
CAMPAIGN = flower_campaign(
    slots=2,
    capacity=1,
    epsilon=1000.0,
    randomizer='kind = "laplace"\nlocal_epsilon = 40.0',
    slot_s=SLOT_S,
    choose_s=CHOOSE_S,
)
"""A report has Laplace noise of scale 1/20, so one beyond 1/2 has a probability below 5e-5."""

STARTED = "Starting Flower SuperNode"


@dataclass
class Deployment:
    """A SuperLink, a ServerApp that runs the campaign, and the gates of nodes 0 and 1."""

    loopback: Loopback
    clock: FileClock
    keys: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.loopback.folder

    @property
    def ledger(self) -> Path:
        return self.folder / "server" / "ledger.jsonl"

    def start_gate(self, node: int, *, slot: int) -> subprocess.Popen[bytes]:
        """Start the gate of a node, which draws this slot if it has not drawn one."""
        config = f"node={node} folder='{self.folder}'"
        options = [*self.loopback.supernode_options(self.keys[node]), "--node-config", config]
        given = {
            "campaign": str(self.folder / "campaign.toml"),
            "options": options,
            "key": str(self.keys[node]),
            "state": str(self.folder / f"state{node}"),
            "clock": str(self.clock.path),
            "slot": slot,
        }
        words = [sys.executable, "-m", "tests.support.gate_process", json.dumps(given)]
        return self.loopback.start(f"gate{node}.log", *words)

    def advance(self, now_s: float, *, server_waits_for_s: float) -> None:
        """Move the clock, and wait until the ServerApp waits for the next moment."""
        self.clock.set(now_s)
        wait_until(lambda: self.clock.waits_until == server_waits_for_s, "server", every_s=0.2)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def trained(self, node: int) -> int:
        """How often the ClientApp of a node has begun to train."""
        path = self.folder / f"trained-{node}"
        return len(path.read_text()) if path.exists() else 0

    def totals(self) -> list[np.ndarray]:
        """The totals of the closed slots, in clip norms."""
        ledger, totals = Ledger(), []
        for line in lines(self.ledger):
            ledger, entry = ledger.read(line)
            if isinstance(entry, SlotClosed):
                totals.append(np.asarray(entry.numbers(), np.float64) * 1e-6)
        return totals


def begins(slot: int) -> float:
    return START_S + (slot - 1) * SLOT_S


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    clock = FileClock(tmp_path / "clock")
    clock.set(START_S - 5.0)
    (tmp_path / "campaign.toml").write_text(campaign_text(CAMPAIGN), encoding="utf-8")
    app = shutil.copytree(APP, tmp_path / "app")
    with Loopback(tmp_path) as loopback:
        loopback.env["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        loopback.start_superlink()
        running = Deployment(loopback, clock, [loopback.register(node) for node in range(2)])
        config = {
            "campaign": tmp_path / "campaign.toml",
            "folder": running.ledger.parent,
            "clock": clock.path,
        }
        words = " ".join(f"{key}='{value}'" for key, value in config.items())
        loopback.flwr("run", str(app), "loopback", "--run-config", words)
        wait_until(lambda: clock.waits_until == begins(1), "ServerApp", every_s=0.5)
        yield running


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_node_that_is_killed_again_and_again_costs_its_slot_only(deployment: Deployment) -> None:
    after_choice = begins(1) + CHOOSE_S + 1.0
    deployment.advance(begins(1), server_waits_for_s=begins(1) + CHOOSE_S)
    first_kills = KILLS // 2
    for number in range(first_kills):  # before the choice
        gate, started = deployment.start_gate(0, slot=1), deployment.log("gate0").count(STARTED)
        if number % 3 == 0:
            wait_until(lambda n=started: deployment.log("gate0").count(STARTED) > n, every_s=0.2)
        elif number % 3 == 1:
            wait_until(lambda: any((deployment.folder / "state0").glob("*.json")), every_s=0.2)
        kill(gate)
    gate = deployment.start_gate(0, slot=1)
    wait_until(lambda: "SuperNode ID" in deployment.log("gate0"), "node 0", every_s=0.2)
    deployment.clock.set(after_choice)
    wait_until(lambda: deployment.trained(0), "training of node 0", every_s=0.2)
    kill(gate)  # while it trains
    for _ in range(KILLS - first_kills - 1):  # after the choice
        kill(deployment.start_gate(0, slot=1))
    assert deployment.start_gate(0, slot=2).wait() == 0
    assert "outcome MISSED" in deployment.log("gate0")

    deployment.advance(begins(2), server_waits_for_s=begins(2) + CHOOSE_S)
    (deployment.folder / "go-0").touch()
    (deployment.folder / "go-1").touch()
    assert deployment.start_gate(0, slot=2).wait() == 0
    gate = deployment.start_gate(1, slot=2)
    wait_until(lambda: "SuperNode ID" in deployment.log("gate1"), "node 1", every_s=0.2)
    deployment.clock.set(begins(2) + CHOOSE_S + 1.0)
    wait_until(lambda: "Sent successfully" in deployment.log("gate1"), "reply", every_s=0.2)
    deployment.clock.set(begins(3) - 0.1)
    wait_until(lambda: deployment.clock.waits_until == begins(3), "last pull", every_s=0.2)
    deployment.clock.set(begins(3) + 1.0)
    assert gate.wait() == 0
    assert "outcome ONLINE" in deployment.log("gate1")
    wait_until(lambda: b'"kind":"closed"' in deployment.ledger.read_bytes(), "end", every_s=0.2)

    assert (deployment.trained(0), deployment.trained(1)) == (1, 1)
    totals = np.array(deployment.totals())[:, :2]
    assert np.rint(totals).tolist() == [[0.0, 0.0], [0.0, 1.0]]
    found = verify(lines(deployment.ledger), require_closed=True)
    assert found.certificate.epsilon == Spending(CAMPAIGN).after(2).epsilon
