"""The state machine of a run on the server: the order of its slots, the model, and the end.

WAITING  the next slot has not begun
OPEN     a slot is in progress (its own state machine is in slot.py)
CLOSING  the slot's total and the new model are computed but not durable, so they are not public
DONE     all slots are over, or the next release would exceed the budget

This file decides which slot runs, and when a model is released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum

import numpy as np
from numpy.typing import ArrayLike

from checkins import validate
from checkins.accounting import NoiseStrategy
from checkins.campaign import Campaign
from checkins.errors import OutOfOrder, ProtocolViolation
from checkins.protocol import slot as slots
from checkins.protocol.machine import Effect, Effects, Event, Machine, Message
from checkins.protocol.machine import SlotBegan as SlotBegan
from checkins.protocol.model_update import (
    Learner,
    Model,
    ModelUpdate,
    Total,
    published_total,
    read_only,
)
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Rules, rules_of, sampler_of
from checkins.protocol.slot import Slot


class Phase(Enum):
    WAITING = 1
    OPEN = 2
    CLOSING = 3
    DONE = 4


class Ending(StrEnum):
    """Why a run is over: after all its slots, or earlier because of its budget."""

    COMPLETED = "completed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Server:
    """The state of a run. ``closed`` is the number of slots that are over.

    ``slot`` is the slot in progress, or None. If noise is correlated across slots, ``exact_sums``
    are the sums without noise of the last slots, newest first. These sums are secret, and the
    totals of later slots contain them (invariant 16 of docs/invariants.md). If the noise of slots
    is independent, ``exact_sums`` is empty.
    """

    rules: Rules
    learner: Learner
    phase: Phase
    closed: int = 0
    slot: Slot | None = None
    exact_sums: tuple[Total, ...] = ()

    @classmethod
    def start(cls, rules: Rules, model: Model, *, velocity: Model | None = None) -> Server:
        """Return the state before the first slot, or DONE if the budget allows no slot."""
        phase = Phase.WAITING if rules.affordable > 0 else Phase.DONE
        return cls(rules, rules.update.start(model, velocity), phase)

    @property
    def ending(self) -> Ending | None:
        """Why the run is over. None if it is not over."""
        if self.phase is not Phase.DONE:
            return None
        return Ending.COMPLETED if self.closed == self.rules.slots else Ending.STOPPED


@dataclass(frozen=True, slots=True)
class ClosingRecorded(Event):
    """Total, model and ledger entry of the slot are durable. Its tokens and receipts are erased."""

    slot: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordClosing(Effect):
    """Save total, model and ledger entry in one transaction (invariant 5 of docs/invariants.md).

    The same transaction saves the exact sums of the server's state, if it has any.
    The total is None in a slot of the warm-up. Under averaged updates, it is also None if nobody
    reported, or if fewer clients reported than the campaign's ``least_reports``.
    ``contributors`` is the number of reports under averaged updates, and None under the other
    protocols.
    """

    slot: int
    total: Total | None
    contributors: int | None
    model: Model


@dataclass(frozen=True, slots=True, eq=False)
class Release(Effect):
    """Make this model and the slot's entry in the ledger public.

    The entry holds the slot's total, the hash of the model and, under averaged updates, the number
    of reports. Nothing else about the slot becomes public.
    """

    slot: int
    model: Model


@dataclass(frozen=True, slots=True)
class Finish(Effect):
    """The campaign is over."""

    ending: Ending


_EventInSlot = slots.SlotEvent | ClosingRecorded

SERVER_MACHINE: Machine[Server] = Machine("server", first_phase=Phase.WAITING)
step = SERVER_MACHINE.step


@SERVER_MACHINE.on(SlotBegan, {Phase.WAITING: Phase.OPEN})
def _open(server: Server, event: SlotBegan) -> tuple[Server, Effects]:
    if event.slot != server.closed + 1:
        raise OutOfOrder(f"slot {server.closed + 1} is next, not {event.slot}")
    return replace(server, phase=Phase.OPEN, slot=Slot(event.slot, server.rules)), ()


@SERVER_MACHINE.on(slots.CheckedIn, (Phase.OPEN,))
@SERVER_MACHINE.on(slots.Choose, (Phase.OPEN,))
@SERVER_MACHINE.on(slots.ChoiceRecorded, (Phase.OPEN,))
@SERVER_MACHINE.on(slots.OutcomeAsked, (Phase.OPEN,))
@SERVER_MACHINE.on(slots.ReportArrived, (Phase.OPEN,))
def _pass_to_slot(server: Server, event: _EventInSlot) -> tuple[Server, Effects]:
    slot, effects = slots.step(_slot_in_progress(server, event), event)
    return replace(server, slot=slot), effects


@SERVER_MACHINE.on(slots.Expired, {Phase.OPEN: Phase.CLOSING})
def _close(server: Server, event: slots.Expired) -> tuple[Server, Effects]:
    slot, _ = slots.step(_slot_in_progress(server, event), event)
    learner, exact_sums = server.learner, server.exact_sums
    strategy = server.rules.strategy
    if strategy is not None and event.noise is not None:
        slot, exact_sums = _add_correlated_noise(server, slot, strategy, event.noise)
    if server.rules.releases_model(slot.number):
        learner = server.rules.update.apply(learner, slot.total, slot.contributors)
    closing = replace(
        server, phase=Phase.CLOSING, slot=slot, learner=learner, exact_sums=exact_sums
    )
    record = RecordClosing(slot.number, slot.total, slot.contributors, learner.model)
    return closing, (record,)


def _add_correlated_noise(
    server: Server, slot: Slot, strategy: NoiseStrategy, noise: Report
) -> tuple[Slot, tuple[Total, ...]]:
    """Return the closed slot with its total, and the exact sums that later slots need."""
    needed_sums = server.rules.needed_sums(slot.number)
    if len(server.exact_sums) != needed_sums:
        raise OutOfOrder(
            f"slot {slot.number} needs the exact sums of the {needed_sums} slots before it,"
            f" not {len(server.exact_sums)}: a total without them cannot be used"
        )
    exact_sum = slot.exact_sum
    if exact_sum is None:  # nobody reported
        exact_sum = read_only(np.zeros_like(noise.values))
    sums = (exact_sum, *server.exact_sums)
    total = read_only(published_total(strategy, sums, noise.values))
    later_sums = sums[: server.rules.needed_sums(slot.number + 1)]
    return replace(slot, total=total, exact_sum=None), later_sums


@SERVER_MACHINE.on(ClosingRecorded, {Phase.CLOSING: (Phase.WAITING, Phase.DONE)})
def _release(server: Server, event: ClosingRecorded) -> tuple[Server, Effects]:
    closed = _slot_in_progress(server, event).number
    phase = Phase.WAITING if closed < server.rules.affordable else Phase.DONE
    after = replace(server, phase=phase, closed=closed, slot=None)
    effects: Effects = ()
    if server.rules.releases_model(closed):
        effects += (Release(closed, server.learner.model),)
    if after.ending is not None:
        effects += (Finish(after.ending),)
    return after, effects


def event_after_restart(server: Server) -> Event | None:
    """Return the event that a restarted driver must send first, or None.

    A crash may happen after the driver has saved a choice or a closing, and before it has sent the
    event that reports the save. The driver then sends this event: ``ChoiceRecorded`` or
    ``ClosingRecorded``. Otherwise the result is None.
    """
    slot = server.slot
    if slot is None:
        return None
    if server.phase is Phase.CLOSING:
        return ClosingRecorded(slot.number)
    return slots.ChoiceRecorded(slot.number) if slot.phase is slots.Phase.CHOOSING else None


def _slot_in_progress(server: Server, event: _EventInSlot) -> Slot:
    """Return the slot in progress. Raise if the event is about another slot (invariant 6)."""
    slot = server.slot
    if slot is not None and slot.number == event.slot:
        return slot
    problem = f"slot {event.slot} is not in progress"
    raise ProtocolViolation(problem) if isinstance(event, Message) else OutOfOrder(problem)


def server_of(
    campaign: Campaign, model: ArrayLike, *, affordable: int, velocity: ArrayLike | None = None
) -> Server:
    """Return the server of a real run before its first slot. It stops after ``affordable`` slots.

    ``affordable`` is computed from the ledger of the campaign's population, with the privacy loss
    of earlier runs (``checkins.ledger.spending_of``). ``velocity`` is the momentum vector of the
    run that this run continues, or None.
    """
    rules = rules_of(campaign, dimension=np.size(model), affordable=affordable)
    return Server.start(
        rules, _flat_array(model), velocity=None if velocity is None else _flat_array(velocity)
    )


def simulation_server_of(
    campaign: Campaign, model: ArrayLike, *, velocity: ArrayLike | None = None
) -> Server:
    """Return a server that accepts simulated reports and runs all slots, whatever the budget is.

    Reports are integers if the campaign has a grid, otherwise floats.
    """
    dimension = np.size(model)
    validate.count(dimension=dimension)
    has_grid = campaign.randomizer.grid is not None
    most_units = sampler_of(campaign, dimension=dimension).most_units if has_grid else None
    rules = Rules.of(
        campaign.design,
        affordable=campaign.design.slots,
        report_checks=ReportChecks(dimension, most_units=most_units, simulated=True),
        update=ModelUpdate.of(campaign),
    )
    return Server.start(
        rules, _flat_array(model), velocity=None if velocity is None else _flat_array(velocity)
    )


def _flat_array(numbers: ArrayLike) -> Model:
    return np.array(numbers, dtype=np.float64).ravel()
