"""A server and its clients on a network that loses, repeats, delays and reorders, with crashes.

The machines are the real ones. The world drives them by the three rules of machine.py, keeps for
each side what is durable apart from what it merely remembers, and holds every history against the
invariants of the service while it happens (``Witness``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from checkins.accounting import NoiseStrategy
from checkins.errors import ProtocolViolation
from checkins.protocol import participant as clients
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.machine import Effect, Event, Message
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import (
    COIN_RANGE,
    Acknowledged,
    AskOutcome,
    Dismissed,
    Draw,
    DrawRecorded,
    Invited,
    Participant,
    RecordDraw,
    RecordEnd,
    RecordReport,
    Refused,
    ReportAcknowledged,
    ReportMade,
    ReportRecorded,
    Restarted,
    RetryDue,
    SendCheckIn,
    SendReport,
    SlotBegan,
    Train,
)
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, FixedWindow, Rules, SlidingWindow
from checkins.protocol.server import ClosingRecorded, Finish, RecordClosing, Release, Server
from checkins.protocol.slot import (
    Acknowledge,
    AcknowledgeReport,
    CheckedIn,
    Choose,
    Dismiss,
    Expired,
    Invite,
    OutcomeAsked,
    RecordCheckIn,
    RecordChoice,
    ReportArrived,
)
from tests.protocol.witness import Witness

Below = Callable[[int], int]
"""Every choice of a history: a number below another. Seeded, or drawn by hypothesis."""

MAX_TICKS = 100
DIMENSION = 3
"""A report is (who made it, its noise, 1): totals tell what is in them."""


class Crash(Exception):
    """A node has lost its memory in the middle of what it did."""


@dataclass(slots=True)
class World:
    """Everything that exists; ``act`` lets one thing happen."""

    below: Below
    rules: Rules
    participants: dict[str, Participant]
    faults: bool
    wakes: dict[str, int] = field(default_factory=dict)
    server: Server = field(init=False)
    server_disk: Server = field(init=False)
    spent: set[str] = field(default_factory=set)
    memory: dict[str, Participant] = field(init=False)
    disk: dict[str, Participant] = field(init=False)
    training: dict[str, object] = field(default_factory=dict)
    network: list[tuple[str, Message]] = field(default_factory=list)
    receipts: int = 0
    noises: int = 0
    began: int = 0
    crashes_left: int = 50
    witness: Witness = field(init=False)

    def __post_init__(self) -> None:
        self.server = self.server_disk = Server.start(self.rules, np.zeros(DIMENSION))
        self.memory = dict(self.participants)
        self.disk = dict(self.participants)
        self.witness = Witness(self.rules, self.server)
        for token in self.participants:
            if self.wakes.get(token, 1) == 1:
                self._wake_up(token)

    # ---- what may happen -------------------------------------------------------------------

    def act(self) -> None:
        """One thing, chosen by the dice: mostly messages, then clocks, then misfortunes."""
        dice = self.below(100)
        if dice < 70:
            self.finish_training() if not self.network else self.deliver(
                self.below(len(self.network))
            )
        elif dice < 75:
            self.tick()
        elif dice < 85:
            self.finish_training()
        elif dice < 90:
            self.retry(self._someone())
        elif self.faults and dice < 93 and self.network:
            self.network.pop(self.below(len(self.network)))
        elif self.faults and dice < 96 and self.network:
            self.network.append(self.network[self.below(len(self.network))])
        elif self.faults and dice < 97:
            self.crash_client(self._someone())
        elif self.faults and dice < 98:
            self.crash_server()
        elif self.faults:
            self.attack()

    def run(self, most_acts: int) -> None:
        """Act for a while, then let time run out, and hold the end against the invariants."""
        for _ in range(most_acts):
            if self.server.phase is not servers.Phase.DONE:
                self.act()
        for _ in range(MAX_TICKS):
            self.tick()
        assert self.server.phase is servers.Phase.DONE, "nobody can stall a slot"
        while self.network:  # whatever is still under way comes too late
            self.deliver(self.below(len(self.network)))
        self._end()

    def run_smoothly(self) -> None:
        """No fault, no delay: every message arrives before the clock goes on."""
        for _ in range(MAX_TICKS):
            self.tick()
            while self.network or self.training:
                if self.network:
                    self.deliver(0)
                else:
                    self.finish_training()
        self._end()

    def _end(self) -> None:
        self.faults = False
        assert self.server_disk.exact_sums == (), "16: no later slot needs a sum"
        self._begin_everywhere(2 * self.rules.slots + 1)  # the last a window can reach
        assert {p.phase for p in self.memory.values()} <= {clients.Phase.DONE, clients.Phase.NEW}
        for kept in self.disk.values():
            left = (kept.slot, kept.receipt, kept.report)
            assert left == (None, None, None), (
                "8: a finished device stores no slot, receipt or report"
            )
        self.witness.at_the_end(self.server)

    def tick(self) -> None:
        """The clock of the server: a slot begins, then the choice is due, then its end."""
        if self.server.phase is servers.Phase.DONE:
            return
        slot = self.server.slot
        if slot is None:
            self.began = self.server.closed + 1
            self._server_does(servers.SlotBegan(self.began))
            self._begin_everywhere(self.began)
        elif slot.phase is slots.Phase.COLLECTING:
            draws = tuple(self.below(most) for most in slot.ranges)
            self._server_does(Choose(slot.number, draws))
        elif slot.phase is slots.Phase.TRAINING:
            noise = self._noise() if slot.needs_noise else None
            dummies = tuple(self._noise() for _ in range(slot.missing_dummies))
            self.witness.closing(self.server, dummies, noise)
            self._server_does(Expired(slot.number, dummies, noise))

    def deliver(self, index: int) -> None:
        address, message = self.network.pop(index)
        if address == "server":
            self._server_takes(message)
        else:
            self._client_does(address, message)

    def finish_training(self) -> None:
        """Some device ends its work, with noise that is drawn for it alone."""
        if not self.training:
            return
        token = sorted(self.training)[self.below(len(self.training))]
        del self.training[token]
        who = 1 + sorted(self.participants).index(token)
        report = Report.from_simulation(np.array([who, self._fresh(), 1], dtype=np.int64))
        self._client_does(token, ReportMade(report))

    def retry(self, token: str) -> None:
        self._client_does(token, RetryDue())

    def crash_client(self, token: str) -> None:
        self.training.pop(token, None)
        self.memory[token] = self.disk[token]
        if self.memory[token].phase is clients.Phase.NEW:
            if self.server.closed + 1 >= self.wakes.get(token, 1):
                self._wake_up(token)
            return
        self._client_does(token, Restarted())
        if self.server.slot is not None:
            self._client_does(token, SlotBegan(self.server.slot.number))

    def crash_server(self) -> None:
        self.server = self.server_disk
        pending = servers.event_after_restart(self.server)
        if pending is not None:
            self._server_does(pending)
        elif self.server.slot is None and self.began > self.server.closed:
            self._server_does(servers.SlotBegan(self.began))

    def attack(self) -> None:
        """Somebody sends what no honest client would: a second check-in, or no proper report."""
        slot = self.server.closed + self.below(3)
        if self.spent and self.below(2):
            again = sorted(self.spent)[self.below(len(self.spent))]
            self.network.append(("server", CheckedIn(slot, again, "", has_participated=False)))
            return
        odd = [
            np.array([1, 2], dtype=np.int64),
            np.array([1.0, np.nan, 1.0]),
            np.array([2**40, 0, 1], dtype=np.int64),
        ][self.below(3)]
        waiting = (
            [] if self.server.slot is None else sorted(self.server.slot.receipts_by_token.values())
        )
        receipt = waiting[self.below(len(waiting))] if waiting else "nobody"
        message = ReportArrived(slot, receipt, Report.from_simulation(odd))
        self.network.append(("server", message))

    # ---- the server's driver ---------------------------------------------------------------

    def _server_takes(self, message: Message) -> None:
        if isinstance(message, CheckedIn):
            self.receipts += 1
            receipt = f"r{self.receipts}"
            spent = message.token in self.spent
            message = replace(message, receipt=receipt, has_participated=spent)
        before = self.server
        try:
            self._server_does(message)
        except ProtocolViolation as violation:
            assert self.server is before, "a refused message must change nothing"
            self.witness.refused(before, message, violation)
            if isinstance(message, CheckedIn):
                self.network.append((message.token, Refused()))

    def _server_does(self, event: Event) -> None:
        after, effects = servers.step(self.server, event)
        self.server = after
        self.witness.server_stepped(event, effects)
        try:
            if effects and self._crashes():
                raise Crash
            for effect in effects:
                self._perform(effect, after)
                if self._crashes():
                    raise Crash
        except Crash:
            self.crash_server()

    def _perform(self, effect: Effect, state: Server) -> None:
        self.witness.server_effect(effect, self.server_disk, state)
        match effect:
            case RecordCheckIn(token, _):
                self.server_disk = state
                self.spent.add(token)
            case slots.RecordReport():
                self.server_disk = state
            case Acknowledge(token, receipt):
                self._send(token, Acknowledged(receipt))
            case RecordChoice():
                self.server_disk = state
                self._server_does(slots.ChoiceRecorded(_number(state)))
            case Invite(receipt):
                self._send(self._owner(receipt), Invited(receipt, self.server.learner.model))
            case Dismiss(receipt):
                self._send(self._owner(receipt), Dismissed(receipt))
            case AcknowledgeReport(receipt):
                self._send(self._owner(receipt), ReportAcknowledged(receipt))
            case RecordClosing():
                self.server_disk = state
                self._server_does(ClosingRecorded(_number(state)))
            case Release() | Finish():
                pass
            case _:
                raise AssertionError(f"nobody performs {effect}")

    def _owner(self, receipt: str) -> str:
        slot = self.server.slot
        assert slot is not None
        return next(token for token, given in slot.receipts_by_token.items() if given == receipt)

    # ---- the clients' driver ---------------------------------------------------------------

    def _wake_up(self, token: str) -> None:
        participant = self.memory[token]
        now = max(self.wakes.get(token, 1), self.server.closed + 1)
        draw = Draw(self.below(COIN_RANGE), self.below(len(participant.window)), now)
        self._client_does(token, draw)

    def _begin_everywhere(self, slot: int) -> None:
        """Clients notice that a slot has begun, unless they are offline just then."""
        for token in sorted(self.participants):
            if self.memory[token].phase is clients.Phase.NEW and slot >= self.wakes.get(token, 1):
                self._wake_up(token)
            if not (self.faults and self.below(8) == 7):
                self._client_does(token, SlotBegan(slot))

    def _client_does(self, token: str, event: Event) -> None:
        before = self.memory[token]
        try:
            after, effects = clients.step(before, event)
        except ProtocolViolation:
            return
        self.memory[token] = after
        for effect in effects:
            if self._crashes():
                self.crash_client(token)
                return
            self._client_performs(token, effect, after)

    def _client_performs(self, token: str, effect: Effect, state: Participant) -> None:
        self.witness.client_effect(token, effect, self.disk[token])
        match effect:
            case RecordEnd():
                self.disk[token] = state
            case RecordDraw():
                self.disk[token] = state
                self._client_does(token, DrawRecorded())
            case SendCheckIn(slot):
                self._send("server", CheckedIn(slot, token, "", has_participated=False))
            case AskOutcome(receipt):
                self._send("server", OutcomeAsked(_slot(state), receipt))
            case Train(model):
                self.training[token] = model
            case RecordReport():
                self.disk[token] = state
                self._client_does(token, ReportRecorded())
            case SendReport(slot, receipt, report):
                self._send("server", ReportArrived(slot, receipt, report))

    # ---- chance ----------------------------------------------------------------------------

    def _crashes(self) -> bool:
        crashes = self.faults and self.crashes_left > 0 and self.below(40) == 39
        self.crashes_left -= crashes
        return crashes

    def _someone(self) -> str:
        everyone = sorted(self.participants)
        return everyone[self.below(len(everyone))]

    def _send(self, address: str, message: Message) -> None:
        self.network.append((address, message))

    def _fresh(self) -> int:
        """Noise that is never the same twice."""
        self.noises += 1
        return 1000 * self.noises

    def _noise(self) -> Report:
        return Report.from_simulation(np.array([0, self._fresh(), 1], dtype=np.int64))


def _number(server: Server) -> int:
    assert server.slot is not None
    return server.slot.number


def _slot(participant: Participant) -> int:
    assert participant.slot is not None
    return participant.slot


PROTOCOLS = (
    *("fixed", "capacity", "server noise", "capped server noise", "averaged", "sliding"),
    *("correlated noise", "sliding with correlated noise"),
)
USES_ALL = {"averaged", "server noise", "correlated noise"}
STRATEGIES = (
    NoiseStrategy((3,), bits=2),
    NoiseStrategy((11, 11), bits=4),
    NoiseStrategy((12, 6, 5, 4), bits=4),
)


def any_world(below: Below, *, faults: bool, kind: str | None = None) -> World:
    """A small campaign of any protocol with up to eight clients."""
    kind = PROTOCOLS[below(len(PROTOCOLS))] if kind is None else kind
    slots_in_all = 1 + below(5)
    window = 1 + below(slots_in_all) if "sliding" in kind else None
    capacity = 1 if kind == "fixed" else None if kind in USES_ALL else 1 + below(3)
    strategy = STRATEGIES[below(len(STRATEGIES))] if "correlated" in kind else None
    filling = {"averaged": Filling.NOTHING}.get(
        kind, Filling.NOISE if "noise" in kind else Filling.DUMMIES
    )
    affordable = slots_in_all if below(4) else below(slots_in_all + 1)
    rules = Rules(
        slots=slots_in_all,
        capacity=capacity,
        filling=filling,
        warm_up=0 if window is None else window - 1,
        affordable=affordable,
        report_checks=ReportChecks(DIMENSION, most_units=10**12, simulated=True),
        update=ModelUpdate(
            rate=0.5, minibatch=1 if kind == "averaged" else 1 + below(3), strategy=strategy
        ),
        least_reports=1 + below(3) if kind == "averaged" else 1,
    )
    tokens = [f"c{index}" for index in range(below(9))] or ["c0"]
    wakes = {token: 1 + below(slots_in_all) for token in tokens} if window else {}
    participants = {}
    for token in tokens:
        first = 1 + below(slots_in_all)
        own = FixedWindow(range(first, first + 1 + below(slots_in_all - first + 1)))
        whole = FixedWindow.whole(slots_in_all)
        participants[token] = Participant(
            participation=(1.0, 1.0, 0.5)[below(3)],
            window=SlidingWindow(window) if window else (own if below(4) == 0 else whole),
        )
    return World(below, rules, participants, faults, wakes)
