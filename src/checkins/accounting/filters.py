"""Privacy filters: a budget for campaigns that are chosen after earlier releases.

``composition`` is valid only for campaigns whose parameters were fixed beforehand. If an operator
looks at releases before describing the next campaign, the true epsilon may be larger. A filter is
chosen before the first release, with a bound on the total charge. Every block of campaigns has a
charge. The filter refuses a block if the total charge would exceed the bound. All admitted blocks
together are (epsilon, delta)-DP, however they were chosen. ``certify_adaptive`` certifies them.

A ``Block`` is declared before any of its campaigns releases anything. It is charged in full, even
if some of its campaigns never run. Within a block, campaigns compose like campaigns whose
parameters were all fixed beforehand.

The *curve* of a block is an upper bound on its delta as a function of epsilon. Its *slack* is a
part of delta that the charge may ignore.

Theorem:     docs/theory/adaptive-campaigns.md.
Neighbours:  either relation; the curve of a block bounds both directions.
Rounding:    charges and epsilon up.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from checkins import validate
from checkins.accounting import total_variation
from checkins.accounting.accountant import certify, check, lower_of
from checkins.accounting.adversaries import AgainstServer, against_server
from checkins.accounting.certificate import (
    Alternative,
    Certificate,
    assumptions,
    charged_to_delta,
    versions,
)
from checkins.accounting.composition import Composition, DeltaOfEpsilon
from checkins.accounting.design import MOST_EPSILON, Adjacency, Design, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.dominating_pair import ROUND_OFF
from checkins.accounting.exact.gaussian import MOST_SHIFT, largest_shift, shifted_delta
from checkins.accounting.exact.grid_distribution import CELLS
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import crossing, first_true
from checkins.errors import InvalidValue, NotCovered

SLACK_SHARE = 0.2
"""Share of delta that is reserved for the slack of all blocks together."""
VARIATION_SHARE = 0.01
"""Share of delta that is reserved for the total variation between implementation and design."""
ORDERS = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Orders of the Renyi filters that ``choose_filter`` compares."""
MOST_ORDER = 1024
FIXED_BEFOREHAND = "parameters fixed beforehand"
"""The end of the assumption that a filter replaces. ``_assumed`` drops lines that end like this."""
_MOST_COMPARED = 1000
"""Largest number of campaigns for which the comparison without a filter is computed."""
_NODES = 512
_COARSE_NODES, _COARSE_CELLS = 128, 128
_LEAST_SHIFT = 1e-6
"""Smallest shift at which the delta of a Gaussian is computed accurately."""


@dataclass(frozen=True, slots=True)
class Block:
    """Campaigns that are declared together: the sequence ``designs``, ``repeats`` times."""

    designs: tuple[Design, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        for design in self.designs:
            validate.one_of(Design, design=design)
        validate.count(most=validate.MOST_CAMPAIGNS, repeats=self.repeats)
        if not self.designs:
            raise InvalidValue("design", self.designs, "must name at least one campaign")

    @property
    def runs(self) -> int:
        return len(self.designs) * self.repeats

    @property
    def expected_participations(self) -> float:
        """The expected number of times that a client takes part.

        The block is (0, delta)-DP if delta is at least this number.
        """
        return self.repeats * math.fsum(design.participation for design in self.designs)


@dataclass(frozen=True, slots=True)
class DeltaCurve:
    """Decreasing upper bounds ``deltas`` at increasing ``epsilons``, from 0.

    The last epsilon is the point at which the bound has fallen to ``slack``.
    """

    epsilons: FloatArray
    deltas: FloatArray
    slack: float

    @classmethod
    def of(cls, curve: DeltaOfEpsilon, *, slack: float, nodes: int = _NODES) -> DeltaCurve:
        """Evaluate ``curve`` from 0 to the epsilon at which it is at most ``slack``.

        Raise ``NotCovered`` if there is no such epsilon.
        """
        last = crossing(curve, slack, guess=1.0, precision=1e-3).upper
        if not math.isfinite(last):
            raise NotCovered("delta", slack, "is too small: no epsilon is proved for it; add noise")
        if last == 0.0:
            return cls(np.zeros(1), np.array([slack]), slack)
        epsilons = np.linspace(0.0, last, nodes)
        found = np.array([curve(float(epsilon)) for epsilon in epsilons])
        return cls(epsilons, np.minimum.accumulate(np.minimum(found, 1.0)), slack)


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule that charges blocks.

    The Gaussian filter, with ``order`` None, charges the square of the smallest Gaussian shift that
    dominates the block. A Renyi filter charges the logarithm of the moment of its order.

    >>> str(Filter()), str(Filter(order=8)), Filter.parse("renyi-8") == Filter(order=8)
    ('gaussian', 'renyi-8', True)
    """

    order: int | None = None

    def __post_init__(self) -> None:
        if self.order is None:
            return
        validate.count(most=MOST_ORDER, order=self.order)
        if self.order < 2:
            raise InvalidValue("order", self.order, f"must be from 2 to {MOST_ORDER:,}")

    def __str__(self) -> str:
        return "gaussian" if self.order is None else f"renyi-{self.order}"

    @classmethod
    def parse(cls, text: object) -> Filter:
        """Return the filter with this name, which is "gaussian" or "renyi-" and an order."""
        if text == "gaussian":
            return cls()
        found = re.fullmatch(r"renyi-([1-9][0-9]{0,3})", text) if isinstance(text, str) else None
        if found is None or not 2 <= int(found[1]) <= MOST_ORDER:
            raise InvalidValue(
                "filter", text, f"must be gaussian, or renyi- and an order from 2 to {MOST_ORDER:,}"
            )
        return cls(int(found[1]))

    @property
    def method(self) -> str:
        """The name of the filter's method in a certificate."""
        return "filter-gaussian" if self.order is None else "filter-renyi"

    def charge(self, curve: DeltaCurve) -> float:
        """Return the charge of a block with this curve, or infinity if none is proved."""
        if self.order is None:
            shift = smallest_shift(curve)
            return math.nextafter(shift * shift, math.inf) if shift else 0.0
        return log_moment(curve, order=self.order)

    def epsilon(self, charged: float, *, delta: float) -> float:
        """Return the epsilon of all blocks if their charges sum to at most ``charged``."""
        if not charged < math.inf:
            return math.inf
        if self.order is None:
            if charged == 0.0:
                return 0.0
            shift = max(math.sqrt(charged) * (1 + 1e-15), _LEAST_SHIFT)
            if shift > MOST_SHIFT:
                return math.inf

            def profile(epsilon: float) -> float:
                return float(shifted_delta(shift, np.array([epsilon]))[0]) * (1 + ROUND_OFF)

            return crossing(profile, delta, guess=shift, precision=1e-9).upper
        needed = (charged + _log_tail(self.order) - math.log(delta)) / (self.order - 1)
        found = max(0.0, needed + 1e-12 * abs(needed))
        return found if found <= MOST_EPSILON else math.inf

    def bound(self, *, epsilon: float, delta: float) -> float:
        """Return the largest sum of charges that keeps (epsilon, delta), or 0 if there is none."""
        if self.order is not None:
            return max(0.0, (self.order - 1) * epsilon + math.log(delta) - _log_tail(self.order))
        return largest_shift(epsilon, delta) ** 2


def smallest_shift(curve: DeltaCurve) -> float:
    """Return the smallest shift mu for which delta of N(mu, 1), plus the slack, is above the curve.

    Both deltas are convex in exp(epsilon). Between two nodes, the true curve therefore lies below
    the chord of its upper bounds, and the Gaussian curve lies above its tangents. Beyond the last
    node, the slack alone is enough. Return 0 if the slack alone is above the whole curve, and
    infinity if no supported shift is large enough.

    Rounding:    up.
    """
    if len(curve.epsilons) == 1:
        return 0.0
    low, high = 0.0, _LEAST_SHIFT
    while not _is_below(curve, high):
        low, high = high, 4.0 * high
        if high > MOST_SHIFT:
            return math.inf
    return first_true(lambda shift: _is_below(curve, shift), false=low, true=high, precision=1e-7)


def _is_below(curve: DeltaCurve, shift: float) -> bool:
    found, epsilons = curve.deltas, curve.epsilons
    above = shifted_delta(shift, epsilons) * (1 - ROUND_OFF) + curve.slack
    if not bool((found <= above).all()):
        return False
    slopes = -ndtr(-shift / 2 - epsilons / shift)  # of the Gaussian curve in exp(epsilon)
    widths = np.exp(epsilons[:-1]) * np.expm1(np.diff(epsilons))
    bend = slopes[1:] - slopes[:-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        meet = np.where(bend > 0, (np.diff(above) - slopes[1:] * widths) / -bend, 0.0)
    meet = np.clip(meet, 0.0, widths)
    tangents = np.maximum(above[:-1] + slopes[:-1] * meet, above[1:] + slopes[1:] * (meet - widths))
    chords = found[:-1] + np.diff(found) * meet / widths
    return bool((chords <= tangents + ROUND_OFF * (tangents - curve.slack)).all())


def log_moment(curve: DeltaCurve, *, order: int) -> float:
    """Return an upper bound on log E f^a, where a is ``order``.

    f is the likelihood ratio of the block, capped where its tail is at most the slack. The moment
    is at most 1 plus two integrals of the curve over t = exp(epsilon). The first has the weight
    a (a - 1) t^(a-2). The second, for f below 1, has the weight a (a - 1) t^(-a-1).

    Rounding:    up. The curve is replaced by its chords, and the integral over each cell is bounded
                 by Chebyshev's or Gruess's inequality.
    """
    a, epsilons, found = float(order), curve.epsilons, curve.deltas
    beyond = math.log(a - 1) - a * float(epsilons[-1]) + math.log(curve.slack)
    if len(epsilons) == 1:
        return float(np.logaddexp(0.0, beyond)) * (1 + ROUND_OFF)
    steps, middles = np.diff(epsilons), (found[:-1] + found[1:]) / 2
    growth = (a - 1) * steps
    above = math.log(a) + (a - 1) * epsilons[:-1] + growth + np.log(-np.expm1(-growth))
    below = -(a - 1) * np.exp(-a * epsilons[:-1]) * np.expm1(-a * steps)
    weights = a * (a - 1) * np.exp(-(a + 1) * epsilons)
    widths = np.exp(epsilons[:-1]) * np.expm1(steps)
    spread = widths * (weights[:-1] - weights[1:]) * (found[:-1] - found[1:]) / 4
    with np.errstate(divide="ignore"):  # the logarithm of 0 is minus infinity, which adds nothing
        high, low = above + np.log(middles), math.log(float((below * middles + spread).sum()))
    total = np.logaddexp(np.logaddexp.reduce(high), np.logaddexp(low, beyond))
    return float(np.logaddexp(0.0, total)) * (1 + ROUND_OFF)


def slack_of(number: int, *, delta: float) -> float:
    """Return the slack of the block with this ``number``, counted from 1.

    The slacks of any number of blocks sum to less than ``SLACK_SHARE`` of delta.
    """
    validate.count(number=number)
    return SLACK_SHARE * delta / (number * (number + 1.0))


def choose_filter(first: Block, *, epsilon: float, delta: float, adjacency: Adjacency) -> Filter:
    """Choose the filter under which a few blocks like ``first`` have the smallest epsilon.

    "A few" is the number that the budget ``epsilon`` admits, but at least 2 and at most 4. Call
    this once, before the first release, because the filter must not depend on a release. Any choice
    is valid, so a coarse grid is enough.
    """
    slack, left = slack_of(1, delta=delta), _main_share(delta)
    if first.expected_participations <= slack:
        return Filter()
    try:
        found = _curve_of(first, adjacency, slack=slack, cells=_COARSE_CELLS)
        curve = DeltaCurve.of(found, slack=slack, nodes=_COARSE_NODES)
    except NotCovered:
        return Filter()
    if len(curve.epsilons) == 1:
        return Filter()
    charges = {one: one.charge(curve) for one in (Filter(), *map(Filter, ORDERS))}
    most = max(one.bound(epsilon=epsilon, delta=left) / charges[one] for one in charges)
    few = min(max(2.0, most), 4.0)
    return min(charges, key=lambda one: one.epsilon(few * charges[one], delta=left))


def filtered_epsilon(
    blocks: Sequence[Block],
    privacy_filter: Filter,
    *,
    delta: float,
    adjacency: Adjacency,
    variation: float = 0.0,
    budget: float = 0.0,
) -> float:
    """Return the smallest epsilon for which the filter admits these blocks, or infinity if none.

    The filter's bound, the slack of its blocks and the total variation each have a fixed share of
    delta. No part may use what another part leaves over. The charge for total variation grows with
    epsilon. It is computed at the larger of the epsilon and the promised ``budget``, because the
    promise must hold for every sequence of blocks that could have been chosen.
    """
    charges = [
        charge_of(block, privacy_filter, adjacency, delta=delta, number=number)
        for number, block in enumerate(blocks, start=1)
    ]
    total = math.fsum(charges) if all(map(math.isfinite, charges)) else math.inf
    epsilon = privacy_filter.epsilon(math.nextafter(total, math.inf), delta=_main_share(delta))
    if total == 0.0:
        epsilon = 0.0
    if not math.isfinite(epsilon) or variation == 0.0:
        return epsilon
    charge = total_variation.charge(epsilon=max(epsilon, budget), variation=variation)
    return epsilon if charge <= VARIATION_SHARE * delta else math.inf


@lru_cache(maxsize=4096)
def charge_of(
    block: Block, privacy_filter: Filter, adjacency: Adjacency, *, delta: float, number: int
) -> float:
    """Return the charge of the block with this number, or infinity if no curve is proved for it."""
    slack = slack_of(number, delta=delta)
    if block.expected_participations <= slack:
        return 0.0
    try:
        curve = DeltaCurve.of(_curve_of(block, adjacency, slack=slack), slack=slack)
    except NotCovered:
        return math.inf
    return privacy_filter.charge(curve)


def _curve_of(
    block: Block, adjacency: Adjacency, *, slack: float, cells: int = CELLS
) -> DeltaOfEpsilon:
    """Return the curve of the block.

    Averaged Gaussian reports are treated as if each client's slot were known.
    """
    try:
        return Composition(block.designs, adjacency, block.repeats).curve(slack, cells)
    except NotCovered:
        known = tuple(
            campaign_divergence.with_known_slot(one) if one.protocol is Protocol.AVERAGED else one
            for one in block.designs
        )
        if known == block.designs:
            raise
        return Composition(known, adjacency, block.repeats).curve(slack, cells)


def _main_share(delta: float) -> float:
    """Return the part of delta for the filter's own bound."""
    return delta * (1.0 - SLACK_SHARE - VARIATION_SHARE) * (1.0 - 1e-12)


def _log_tail(order: int) -> float:
    """Return log c for the smallest c with (x - t)_+ <= c t^(1-a) x^a for all x, t > 0."""
    return order * math.log1p(-1.0 / order) - math.log(order - 1.0)


def certify_adaptive(
    blocks: Sequence[Block],
    privacy_filter: Filter,
    *,
    delta: float,
    adjacency: Adjacency,
    variation: float = 0.0,
    budget: float = 0.0,
) -> Certificate:
    """Certify blocks of campaigns, each of which may depend on all earlier releases.

    ``privacy_filter`` must have been fixed before the first release. The certificate's epsilon is
    the smallest budget under which the filter admits these blocks. It is a guarantee only if no
    larger budget was allowed. If a larger ``budget`` was promised, the total variation is charged
    at that epsilon.
    """
    started = time.perf_counter()
    designs = [design for block in blocks for design in block.designs]
    check(designs, delta=delta, adjacency=adjacency, variation=variation)
    epsilon = filtered_epsilon(
        blocks, privacy_filter, delta=delta, adjacency=adjacency, variation=variation, budget=budget
    )
    if not math.isfinite(epsilon):
        without = filtered_epsilon(blocks, privacy_filter, delta=delta, adjacency=adjacency)
        if variation > 0.0 and math.isfinite(without):
            raise total_variation.exhausted(delta, variation)
        raise NotCovered(
            "delta",
            delta,
            f"no epsilon below {MOST_EPSILON:g} is proved at this delta for campaigns chosen after"
            f" earlier releases (filter {privacy_filter}); add noise or slots, or run fewer"
            " campaigns",
        )
    fixed = _fixed_beforehand(blocks, delta=delta, adjacency=adjacency, variation=variation)
    note = f"{privacy_filter}; chosen after earlier releases"
    own = Alternative(privacy_filter.method, epsilon, note, proves=True)
    others = [
        replace(other, note=f"with {FIXED_BEFOREHAND}", proves=False)
        for other in (() if fixed is None else fixed.alternatives)
    ]
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=0.0 if fixed is None else min(fixed.epsilon_lower, epsilon),
        delta=delta,
        adjacency=adjacency,
        method=privacy_filter.method,
        assumptions=(
            *_assumed(blocks, privacy_filter, adjacency),
            *charged_to_delta(variation=variation, epsilon=max(epsilon, budget)),
        ),
        alternatives=(own, *others),
        epsilon_lower_of=lower_of(designs),
        variation=variation,
        against_server=_against_server(blocks, delta),
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy", "dp-accounting"),
    )


def _against_server(blocks: Sequence[Block], delta: float) -> AgainstServer:
    """Compose the reports as if fixed beforehand, because no filter covers the server's view."""
    runs = [design for block in blocks for design in block.designs * block.repeats]
    found = against_server(runs, delta=delta)
    if len(blocks) == 1 or not math.isfinite(found.epsilon):
        return found
    return replace(found, note=f"{found.note}; with {FIXED_BEFOREHAND}")


def _assumed(
    blocks: Sequence[Block], privacy_filter: Filter, adjacency: Adjacency
) -> tuple[str, ...]:
    """Return the assumptions of the blocks, including declared populations, and of the filter.

    The last one replaces the assumption that parameters are fixed beforehand.
    """
    lines = (
        line
        for block in blocks
        for design in block.designs
        for line in assumptions(
            design, adjacency=adjacency, uses_population=design.capacity is not None
        )
        if not line.endswith(FIXED_BEFOREHAND)
    )
    runs = sum(block.runs for block in blocks)
    of_filter = (
        f"{runs:,} campaigns in {len(blocks):,} blocks, each with fresh randomness; a block may be"
        f" chosen after earlier releases, within a filter ({privacy_filter}) fixed before the first"
        " release"
    )
    return (*dict.fromkeys(lines), of_filter)


def _fixed_beforehand(
    blocks: Sequence[Block], *, delta: float, adjacency: Adjacency, variation: float
) -> Certificate | None:
    """Certify the campaigns as if fixed beforehand.

    Return None if nothing is proved, or if there are too many campaigns.
    """
    times: Counter[Design] = Counter()
    for block in blocks:
        for design in block.designs:
            times[design] += block.repeats
    rounds = math.gcd(*times.values())
    if times.total() // rounds > _MOST_COMPARED:
        return None
    try:
        return certify(
            [design for design, count in times.items() for _ in range(count // rounds)],
            delta=delta,
            adjacency=adjacency,
            campaigns=rounds,
            compare=False,
            variation=variation,
        )
    except InvalidValue:
        return None
