"""Rehearse a campaign: run the real state machines in one process, without network and clock.

The caller supplies the randomness. Tests compare the fast simulator with this module. Scripts in
examples/ compare it with plain loops that follow the algorithms of the paper (arXiv:2007.06605).
Replaying the recorded events gives exactly the same model.
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
from checkins.protocol.server import (
    SERVER_MACHINE,
    ClosingRecorded,
    Phase,
    RecordClosing,
    Release,
    Server,
)
from checkins.protocol.slot import CheckedIn, ChoiceRecorded, Choose, Expired, ReportArrived

Trainer = Callable[[str, Model], Report]
"""A function from a client's token and a model to the client's privatized update."""


class Randomness(Protocol):
    """The random draws of a campaign, except for the noise of the clients' reports."""

    def coin(self, token: str) -> int:
        """Return an integer uniform below 2^64, drawn for this client."""

    def pick(self, token: str, below: int) -> int:
        """Return an integer uniform below ``below``, drawn for this client."""

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        """Return one uniform integer below each of ``ranges``, drawn by the server."""

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        """Return ``count`` new dummy reports A_ldp(0), which replace missing reports."""

    def noise(self, slot: int) -> Report:
        """Return new noise that the server adds to the sum of a slot."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A run that has ended: the server's events in order, its closed slots and its releases."""

    start: Server
    events: tuple[Event, ...]
    end: Server
    closings: tuple[RecordClosing, ...]
    releases: tuple[Release, ...]
    participants: Mapping[str, Participant]

    def replay(self) -> Server:
        """Return the final state of the server, computed again from ``start`` and ``events``."""
        return SERVER_MACHINE.replay(self.start, self.events)


def rehearse(
    server: Server,
    participants: Mapping[str, Participant],
    *,
    randomness: Randomness,
    train: Trainer,
    wake_slots: Mapping[str, int] | None = None,
) -> Rehearsal:
    """Run a campaign to its end. ``participants`` maps the token of each client to its state.

    ``wake_slots`` maps a token to the slot in which the client wakes. By default it is slot 1.
    """
    with_slots = {
        token: _draw_slot(token, participant, randomness, (wake_slots or {}).get(token, 1))
        for token, participant in participants.items()
    }
    driver = _Driver(server, with_slots, randomness, train)
    tokens_by_slot: dict[int, list[str]] = {}
    for token, participant in with_slots.items():
        if participant.slot is not None:
            tokens_by_slot.setdefault(participant.slot, []).append(token)
    while driver.server.phase is Phase.WAITING:
        number = driver.server.closed + 1
        driver.run_slot(number, tokens_by_slot.get(number, []))
    return Rehearsal(
        start=server,
        events=tuple(driver.events),
        end=driver.server,
        closings=tuple(driver.closings),
        releases=tuple(driver.releases),
        participants=with_slots,
    )


def _draw_slot(
    token: str, participant: Participant, randomness: Randomness, wake_slot: int
) -> Participant:
    """Return the participant after it has drawn its coin and slot."""
    coin, pick = randomness.coin(token), randomness.pick(token, len(participant.window))
    draw = clients.Draw(coin, pick, wake_slot)
    participant, _ = clients.step(participant, draw)
    return clients.step(participant, clients.DrawRecorded())[0]


@dataclass(slots=True)
class _Driver:
    """Passes the messages between the state machines of server and clients."""

    server: Server
    participants: dict[str, Participant]
    randomness: Randomness
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
            self._send_server(CheckedIn(number, token, receipt, has_participated=False))
            self._send_client(token, clients.Acknowledged(receipt))
        slot = self._open_slot()
        self._send_server(Choose(number, self.randomness.choose(number, slot.ranges)))
        model = self.server.learner.model
        for effect in self._send_server(ChoiceRecorded(number)):
            if isinstance(effect, slots.Invite):
                self._train_and_report(number, receipts[effect.receipt], effect.receipt, model)
            elif isinstance(effect, slots.Dismiss):
                self._send_client(receipts[effect.receipt], clients.Dismissed(effect.receipt))
        slot = self._open_slot()
        noise = self.randomness.noise(number) if slot.needs_noise else None
        dummies = self.randomness.dummies(number, slot.missing_dummies)
        self._send_server(Expired(number, dummies, noise))
        self._send_server(ClosingRecorded(number))

    def _train_and_report(self, number: int, token: str, receipt: str, model: Model) -> None:
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

    def _open_slot(self) -> slots.Slot:
        if self.server.slot is None:
            raise OutOfOrder("no slot is in progress")
        return self.server.slot
