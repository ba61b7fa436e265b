"""Compute epsilon after each slot, and the number of slots that a budget allows (invariant 10).

The first k of m slots have the epsilon of a design with k slots in which a client takes part with
probability p0 k/m (``Design.after``). Runs with fresh randomness compose. The runs of one campaign
were declared together, so they are composed as if fixed beforehand. Another campaign on the same
population may have been chosen after earlier releases. Then a filter composes the campaigns: a rule
that was fixed before the first release. Under a filter, every campaign that another one follows
counts with all the repeats that it declared and its budget allows. The noise that devices draw on a
grid differs slightly from the noise of the design. The total variation distance is counted in
delta.

Theorem:     docs/theory/windows-and-capacity.md, docs/theory/adaptive-campaigns.md,
             docs/theory/total-variation.md.
Neighbours:  the budget's.
Rounding:    epsilon up; the slots that a budget allows, down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby
from typing import Any

from checkins import validate
from checkins.accounting import Certificate, Protocol, certify
from checkins.accounting.accountant import smallest_epsilon
from checkins.accounting.filters import Block, Filter, certify_adaptive, filtered_epsilon
from checkins.campaign.model import Campaign
from checkins.campaign.partial_runs import (
    MOST_COMPOSED_RUNS,
    ComposedRuns,
    PartialRun,
    shared_budget,
    sum_variations,
)
from checkins.campaign.randomizer_config import RandomizerKind
from checkins.errors import DeltaExhausted, NotCovered

ONLY_SIMULATED = (
    "a campaign without a grid can only be simulated, because devices draw noise on a grid",
    "a campaign with privunit can only be simulated, because no device samples it exactly",
)


def certify_runs(
    runs: Sequence[PartialRun],
    *,
    compare: bool = False,
    rule: Filter | None = None,
    curious: int = 0,
) -> Certificate:
    """Return the certificate of these runs together.

    Their budgets must have the same delta and adjacency. ``rule`` is the filter of their
    population. If it is None, all campaigns are composed as if their parameters had been fixed
    beforehand. ``curious`` is the number of clients who disclose what they see. It must be 0 if a
    filter composes different campaigns.
    """
    if rule is not None and _several_campaigns(runs):
        if curious:
            raise NotCovered("curious", curious, "no theorem covers it with a filter")
        certificate = _certify_by_filter(runs, rule)
    else:
        composed = ComposedRuns.of(runs)
        certificate = certify(
            composed.designs, compare=compare, curious=curious, **composed.arguments
        )
    caveats = tuple(dict.fromkeys(line for run in runs for line in _caveats(run.campaign)))
    if any(run.stopped for run in runs):
        certificate = replace(certificate, epsilon_lower=0.0)
    return replace(certificate, assumptions=(*certificate.assumptions, *caveats))


def _several_campaigns(runs: Sequence[PartialRun]) -> bool:
    """Return True if the runs belong to different campaigns."""
    return any(run.campaign != runs[0].campaign for run in runs)


def _certify_by_filter(runs: Sequence[PartialRun], rule: Filter) -> Certificate:
    blocks, terms = _filter_blocks(runs, rule)
    certificate = certify_adaptive(blocks, rule, **terms)
    if sum(block.runs for block in blocks) != sum(run.times for run in runs if run.design):
        certificate = replace(certificate, epsilon_lower=0.0)  # some runs never took place
    return replace(certificate, assumptions=(*certificate.assumptions, _filter_assumption(runs)))


def _largest_budget(runs: Sequence[PartialRun]) -> float:
    """Return the largest budget, because a lower one may have been chosen after releases."""
    return max(run.campaign.budget.epsilon for run in runs)


def _filter_assumption(runs: Sequence[PartialRun]) -> str:
    """Return the assumption of a filter: no release was a reason to raise the budget."""
    first, most = runs[0].campaign.budget.epsilon, _largest_budget(runs)
    promise = f"the guarantee is the population's budget, epsilon = {most!r}"
    if most > first:
        promise = (
            f"the population's budget was raised from epsilon = {first!r} to {most!r} after"
            " releases. It is a guarantee only if that decision did not depend on the releases"
        )
    return (
        f"{promise}. Campaigns may be opened and stopped after releases were seen. The epsilon of"
        " this certificate is the part of the budget that is used so far"
    )


def _filter_blocks(runs: Sequence[PartialRun], rule: Filter) -> tuple[list[Block], dict[str, Any]]:
    """Return the blocks of runs that a filter composes, and the arguments of the guarantee."""
    declared: list[tuple[PartialRun, ...]] = []
    begun: Counter[Campaign] = Counter()
    left = 0  # number of runs that the last block could have had
    for campaign, group in groupby(runs, key=lambda run: run.campaign):
        if declared:
            declared[-1] = _declared_runs(declared[-1], tuple(chain(*declared[:-1])), rule, left)
        declared.append(tuple(group))
        left = campaign.repeats - begun[campaign]
        begun[campaign] += sum(run.times for run in declared[-1])
    blocks_of_runs = [ComposedRuns.of(block) for block in declared]
    blocks = [Block(composed.designs, composed.campaigns) for composed in blocks_of_runs]
    budget = shared_budget(runs)
    return blocks, {
        "delta": budget.delta,
        "adjacency": budget.adjacency,
        "variation": sum_variations(composed.variation for composed in blocks_of_runs),
        "budget": _largest_budget(runs),
    }


@lru_cache(maxsize=256)
def _declared_runs(
    block: tuple[PartialRun, ...], earlier: tuple[PartialRun, ...], rule: Filter, left: int
) -> tuple[PartialRun, ...]:
    """Return the runs that count for a campaign if another campaign follows it.

    ``left`` is the number of the campaign's repeats that began in this block or not at all. The
    decision to open the next campaign may depend on the releases, and without it all of these
    repeats could have been run. So every repeat that the budget allows counts. It may also count
    for an earlier block of the same campaign.
    """
    campaign = block[0].campaign
    done = sum(run.times for run in block)
    if done >= left:
        return block
    slots = Spending(campaign, earlier, rule).affordable_slots_of(left)
    whole, rest = divmod(slots, campaign.design.slots)
    if campaign.design.protocol is Protocol.AVERAGED:  # the contributors are known by now
        left = whole - done
        return (*block, replace(PartialRun.whole(campaign), times=left)) if left > 0 else block
    if whole * campaign.design.slots + rest < sum(run.slots * run.times for run in block):
        return block
    runs = [replace(PartialRun.whole(campaign), times=whole)] if whole else []
    return (*runs, PartialRun(campaign, rest)) if rest else tuple(runs)


@lru_cache(maxsize=4096)
def _epsilon(runs: tuple[PartialRun, ...], rule: Filter | None) -> float:
    """Return the epsilon of ``certify_runs``. Cached, because a server asks after every slot."""
    if rule is not None and _several_campaigns(runs):
        blocks, terms = _filter_blocks(runs, rule)
        return filtered_epsilon(blocks, rule, **terms)
    composed = ComposedRuns.of(runs)
    try:
        return smallest_epsilon(composed.designs, **composed.arguments)
    except DeltaExhausted:
        return math.inf


def _caveats(campaign: Campaign) -> tuple[str, ...]:
    no_grid, privunit = ONLY_SIMULATED
    if campaign.randomizer.kind is RandomizerKind.PRIVUNIT:
        return (privunit,)
    return (no_grid,) if "[randomizer] grid" in campaign.missing else ()


@dataclass(frozen=True, slots=True)
class Spending:
    """The epsilon of a campaign, composed with ``earlier`` runs on its population.

    ``rule`` is the filter that was fixed for the population before its first release. If it is
    None, all campaigns are composed as if their parameters had been fixed beforehand.
    """

    campaign: Campaign
    earlier: tuple[PartialRun, ...] = ()
    rule: Filter | None = None

    @property
    def repeats_left(self) -> int:
        """Number of runs of the campaign that are not among the earlier runs."""
        done = sum(run.times for run in self.earlier if run.campaign == self.campaign)
        return max(0, self.campaign.repeats - done)

    @property
    def slots(self) -> int:
        """Number of slots of all remaining runs together."""
        return self.repeats_left * self.campaign.design.slots

    def after(self, slots: int, *, run: int = 1, contributors: int | None = None) -> Certificate:
        """Return the certificate after ``slots`` slots of run ``run`` and all runs before it.

        Averaged updates have the same epsilon after every slot. It depends on ``contributors``. If
        that is None, the smallest declared population is used.
        """
        return certify_runs(self._runs(slots, run, contributors), rule=self.rule)

    def epsilon_after(self, slots: int, *, run: int = 1) -> float:
        """Return the epsilon of ``after``, cached. It is infinite if no finite one is proved."""
        return _epsilon(self._runs(slots, run), self.rule)

    def _runs(
        self, slots: int, run: int, contributors: int | None = None
    ) -> tuple[PartialRun, ...]:
        validate.count(most=self.campaign.repeats, run=run)
        whole = self.campaign.design.slots
        before = (PartialRun(self.campaign, whole, times=run - 1),) if run > 1 else ()
        last = PartialRun(self.campaign, slots, contributors)
        if len(self.earlier) + run > MOST_COMPOSED_RUNS and slots > 0 and contributors is None:
            last = PartialRun(self.campaign, whole)  # a looser but valid bound
        return (*self.earlier, *before, last)

    def affordable(self, *, run: int = 1) -> int:
        """Return how many slots of run ``run`` the budget allows after all runs before it."""
        validate.count(most=self.campaign.repeats, run=run)
        return self._most_within_budget(
            lambda slots: self.epsilon_after(slots, run=run), self.campaign.design.slots
        )

    @property
    def affordable_slots(self) -> int:
        """Number of slots that the budget allows in all remaining runs."""
        return self.affordable_slots_of(self.repeats_left)

    def affordable_slots_of(self, repeats: int) -> int:
        """Return how many slots the budget allows in at most ``repeats`` more runs."""
        slots = self.campaign.design.slots
        if repeats == 1:
            return self.affordable()
        whole = self._most_within_budget(
            lambda runs: self.epsilon_after(slots, run=runs) if runs else 0.0, repeats
        )
        if whole == repeats:
            return repeats * slots
        return whole * slots + self.affordable(run=whole + 1)

    @property
    def within_budget(self) -> bool:
        return self._epsilon_after(self.slots) <= self.campaign.budget.epsilon

    def curve(self, slots: Sequence[int] | None = None) -> tuple[tuple[int, float], ...]:
        """Return (slots, epsilon) for each number of slots, counted over all remaining runs.

        By default there are up to twenty evenly spaced numbers. Epsilon is infinite if no finite
        epsilon is proved.
        """
        if slots is None:
            slots = sorted({max(1, self.slots * part // 20) for part in range(1, 21)})
        return tuple((count, self._epsilon_after(count)) for count in slots)

    def _epsilon_after(self, count: int) -> float:
        validate.count(most=self.slots, slots=count)
        run, slot = divmod(count - 1, self.campaign.design.slots)
        return self.epsilon_after(slot + 1, run=run + 1)

    def _most_within_budget(self, epsilon: Callable[[int], float], most: int) -> int:
        """Return the largest count up to ``most`` whose epsilon is within the budget.

        ``epsilon`` must not decrease with the count.
        """
        budget = self.campaign.budget.epsilon
        high, at_high = most, epsilon(most)
        if at_high <= budget:
            return most
        low, at_low = 0, epsilon(0)
        if not at_low <= budget:
            return 0
        turn = 0
        while high - low > 1:
            turn += 1
            middle = (low + high) // 2
            if turn % 3 and math.isfinite(at_high):
                share = (budget**2 - at_low**2) / (at_high**2 - at_low**2)
                middle = low + int((high - low) * share)  # epsilon grows about like a square root
            middle = min(max(middle, low + 1), high - 1)
            at_middle = epsilon(middle)
            if at_middle <= budget:
                low, at_low = middle, at_middle
            else:
                high, at_high = middle, at_middle
        return low
