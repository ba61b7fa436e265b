"""Run a campaign with the real state machines in one process, without network and clock.

The caller supplies the randomness. Tests compare the fast simulator with this module, and scripts
in examples/ compare it with the paper's algorithms as plain loops. Replaying the recorded events
gives exactly the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from checkins.errors import OutOfOrder
from checkins.protocol import participant as clients
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.machine import Event
from checkins.protocol.model_update import Model
from checkins.protocol.participant import Participant
from checkins.protocol.report import Report
from checkins.protocol.server import SERVER, ClosingRecorded, Phase, RecordClosing, Release, Server
from checkins.protocol.slot import CheckedIn, ChoiceRecorded, Choose, Expired, ReportArrived

Trainer = Callable[[str, Model], Report]
"""A function from a client's token and a model to the client's privatized update."""


class Dice(Protocol):
    """The randomness of a campaign other than the noise of the reports."""

    def coin(self, token: str) -> int:
        """Return an integer uniform below 2^64, drawn for this client."""

    def pick(self, token: str, below: int) -> int:
        """Return an integer uniform below ``below``, drawn for this client."""

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        """Return one uniform integer below each of ``ranges``, drawn by the server."""

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        """Return ``count`` fresh dummy reports A_ldp(0), which replace missing reports."""

    def noise(self, slot: int) -> Report:
        """Return fresh noise that the server adds to the sum of a slot."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A run that has ended: the server's events in order, its slot records and its releases."""

    start: Server
    events: tuple[Event, ...]
    end: Server
    closings: tuple[RecordClosing, ...]
    releases: tuple[Release, ...]
    participants: Mapping[str, Participant]

    def replayed(self) -> Server:
        """Return the final state of the server, computed again from ``start`` and ``events``."""
        return SERVER.replay(self.start, self.events)


def rehearse(
    server: Server,
    participants: Mapping[str, Participant],
    *,
    dice: Dice,
    train: Trainer,
    wakes: Mapping[str, int] | None = None,
) -> Rehearsal:
    """Run a campaign to its end.

    ``wakes`` maps a client's token to the slot in which it wakes, 1 by default.
    """
    everyone = {
        token: _drawn(token, participant, dice, (wakes or {}).get(token, 1))
        for token, participant in participants.items()
    }
    driver = _Driver(server, everyone, dice, train)
    at: dict[int, list[str]] = {}
    for token, participant in everyone.items():
        if participant.slot is not None:
            at.setdefault(participant.slot, []).append(token)
    while driver.server.phase is Phase.WAITING:
        number = driver.server.closed + 1
        driver.run_slot(number, at.get(number, []))
    return Rehearsal(
        start=server,
        events=tuple(driver.events),
        end=driver.server,
        closings=tuple(driver.closings),
        releases=tuple(driver.releases),
        participants=everyone,
    )


def _drawn(token: str, participant: Participant, dice: Dice, now: int) -> Participant:
    draw = clients.Draw(dice.coin(token), dice.pick(token, len(participant.window)), now)
    participant, _ = clients.step(participant, draw)
    return clients.step(participant, clients.DrawRecorded())[0]


@dataclass(slots=True)
class _Driver:
    """The driver, which passes the messages between server and clients."""

    server: Server
    participants: dict[str, Participant]
    dice: Dice
    train: Trainer
    events: list[Event] = field(default_factory=list)
    closings: list[RecordClosing] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)

    def run_slot(self, number: int, tokens: Sequence[str]) -> None:
        """Run one slot, from its beginning to its release."""
        self._send_server(servers.SlotBegan(number))
        receipts = {f"{number}/{token}": token for token in tokens}
        for receipt, token in receipts.items():
            self._send_client(token, clients.SlotBegan(number))
            self._send_server(CheckedIn(number, token, receipt, spent=False))
            self._send_client(token, clients.Acknowledged(receipt))
        slot = self._slot()
        self._send_server(Choose(number, self.dice.choose(number, slot.ranges)))
        model = self.server.learner.model
        for effect in self._send_server(ChoiceRecorded(number)):
            if isinstance(effect, slots.Invite):
                self._report(number, receipts[effect.receipt], effect.receipt, model)
            elif isinstance(effect, slots.Dismiss):
                self._send_client(receipts[effect.receipt], clients.Dismissed(effect.receipt))
        slot = self._slot()
        noise = self.dice.noise(number) if slot.wants_noise else None
        self._send_server(Expired(number, self.dice.dummies(number, slot.missing), noise))
        self._send_server(ClosingRecorded(number))

    def _report(self, number: int, token: str, receipt: str, model: Model) -> None:
        self._send_client(token, clients.Invited(receipt, model))
        report = self.train(token, model)
        self._send_client(token, clients.ReportMade(report))
        self._send_client(token, clients.ReportRecorded())
        self._send_server(ReportArrived(number, receipt, report))
        self._send_client(token, clients.ReportAcknowledged(receipt))

    def _send_client(self, token: str, event: Event) -> None:
        self.participants[token], _ = clients.step(self.participants[token], event)

    def _send_server(self, event: Event) -> tuple[object, ...]:
        self.server, effects = servers.step(self.server, event)
        self.events.append(event)
        self.closings += (effect for effect in effects if isinstance(effect, RecordClosing))
        self.releases += (effect for effect in effects if isinstance(effect, Release))
        return effects

    def _slot(self) -> slots.Slot:
        if self.server.slot is None:
            raise OutOfOrder("no slot is in progress")
        return self.server.slot
