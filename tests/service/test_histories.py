"""Any history of messages, clock steps and restarts: the store and the pure machine agree.

Both are fed the same dice: those that the service drew. The ledger of the store must be, byte for
byte, the one that the machine's totals and models give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkins.campaign import Campaign
from checkins.errors import ProtocolViolation
from checkins.ledger import Ledger, SlotClosed, certificate, spending_of
from checkins.protocol import server as servers
from checkins.protocol.report import Report
from checkins.protocol.server import (
    ClosingRecorded,
    Phase,
    RecordClosing,
    Server,
    SlotBegan,
    server_of,
)
from checkins.protocol.slot import (
    Acknowledge,
    CheckedIn,
    ChoiceRecorded,
    Choose,
    Dismiss,
    Expired,
    Invite,
    OutcomeAsked,
    ReportArrived,
)
from checkins.randomizers import DeviceReport
from checkins.service.authentication import hashed
from checkins.service.runs import intake, slot_transitions
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.load_shedding import SlotLoad
from checkins.service.store import participants
from checkins.service.store.run_state import RunSpec
from tests.support.campaigns import (
    AT_LEAST_THREE,
    AT_SERVER,
    AVERAGED,
    CORRELATED,
    EVERYONE,
    SLIDING,
    campaign,
)
from tests.support.clock import Clock
from tests.support.store import House, units_of

CLIENTS = 6
KINDS: dict[str, dict[str, Any]] = {
    "client": {},
    "one": {"capacity": 1, "optimizer": 'kind = "sgd", rate = 0.5, minibatch = 2'},
    "server": AT_SERVER,
    "everyone": EVERYONE,
    "averaged": AVERAGED,
    "averaged, at least three": AT_LEAST_THREE,
    "sliding": SLIDING,
    "correlated": {**CORRELATED, "optimizer": 'kind = "sgd", rate = 0.5, minibatch = 2'},
    "sliding, correlated": {**CORRELATED, **SLIDING},
    "poor": {"slots": 6, "epsilon": 0.7},
}
numbers = st.integers(0, CLIENTS - 1)
off = st.sampled_from([0, 0, 0, 0, -1, 1])
STEPS = st.one_of(
    st.tuples(st.just("check in"), numbers, off),
    st.tuples(st.just("check in"), numbers, off),
    st.tuples(st.just("ask"), numbers),
    st.tuples(st.just("report"), numbers, off, st.integers(1, 2)),
    st.tuples(st.just("report"), numbers, off, st.integers(1, 2)),
    st.tuples(st.just("withdraw"), numbers),
    st.tuples(st.just("clock"), st.integers(1, 2)),
    st.tuples(st.just("clock"), st.integers(1, 7)),
    st.tuples(st.just("restart")),
)


@dataclass
class Pure:
    """The machine and its ledger, with a store that is two sets in memory."""

    campaign: Campaign
    server: Server
    ledger: Ledger
    lines: list[bytes]
    unspent: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, what: Campaign, spec: RunSpec, model: Any) -> Pure:
        affordable = spending_of(Ledger(), what).affordable_slots_in_run()
        server = server_of(what, model, affordable=affordable)
        assert server.rules.affordable == spec.affordable
        ledger, line = Ledger().append(Ledger().opening(what, model=model))
        return cls(what, server, ledger, [line])

    def check_in(self, slot: int, token: str, receipt: str) -> str | None:
        event = CheckedIn(slot, token, receipt, has_participated=token not in self.unspent)
        effects = self._step(event)
        if effects is None:
            return None
        self.unspent.discard(token)
        (told,) = (effect for effect in effects if isinstance(effect, Acknowledge))
        return told.receipt

    def report(self, slot: int, receipt: str, report: Report) -> bool:
        return self._step(ReportArrived(slot, receipt, report)) is not None

    def ask(self, slot: int, receipt: str) -> str | None:
        effects = self._step(OutcomeAsked(slot, receipt))
        match effects:
            case None:
                return None
            case (Invite(),):
                return "chosen"
            case (Dismiss(),):
                return "dismissed"
        return "waiting"

    def withdraw(self, token: str) -> None:
        """As if that client had vanished."""
        self.unspent.discard(token)
        slot = self.server.slot
        if slot is None or token not in slot.receipts_by_token:
            return
        receipt = slot.receipts_by_token[token]
        gone = replace(
            slot,
            receipts_by_token={t: r for t, r in slot.receipts_by_token.items() if t != token},
            chosen_receipts=tuple(r for r in slot.chosen_receipts if r != receipt),
            reports={r: u for r, u in slot.reports.items() if r != receipt},
        )
        self.server = replace(self.server, slot=gone)

    def clock(self, event: Any) -> None:
        """A draw that the service made, or the beginning of a slot."""
        if isinstance(event, Choose):
            self._must(event)
            self._must(ChoiceRecorded(event.slot))
            return
        effects = self._must(event)
        if isinstance(event, Expired):
            (record,) = (effect for effect in effects if isinstance(effect, RecordClosing))
            entry = SlotClosed.of(
                slot=record.slot,
                total=record.total,
                model=record.model,
                contributors=record.contributors,
            )
            self._write(entry)
            self._must(ClosingRecorded(event.slot))

    def _write(self, entry: Any) -> None:
        self.ledger, line = self.ledger.append(entry)
        self.lines.append(line)

    def _step(self, event: Any) -> Any:
        try:
            self.server, effects = servers.step(self.server, event)
        except ProtocolViolation:
            return None
        return effects

    def _must(self, event: Any) -> Any:
        self.server, effects = servers.step(self.server, event)
        return effects


@dataclass
class Both:
    """The same history, played twice."""

    house: House
    spec: RunSpec
    pure: Pure
    drawn: list[Any]
    tokens: list[str]
    receipts: dict[int, tuple[int, str]] = field(default_factory=dict)

    def play(self, step: tuple[Any, ...]) -> None:
        name, *given = step
        getattr(self, name.replace(" ", "_"))(*given)

    @property
    def slot(self) -> int:
        return self.house.snapshot(self.spec).state.slot

    def check_in(self, client: int, off: int) -> None:
        slot, token = self.slot + off, self.tokens[client]
        try:
            answer: str | None = self.house.check_in(self.spec, slot, token)
        except ProtocolViolation:
            answer = None
        (receipt,) = self.drawn.pop()
        assert answer == self.pure.check_in(slot, token, receipt)
        if answer is not None:
            self.receipts[client] = slot, answer

    def ask(self, client: int) -> None:
        if client not in self.receipts:
            return
        slot, receipt = self.receipts[client]
        snapshot = self.house.snapshot(self.spec)
        nothing: Any = None
        messages = dict.fromkeys(("enrolments", "check_ins", "reports", "retries"), nothing)
        load = SlotLoad(self.spec.rules, self.spec.run_schedule)
        live_run = LiveRun(self.spec, snapshot, load=load, **messages)
        choice = slot_transitions.read_choice(self.house.database, self.spec.id)
        live_run.update(snapshot, choice)
        known = self.house.database.read(participants.slot_of, self.spec.id, receipt)
        told = None if known is None else live_run.outcome(slot, receipt)
        if known is None and self.pure.server.phase is Phase.OPEN and slot == self.slot:
            assert self.pure.ask(slot, receipt) in (None, "waiting")  # withdrawn
        else:
            assert told == self.pure.ask(slot, receipt)

    def report(self, client: int, off: int, units: int) -> None:
        slot, receipt = self.receipts.get(client, (self.slot, "nobody's"))
        slot += off
        values = units_of(self.spec, units)
        try:
            self.house.report(self.spec, slot, receipt, values)
            taken = True
        except ProtocolViolation:
            taken = False
        report = Report.from_device(DeviceReport(values, self.spec.sampler.grid))
        assert taken == self.pure.report(slot, receipt, report)

    def withdraw(self, client: int) -> None:
        intake.withdraw(self.house.database, self.spec.id, self.tokens[client])
        self.pure.withdraw(self.tokens[client])

    def restart(self) -> None:
        self.house.restart()

    def clock(self, steps: int) -> None:
        """To the moment of the next thing that is due, or of a later one: all of it is done."""
        state = self.house.snapshot(self.spec).state
        due = slot_transitions.next_due_time(self.spec, state)
        if due is None:
            return
        slots, rest = divmod(steps - 1, 2)
        moment = (
            due + slots * self.spec.run_schedule.slot_s + rest * self.spec.run_schedule.choose_s
        )
        self.house.run_until(self.spec, moment)
        events, self.drawn[:] = list(self.drawn), []
        self._begin_if_due()
        for event in events:
            self.pure.clock(event)
            self._begin_if_due()
        self.agree()

    def _begin_if_due(self) -> None:
        server = self.pure.server
        following = server.closed + 1
        begins = self.spec.run_schedule.begins(following)
        if server.phase is Phase.WAITING and self.house.clock.now >= begins:
            self.pure.clock(SlotBegan(following))

    def agree(self) -> None:
        snapshot = self.house.snapshot(self.spec)
        assert snapshot.state.phase is self.pure.server.phase
        assert snapshot.state.closed == self.pure.server.closed
        assert self.house.lines(self.spec) == self.pure.lines
        slot = self.pure.server.slot
        choice = slot_transitions.read_choice(self.house.database, self.spec.id)
        if choice is not None:
            assert slot is not None
            assert choice.chosen == set(slot.chosen_receipts)
            assert choice.waiting == set(slot.receipts_by_token.values())


@pytest.fixture(scope="module")
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], House]]:
    """Houses that stay for many histories: each history is a population of its own."""
    held: dict[str, House] = {}

    def house(backend: str) -> House:
        if backend not in held:
            folder: Path = tmp_path_factory.mktemp("histories")
            url = f"sqlite:///{folder}/store.db"
            if backend == "postgresql":
                url = request.getfixturevalue("postgres").create()
            held[backend] = House(url, folder, Clock())
        return held[backend]

    yield house
    for kept in held.values():
        kept.database.close()


NAMES = count()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=10, max_size=40))
def test_any_history_is_one_of_the_machines(
    opened: Callable[[str], House], kind: str, backend: str, steps: list[tuple[Any, ...]]
) -> None:
    house = opened(backend)
    house.clock.now = Clock().now
    what = campaign(population_id=f"history {next(NAMES)}", **KINDS[kind])
    drawn: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (slot_transitions, "draw_choice"),
            (slot_transitions, "draw_expiry"),
            (intake, "draw_receipts"),
        ):
            patch.setattr(module, name, recorded(getattr(module, name), drawn))
        spec = house.open(what)
        pure = Pure.of(what, spec, house.snapshot(spec).learner.model)
        tokens = [hashed(f"{spec.id} {number}") for number in range(CLIENTS)]
        for token in tokens:
            intake.take_enrolments(house.database, spec, [intake.EnrolmentRequest(token)])
            pure.unspent.add(token)
        both = Both(house, spec, pure, drawn, tokens)
        both.clock(1)
        for step in steps:
            both.play(step)
        both.clock(2 * spec.rules.slots + 1)
        ended = house.finish(spec)
        *lines, _ = house.lines(spec)
        assert lines == pure.lines
        assert ended.certificate["epsilon"] == certificate(pure.ledger).epsilon
        assert ended.state.closed == spec.affordable
        assert house.verified(spec, require_closed=True).within_budget


def recorded(draw: Callable[..., Any], drawn: list[Any]) -> Callable[..., Any]:
    def remembered(*given: Any) -> Any:
        event = draw(*given)
        drawn.append(event)
        return event

    return remembered
