"""Every (phase, event) pair of every machine: allowed where the protocol says so, else refused.

The grids below are written by hand from the protocol: one row for each event, one column for each
phase. ``x`` is allowed, ``.`` is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
import pytest

from checkins.errors import OutOfOrder, ProtocolViolation
from checkins.protocol import participant as clients
from checkins.protocol import participant as said
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.machine import Event, Machine, Message
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import PARTICIPANT_MACHINE, Participant
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, FixedWindow, Rules
from checkins.protocol.server import SERVER_MACHINE, Server
from checkins.protocol.slot import SLOT_MACHINE, Slot

RULES = Rules(
    slots=3,
    capacity=1,
    filling=Filling.DUMMIES,
    warm_up=0,
    affordable=3,
    report_checks=ReportChecks(2, most_units=10, simulated=True),
    update=ModelUpdate(rate=1.0),
)
REPORT = Report.from_simulation(np.array([1, 2]))
MODEL = np.zeros(2)

SLOT_GRID = """
                 COLLECTING CHOOSING TRAINING CLOSED
CheckedIn        x          x        x        .
Choose           x          .        .        .
ChoiceRecorded   .          x        .        .
OutcomeAsked            x          x        x        .
ReportArrived    .          .        x        .
Expired          .          .        x        .
"""
SERVER_GRID = """
                 WAITING OPEN CLOSING DONE
SlotBegan        x       .    .       .
CheckedIn        .       x    .       .
Choose           .       x    .       .
ChoiceRecorded   .       x    .       .
OutcomeAsked            .       x    .       .
ReportArrived    .       x    .       .
Expired          .       x    .       .
ClosingRecorded  .       .    x       .
"""
PARTICIPANT_GRID = """
                    NEW DRAWN PLEDGED CHECKING_IN ACCEPTED TRAINING PRIVATIZED REPORTING DONE
Draw                x   .     .       .           .        .        .          .         .
DrawRecorded        .   x     .       .           .        .        .          .         .
SlotBegan           x   x     x       x           x        x        x          x         x
RetryDue            x   x     x       x           x        x        x          x         x
Restarted           x   x     x       x           x        x        x          x         x
Acknowledged        .   .     .       x           x        x        x          x         x
Refused             .   .     .       x           x        x        x          x         x
Dismissed           .   .     .       x           x        x        x          x         x
Invited             .   .     .       x           x        x        x          x         x
ReportMade          .   .     .       .           .        x        .          .         x
ReportRecorded      .   .     .       .           .        .        x          .         .
ReportAcknowledged  .   .     .       x           x        x        x          x         x
"""


def slot_in(phase: slots.Phase) -> Slot:
    """A slot where client ``a`` waits with receipt ``r``, as it is in this phase."""
    slot = Slot(1, RULES)
    events: list[Event] = [
        slots.CheckedIn(1, "a", "r", has_participated=False),
        slots.Choose(1, ()),
        slots.ChoiceRecorded(1),
        slots.Expired(1, (REPORT,)),
    ]
    return SLOT_MACHINE.replay(slot, events[: phase.value])


def server_in(phase: servers.Phase) -> Server:
    start = Server.start(RULES, MODEL)
    before: list[Event] = [servers.SlotBegan(1)]
    close: list[Event] = [slots.Choose(1, ()), slots.ChoiceRecorded(1), slots.Expired(1, (REPORT,))]
    match phase:
        case servers.Phase.WAITING:
            return start
        case servers.Phase.OPEN:
            return SERVER_MACHINE.replay(start, before)
        case servers.Phase.CLOSING:
            return SERVER_MACHINE.replay(start, before + close)
    return Server.start(replace(RULES, affordable=0), MODEL)


def participant_in(phase: clients.Phase) -> Participant:
    events: list[Event] = [
        said.Draw(0, 1, first_open_slot=1),
        said.DrawRecorded(),
        said.SlotBegan(2),
        said.Acknowledged("r"),
        said.Invited("r", MODEL),
        said.ReportMade(REPORT),
        said.ReportRecorded(),
        said.ReportAcknowledged("r"),
    ]
    start = Participant(1.0, FixedWindow.whole(3))
    return PARTICIPANT_MACHINE.replay(start, events[: phase.value - 1])


def event_for(machine: Machine[Any], kind: type[Event], state: Any) -> Event:
    """An event of this kind that an honest peer or driver could send in this state."""
    if machine is PARTICIPANT_MACHINE:
        return {
            said.Draw: said.Draw(0, 1, first_open_slot=1),
            said.SlotBegan: said.SlotBegan(2),
            said.Acknowledged: said.Acknowledged("r"),
            said.Dismissed: said.Dismissed("r"),
            said.Invited: said.Invited("r", MODEL),
            said.ReportMade: said.ReportMade(REPORT),
            said.ReportAcknowledged: said.ReportAcknowledged("r"),
        }.get(kind) or kind()
    slot = state.slot if machine is SERVER_MACHINE else state
    return {
        servers.SlotBegan: servers.SlotBegan(1),
        slots.CheckedIn: slots.CheckedIn(1, "a", "r", has_participated=False),
        slots.Choose: slots.Choose(1, ()),
        slots.ChoiceRecorded: slots.ChoiceRecorded(1),
        slots.OutcomeAsked: slots.OutcomeAsked(1, "r"),
        slots.ReportArrived: slots.ReportArrived(1, "r", REPORT),
        slots.Expired: slots.Expired(
            1, () if isinstance(slot, Slot) and slot.reports else (REPORT,)
        ),
        servers.ClosingRecorded: servers.ClosingRecorded(1),
    }[kind]


def cells(grid: str) -> dict[tuple[str, str], bool]:
    header, *rows = [line.split() for line in grid.strip().splitlines()]
    return {
        (phase, row[0]): mark == "x"
        for row in rows
        for phase, mark in zip(header, row[1:], strict=True)
    }


MACHINES: list[tuple[Machine[Any], str, Callable[[Any], Any]]] = [
    (SLOT_MACHINE, SLOT_GRID, slot_in),
    (SERVER_MACHINE, SERVER_GRID, server_in),
    (PARTICIPANT_MACHINE, PARTICIPANT_GRID, participant_in),
]
PAIRS = [
    pytest.param(
        machine, grid, make, phase, event, id=f"{machine.name}-{phase.name}-{event.__name__}"
    )
    for machine, grid, make in MACHINES
    for phase in machine.phases
    for event in machine.events
]


@pytest.mark.parametrize(
    ("machine", "grid", "make"), MACHINES, ids=lambda m: getattr(m, "name", "")
)
def test_the_grid_names_every_phase_and_every_event(
    machine: Machine[Any], grid: str, make: Callable[[Any], Any]
) -> None:
    assert set(cells(grid)) == {
        (phase.name, event.__name__) for phase in machine.phases for event in machine.events
    }


@pytest.mark.parametrize(
    ("machine", "grid", "make"), MACHINES, ids=lambda m: getattr(m, "name", "")
)
def test_every_phase_can_be_reached(
    machine: Machine[Any], grid: str, make: Callable[[Any], Any]
) -> None:
    for phase in machine.phases:
        assert make(phase).phase is phase


@pytest.mark.parametrize(("machine", "grid", "make", "phase", "event"), PAIRS)
def test_a_pair_is_allowed_where_the_protocol_says_so_and_refused_elsewhere(
    machine: Machine[Any], grid: str, make: Callable[[Any], Any], phase: Enum, event: type[Event]
) -> None:
    allowed = cells(grid)[phase.name, event.__name__]
    assert machine.allows(phase, event) == allowed
    state = make(phase)
    happened = event_for(machine, event, state)
    if not allowed:
        fault = ProtocolViolation if isinstance(happened, Message) else OutOfOrder
        with pytest.raises(fault, match=phase.name):
            machine.step(state, happened)
        return
    if machine is SERVER_MACHINE and isinstance(state.slot, Slot):  # the slot has its own grid
        slot_refuses = event in SLOT_MACHINE.events and not SLOT_MACHINE.allows(
            state.slot.phase, event
        )
        if slot_refuses:
            with pytest.raises((ProtocolViolation, OutOfOrder), match=state.slot.phase.name):
                machine.step(state, happened)
            return
    after, effects = machine.step(state, happened)
    declared = next(row.next_phases for row in machine if (row.start, row.event) == (phase, event))
    assert after.phase in declared
    assert isinstance(effects, tuple)


def test_whose_fault_it_was_is_told_apart() -> None:
    with pytest.raises(
        ProtocolViolation, match="CheckedIn is not allowed while the server is WAITING"
    ):
        SERVER_MACHINE.step(
            server_in(servers.Phase.WAITING), slots.CheckedIn(1, "a", "r", has_participated=False)
        )
    with pytest.raises(OutOfOrder, match="slot 1 is next, not 2"):
        SERVER_MACHINE.step(server_in(servers.Phase.WAITING), servers.SlotBegan(2))


def test_a_rule_that_leads_where_the_table_does_not_is_stopped() -> None:
    machine: Machine[Slot] = Machine("slot", first_phase=slots.Phase.COLLECTING)

    @machine.on(slots.ChoiceRecorded, {slots.Phase.COLLECTING: slots.Phase.CHOOSING})
    def _astray(slot: Slot, event: slots.ChoiceRecorded) -> tuple[Slot, tuple[()]]:
        return replace(slot, phase=slots.Phase.CLOSED), ()

    with pytest.raises(OutOfOrder, match="COLLECTING may not become CLOSED"):
        machine.step(Slot(1, RULES), slots.ChoiceRecorded(1))
    with pytest.raises(OutOfOrder, match="already has a rule"):
        machine.on(slots.ChoiceRecorded, {slots.Phase.COLLECTING: slots.Phase.CLOSED})(_astray)
