"""A node is online in one slot only, whatever happens to its gate."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from checkins.errors import InvalidValue
from checkins.flower.gate import Gate, NodeOutcome
from tests.support.campaigns import CHOOSE_S, SLOT_S
from tests.support.flower import START_S, GridClock, flower_campaign
from tests.support.program import CHECKINS
from tests.support.waiting import PATIENCE_S

CAMPAIGN = flower_campaign(slots=4)
ABSENT = flower_campaign(participation=0.0)


class Killed(BaseException):
    """The process of the gate ends here."""


@dataclass
class FakeNode:
    """A node that notes on its clock when it was online. ``ends_after_s`` is when it crashes."""

    clock: GridClock
    ends_after_s: list[float] = field(default_factory=list)
    kills_gate: bool = False
    online: list[tuple[float, float]] = field(default_factory=list)

    def start(self) -> FakeProcess:
        return FakeProcess(
            self, self.clock.now(), self.ends_after_s.pop(0) if self.ends_after_s else None
        )


@dataclass
class FakeProcess:
    node: FakeNode
    started_s: float
    lives_s: float | None
    is_over: bool = False
    stdin: FakeProcess | None = None

    def __post_init__(self) -> None:
        self.stdin = self

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.node.online.append((self.started_s, self.node.clock.now()))

    def wait(self, timeout: float) -> int:
        if self.is_over:
            return 0
        if self.node.kills_gate:
            raise Killed
        clock = self.node.clock
        end_s = None if self.lives_s is None else self.started_s + self.lives_s
        if end_s is not None and end_s <= clock.now() + timeout:
            clock.sleep_until(end_s)
            self._end()
            return 1
        clock.sleep_until(clock.now() + timeout)
        raise subprocess.TimeoutExpired("node", timeout)

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.is_over


def gate(folder: Path, node: FakeNode, campaign=CAMPAIGN, key: str = "key") -> Gate:
    return Gate(campaign, node, key, folder, node.clock)


def saved(folder: Path) -> dict[str, object]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_bytes())


def test_a_node_is_online_from_its_slot_to_the_end_of_the_slot(tmp_path: Path) -> None:
    slots = set()
    for number in range(12):
        node = FakeNode(GridClock())
        assert gate(tmp_path / str(number), node).run() is NodeOutcome.ONLINE
        ((start_s, end_s),) = node.online
        slot = int((start_s - START_S) // SLOT_S)
        slots.add(slot)
        assert START_S + slot * SLOT_S <= start_s < START_S + slot * SLOT_S + CHOOSE_S
        assert START_S + (slot + 1) * SLOT_S <= end_s < START_S + (slot + 1) * SLOT_S + 2.0
    assert slots <= {0, 1, 2, 3}
    assert len(slots) > 1  # but for one in 4 million runs


@dataclass
class SetBackClock(GridClock):
    """A clock that is ``back_s`` seconds behind what it was."""

    back_s: float = 0.0

    def now(self) -> float:
        return self.now_s - self.back_s

    def sleep_until(self, moment_s: float) -> None:
        self.now_s += max(0.0, moment_s - self.now())


def test_a_node_is_not_online_longer_if_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = SetBackClock()

    class NodeOfAnotherTime(FakeNode):
        def start(self) -> FakeProcess:
            process = super().start()
            clock.back_s = 3600.0
            return process

    node = NodeOfAnotherTime(clock)
    gate_of_node = gate(tmp_path, node)
    gate_of_node.monotonic = lambda: clock.now_s
    assert gate_of_node.run() is NodeOutcome.ONLINE
    ((start_s, end_s),) = node.online
    assert end_s + clock.back_s - start_s < SLOT_S + 3.0


def test_a_node_whose_coin_decides_against_it_stays_dark(tmp_path: Path) -> None:
    node = FakeNode(GridClock())
    assert gate(tmp_path, node, ABSENT).run() is NodeOutcome.ABSTAINED
    assert node.online == []


def test_the_slot_is_drawn_once_and_saved_before_the_node_starts(tmp_path: Path) -> None:
    node = FakeNode(GridClock(), kills_gate=True)
    with pytest.raises(Killed):
        gate(tmp_path, node).run()
    slot = saved(tmp_path)["slot"]
    for _ in range(5):
        restarted = FakeNode(GridClock(), kills_gate=True)
        with pytest.raises(Killed):
            gate(tmp_path, restarted).run()
        assert saved(tmp_path)["slot"] == slot


def test_after_the_end_only_the_outcome_is_saved_and_the_node_stays_dark(tmp_path: Path) -> None:
    node = FakeNode(GridClock())
    gate(tmp_path, node).run()
    assert saved(tmp_path).keys() == {"schema", "campaign", "ended"}
    again = FakeNode(GridClock())
    assert gate(tmp_path, again).run() is NodeOutcome.ONLINE
    assert gate(tmp_path, again, key="other key").run() is NodeOutcome.ONLINE
    assert again.online == []


def test_a_gate_that_comes_back_after_the_choice_keeps_its_node_dark(tmp_path: Path) -> None:
    first = FakeNode(GridClock(), kills_gate=True)
    with pytest.raises(Killed):
        gate(tmp_path, first).run()
    slot = int(str(saved(tmp_path)["slot"]))
    late = FakeNode(GridClock(START_S + (slot - 1) * SLOT_S + CHOOSE_S))
    assert gate(tmp_path, late).run() is NodeOutcome.MISSED
    assert late.online == []


def test_a_node_that_crashes_before_the_choice_is_started_again_and_later_it_is_not(
    tmp_path: Path,
) -> None:
    campaign = flower_campaign(slot_s=2000.0, choose_s=900.0)
    node = FakeNode(GridClock(), ends_after_s=[3.0, 895.0])
    assert gate(tmp_path, node, campaign).run() is NodeOutcome.ONLINE
    assert len(node.online) == 2
    assert (node.clock.now() - START_S) % 2000.0 == 0.0  # it waits for the end of its slot


def test_a_folder_belongs_to_one_key_and_to_one_gate(tmp_path: Path) -> None:
    node = FakeNode(GridClock(), kills_gate=True)
    with pytest.raises(Killed):
        gate(tmp_path, node).run()
    with pytest.raises(InvalidValue, match="belongs to another key"):
        gate(tmp_path, node, key="other key").run()

    @dataclass
    class Nested(FakeNode):
        def start(self) -> FakeProcess:
            with pytest.raises(InvalidValue, match="in use by another process"):
                gate(tmp_path, FakeNode(GridClock())).run()
            return super().start()

    assert gate(tmp_path, Nested(GridClock())).run() is NodeOutcome.ONLINE


NODE = """\
import sys, threading, time
from checkins.flower import supernode_process
threading.Thread(target=supernode_process.leave_when_input_ends, daemon=True).start()
print("online", flush=True)
time.sleep(1000)
"""


def test_a_node_does_not_outlive_a_gate_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        assert node.stdout.readline() == b"online\n"
        node.stdin.close()  # as the system does when the gate is killed
        assert node.wait(timeout=PATIENCE_S) == -signal.SIGTERM


def test_the_command_refuses_a_wrong_key_and_a_wrong_seal(tmp_path: Path) -> None:
    from checkins.campaign import campaign_text

    file, key = tmp_path / "campaign.toml", tmp_path / "key"
    file.write_text(campaign_text(CAMPAIGN), encoding="utf-8")
    key.write_text("no key")

    def refusal(*options: str) -> str:
        words = [CHECKINS, "flower-node", file, "--superlink", "127.0.0.1:1", "--key", key]
        done = subprocess.run(
            [*words, "--state", tmp_path / "state", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "must be a private key of OpenSSH" in refusal()
    assert "the campaign file has the seal" in refusal("--seal", f"sha256:{'0' * 64}")
