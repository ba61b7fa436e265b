"""A gate around `flower-supernode`: the node is online in one slot of a campaign, and dark before.

The gate draws the coin and the slot of its node with the state machine of a client
(``checkins.protocol.participant``), and saves them durably before it acts on them. It starts the
SuperNode in this slot only, and ends it after the slot, because a node that leaves earlier loses
its reply. The SuperLink has its own clock, so this machine's clock must be synchronized.

After a crash, the gate continues with the saved slot. If the server has chosen among the check-ins
of the slot meanwhile, the node stays dark for the rest of the campaign.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from checkins.campaign import Campaign
from checkins.client.clock_and_randomness import OS_RANDOMNESS, DeviceRandomness
from checkins.client.participation import CHECK_IN_SPREAD
from checkins.client.state import SavedState, StateFile, file_lock, make_private_folder
from checkins.errors import InvalidValue, OutOfOrder
from checkins.flower.clock import Clock, SystemClock
from checkins.protocol import participant as events
from checkins.protocol import wire
from checkins.protocol.machine import Effect, Event
from checkins.protocol.participant import Outcome, Participant, Phase, participant_of, step
from checkins.protocol.rules import RunSchedule

CLOCK_POLL_S = 1.0
"""Seconds between two looks at the clock while a SuperNode is running."""
LEAVE_S = 15.0
"""Seconds in which a SuperNode must have ended before it is killed."""
RESTART_S = 5.0
"""Seconds until a SuperNode that has ended early is started again. Doubled each time."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Environment of a SuperNode: it tells nobody but its SuperLink that it is online."""


class NodeOutcome(StrEnum):
    """How a node's participation in a campaign ended, as far as its gate knows."""

    ABSTAINED = "its coin decided against taking part"
    MISSED = "it was not running in its slot, or not before the choice"
    ONLINE = "it was online in its slot; whether it was chosen, only the server knows"


_OUTCOMES = {
    Outcome.ABSTAINED: NodeOutcome.ABSTAINED,
    Outcome.MISSED: NodeOutcome.MISSED,
    Outcome.LATE: NodeOutcome.ONLINE,  # a SuperNode is not told that its reply has arrived
}


class Node(Protocol):
    """A node that the gate starts and stops."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start the node as a process whose standard input is a pipe: it ends with the pipe."""


@dataclass(frozen=True, slots=True)
class SuperNode:
    """The program `flower-supernode`. ``options`` are its options, with the key and the TLS CA."""

    options: Sequence[str]

    def start(self) -> subprocess.Popen[bytes]:
        """Start the SuperNode. It finds flower-superexec beside this Python."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        return subprocess.Popen(
            [sys.executable, "-m", "checkins.flower.supernode_process", *self.options],
            stdin=subprocess.PIPE,
            env={**os.environ, **QUIET, "PATH": path},
        )


def key_fingerprint(private_key: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the public key of a SuperNode's private key, in hexadecimal."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_private_key(Path(private_key).read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidValue("key", str(private_key), "must be a private key of OpenSSH") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        expected = "must be an elliptic-curve key: ssh-keygen -t ecdsa -b 384"
        raise InvalidValue("key", str(private_key), expected)
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(public).hexdigest()


@dataclass(slots=True)
class Gate:
    """The gate of one node in one campaign. ``run`` takes part, or continues after a crash.

    ``fingerprint`` is that of the node's key. The folder ``state`` is the memory of the gate: it
    belongs to one key in each campaign, and a second gate on it is refused. ``monotonic`` is a
    clock in seconds that nobody can set.
    """

    campaign: Campaign
    node: Node
    fingerprint: str
    state: Path
    clock: Clock = field(default_factory=SystemClock)
    randomness: DeviceRandomness = OS_RANDOMNESS
    monotonic: Callable[[], float] = time.monotonic
    _saved: SavedState = field(init=False)
    _file: StateFile = field(init=False)

    def __post_init__(self) -> None:
        if self.campaign.schedule is None:
            raise InvalidValue("campaign", self.campaign.name, "has no [schedule]")
        if self.campaign.repeats != 1:
            expected = "must be 1 inside Flower's server: make a campaign for each run"
            raise InvalidValue("repeats", self.campaign.repeats, expected)
        run = wire.run_id(self.campaign.seal, 1)
        self._saved = SavedState(run, seal=self.campaign.seal, key=self.fingerprint)
        self._file = StateFile(make_private_folder(self.state) / f"{run}.json")

    @property
    def _schedule(self) -> RunSchedule:
        return RunSchedule.of(self.campaign)

    def run(self) -> NodeOutcome:
        """Take part; return after the end of the node's slot, or earlier if it takes no part."""
        with file_lock(self._file.path.with_suffix(".lock")):
            return self._run()

    def _run(self) -> NodeOutcome:
        self._load()
        machine = participant_of(self.campaign)
        event: Event = self._draw(machine)
        if self._saved.phase is not None:
            machine = replace(machine, phase=self._saved.phase, slot=self._saved.slot)
            event = events.Restarted()
        while self._saved.outcome is None:
            machine, (effect,) = step(machine, event)
            event = self._perform(effect, machine)
        return _OUTCOMES[self._saved.outcome]

    def _load(self) -> None:
        stored = self._file.load()
        if stored is None:
            return
        saved = SavedState.from_bytes(stored)
        if saved.ended is None and saved.key != self.fingerprint:
            expected = "belongs to another key in this campaign: give each node its own folder"
            raise InvalidValue("state", str(self.state), expected)
        self._saved = saved

    def _draw(self, machine: Participant) -> events.Draw:
        return events.Draw(
            coin=self.randomness.coin(),
            pick=self.randomness.pick(len(machine.window)),
            first_open_slot=self._schedule.first_open_slot(self.clock.now()),
        )

    def _perform(self, effect: Effect, machine: Participant) -> Event:
        """Perform one effect, and return the next event. After the end, it has no effect."""
        match effect:
            case events.RecordDraw(slot):
                self._save(replace(self._saved, phase=Phase.DRAWN, slot=slot))
                return events.DrawRecorded()
            case events.RecordEnd():
                self._save(self._saved.ended_with(str(machine.outcome and machine.outcome.name)))
                return events.Restarted()
            case events.WakeAt(slot):
                return self._wake(slot)
            case events.SendCheckIn(slot):
                self._be_online(slot)
                return events.SlotBegan(slot + 1)
        raise OutOfOrder(f"a gate cannot perform {type(effect).__name__}")

    def _save(self, state: SavedState) -> None:
        self._file.save(state.to_bytes())
        self._saved = state

    def _wake(self, slot: int) -> Event:
        """Sleep until a random time early in the slot. After the choice, the slot has passed."""
        schedule = self._schedule
        if slot <= schedule.slots and self.clock.now() < schedule.chooses(slot):
            spread_s = CHECK_IN_SPREAD * schedule.choose_s * self.randomness.jitter()
            self.clock.sleep_until(schedule.begins(slot) + spread_s)
            if self.clock.now() < schedule.chooses(slot):
                return events.SlotBegan(slot)
        return events.SlotBegan(slot + 1)

    def _be_online(self, slot: int) -> None:
        """Run the node until the slot has ended. Start it again if it ends before the choice."""
        schedule, pause_s = self._schedule, RESTART_S
        while self.clock.now() < schedule.chooses(slot):
            if self._run_node(until_s=schedule.ends(slot)):
                return
            self.clock.sleep_until(self.clock.now() + pause_s)
            pause_s *= 2.0
        self.clock.sleep_until(schedule.ends(slot))

    def _run_node(self, *, until_s: float) -> bool:
        """Run the node until a moment, and end it. Return False if it ended before.

        If the clock is set back meanwhile, the node is not online longer than it would have been.
        """
        last = self.monotonic() + until_s - self.clock.now() + CLOCK_POLL_S
        with self.node.start() as process:
            try:
                while self.clock.now() < until_s and self.monotonic() < last:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=CLOCK_POLL_S)
                        return False
                return True
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the input of a node, which ends it. Kill it if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
