"""Privacy filters: a budget for campaigns that are chosen after earlier releases.

The module ``composition`` is valid only for campaigns whose parameters were fixed beforehand. If an
operator looks at releases before describing the next campaign, the true epsilon may be larger. A
filter is fixed before the first release. It refuses a block of campaigns if the total charge of all
blocks would exceed its bound. All admitted blocks together are (epsilon, delta)-DP, however they
were chosen. ``certify_adaptive`` certifies the blocks.

A ``Block`` is declared before any of its campaigns releases anything, and charged in full, even if
some of its campaigns never run. Within a block, campaigns compose as if fixed beforehand. The
*curve* of a block is an upper bound on its delta as a function of epsilon. Its *slack* is an amount
of delta that is set aside for the block. Its charge need only cover the curve minus the slack.

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
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtr

from checkins import validate
from checkins.accounting import total_variation
from checkins.accounting.accountant import certify, check_arguments, mechanism_of_lower_bound
from checkins.accounting.adversaries import AgainstServer, against_server
from checkins.accounting.certificate import (
    Alternative,
    Certificate,
    assumptions,
    charge_assumptions,
    versions,
)
from checkins.accounting.composition import Composition
from checkins.accounting.design import MOST_EPSILON, Adjacency, Design, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.dominating_pair import ROUND_OFF, DeltaOfEpsilon
from checkins.accounting.exact.gaussian import MAX_SHIFT, largest_shift, shifted_delta
from checkins.accounting.exact.grid_distribution import CELLS
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import crossing, first_true
from checkins.errors import InvalidValue, NotCovered

SLACK_SHARE = 0.2
"""Share of delta that is reserved for the slack of all blocks together."""
VARIATION_SHARE = 0.01
"""Share of delta that is reserved for the total variation between implementation and design."""
RENYI_ORDERS = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Orders of the Renyi filters that ``choose_filter`` compares."""
MOST_RENYI_ORDER = RENYI_ORDERS[-1]
FIXED_BEFOREHAND = "parameters fixed beforehand"
"""The end of the assumption of composition without a filter."""
_MOST_COMPARED = 1000
"""Largest number of campaigns for which the comparison without a filter is computed."""
_NODES, _COARSE_NODES, _COARSE_CELLS = 512, 128, 128
"""Numbers of epsilons of a curve, and of epsilons and grid cells of the coarse curve with which a
filter is chosen."""
_LEAST_SHIFT = 1e-6  # smallest mean mu whose delta against N(0, 1) is accurate


@dataclass(frozen=True, slots=True)
class Block:
    """Campaigns that are declared together: all ``designs`` in turn, ``repeats`` times."""

    designs: tuple[Design, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        for design in self.designs:
            validate.one_of(Design, design=design)
        validate.count(most=validate.MAX_CAMPAIGNS, repeats=self.repeats)
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
        last_epsilon = crossing(curve, slack, guess=1.0, precision=1e-3).upper
        if not math.isfinite(last_epsilon):
            raise NotCovered("delta", slack, "is too small: no epsilon is proved for it; add noise")
        if last_epsilon == 0.0:
            return cls(np.zeros(1), np.array([slack]), slack)
        epsilons = np.linspace(0.0, last_epsilon, nodes)
        deltas = np.array([curve(float(epsilon)) for epsilon in epsilons])
        return cls(epsilons, np.minimum.accumulate(np.minimum(deltas, 1.0)), slack)


@dataclass(frozen=True, slots=True)
class Filter:
    """A privacy filter: how much a block is charged, and the epsilon of a total charge.

    If ``order`` is None, it is the Gaussian filter. It charges mu² for the smallest shift mu for
    which N(mu, 1) and N(0, 1) dominate the block. A Renyi filter charges the logarithm of the
    moment of the block's likelihood ratio that has this order.

    >>> str(Filter()), str(Filter(order=8)), Filter.parse("renyi-8") == Filter(order=8)
    ('gaussian', 'renyi-8', True)
    """

    order: int | None = None

    def __post_init__(self) -> None:
        if self.order is None:
            return
        validate.count(most=MOST_RENYI_ORDER, order=self.order)
        if self.order < 2:
            raise InvalidValue("order", self.order, f"must be from 2 to {MOST_RENYI_ORDER:,}")

    def __str__(self) -> str:
        return "gaussian" if self.order is None else f"renyi-{self.order}"

    @classmethod
    def parse(cls, text: object) -> Filter:
        """Return the filter with this name, which is "gaussian" or "renyi-" and an order."""
        if text == "gaussian":
            return cls()
        match = re.fullmatch(r"renyi-([1-9][0-9]{0,3})", text) if isinstance(text, str) else None
        if match is None or not 2 <= int(match[1]) <= MOST_RENYI_ORDER:
            raise InvalidValue(
                "filter",
                text,
                f"must be gaussian, or renyi- and an order from 2 to {MOST_RENYI_ORDER:,}",
            )
        return cls(int(match[1]))

    @property
    def method(self) -> str:
        """The name of the filter's method in a certificate."""
        return "filter-gaussian" if self.order is None else "filter-renyi"

    def charge(self, curve: DeltaCurve) -> float:
        """Return the charge of a block with this curve, or infinity if no charge is proved."""
        if self.order is None:
            shift = smallest_shift(curve)
            return math.nextafter(shift * shift, math.inf) if shift else 0.0
        return log_moment(curve, order=self.order)

    def epsilon(self, charges: float, *, delta: float) -> float:
        """Return the epsilon of all blocks if their charges sum to at most ``charges``."""
        if not charges < math.inf:
            return math.inf
        if self.order is None:
            if charges == 0.0:
                return 0.0
            shift = max(math.sqrt(charges) * (1 + 1e-15), _LEAST_SHIFT)
            if shift > MAX_SHIFT:
                return math.inf

            def gaussian_delta(epsilon: float) -> float:
                return float(shifted_delta(shift, np.array([epsilon]))[0]) * (1 + ROUND_OFF)

            return crossing(gaussian_delta, delta, guess=shift, precision=1e-9).upper
        exact = (charges + _log_factor(self.order) - math.log(delta)) / (self.order - 1)
        epsilon = max(0.0, exact + 1e-12 * abs(exact))
        return epsilon if epsilon <= MOST_EPSILON else math.inf

    def bound(self, *, epsilon: float, delta: float) -> float:
        """Return the largest total charge at which (epsilon, delta) holds, or 0 if none exists."""
        if self.order is not None:
            return max(0.0, (self.order - 1) * epsilon + math.log(delta) - _log_factor(self.order))
        return largest_shift(epsilon, delta) ** 2


def smallest_shift(curve: DeltaCurve) -> float:
    """Return the smallest shift mu for which N(mu, 1) and N(0, 1) dominate the block.

    The delta of the Gaussians plus the slack must be above the curve. Both deltas are convex in
    exp(epsilon). So between two nodes, the true curve lies below the chord of its upper bounds, and
    the Gaussian curve lies above its tangents. Beyond the last node, the slack alone is enough.
    Return 0 if the slack alone is above the whole curve, and infinity if no supported shift is
    large enough.

    Rounding:    up.
    """
    if len(curve.epsilons) == 1:
        return 0.0
    low, high = 0.0, _LEAST_SHIFT
    while not _is_below_gaussian(curve, high):
        low, high = high, 4.0 * high
        if high > MAX_SHIFT:
            return math.inf
    fits = partial(_is_below_gaussian, curve)
    return first_true(fits, false=low, true=high, precision=1e-7)


def _is_below_gaussian(curve: DeltaCurve, shift: float) -> bool:
    """Return True if the curve is below the Gaussian delta with this shift, plus the slack."""
    deltas, epsilons = curve.deltas, curve.epsilons
    gaussian = shifted_delta(shift, epsilons) * (1 - ROUND_OFF) + curve.slack
    if not bool((deltas <= gaussian).all()):
        return False
    slopes = -ndtr(-shift / 2 - epsilons / shift)  # d(Gaussian delta)/d(exp(epsilon))
    widths = np.exp(epsilons[:-1]) * np.expm1(np.diff(epsilons))
    bends = slopes[1:] - slopes[:-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        crossings = np.where(bends > 0, (np.diff(gaussian) - slopes[1:] * widths) / -bends, 0.0)
    crossings = np.clip(crossings, 0.0, widths)
    tangents = np.maximum(
        gaussian[:-1] + slopes[:-1] * crossings, gaussian[1:] + slopes[1:] * (crossings - widths)
    )
    chords = deltas[:-1] + np.diff(deltas) * crossings / widths
    return bool((chords <= tangents + ROUND_OFF * (tangents - curve.slack)).all())


def log_moment(curve: DeltaCurve, *, order: int) -> float:
    """Return an upper bound on the log moment log E f^a, where a is ``order``.

    f is the likelihood ratio of the block, capped where its tail is at most the slack. The moment
    is at most 1 plus two integrals of the curve over t = exp(epsilon). The first integral is for f
    above 1 and has the weight a (a - 1) t^(a-2). The second integral is for f below 1 and has the
    weight a (a - 1) t^(-a-1).

    Rounding:    up. The curve is replaced by its chords, and the integral over each cell is bounded
                 by Chebyshev's or Gruess's inequality.
    """
    a, epsilons, deltas = float(order), curve.epsilons, curve.deltas
    log_tail = math.log(a - 1) - a * float(epsilons[-1]) + math.log(curve.slack)
    if len(epsilons) == 1:
        return float(np.logaddexp(0.0, log_tail)) * (1 + ROUND_OFF)
    steps, middles = np.diff(epsilons), (deltas[:-1] + deltas[1:]) / 2
    growth = (a - 1) * steps
    log_weights = math.log(a) + (a - 1) * epsilons[:-1] + growth + np.log(-np.expm1(-growth))
    weights_below = -(a - 1) * np.exp(-a * epsilons[:-1]) * np.expm1(-a * steps)
    weights = a * (a - 1) * np.exp(-(a + 1) * epsilons)
    widths = np.exp(epsilons[:-1]) * np.expm1(steps)
    spread = widths * (weights[:-1] - weights[1:]) * (deltas[:-1] - deltas[1:]) / 4
    with np.errstate(divide="ignore"):  # the logarithm of 0 is minus infinity, which adds nothing
        high, low = (
            log_weights + np.log(middles),
            math.log(float((weights_below * middles + spread).sum())),
        )
    total = np.logaddexp(np.logaddexp.reduce(high), np.logaddexp(low, log_tail))
    return float(np.logaddexp(0.0, total)) * (1 + ROUND_OFF)


def block_slack(number: int, *, delta: float) -> float:
    """Return the slack of the block with this ``number``, counted from 1.

    The slacks of any number of blocks sum to less than ``SLACK_SHARE`` of delta.
    """
    validate.count(number=number)
    return SLACK_SHARE * delta / (number * (number + 1.0))


def choose_filter(first: Block, *, epsilon: float, delta: float, adjacency: Adjacency) -> Filter:
    """Choose the filter under which a few blocks like ``first`` have the smallest epsilon.

    "A few" is the number of blocks that the budget ``epsilon`` admits, limited to 2 to 4. Call
    this once, before the first release, because the filter must not depend on a release. Every
    filter is valid, so a coarse grid is enough to choose one.
    """
    slack, share = block_slack(1, delta=delta), _filter_share(delta)
    if first.expected_participations <= slack:
        return Filter()
    try:
        block_curve = _block_curve(first, adjacency, slack=slack, cells=_COARSE_CELLS)
        curve = DeltaCurve.of(block_curve, slack=slack, nodes=_COARSE_NODES)
    except NotCovered:
        return Filter()
    if len(curve.epsilons) == 1:
        return Filter()
    charges = {option: option.charge(curve) for option in (Filter(), *map(Filter, RENYI_ORDERS))}
    most = max(option.bound(epsilon=epsilon, delta=share) / charges[option] for option in charges)
    few = min(max(2.0, most), 4.0)
    return min(charges, key=lambda option: option.epsilon(few * charges[option], delta=share))


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
    delta. What one of them does not use remains unused. The charge for total variation grows with
    epsilon. It is computed at the larger of the epsilon and ``budget``, because the budget must
    hold for every sequence of blocks that could have been chosen.
    """
    charges = [
        block_charge(block, privacy_filter, adjacency, delta=delta, number=number)
        for number, block in enumerate(blocks, start=1)
    ]
    total = math.fsum(charges) if all(map(math.isfinite, charges)) else math.inf
    epsilon = privacy_filter.epsilon(math.nextafter(total, math.inf), delta=_filter_share(delta))
    if total == 0.0:
        epsilon = 0.0
    if not math.isfinite(epsilon) or variation == 0.0:
        return epsilon
    charge = total_variation.charge(epsilon=max(epsilon, budget), variation=variation)
    return epsilon if charge <= VARIATION_SHARE * delta else math.inf


@lru_cache(maxsize=4096)
def block_charge(
    block: Block, privacy_filter: Filter, adjacency: Adjacency, *, delta: float, number: int
) -> float:
    """Return the charge of the block with this number, or infinity if no curve is proved for it."""
    slack = block_slack(number, delta=delta)
    if block.expected_participations <= slack:
        return 0.0
    try:
        curve = DeltaCurve.of(_block_curve(block, adjacency, slack=slack), slack=slack)
    except NotCovered:
        return math.inf
    return privacy_filter.charge(curve)


def _block_curve(
    block: Block, adjacency: Adjacency, *, slack: float, cells: int = CELLS
) -> DeltaOfEpsilon:
    """Return the curve of the block.

    Averaged Gaussian reports are treated as if each client's slot were known.
    """
    try:
        return Composition(block.designs, adjacency, block.repeats).curve(slack, cells)
    except NotCovered:
        known_slots = tuple(
            campaign_divergence.with_known_slot(one) if one.protocol is Protocol.AVERAGED else one
            for one in block.designs
        )
        if known_slots == block.designs:
            raise
        return Composition(known_slots, adjacency, block.repeats).curve(slack, cells)


def _filter_share(delta: float) -> float:
    """Return the share of delta that slack and total variation leave for the filter's bound."""
    return delta * (1.0 - SLACK_SHARE - VARIATION_SHARE) * (1.0 - 1e-12)


def _log_factor(order: int) -> float:
    """Return log c for the smallest c with max(x - t, 0) <= c t^(1-a) x^a for all x, t > 0.

    a is ``order``. The inequality bounds delta by a moment of the likelihood ratio x.
    """
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
    larger budget was allowed. If a larger ``budget`` was allowed, the total variation is charged at
    that epsilon.
    """
    started = time.perf_counter()
    designs = [design for block in blocks for design in block.designs]
    check_arguments(designs, delta=delta, adjacency=adjacency, variation=variation)
    epsilon = filtered_epsilon(
        blocks, privacy_filter, delta=delta, adjacency=adjacency, variation=variation, budget=budget
    )
    if not math.isfinite(epsilon):
        without_variation = filtered_epsilon(
            blocks, privacy_filter, delta=delta, adjacency=adjacency
        )
        if variation > 0.0 and math.isfinite(without_variation):
            raise total_variation.delta_exhausted(delta, variation)
        raise NotCovered(
            "delta",
            delta,
            f"no epsilon below {MOST_EPSILON:g} is proved at this delta for campaigns chosen after"
            f" earlier releases (filter {privacy_filter}); add noise or slots, or run fewer"
            " campaigns",
        )
    if_fixed = _certificate_if_fixed(blocks, delta=delta, adjacency=adjacency, variation=variation)
    note = f"{privacy_filter}; chosen after earlier releases"
    filtered = Alternative(privacy_filter.method, epsilon, note, proves=True)
    unproved = [
        replace(other, note=f"with {FIXED_BEFOREHAND}", proves=False)
        for other in (() if if_fixed is None else if_fixed.alternatives)
    ]
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=0.0 if if_fixed is None else min(if_fixed.epsilon_lower, epsilon),
        delta=delta,
        adjacency=adjacency,
        method=privacy_filter.method,
        assumptions=(
            *_adaptive_assumptions(blocks, privacy_filter, adjacency),
            *charge_assumptions(variation=variation, epsilon=max(epsilon, budget)),
        ),
        alternatives=(filtered, *unproved),
        epsilon_lower_of=mechanism_of_lower_bound(designs),
        variation=variation,
        against_server=_against_server(blocks, delta),
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy", "dp-accounting"),
    )


def _against_server(blocks: Sequence[Block], delta: float) -> AgainstServer:
    """Compose reports as if fixed beforehand, because no filter covers an untrusted server."""
    runs = [design for block in blocks for design in block.designs * block.repeats]
    guarantee = against_server(runs, delta=delta)
    if len(blocks) == 1 or not math.isfinite(guarantee.epsilon):
        return guarantee
    return replace(guarantee, note=f"{guarantee.note}; with {FIXED_BEFOREHAND}")


def _adaptive_assumptions(
    blocks: Sequence[Block], privacy_filter: Filter, adjacency: Adjacency
) -> tuple[str, ...]:
    """Return the assumptions of the blocks, including declared populations, and of the filter.

    The filter's assumption replaces the assumption that parameters are fixed beforehand.
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
    filter_assumption = (
        f"{runs:,} campaigns in {len(blocks):,} blocks, each with fresh randomness; a block may be"
        f" chosen after earlier releases, within a filter ({privacy_filter}) fixed before the first"
        " release"
    )
    return (*dict.fromkeys(lines), filter_assumption)


def _certificate_if_fixed(
    blocks: Sequence[Block], *, delta: float, adjacency: Adjacency, variation: float
) -> Certificate | None:
    """Certify the campaigns as if all parameters were fixed beforehand, for comparison.

    Return None if no epsilon is proved, or if there are more than ``_MOST_COMPARED`` campaigns.
    """
    counts: Counter[Design] = Counter()
    for block in blocks:
        for design in block.designs:
            counts[design] += block.repeats
    repeats = math.gcd(*counts.values())
    if counts.total() // repeats > _MOST_COMPARED:
        return None
    try:
        return certify(
            [design for design, count in counts.items() for _ in range(count // repeats)],
            delta=delta,
            adjacency=adjacency,
            campaigns=repeats,
            compare=False,
            variation=variation,
        )
    except InvalidValue:
        return None
