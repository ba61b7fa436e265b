"""Compute the epsilon of the runs of a ledger.

A run that used all its slots, or all slots that its budget allows, counts with its closed slots. A
run that was stopped earlier counts with every slot that its budget allows, because the decision to
stop may depend on the releases, and the epsilon of k slots holds only if k was fixed beforehand.
The lower bound on the epsilon of such a run is 0, because some of these slots were never released.

A filter is the rule that composes campaigns whose parameters may have been chosen after earlier
releases. A run whose entry names a filter is composed with earlier campaigns by that filter.
Without a filter, all campaigns are composed as if their parameters had been fixed beforehand.

Theorem:     docs/theory/windows-and-capacity.md, docs/theory/adaptive-campaigns.md;
             ``campaign.spending``.
Neighbours:  the budget's.
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

TOLERANCE = 1e-9
"""Largest relative difference that rounding on two computers makes to the same epsilon."""

Settled = tuple[PartialRun, ...]
"""The runs that are over, with the slots that count. Equal consecutive runs are merged."""


def certificate(ledger: Ledger) -> Certificate:
    """Return the certificate for the entry that closes the last run."""
    last, earlier = ledger.runs[-1], _settled(ledger.runs[:-1])
    return spent(settled(last, earlier), earlier, last.filter)


def earlier_of(ledger: Ledger) -> Settled:
    """Return the runs that are over, with the slots that count for each."""
    return _settled(ledger.closed)


def spending_of(ledger: Ledger, campaign: Campaign) -> Spending:
    """Return an object that computes the epsilon of the campaign's next run and all before it."""
    return Spending(campaign, earlier_of(ledger), ledger.filter)


def affordable(ledger: Ledger) -> int:
    """Return how many slots of the run in progress the budget allows after all earlier runs.

    Return 0 if no run is in progress.
    """
    if ledger.running is None:
        return 0
    return _affordable(ledger.running, earlier_of(ledger))


def _settled(runs: Sequence[Run]) -> Settled:
    earlier: Settled = ()
    for run in runs:
        earlier = joined(earlier, settled(run, earlier))
    return earlier


def spent(run: PartialRun, earlier: Settled, rule: Filter | None) -> Certificate:
    """Return the certificate of a run composed with all earlier runs."""
    spending = Spending(run.campaign, earlier, rule)
    found = spending.after(run.slots, contributors=run.contributors)
    return replace(found, epsilon_lower=0.0) if run.stopped else found


def epsilon_spent(run: PartialRun, earlier: Settled, rule: Filter | None) -> float:
    """Return the epsilon of ``spent``. It is infinite if no finite epsilon is proved."""
    if run.contributors is not None:
        return spent(run, earlier, rule).epsilon
    return Spending(run.campaign, earlier, rule).epsilon_after(run.slots)


def so_far(run: Run) -> PartialRun:
    """Return the part of a run that its closed slots make up."""
    return PartialRun(run.campaign, run.slots_closed, run.contributors)


def settled(run: Run, earlier: Settled) -> PartialRun:
    """Return a run that is over, with the slots that count. See the module docstring."""
    design = run.campaign.design
    if run.slots_closed == design.slots or design.protocol is Protocol.AVERAGED:
        return so_far(run)
    if not _within_budget(PartialRun(run.campaign, run.slots_closed + 1), earlier, run.filter):
        return so_far(run)
    slots = _affordable(run, earlier)
    return PartialRun(run.campaign, slots, stopped=slots > run.slots_closed)


def joined(earlier: Settled, run: PartialRun) -> Settled:
    """Return the runs with one more at the end. A run equal to the last is merged with it."""
    if earlier and replace(earlier[-1], times=1) == run:
        return (*earlier[:-1], replace(run, times=earlier[-1].times + 1))
    return (*earlier, run)


def last_affordable(run: Run, earlier: Settled) -> int | None:
    """Return the last slot that the budget allows if the run exceeds the budget, else None.

    Under averaged updates, the limit follows from the declared population, because the number of
    contributors is not known before they report.
    """
    if run.slots_closed == 0:
        return None
    if _within_budget(PartialRun(run.campaign, run.slots_closed), earlier, run.filter):
        return None
    return _affordable(run, earlier)


def _within_budget(run: PartialRun, earlier: Settled, rule: Filter | None) -> bool:
    return epsilon_spent(run, earlier, rule) <= run.campaign.budget.epsilon * (1.0 + TOLERANCE)


def _affordable(run: Run, earlier: Settled) -> int:
    return Spending(run.campaign, earlier, run.filter).affordable()
