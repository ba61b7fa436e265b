"""Compute the epsilon of the runs of a ledger.

The epsilon of a run that used all its slots, or all slots that its budget allows, is computed for
its closed slots. For a run that was stopped earlier, epsilon is computed for every slot that its
budget allows, because the decision to stop may depend on the releases, and the epsilon of k slots
holds only if k was fixed beforehand. The slots for which epsilon is computed are called "the slots
that count". If some of them were never released, the lower bound on epsilon is 0.

A filter is the rule that composes campaigns whose parameters may have been chosen after earlier
releases. A run whose entry names a filter is composed with earlier campaigns by that filter.
Without a filter, all campaigns are composed as if their parameters had been fixed beforehand.

Theorem:     docs/theory/windows-and-capacity.md, docs/theory/adaptive-campaigns.md;
             ``campaign.spending``.
Neighbours:  the ``adjacency`` of the budget.
Rounding:    epsilon up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from checkins.accounting import Certificate, Protocol
from checkins.accounting.filters import Filter
from checkins.campaign import Campaign
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import Spending
from checkins.ledger.chain import Ledger, Run

EPSILON_TOLERANCE = 1e-9
"""Largest relative difference, because of rounding, of an epsilon between two computers."""

CountedRuns = tuple[PartialRun, ...]
"""Runs that are over, each with the slots that count. Equal consecutive runs are merged."""


def certificate(ledger: Ledger) -> Certificate:
    """Return the certificate of all runs, which the entry that closes the last run contains."""
    last, earlier = ledger.runs[-1], _counted_runs(ledger.runs[:-1])
    return certify_with_earlier(counted_run(last, earlier), earlier, last.filter)


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
        earlier = append_run(earlier, counted_run(run, earlier))
    return earlier


def certify_with_earlier(
    run: PartialRun, earlier: CountedRuns, privacy_filter: Filter | None
) -> Certificate:
    """Return the certificate of a run composed with all earlier runs."""
    spending = Spending(run.campaign, earlier, privacy_filter)
    certified = spending.after(run.slots, contributors=run.contributors)
    return replace(certified, epsilon_lower=0.0) if run.stopped else certified


def epsilon_with_earlier(
    run: PartialRun, earlier: CountedRuns, privacy_filter: Filter | None
) -> float:
    """Return the epsilon of ``certify_with_earlier``. Infinity if no finite one is proved."""
    if run.contributors is not None:
        return certify_with_earlier(run, earlier, privacy_filter).epsilon
    return Spending(run.campaign, earlier, privacy_filter).epsilon_after(run.slots)


def partial_run(run: Run) -> PartialRun:
    """Return the closed slots of a run in the form that the accountant needs."""
    return PartialRun(run.campaign, run.slots_closed, run.contributors)


def counted_run(run: Run, earlier: CountedRuns) -> PartialRun:
    """Return a run that is over, with the slots that count (see the top of this module)."""
    design = run.campaign.design
    if run.slots_closed == design.slots or design.protocol is Protocol.AVERAGED:
        return partial_run(run)
    if not _within_budget(run, run.slots_closed + 1, earlier):
        return partial_run(run)
    slots = _affordable_slots(run, earlier)
    return PartialRun(run.campaign, slots, stopped=slots > run.slots_closed)


def append_run(earlier: CountedRuns, run: PartialRun) -> CountedRuns:
    """Return the runs with one more at the end. A run equal to the last is merged with it."""
    if earlier and replace(earlier[-1], times=1) == run:
        return (*earlier[:-1], replace(run, times=earlier[-1].times + 1))
    return (*earlier, run)


def last_slot_within_budget(run: Run, earlier: CountedRuns) -> int | None:
    """Return the last slot that the budget allows. None if the run does not exceed its budget.

    Under averaged updates, the limit follows from the declared population, because the number of
    contributors is not known before they report.
    """
    if run.slots_closed == 0 or _within_budget(run, run.slots_closed, earlier):
        return None
    return _affordable_slots(run, earlier)


def _within_budget(run: Run, slots: int, earlier: CountedRuns) -> bool:
    epsilon = epsilon_with_earlier(PartialRun(run.campaign, slots), earlier, run.filter)
    return epsilon <= run.campaign.budget.epsilon * (1.0 + EPSILON_TOLERANCE)


def _affordable_slots(run: Run, earlier: CountedRuns) -> int:
    return Spending(run.campaign, earlier, run.filter).affordable_slots_in_run()
