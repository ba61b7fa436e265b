"""Compute epsilon after each slot, and the number of slots that a budget allows.

The first k of m slots have the epsilon of a design with k slots in which a client takes part with
probability p0 k/m, where p0 is its probability in all m slots (``Design.after``, invariant 10 of
docs/invariants.md). Runs with fresh randomness compose. The runs of one campaign were declared
together, so they are composed like runs that were fixed beforehand. Another campaign on the same
population may have been chosen after earlier releases. Then a privacy filter, a rule that was fixed
before the first release, composes the campaigns. Under a filter, every campaign but the last counts
with all the repeats that it declared and that its budget allows, even if they were never run.
Devices draw noise on a grid, which differs slightly from the continuous noise of
the design. The total variation distance between the two is charged to delta.

Theorem:     docs/theory/windows-and-capacity.md, docs/theory/adaptive-campaigns.md,
             docs/theory/total-variation.md.
Neighbours:  the ``adjacency`` of the budget.
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
    MAX_COMPOSED_RUNS,
    ComposedRuns,
    PartialRun,
    shared_budget,
    sum_variations,
)
from checkins.campaign.randomizer_config import RandomizerKind
from checkins.errors import DeltaExhausted, NotCovered

NO_GRID_CAVEAT = (
    "a campaign without a grid can only be simulated, because devices draw noise on a grid"
)
PRIVUNIT_CAVEAT = (
    "a campaign with privunit can only be simulated, because no device samples it exactly"
)


def certify_runs(
    runs: Sequence[PartialRun],
    *,
    compare: bool = False,
    privacy_filter: Filter | None = None,
    curious: int = 0,
) -> Certificate:
    """Return the certificate of these runs together.

    Their budgets must have the same delta and adjacency. If ``compare`` is True, the certificate
    also lists the epsilons of other methods. ``privacy_filter`` is the filter of their population.
    If it is None, all campaigns are composed as if their parameters had been fixed beforehand.
    ``curious`` is the number of clients who disclose what they see. It must be 0 if a filter
    composes different campaigns.
    """
    if privacy_filter is not None and _has_different_campaigns(runs):
        if curious:
            raise NotCovered(
                "curious", curious, "must be 0: no theorem covers curious clients under a filter"
            )
        certificate = _certify_by_filter(runs, privacy_filter)
    else:
        composed = ComposedRuns.of(runs)
        certificate = certify(
            composed.designs, compare=compare, curious=curious, **composed.arguments
        )
    caveats = tuple(
        dict.fromkeys(line for run in runs for line in _simulation_only_assumptions(run.campaign))
    )
    if any(run.stopped for run in runs):
        certificate = replace(certificate, epsilon_lower=0.0)
    return replace(certificate, assumptions=(*certificate.assumptions, *caveats))


def _has_different_campaigns(runs: Sequence[PartialRun]) -> bool:
    """Return True if the runs belong to different campaigns."""
    return any(run.campaign != runs[0].campaign for run in runs)


def _certify_by_filter(runs: Sequence[PartialRun], privacy_filter: Filter) -> Certificate:
    blocks, arguments = _filter_blocks(runs, privacy_filter)
    certificate = certify_adaptive(blocks, privacy_filter, **arguments)
    if sum(block.runs for block in blocks) != sum(run.times for run in runs if run.design):
        certificate = replace(certificate, epsilon_lower=0.0)  # some counted runs never took place
    return replace(certificate, assumptions=(*certificate.assumptions, _filter_assumption(runs)))


def _largest_budget(runs: Sequence[PartialRun]) -> float:
    """Return the largest epsilon of the budgets.

    A smaller budget of a later campaign may have been chosen because of earlier releases.
    """
    return max(run.campaign.budget.epsilon for run in runs)


def _filter_assumption(runs: Sequence[PartialRun]) -> str:
    """Return the assumption of a filter: the budget was not raised because of a release."""
    first, largest = runs[0].campaign.budget.epsilon, _largest_budget(runs)
    guarantee = f"the guarantee is the population's budget, epsilon = {largest!r}"
    if largest > first:
        guarantee = (
            f"the population's budget was raised from epsilon = {first!r} to {largest!r} after"
            " releases. It is a guarantee only if that decision did not depend on the releases"
        )
    return (
        f"{guarantee}. Campaigns may be opened and stopped after releases were seen. The epsilon of"
        " this certificate is the part of the budget that is used so far"
    )


def _filter_blocks(
    runs: Sequence[PartialRun], privacy_filter: Filter
) -> tuple[list[Block], dict[str, Any]]:
    """Return the blocks of runs that a filter composes, and the filter's other arguments."""
    run_blocks: list[tuple[PartialRun, ...]] = []
    begun_runs: Counter[Campaign] = Counter()
    possible_runs = 0  # number of runs that the last block could have had
    for campaign, group in groupby(runs, key=lambda run: run.campaign):
        if run_blocks:
            earlier = tuple(chain(*run_blocks[:-1]))
            run_blocks[-1] = _counted_block(run_blocks[-1], earlier, privacy_filter, possible_runs)
        run_blocks.append(tuple(group))
        possible_runs = campaign.repeats - begun_runs[campaign]
        begun_runs[campaign] += sum(run.times for run in run_blocks[-1])
    composed_blocks = [ComposedRuns.of(block) for block in run_blocks]
    blocks = [Block(composed.designs, composed.repeats) for composed in composed_blocks]
    budget = shared_budget(runs)
    return blocks, {
        "delta": budget.delta,
        "adjacency": budget.adjacency,
        "variation": sum_variations(composed.variation for composed in composed_blocks),
        "budget": _largest_budget(runs),
    }


@lru_cache(maxsize=256)
def _counted_block(
    block: tuple[PartialRun, ...],
    earlier: tuple[PartialRun, ...],
    privacy_filter: Filter,
    possible_runs: int,
) -> tuple[PartialRun, ...]:
    """Return the runs that count for a campaign if another campaign follows it.

    ``possible_runs`` is the number of the campaign's repeats that began in this block, or that
    never began. The operator could have run all of them, and may have opened the next campaign
    instead because of a release. So every one of these repeats counts that the budget allows. A
    repeat may also count for an earlier block of the same campaign.
    """
    campaign = block[0].campaign
    run_count = sum(run.times for run in block)
    if run_count >= possible_runs:
        return block
    slots = Spending(campaign, earlier, privacy_filter).affordable_slots_in_runs(possible_runs)
    whole_runs, extra_slots = divmod(slots, campaign.design.slots)
    if campaign.design.protocol is Protocol.AVERAGED:  # its runs have known contributors
        further_runs = whole_runs - run_count
        return (
            (*block, replace(PartialRun.whole(campaign), times=further_runs))
            if further_runs > 0
            else block
        )
    if slots < sum(run.slots * run.times for run in block):
        return block
    runs = [replace(PartialRun.whole(campaign), times=whole_runs)] if whole_runs else []
    return (*runs, PartialRun(campaign, extra_slots)) if extra_slots else tuple(runs)


@lru_cache(maxsize=4096)
def _cached_epsilon(runs: tuple[PartialRun, ...], privacy_filter: Filter | None) -> float:
    """Return the epsilon of ``certify_runs``. A server computes it after every slot."""
    if privacy_filter is not None and _has_different_campaigns(runs):
        blocks, arguments = _filter_blocks(runs, privacy_filter)
        return filtered_epsilon(blocks, privacy_filter, **arguments)
    composed = ComposedRuns.of(runs)
    try:
        return smallest_epsilon(composed.designs, **composed.arguments)
    except DeltaExhausted:
        return math.inf


def _simulation_only_assumptions(campaign: Campaign) -> tuple[str, ...]:
    """Return the assumptions of a certificate that say why a campaign can only be simulated."""
    if campaign.randomizer.kind is RandomizerKind.PRIVUNIT:
        return (PRIVUNIT_CAVEAT,)
    return (NO_GRID_CAVEAT,) if "[randomizer] grid" in campaign.missing else ()


@dataclass(frozen=True, slots=True)
class Spending:
    """The epsilon of a campaign, composed with ``earlier`` runs on its population.

    ``privacy_filter`` was fixed for the population before its first release. If it is None, all
    campaigns are composed as if their parameters had been fixed beforehand.
    """

    campaign: Campaign
    earlier: tuple[PartialRun, ...] = ()
    privacy_filter: Filter | None = None

    @property
    def remaining_repeats(self) -> int:
        """Number of runs of the campaign that are not among the earlier runs."""
        earlier_repeats = sum(run.times for run in self.earlier if run.campaign == self.campaign)
        return max(0, self.campaign.repeats - earlier_repeats)

    @property
    def remaining_slots(self) -> int:
        """Number of slots of all remaining runs together."""
        return self.remaining_repeats * self.campaign.design.slots

    def after(self, slots: int, *, run: int = 1, contributors: int | None = None) -> Certificate:
        """Return the certificate after ``slots`` slots of run ``run`` and all runs before it.

        Averaged updates have the same epsilon after every slot. It depends on ``contributors``. If
        that is None, the smallest declared population is used.
        """
        return certify_runs(
            self._runs(slots, run, contributors), privacy_filter=self.privacy_filter
        )

    def epsilon_after(self, slots: int, *, run: int = 1) -> float:
        """Return the epsilon of ``after`` from a cache; infinity if no finite one is proved."""
        return _cached_epsilon(self._runs(slots, run), self.privacy_filter)

    def _runs(
        self, slots: int, run: int, contributors: int | None = None
    ) -> tuple[PartialRun, ...]:
        validate.count(most=self.campaign.repeats, run=run)
        slots_per_run = self.campaign.design.slots
        complete_runs = (
            (PartialRun(self.campaign, slots_per_run, times=run - 1),) if run > 1 else ()
        )
        last = PartialRun(self.campaign, slots, contributors)
        if len(self.earlier) + run > MAX_COMPOSED_RUNS and slots > 0 and contributors is None:
            # All slots of the last run count: looser but valid, and the list of runs is shorter.
            last = PartialRun(self.campaign, slots_per_run)
        return (*self.earlier, *complete_runs, last)

    def affordable_slots_in_run(self, *, run: int = 1) -> int:
        """Return how many slots of run ``run`` the budget allows after all runs before it."""
        validate.count(most=self.campaign.repeats, run=run)
        return self._most_within_budget(
            lambda slots: self.epsilon_after(slots, run=run), self.campaign.design.slots
        )

    @property
    def affordable_slots(self) -> int:
        """Number of slots that the budget allows in all remaining runs."""
        return self.affordable_slots_in_runs(self.remaining_repeats)

    def affordable_slots_in_runs(self, repeats: int) -> int:
        """Return how many slots the budget allows in at most ``repeats`` more runs."""
        slots = self.campaign.design.slots
        if repeats == 1:
            return self.affordable_slots_in_run()
        whole_runs = self._most_within_budget(
            lambda runs: self.epsilon_after(slots, run=runs) if runs else 0.0, repeats
        )
        if whole_runs == repeats:
            return repeats * slots
        return whole_runs * slots + self.affordable_slots_in_run(run=whole_runs + 1)

    @property
    def within_budget(self) -> bool:
        """True if the budget allows all remaining runs."""
        return self._epsilon_after(self.remaining_slots) <= self.campaign.budget.epsilon

    def curve(self, slots: Sequence[int] | None = None) -> tuple[tuple[int, float], ...]:
        """Return (slots, epsilon) for each number of slots, counted over all remaining runs.

        By default there are up to twenty evenly spaced numbers. Epsilon is infinite if no finite
        epsilon is proved.
        """
        if slots is None:
            slots = sorted({max(1, self.remaining_slots * i // 20) for i in range(1, 21)})
        return tuple((count, self._epsilon_after(count)) for count in slots)

    def _epsilon_after(self, count: int) -> float:
        """Return the epsilon after ``count`` slots, counted over all remaining runs."""
        validate.count(most=self.remaining_slots, slots=count)
        run, slot = divmod(count - 1, self.campaign.design.slots)
        return self.epsilon_after(slot + 1, run=run + 1)

    def _most_within_budget(self, epsilon_of: Callable[[int], float], largest: int) -> int:
        """Return the largest count up to ``largest`` whose epsilon is within the budget.

        ``epsilon_of(count)`` must not decrease with the count.
        """
        budget = self.campaign.budget.epsilon
        high, epsilon_high = largest, epsilon_of(largest)
        if epsilon_high <= budget:
            return largest
        low, epsilon_low = 0, epsilon_of(0)
        if not epsilon_low <= budget:
            return 0
        iteration = 0
        while high - low > 1:
            iteration += 1
            middle = (low + high) // 2  # every third iteration bisects
            if iteration % 3 and math.isfinite(epsilon_high):
                # Interpolate: epsilon grows about like the square root of the count.
                fraction = (budget**2 - epsilon_low**2) / (epsilon_high**2 - epsilon_low**2)
                middle = low + int((high - low) * fraction)
            middle = min(max(middle, low + 1), high - 1)
            epsilon_middle = epsilon_of(middle)
            if epsilon_middle <= budget:
                low, epsilon_low = middle, epsilon_middle
            else:
                high, epsilon_high = middle, epsilon_middle
        return low
