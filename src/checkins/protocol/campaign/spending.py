"""What a campaign has spent, slot by slot, and how far its budget goes (invariant 10).

The price of k of m slots is that of a design with k slots in which a client takes part with
probability p0 k/m (``Design.after``). Runs with fresh coins compose, those of other campaigns on
the same population too. What devices draw on a grid is not quite what is priced: the difference is
charged to delta (``accounting.variation``).

Theorem:     docs/theory/windows-and-capacity.md, docs/theory/total-variation.md.
Neighbours:  the budget's.
Rounding:    epsilon up; the slots that a budget affords, down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from checkins.accounting import (
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
    certify,
    require,
)
from checkins.accounting.accountant import smallest_epsilon
from checkins.errors import InvalidValue
from checkins.protocol.campaign.description import Budget, Campaign, RandomizerKind
from checkins.randomizers import grid

MOST_IN_A_LIST = 1000
"""How many runs that differ are composed at most."""

ONLY_SIMULATED = (
    "a campaign without a grid can only be simulated: on devices, noise is drawn on one",
    "privunit has no exact device sampler: a campaign with it can only be simulated",
)


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """A run of a campaign of which ``slots`` are over; ``times`` such runs.

    ``contributors`` is for averaged updates: how many reports went in. Without it the least that
    the campaign declares is priced.
    """

    campaign: Campaign
    slots: int
    contributors: int | None = None
    times: int = 1

    def __post_init__(self) -> None:
        require.count(most=require.MOST_CAMPAIGNS, times=self.times)
        if self.slots != 0:
            require.count(most=self.campaign.design.slots, slots=self.slots)
        if self.contributors is not None:
            if self.campaign.design.protocol is not Protocol.AVERAGED:
                raise InvalidValue(
                    "contributors", self.contributors, "goes with averaged updates only"
                )
            if self.contributors != 0:
                require.count(contributors=self.contributors)

    @classmethod
    def whole(cls, campaign: Campaign) -> RunSoFar:
        """Every run of the campaign to its end."""
        return cls(campaign, campaign.design.slots, times=campaign.repeats)

    @property
    def design(self) -> Design | None:
        """What the accountant is told of it; None where nothing was released."""
        warm_up = 0 if self.campaign.design.window is None else self.campaign.design.window - 1
        if self.slots <= warm_up or self.contributors == 0:
            return None
        design = self.campaign.design.after(self.slots)
        if self.contributors is None:
            return design
        return replace(design, population=Population(self.contributors, self.contributors))

    @property
    def variation(self) -> float:
        """The total variation between these runs on devices and what is priced.

        Every report of a whole run is charged, dummies included, and the largest model.

        Theorem:     MATH.md B8; ``checkins.randomizers.grid.variation``.
        Rounding:    up.
        """
        randomizer, design = self.campaign.randomizer, self.campaign.design
        if randomizer.grid is None:
            return 0.0
        together = 1  # reports that make one sum
        vectors = design.slots * self.times
        if design.protocol is Protocol.AVERAGED:
            declared = design.population.most if design.population else 1
            vectors = max(declared, self.contributors or 0) * self.times
        elif randomizer.noise_at is not NoiseAt.SERVER:
            together = design.capacity or 1
        one = grid.variation(
            randomizer.describe(grid.MOST_DIMENSION),
            grid.Grid(randomizer.grid),
            reports=together,
            capacity=together,
            dimension=grid.MOST_DIMENSION,
        )
        exact = Fraction(one) * vectors
        total = float(exact)
        return min(1.0, total if Fraction(total) >= exact else math.nextafter(total, math.inf))


@dataclass(frozen=True, slots=True)
class _Bill:
    """Runs as the accountant takes them: a list of designs, ``campaigns`` times over."""

    designs: tuple[Design, ...]
    campaigns: int
    budget: Budget
    variation: float

    @classmethod
    def of(cls, runs: Sequence[RunSoFar]) -> _Bill:
        if not runs:
            raise InvalidValue("campaigns", 0, "must be at least one")
        budget = runs[0].campaign.budget
        for run in runs[1:]:
            for name in ("delta", "adjacency"):
                ours, theirs = (getattr(one, name) for one in (budget, run.campaign.budget))
                if ours != theirs:
                    raise InvalidValue(name, theirs, f"must be {ours} as in the first of the list")
        times: dict[Design, int] = {}
        for run in runs:
            if run.design is not None:
                times[run.design] = times.get(run.design, 0) + run.times
        rounds = math.gcd(*times.values()) or 1
        length = sum(times.values()) // rounds
        if length > MOST_IN_A_LIST:
            raise InvalidValue(
                "campaigns",
                max(times.values()),
                f"makes a list of {length:,} campaigns with the others;"
                f" must make at most {MOST_IN_A_LIST:,}, or share a divisor with them",
            )
        designs = tuple(design for design, count in times.items() for _ in range(count // rounds))
        variation = _added(run.variation for run in runs if run.design is not None)
        return cls(designs or (_nothing(runs[0].campaign),), rounds, budget, variation)


def price(runs: Sequence[RunSoFar], *, compare: bool = False, curious: int = 0) -> Certificate:
    """The certificate of these runs together: the one price of a campaign, wherever it is asked.

    Their budgets must agree on delta and adjacency. ``curious`` clients disclose what they see.
    """
    bill = _Bill.of(runs)
    certificate = certify(
        bill.designs,
        delta=bill.budget.delta,
        adjacency=bill.budget.adjacency,
        campaigns=bill.campaigns,
        compare=compare,
        variation=bill.variation,
        curious=curious,
    )
    told = tuple(dict.fromkeys(line for run in runs for line in _caveats(run.campaign)))
    return replace(certificate, assumptions=(*certificate.assumptions, *told))


@lru_cache(maxsize=4096)
def _epsilon(runs: tuple[RunSoFar, ...]) -> float:
    """The epsilon of ``price``, remembered: a server asks after every slot."""
    bill = _Bill.of(runs)
    try:
        return smallest_epsilon(
            bill.designs,
            delta=bill.budget.delta,
            adjacency=bill.budget.adjacency,
            campaigns=bill.campaigns,
            variation=bill.variation,
        )
    except InvalidValue as error:
        if error.name == "variation":  # it leaves nothing of delta
            return math.inf
        raise


def _added(variations: Iterable[float]) -> float:
    """Their sum, rounded up."""
    found = [variation for variation in variations if variation > 0.0]
    total = math.fsum(found)
    return total if len(found) < 2 else min(1.0, math.nextafter(total, 1.0))


def _nothing(campaign: Campaign) -> Design:
    """What a campaign is before its first release: nobody has taken part."""
    randomizer = campaign.design.randomizer
    return Design(
        Protocol.FIXED,
        slots=1,
        participation=0.0,
        randomizer=randomizer
        if isinstance(randomizer, LocalRandomizer)
        else GaussianNoise(1.0, NoiseAt.SERVER),
    )


def _caveats(campaign: Campaign) -> tuple[str, ...]:
    no_grid, privunit = ONLY_SIMULATED
    if campaign.randomizer.kind is RandomizerKind.PRIVUNIT:
        return (privunit,)
    return (no_grid,) if "[randomizer] grid" in campaign.missing else ()


@dataclass(frozen=True, slots=True)
class Spending:
    """What a campaign spends, after what ``earlier`` runs on its population have spent."""

    campaign: Campaign
    earlier: tuple[RunSoFar, ...] = ()

    @property
    def slots(self) -> int:
        """The slots of all runs together."""
        return self.campaign.repeats * self.campaign.design.slots

    def after(self, slots: int, *, run: int = 1, contributors: int | None = None) -> Certificate:
        """The certificate once ``slots`` of run ``run`` are over, and every run before it in full.

        Averaged updates cost the same after any slot; their final price needs ``contributors``.
        """
        return price(self._runs(slots, run, contributors))

    def epsilon_after(self, slots: int, *, run: int = 1) -> float:
        """The epsilon of that certificate alone, remembered; infinite where none is proved."""
        return _epsilon(self._runs(slots, run))

    def _runs(self, slots: int, run: int, contributors: int | None = None) -> tuple[RunSoFar, ...]:
        require.count(most=self.campaign.repeats, run=run)
        whole = self.campaign.design.slots
        before = (RunSoFar(self.campaign, whole, times=run - 1),) if run > 1 else ()
        last = RunSoFar(self.campaign, slots, contributors)
        if len(self.earlier) + run > MOST_IN_A_LIST and slots > 0 and contributors is None:
            last = RunSoFar(self.campaign, whole)  # dearer, and then all of one kind
        return (*self.earlier, *before, last)

    def affordable(self, *, run: int = 1) -> int:
        """How many slots of run ``run`` the budget pays for, every run before it done in full."""
        require.count(most=self.campaign.repeats, run=run)
        return self._most_of(
            lambda slots: self.epsilon_after(slots, run=run), self.campaign.design.slots
        )

    @property
    def affordable_slots(self) -> int:
        """How many slots the budget pays for, counted from the first of the first run."""
        slots, repeats = self.campaign.design.slots, self.campaign.repeats
        if repeats == 1:
            return self.affordable()
        whole = self._most_of(
            lambda runs: self.epsilon_after(slots, run=runs) if runs else 0.0, repeats
        )
        if whole == repeats:
            return self.slots
        return whole * slots + self.affordable(run=whole + 1)

    @property
    def within_budget(self) -> bool:
        return self._epsilon_after(self.slots) <= self.campaign.budget.epsilon

    def curve(self, slots: Sequence[int] | None = None) -> tuple[tuple[int, float], ...]:
        """(slots, epsilon) along the way, counted over all runs; twenty places if none are named.

        An epsilon that is not bounded is infinite.
        """
        if slots is None:
            slots = sorted({max(1, self.slots * part // 20) for part in range(1, 21)})
        return tuple((count, self._epsilon_after(count)) for count in slots)

    def _epsilon_after(self, count: int) -> float:
        require.count(most=self.slots, slots=count)
        run, slot = divmod(count - 1, self.campaign.design.slots)
        return self.epsilon_after(slot + 1, run=run + 1)

    def _most_of(self, epsilon: Callable[[int], float], most: int) -> int:
        """The largest count from 0 to ``most`` whose price, which grows, is within the budget."""
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
                middle = low + int((high - low) * share)  # a price grows about like a root
            middle = min(max(middle, low + 1), high - 1)
            at_middle = epsilon(middle)
            if at_middle <= budget:
                low, at_low = middle, at_middle
            else:
                high, at_high = middle, at_middle
        return low
