"""Verify a ledger: recompute every hash, seal, model and epsilon from its lines.

This also checks the order of the entries, and that no campaign exceeded its budget (invariants 9
and 10 of docs/invariants.md). A valid ledger is not necessarily the original, because the owner of
a ledger can rewrite the whole chain from its first line. To exclude this, compare the last hash,
``head``, with a copy that was published where the owner cannot change it.

The epsilon of a run that used all its slots, or all slots that its budget allows, is computed for
its closed slots. For a run that was stopped earlier, epsilon is computed for every slot that its
budget allows, because the decision to stop may depend on the releases, and the epsilon of k slots
holds only if k was fixed beforehand. The slots for which epsilon is computed are called "the slots
that count". If some of them were never released, the lower bound on epsilon is 0.

A filter is the rule that composes campaigns whose parameters may have been chosen after earlier
releases. A run whose entry names a filter is composed with earlier campaigns by that filter.
Without a filter, all campaigns are composed as if their parameters had been fixed beforehand.

Theorem:     docs/theory/windows-and-capacity.md, docs/theory/adaptive-campaigns.md.
Neighbours:  the ``adjacency`` of the budget.
Rounding:    epsilon up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from checkins.accounting import Certificate, Protocol
from checkins.accounting.filters import Filter
from checkins.campaign import Campaign
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import Spending
from checkins.errors import InvalidValue
from checkins.ledger.chain import Ledger, Run
from checkins.ledger.entry import (
    MAX_LINE_BYTES,
    Closed,
    InvalidLedger,
    Opened,
    SlotClosed,
    hash_model,
)
from checkins.protocol.model_update import Learner, ModelUpdate, RunningAverage

EPSILON_TOLERANCE = 1e-9
"""Largest relative difference, because of rounding, of an epsilon between two computers."""

CountedRuns = tuple[PartialRun, ...]
"""Runs that are over, each with the slots that count. Equal consecutive runs are merged."""


def certificate(ledger: Ledger) -> Certificate:
    """Return the certificate of all runs, which the entry that closes the last run contains."""
    last, earlier = ledger.runs[-1], _counted_runs(ledger.runs[:-1])
    return _certify_with_earlier(_counted_run(last, earlier), earlier, last.filter)


def earlier_of(ledger: Ledger) -> CountedRuns:
    """Return the runs that are over, with the slots that count for each."""
    return _counted_runs(ledger.closed)


def spending_of(ledger: Ledger, campaign: Campaign) -> Spending:
    """Return the object that computes the epsilon of a campaign after all earlier runs."""
    return Spending(campaign, earlier_of(ledger), ledger.filter)


def affordable_slots(ledger: Ledger) -> int:
    """Return how many slots of the run in progress the budget allows after all earlier runs.

    Return 0 if no run is in progress.
    """
    return 0 if ledger.running is None else _affordable_slots(ledger.running, earlier_of(ledger))


def _counted_runs(runs: Sequence[Run]) -> CountedRuns:
    earlier: CountedRuns = ()
    for run in runs:
        earlier = _append_run(earlier, _counted_run(run, earlier))
    return earlier


def _certify_with_earlier(
    run: PartialRun, earlier: CountedRuns, privacy_filter: Filter | None
) -> Certificate:
    """Return the certificate of a run composed with all earlier runs."""
    spending = Spending(run.campaign, earlier, privacy_filter)
    certified = spending.after(run.slots, contributors=run.contributors)
    return replace(certified, epsilon_lower=0.0) if run.stopped else certified


def _epsilon_with_earlier(
    run: PartialRun, earlier: CountedRuns, privacy_filter: Filter | None
) -> float:
    """Return the epsilon of ``_certify_with_earlier``. Infinity if no finite one is proved."""
    if run.contributors is not None:
        return _certify_with_earlier(run, earlier, privacy_filter).epsilon
    return Spending(run.campaign, earlier, privacy_filter).epsilon_after(run.slots)


def _partial_run(run: Run) -> PartialRun:
    """Return the closed slots of a run in the form that the accountant needs."""
    return PartialRun(run.campaign, run.slots_closed, run.contributors)


def _counted_run(run: Run, earlier: CountedRuns) -> PartialRun:
    """Return a run that is over, with the slots that count (see the top of this module)."""
    design = run.campaign.design
    if run.slots_closed == design.slots or design.protocol is Protocol.AVERAGED:
        return _partial_run(run)
    if not _within_budget(run, run.slots_closed + 1, earlier):
        return _partial_run(run)
    slots = _affordable_slots(run, earlier)
    return PartialRun(run.campaign, slots, stopped=slots > run.slots_closed)


def _append_run(earlier: CountedRuns, run: PartialRun) -> CountedRuns:
    """Return the runs with one more at the end. A run equal to the last is merged with it."""
    if earlier and replace(earlier[-1], times=1) == run:
        return (*earlier[:-1], replace(run, times=earlier[-1].times + 1))
    return (*earlier, run)


def _last_slot_within_budget(run: Run, earlier: CountedRuns) -> int | None:
    """Return the last slot that the budget allows. None if the run does not exceed its budget.

    Under averaged updates, the limit follows from the declared population, because the number of
    contributors is not known before they report.
    """
    if run.slots_closed == 0 or _within_budget(run, run.slots_closed, earlier):
        return None
    return _affordable_slots(run, earlier)


def _within_budget(run: Run, slots: int, earlier: CountedRuns) -> bool:
    epsilon = _epsilon_with_earlier(PartialRun(run.campaign, slots), earlier, run.filter)
    return epsilon <= run.campaign.budget.epsilon * (1.0 + EPSILON_TOLERANCE)


def _affordable_slots(run: Run, earlier: CountedRuns) -> int:
    return Spending(run.campaign, earlier, run.filter).affordable_slots_in_run()


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a successful verification."""

    ledger: Ledger
    certificate: Certificate
    """The recomputed certificate of all campaigns together."""
    notes: tuple[str, ...]
    """Remarks about the ledger that do not make it invalid."""
    averages: Mapping[str, RunningAverage]
    """The average of the released models of each campaign that declares one, by its seal."""
    stated_assumptions: tuple[str, ...] = ()
    """Assumptions that the ledger's latest certificate states, and that are not recomputed."""

    @property
    def budget(self) -> float:
        """The largest allowed epsilon, as the latest campaign states it."""
        return self.ledger.runs[-1].campaign.budget.epsilon

    @property
    def within_budget(self) -> bool:
        return self.certificate.epsilon <= self.budget

    @property
    def rule(self) -> str:
        """The rule that composes the campaigns of the ledger, as a text."""
        last = self.ledger.runs[-1]
        if last.filter is None or all(run.seal == last.seal for run in self.ledger.runs):
            return "parameters fixed beforehand"
        return f"chosen after earlier releases: filter {last.filter}"

    @property
    def simulated(self) -> bool:
        """True for a ledger of a simulation, whose seeded noise protects nobody."""
        return any(run.simulated for run in self.ledger.runs)

    def as_dict(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {
            "valid": True,
            "head": self.ledger.head,
            "entries": self.ledger.entries,
            "campaigns": [self._campaign(run) for run in self.ledger.runs],
            "rule": self.rule,
            "certificate": self.certificate.as_dict(),
            "within_budget": self.within_budget,
            "simulated": self.simulated,
            "stated_assumptions": list(self.stated_assumptions),
            "notes": list(self.notes),
        }

    def _campaign(self, run: Run) -> Mapping[str, object]:
        return {
            "name": run.campaign.name,
            "run": run.number,
            "seal": run.seal,
            "slots_closed": run.slots_closed,
            "slots": run.campaign.design.slots,
            "status": self.status(run),
        }

    def status(self, run: Run) -> str:
        """Return "open", "completed" or "stopped"."""
        if run is self.ledger.running:
            return "open"
        return "completed" if run.slots_closed == run.campaign.design.slots else "stopped"


def verify(
    lines: Iterable[bytes],
    *,
    head: str | None = None,
    checkpoint: tuple[int, str] | None = None,
    require_closed: bool = False,
    path: str = "ledger.jsonl",
) -> Verification:
    """Recompute a ledger from its lines. Raise InvalidLedger at the first invalid line.

    ``lines`` include their newlines, and are read one at a time. ``head`` is the expected hash of
    the last line. If it is None, any hash is accepted. ``checkpoint`` is the number of a line and
    the hash that this line must have, or None. If ``require_closed`` is True, a ledger whose last
    campaign is still open is refused. ``path`` appears in error messages.
    """
    verifier = _Verifier()
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                raise InvalidLedger(
                    f"the last line is incomplete (crash?); the {number - 1:,} lines before it are"
                    " complete. The server removes the incomplete line before its next append."
                    " If this is a copy, fetch it again"
                )
            verifier.read_line(line, number)
            if checkpoint is not None and number == checkpoint[0]:
                _check_line_hash(verifier.ledger.head, checkpoint[1])
        certificate = verifier.certificate()
    except InvalidLedger as error:
        line_number = error.line if isinstance(error, _OverBudget) else number
        raise InvalidLedger(error.problem, place=f"{path}:{line_number}") from error
    ledger = verifier.ledger
    if certificate is None:
        raise InvalidLedger("is empty: no campaign was ever opened", place=path)
    if head is not None and head != ledger.head:
        raise InvalidLedger(
            f"ends with the hash {ledger.head}, not with {head}:"
            " lines were cut off or added, or this is another chain",
            place=path,
        )
    if checkpoint is not None and ledger.entries < checkpoint[0]:
        raise InvalidLedger(
            f"has {ledger.entries:,} lines, but had {checkpoint[0]:,}: lines were cut off",
            place=path,
        )
    if require_closed and ledger.running is not None:
        raise InvalidLedger(
            f"{_still_open(ledger.running)}, but a closed ledger is required", place=path
        )
    notes = (*verifier.notes, *_early_stop_notes(ledger))
    return Verification(
        ledger, certificate, notes, verifier.averages, verifier.stated_assumptions()
    )


def _check_line_hash(found: str, expected: str) -> None:
    if found != expected:
        raise InvalidLedger(f"has the hash {found}, but had {expected}: the ledger was rewritten")


class _Verifier:
    """The state of the verification. Its size does not grow with the number of slots."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.notes: list[str] = []
        self.averages: dict[str, RunningAverage] = {}
        self._earlier_runs: CountedRuns = ()
        self._last_closed_run: tuple[PartialRun, CountedRuns, Filter | None] | None = None
        self._stated: tuple[str, ...] = ()
        self._opening_line = 0
        self._update: ModelUpdate | None = None
        self._learner: Learner | None = None

    def read_line(self, line: bytes, number: int) -> None:
        """Check one more line."""
        run = self.ledger.running
        self.ledger, entry = self.ledger.read(line)
        with _as_invalid_ledger():
            if isinstance(entry, Closed):
                self._close(run, entry, number)
            elif isinstance(entry, SlotClosed):
                self._replay(entry)
            else:
                self._open(entry, number)

    def _open(self, entry: Opened, number: int) -> None:
        *before, run = self.ledger.runs
        self._opening_line = number
        self._update = ModelUpdate.of(run.campaign)
        # A run that repeats the previous campaign and starts from that campaign's final model also
        # starts with that campaign's final velocity, and its average goes on.
        earlier = self._learner if before and before[-1].campaign == run.campaign else None
        if earlier is not None and hash_model(earlier.model) != hash_model(entry.numbers()):
            earlier = None
        velocity = None if earlier is None else earlier.velocity
        self._learner = self._update.start(entry.numbers(), velocity)
        task = run.campaign.task
        if earlier is None and task is not None and task.average is not None:
            self.averages[run.seal] = RunningAverage(task.average)
        budget = run.campaign.budget.epsilon
        if before and budget > before[-1].campaign.budget.epsilon:
            self.notes.append(
                f"line {number} raises the population's budget from epsilon ="
                f" {before[-1].campaign.budget.epsilon!r} to {budget!r}"
            )
        if run.filter is None and any(earlier.seal != run.seal for earlier in before):
            self.notes.append(
                f"line {number} opens another campaign and names no filter. Its epsilon is computed"
                " as if its parameters had been fixed before the first release. If they were not,"
                " the true epsilon may be larger"
            )

    def _replay(self, entry: SlotClosed) -> None:
        run, update, learner = self.ledger.running, self._update, self._learner
        if run is None or update is None or learner is None:
            raise InvalidLedger("no campaign is open")
        if entry.slot > run.campaign.warm_up:
            average = self.averages.get(run.seal)
            with np.errstate(all="ignore"):  # a diverged model overflows, but it was released
                learner = update.apply(learner, entry.numbers(), entry.contributors)
                if average is not None:
                    self.averages[run.seal] = average.with_model(learner.model)
        if hash_model(learner.model) != entry.model_hash:
            raise InvalidLedger(
                f"the model released after slot {entry.slot} does not follow from the totals"
            )
        self._learner = learner

    def _close(self, run: Run | None, entry: Closed, number: int) -> None:
        if run is None:
            raise InvalidLedger("no campaign is open")
        self._check_budget(run)
        counted_run = _counted_run(run, self._earlier_runs)
        epsilon = _epsilon_with_earlier(counted_run, self._earlier_runs, run.filter)
        self._last_closed_run = counted_run, self._earlier_runs, run.filter
        self._earlier_runs = _append_run(self._earlier_runs, counted_run)
        self._stated = _assumptions_in(entry)
        stated_epsilon = float(entry.certificate["epsilon"])
        if not stated_epsilon >= epsilon * (1.0 - EPSILON_TOLERANCE):
            raise InvalidLedger(
                f"states epsilon = {stated_epsilon!r}, but the recomputed epsilon is {epsilon!r}"
            )
        if stated_epsilon > epsilon * (1.0 + EPSILON_TOLERANCE):
            self.notes.append(
                f"line {number} states epsilon = {stated_epsilon!r}{_version_of(entry)}, which is a"
                f" valid upper bound, but the recomputed epsilon is smaller: {epsilon!r}"
            )

    def _check_budget(self, run: Run) -> None:
        last_slot = _last_slot_within_budget(run, self._earlier_runs)
        if last_slot is not None:
            raise _OverBudget(
                f"slot {last_slot + 1} was released although the budget, epsilon ="
                f" {run.campaign.budget.epsilon!r}, allows {last_slot} of"
                f" {run.campaign.design.slots:,} slots",
                line=self._opening_line + last_slot + 1,
            )

    def certificate(self) -> Certificate | None:
        """Return the certificate of all runs. None if no run was opened."""
        run = self.ledger.running
        with _as_invalid_ledger():
            if run is not None:
                self._check_budget(run)
                closed_slots = _partial_run(run)
                return _certify_with_earlier(closed_slots, self._earlier_runs, run.filter)
            return (
                None
                if self._last_closed_run is None
                else _certify_with_earlier(*self._last_closed_run)
            )

    def stated_assumptions(self) -> tuple[str, ...]:
        """Return what the latest stated certificate assumes beyond the recomputed one."""
        if self._last_closed_run is None or not self._stated:
            return ()
        with _as_invalid_ledger():
            recomputed = _certify_with_earlier(*self._last_closed_run).assumptions
        return tuple(text for text in self._stated if text not in recomputed)


def _assumptions_in(entry: Closed) -> tuple[str, ...]:
    """Return the assumptions of a stated certificate. It is not checked, so they may be missing."""
    stated = entry.certificate.get("assumptions")
    texts = stated if isinstance(stated, list) else []
    return tuple(dict.fromkeys(text for text in texts if isinstance(text, str)))


@contextmanager
def _as_invalid_ledger() -> Iterator[None]:
    """Raise InvalidLedger in place of an InvalidValue of the model update or the accountant."""
    try:
        yield
    except InvalidValue as error:
        raise InvalidLedger(str(error)) from error


class _OverBudget(InvalidLedger):
    """The budget was exceeded at ``line``, which may come before the line that was read last."""

    def __init__(self, problem: str, *, line: int) -> None:
        super().__init__(problem)
        self.line = line


def _version_of(entry: Closed) -> str:
    versions = entry.certificate.get("versions")
    version = versions.get("checkins") if isinstance(versions, dict) else None
    return f" by checkins {version}" if isinstance(version, str) else ""


def _early_stop_notes(ledger: Ledger) -> Iterator[str]:
    """Yield a note if the certificate holds only if the stop does not depend on the releases."""
    last = ledger.runs[-1]
    if ledger.running is not None:
        yield (
            f"{_still_open(last)}. This epsilon holds only if that number of slots was fixed"
            " beforehand. If the campaign is closed early, its epsilon is computed for all slots"
            " that its budget allows, not only for the closed ones"
        )
    elif last.number < last.campaign.repeats:
        yield (
            f"run {last.number} of {last.campaign.repeats:,} is the last run here. If no run"
            " follows because of what was released, this epsilon is too small: it must be computed"
            " as if all further runs that the budget allows had been made"
        )


def _still_open(run: Run) -> str:
    slots = f"{run.slots_closed:,} of {run.campaign.design.slots:,} slots"
    return f"the last campaign is still open ({slots} closed)"
