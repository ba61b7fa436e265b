"""The epsilon of the runs of a ledger.

A run that is over is charged for its last slot. If it was stopped although its budget afforded
more, it is charged for the last slot that the budget affords: whoever stopped it may have seen the
releases, and the epsilon of k slots holds for a k fixed beforehand. The lower bound on such an
epsilon is 0, since some of the slots were never released.

A run whose entry names a filter is charged by that filter if another campaign came before. Without
a filter, all campaigns are composed as if their parameters had been fixed beforehand.

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
"""Largest relative difference of one epsilon between the roundings of two machines."""

Settled = tuple[PartialRun, ...]
"""The runs that are over, as they are charged; equal consecutive runs are one."""


def certificate(ledger: Ledger) -> Certificate:
    """Return the certificate to state in the entry that closes the run in progress."""
    last, earlier = ledger.runs[-1], _settled(ledger.runs[:-1])
    return spent(settled(last, earlier), earlier, last.filter)


def earlier_of(ledger: Ledger) -> Settled:
    """Return the runs that are over, as they are charged to their population."""
    return _settled(ledger.closed)


def spending_of(ledger: Ledger, campaign: Campaign) -> Spending:
    """Return the spending of the next run of a campaign, after all earlier runs."""
    return Spending(campaign, earlier_of(ledger), ledger.filter)


def affordable(ledger: Ledger) -> int:
    """Return how many slots of the run in progress the budget affords, after earlier runs."""
    if ledger.running is None:
        return 0
    return _affordable(ledger.running, earlier_of(ledger))


def _settled(runs: Sequence[Run]) -> Settled:
    earlier: Settled = ()
    for run in runs:
        earlier = joined(earlier, settled(run, earlier))
    return earlier


def spent(run: PartialRun, earlier: Settled, rule: Filter | None) -> Certificate:
    """Return the certificate of a run and of all before it, composed."""
    spending = Spending(run.campaign, earlier, rule)
    found = spending.after(run.slots, contributors=run.contributors)
    return replace(found, epsilon_lower=0.0) if run.stopped else found


def epsilon_spent(run: PartialRun, earlier: Settled, rule: Filter | None) -> float:
    """Return the epsilon of that certificate; infinite if none is proved."""
    if run.contributors is not None:
        return spent(run, earlier, rule).epsilon
    return Spending(run.campaign, earlier, rule).epsilon_after(run.slots)


def so_far(run: Run) -> PartialRun:
    """Return a run in progress, with the slots that are closed."""
    return PartialRun(run.campaign, run.slots_closed, run.contributors)


def settled(run: Run, earlier: Settled) -> PartialRun:
    """Return a run that is over, with the slots that it is charged for."""
    design = run.campaign.design
    if run.slots_closed == design.slots or design.protocol is Protocol.AVERAGED:
        return so_far(run)
    if not _within_budget(PartialRun(run.campaign, run.slots_closed + 1), earlier, run.filter):
        return so_far(run)
    slots = _affordable(run, earlier)
    return PartialRun(run.campaign, slots, stopped=slots > run.slots_closed)


def joined(earlier: Settled, run: PartialRun) -> Settled:
    """Return the list with one more run; a repeat of the last run is counted in it."""
    if earlier and replace(earlier[-1], times=1) == run:
        return (*earlier[:-1], replace(run, times=earlier[-1].times + 1))
    return (*earlier, run)


def last_affordable(run: Run, earlier: Settled) -> int | None:
    """Return the last slot that the budget affords, if the run went on after it; None if not.

    Averaged updates are limited by the declared population: the number of contributors is not known
    before they report.
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
