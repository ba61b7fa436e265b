"""What must hold in every history: the invariants of docs/invariants.md, checked as things happen.

The witness keeps its own books from the effects that were performed; it never asks a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import NoiseStrategy
from checkins.errors import ProtocolViolation
from checkins.protocol import participant as clients
from checkins.protocol import slot as slots
from checkins.protocol.machine import Effect, Event, Message
from checkins.protocol.participant import (
    AskOutcome,
    Participant,
    RecordDraw,
    RecordReport,
    SendCheckIn,
    SendReport,
)
from checkins.protocol.report import Report
from checkins.protocol.rules import Filling, Rules
from checkins.protocol.server import Ending, RecordClosing, Release, Server
from checkins.protocol.slot import (
    Acknowledge,
    AcknowledgeReport,
    Dismiss,
    Invite,
    RecordCheckIn,
    ReportArrived,
)


@dataclass(slots=True)
class Witness:
    """The books of one history."""

    rules: Rules
    start: Server
    draws: dict[str, int | None] = field(default_factory=dict)
    check_ins: dict[str, tuple[int, str]] = field(default_factory=dict)
    told: dict[str, type[Effect]] = field(default_factory=dict)
    sent: dict[str, Report] = field(default_factory=dict)
    taken: dict[int, dict[str, Report]] = field(default_factory=dict)
    acknowledged: dict[int, set[str]] = field(default_factory=dict)
    expected: NDArray[np.int64] | None = None
    exact_sum: NDArray[np.int64] | None = None
    exact_sums: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    totals: dict[int, NDArray[np.int64] | None] = field(default_factory=dict)
    models: dict[int, bytes] = field(default_factory=dict)
    shown: dict[int, bytes] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)

    # ---- the server ------------------------------------------------------------------------

    def server_stepped(self, event: Event, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            told = {name for name in getattr(effect, "__slots__", ()) if not name.startswith("_")}
            if isinstance(effect, Release):
                assert told == {"slot", "model"}, "7: a release contains only slot and model"

    def server_effect(self, effect: Effect, disk: Server, state: Server) -> None:
        slot = disk.slot
        match effect:
            case RecordCheckIn(token, receipt):
                assert token not in self.check_ins, "1: one participation per client and campaign"
                assert state.slot is not None
                self.check_ins[token] = (state.slot.number, receipt)
                drawn = self.draws.get(token)
                assert drawn == state.slot.number, "2: a client checks in at its slot only"
            case Acknowledge(token, receipt):
                assert slot is not None, "an acknowledged check-in is durable"
                assert slot.receipts_by_token.get(token) == receipt, (
                    "an acknowledged check-in is durable"
                )
            case Invite(receipt) | Dismiss(receipt):
                assert slot is not None, "4: the choice is committed first"
                committed = slot.phase in (slots.Phase.CHOOSING, slots.Phase.TRAINING)
                assert committed, "4: the choice is committed first"
                assert (receipt in slot.chosen_receipts) == isinstance(effect, Invite), (
                    "4: an outcome differs from the choice"
                )
                assert self.told.setdefault(receipt, type(effect)) is type(effect), (
                    "4: two different outcomes"
                )
            case slots.RecordReport(receipt, report):
                assert state.slot is not None
                assert self.told.get(receipt) is Invite, "a client contributes unchosen"
                here = (state.slot.number, receipt)
                assert here in self.check_ins.values(), "6: a report never moves to another slot"
                kept = self.taken.setdefault(state.slot.number, {})
                assert kept.setdefault(receipt, report) == report, "3: a retry sends other bytes"
            case AcknowledgeReport(receipt):
                assert slot is not None, "an acknowledged report is durable"
                assert receipt in slot.reports, "an acknowledged report is durable"
                self.acknowledged.setdefault(slot.number, set()).add(receipt)
            case RecordClosing():
                self._closed(effect, state)
            case Release():
                self._released(effect, disk)

    def closing(self, server: Server, dummies: tuple[Report, ...], noise: Report | None) -> None:
        """The clock ends a slot: what its total must be, from the reports that were kept."""
        assert server.slot is not None
        number = server.slot.number
        kept = list(self.taken.get(number, {}).values())
        if number <= self.rules.warm_up:
            assert not dummies, "a warm-up uses nothing"
            assert noise is None, "a warm-up uses nothing"
            self.expected = None
            return
        if self.rules.filling is Filling.DUMMIES:
            assert len(kept) + len(dummies) == self.rules.capacity, (
                "7: the sum has exactly K reports"
            )
        assert (noise is not None) == (self.rules.filling is Filling.NOISE), (
            "server noise or none, as declared"
        )
        summands = [*kept, *dummies, *([] if noise is None else [noise])]
        if self.rules.filling is Filling.NOTHING and len(kept) < self.rules.least_reports:
            summands = []
        self.expected = np.sum([report.values for report in summands], axis=0) if summands else None
        if (strategy := self.rules.strategy) is not None and noise is not None:
            self.exact_sum = np.sum([[0, 0, 0], *(report.values for report in kept)], axis=0)
            past = {**self.exact_sums, number: self.exact_sum}
            self.expected = noise.values + sum(
                numerator * past[number - age]
                for age, numerator in enumerate(strategy.numerators)
                if number - age in past
            )

    def _closed(self, effect: RecordClosing, state: Server) -> None:
        number = effect.slot
        assert number not in self.totals, "5: a slot closes once"
        assert number <= self.rules.affordable, "10: a release beyond the budget"
        if self.expected is None:
            assert effect.total is None, "6, 15: too few reports for a total"
        else:
            assert effect.total is not None, "6: the total is the sum of its reports"
            said = "6, 16: the reports of this slot, and of earlier ones as the strategy says"
            assert (effect.total == self.expected).all(), said
        if (strategy := self.rules.strategy) is not None and self.exact_sum is not None:
            self.exact_sums[number] = self.exact_sum
            is_last = number == self.rules.affordable
            needed = range(number, number - (0 if is_last else strategy.bands - 1), -1)
            expected = [self.exact_sums[slot] for slot in needed if slot in self.exact_sums]
            assert np.array_equal(state.exact_sums, expected), (
                "16: only the sums that later slots need"
            )
        kept = self.taken.get(number, {})
        assert self.acknowledged.get(number, set()) <= kept.keys(), "no acknowledged report is lost"
        self.used += [int(report.values[0]) for report in kept.values()]
        assert len(set(self.used)) == len(self.used), "1: nobody contributes twice"
        averaged = self.rules.filling is Filling.NOTHING
        told = len(kept) if averaged else None
        assert effect.contributors == told, "7: no count in fixed and sliding"
        assert state.slot is not None
        assert not state.slot.receipts_by_token, "8: a closed slot stores no client"
        assert not state.slot.reports, "8: a closed slot stores no client"
        assert not state.slot.chosen_receipts, "8: a closed slot stores no client"
        self.totals[number] = effect.total
        self.models[number] = effect.model.tobytes()

    def _released(self, effect: Release, disk: Server) -> None:
        recorded = self.models.get(effect.slot)
        assert recorded is not None, "5: a release is visible only after its commit"
        assert disk.slot is not None, "5: a release is visible only after its commit"
        assert disk.slot.number == effect.slot, "5: a release is visible only after its commit"
        assert effect.model.tobytes() == recorded, "5: the released model is the committed one"
        assert self.shown.setdefault(effect.slot, recorded) == recorded, "5: a slot has one model"

    def refused(self, server: Server, message: Message, violation: ProtocolViolation) -> None:
        if not isinstance(message, ReportArrived) or message.report not in self.sent.values():
            return
        slot = server.slot
        in_time = slot is not None and slot.number == message.slot
        if in_time and slot is not None and slot.phase is slots.Phase.TRAINING:
            assert message.receipt not in slot.chosen_receipts, (
                f"12: an honest report was refused: {violation}"
            )

    # ---- the clients -----------------------------------------------------------------------

    def client_effect(self, token: str, effect: Effect, disk: Participant) -> None:
        match effect:
            case RecordDraw(slot):
                assert disk.phase is clients.Phase.NEW, "2: a client draws once"
                assert token not in self.draws, "2: a client draws once"
                self.draws[token] = slot
            case SendCheckIn(slot):
                assert disk.phase is not clients.Phase.NEW, "2: durable before any contact"
                assert slot == self.draws[token], "2: at its slot only"
            case AskOutcome():
                assert self.draws[token] is not None, "2: a client that declined sends nothing"
            case RecordReport(report):
                assert token not in self.sent, "3: nothing is drawn again once it was sent"
            case SendReport(slot, _, report):
                assert disk.report == report, "3: durable before it is sent"
                assert self.sent.setdefault(token, report) == report, (
                    "3: a retry sends identical bytes"
                )
                assert slot == self.draws[token], "6: a report is for its own slot"

    # ---- the end ---------------------------------------------------------------------------

    def at_the_end(self, server: Server) -> None:
        rules = self.rules
        assert server.closed == rules.affordable, "10: exactly the slots that the budget allows"
        stopped = rules.affordable < rules.slots
        assert server.ending is (Ending.STOPPED if stopped else Ending.COMPLETED)
        assert list(self.totals) == list(range(1, server.closed + 1)), "5: slots in their order"
        shown = set(range(rules.warm_up + 1, server.closed + 1))
        assert set(self.shown) <= shown, "a warm-up releases nothing"
        if rules.filling is Filling.DUMMIES:
            sizes = {int(total[2]) for total in self.totals.values() if total is not None}
            assert sizes <= {rules.capacity}, "7: every slot is a sum of K reports"
        self._check_models()

    def _check_models(self) -> None:
        """The paper's ModelUpdate, in as many words, on the totals that were recorded."""
        theta, g, noisy = self.start.learner.model, np.zeros(3), list[list[Fraction]]()
        eta, b = self.rules.update.rate, self.rules.update.minibatch
        for slot, total in self.totals.items():
            if slot > self.rules.warm_up:
                i = slot - self.rules.warm_up
                if total is not None:
                    if self.rules.strategy is not None:
                        noisy.insert(0, divided(self.rules.strategy, total, noisy))
                        total = np.array([float(entry) for entry in noisy[0]])
                    here = len(self.taken.get(slot, {}))
                    share = here if self.rules.filling is Filling.NOTHING else 1
                    g = g + total / share
                if i % b == 0:
                    theta, g = theta - (eta / b) * g, np.zeros(3)
            assert np.allclose(np.frombuffer(self.models[slot]), theta, rtol=1e-12), "ModelUpdate"


def divided(
    strategy: NoiseStrategy, total: NDArray[np.int64], earlier: list[list[Fraction]]
) -> list[Fraction]:
    """The noisy sum y of a total v, exactly. ``earlier`` are those before it, newest first."""
    first, *others = strategy.numerators
    rest = [Fraction(int(entry)) for entry in total]
    for numerator, noisy in zip(others, earlier, strict=False):
        rest = [entry - numerator * known for entry, known in zip(rest, noisy, strict=True)]
    return [entry / first for entry in rest]
