"""Delta, epsilon and noise of a design at a chosen precision, for callers that try many designs.

Every bound here is proved. A coarser precision takes less time and gives a larger bound. Noise that
meets a budget here also meets it in a certificate.

The *level* of a design is the noise multiplier of its Gaussian noise, or the local epsilon of its
randomizer. ``calibrate_at`` searches for the level with the least noise. It starts from a
closed-form estimate, which is the larger of two noises. With the first, the likelihood ratio of the
client's own slot meets the budget. With the second, the variance of the ratio over all slots meets
it. The estimate is within about ten percent of the exact noise, but it is not a bound.

Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, docs/theory/windows-and-capacity.md.
Neighbours:  as asked for.
Rounding:    delta and epsilon up; levels to the more private side; estimates to nearest.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache

import numpy as np

from checkins.accounting.adversaries import against_server
from checkins.accounting.certificate import (
    Alternative,
    Certificate,
    assumptions,
    charged_to_delta,
    versions,
)
from checkins.accounting.composition import Composition
from checkins.accounting.design import (
    LEAST_NOISE,
    MOST_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.gaussian import largest_shift
from checkins.accounting.exact.pure_capacity import exact_calls
from checkins.accounting.solve import crossing, first_true, just_enough
from checkins.errors import CheckinsError

_RARE = 0.01
"""Largest part of delta that may be charged for the probability that slots overflow."""


class Precision(IntEnum):
    """The number of grid cells: from 100 for drawing curves to 448 for a final design."""

    DRAFT = 100
    FINE = 200
    FINER = 280
    FINEST = 448


class Method(StrEnum):
    """The methods by which ``delta_at`` is proved, named as in a certificate."""

    EXACT = "exact"
    EXACT_POPULATION = "exact-population"
    NO_AMPLIFICATION = "no-amplification"


def delta_at(
    design: Design,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    precision: Precision,
    campaigns: int = 1,
) -> float:
    """Return an upper bound on the delta of the design at ``epsilon``.

    The bound is accurate near ``delta``. It is 0 if the client takes part with a probability of at
    most ``delta``.
    """
    accounted, overflow = _design_and_overflow(design, delta=delta, campaigns=campaigns)
    if design.participation * campaigns <= delta:
        return 0.0
    if campaigns == 1:
        found = campaign_divergence.divergence(accounted, adjacency, delta=delta, cells=precision)
        return min(1.0, found.upper(epsilon) + overflow)
    composed = Composition((accounted,), adjacency, campaigns)
    averaged = accounted.protocol is Protocol.AVERAGED
    curve = (composed.curve if averaged else composed.triangle_curve)(delta, precision)
    return min(1.0, curve(epsilon) + overflow)


def epsilon_at(
    design: Design,
    *,
    delta: float,
    adjacency: Adjacency,
    precision: Precision,
    campaigns: int = 1,
    guess: float = 1.0,
) -> float:
    """Return the smallest epsilon that ``delta_at`` proves, to within 0.5 %.

    Return infinity if it proves none. The search starts at ``guess``.
    """

    def delta_with(epsilon: float) -> float:
        try:
            return delta_at(
                design,
                epsilon=max(epsilon, 1e-12),
                delta=delta,
                adjacency=adjacency,
                precision=precision,
                campaigns=campaigns,
            )
        except CheckinsError:
            return 1.0

    return crossing(delta_with, delta, guess=guess, precision=5e-3, surely_above_at_zero=True).upper


def method_at(design: Design, *, delta: float, campaigns: int = 1) -> Method:
    """Return the method that proves the bound of ``delta_at``. It does not depend on the noise."""
    if _averages_gaussian_reports(design):
        return Method.NO_AMPLIFICATION
    if _rare_overflow(design, delta=delta, campaigns=campaigns) is not None:
        return Method.EXACT_POPULATION
    return Method.EXACT


def certify_at(
    design: Design,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    precision: Precision,
    method: Method,
    campaigns: int = 1,
    variation: float = 0.0,
    started: float | None = None,
) -> Certificate:
    """Return the certificate of an epsilon that ``delta_at`` has proved at ``precision``.

    The caller must have checked that ``delta_at`` is at most the part of ``delta`` that remains
    after the charge for ``variation``. The certificate's lower bound is 0. ``started`` is the
    ``time.perf_counter()`` at which the work began. None means now.
    """
    started = time.perf_counter() if started is None else started
    lines = assumptions(
        design,
        adjacency=adjacency,
        uses_population=method is Method.EXACT_POPULATION,
        campaigns=campaigns,
    )
    note = f"on a grid of {precision:d} cells; checkins check uses a finer grid"
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=0.0,
        delta=delta,
        adjacency=adjacency,
        method=str(method),
        assumptions=(*lines, *charged_to_delta(variation=variation, epsilon=epsilon)),
        alternatives=(Alternative(str(method), epsilon, note, proves=True),),
        campaigns=campaigns,
        variation=variation,
        against_server=against_server((design,), delta=delta, campaigns=campaigns),
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy"),
    )


def _design_and_overflow(design: Design, *, delta: float, campaigns: int) -> tuple[Design, float]:
    """Return the design to account for in place of ``design``, and the amount to add to delta."""
    if _averages_gaussian_reports(design):
        return campaign_divergence.with_known_slot(design), 0.0
    overflow = _rare_overflow(design, delta=delta, campaigns=campaigns)
    if overflow is None:
        return design, 0.0
    return campaign_divergence.uncapped(design), overflow


def _averages_gaussian_reports(design: Design) -> bool:
    return design.protocol is Protocol.AVERAGED and isinstance(design.randomizer, GaussianNoise)


def _rare_overflow(design: Design, *, delta: float, campaigns: int) -> float | None:
    """Return a bound on the probability that any slot overflows.

    Return None if the bound is unknown, or too large to charge to delta.
    """
    probability = campaign_divergence.overflow_probability_of(design)
    if probability is None or probability * campaigns > _RARE * delta:
        return None
    return probability * campaigns


_LEAST_LOCAL, _MOST_LOCAL = 1e-5, 30.0
"""Smallest and largest local epsilon that a search tries."""
_MOST_COUNTED = 10**4
"""Largest capacity for which an estimate uses the distribution of a slot's ratio."""
_USUAL_SLOPE = 20.0
"""Typical slope of the log odds of delta as a function of the logarithm of the noise."""
_largest_shift = lru_cache(maxsize=256)(largest_shift)


@dataclass(frozen=True, slots=True)
class Target:
    """The (epsilon, delta) that all campaigns together must satisfy, and the neighbour relation."""

    epsilon: float
    delta: float
    adjacency: Adjacency


def calibrate_at(
    design: Design,
    target: Target,
    precision: Precision,
    *,
    campaigns: int = 1,
    guess: float | None = None,
    noise_tolerance: float = 0.004,
) -> float | None:
    """Return the level that meets the target with the least noise, or None if none does.

    The design's own level is ignored. The search starts at ``guess``, or at the estimate if it is
    None. The noise is at most about 1 + ``noise_tolerance`` times the least possible noise.
    """

    question = {**asdict(target), "precision": precision, "campaigns": campaigns}

    def delta_with(level: float) -> float:
        return delta_at(_at_level(design, level), **question)

    start = estimated_level(design, target, campaigns) if guess is None else guess
    slope = _slope(design, target, campaigns)
    if isinstance(design.randomizer, GaussianNoise):
        per_level = _slot_noise_per_level(design, design.randomizer)
        least, most = LEAST_NOISE / per_level * (1 + 1e-9), MOST_NOISE / per_level * (1 - 1e-9)
        start = min(max(start, least), most)
        return just_enough(
            delta_with,
            target.delta,
            start=start,
            least=least,
            most=most,
            tolerance=noise_tolerance,
            slope=slope,
        )
    inverse = just_enough(
        lambda inverse: delta_with(1.0 / inverse),
        target.delta,
        start=1.0 / min(max(start, _LEAST_LOCAL), _MOST_LOCAL),
        least=1.0 / _MOST_LOCAL,
        most=1.0 / _LEAST_LOCAL,
        tolerance=noise_tolerance
        / 4.0,  # evaluations are fast, and delta is 0 below some local epsilon
        slope=slope,
    )
    return None if inverse is None else 1.0 / inverse


def estimated_level(design: Design, target: Target, campaigns: int) -> float:
    """Return a level that approximately meets the target. The design's own level is ignored."""
    if isinstance(design.randomizer, LocalRandomizer):
        return _local_epsilon(design, target, campaigns)
    noise = max(_slot_noise(design, target, campaigns), LEAST_NOISE * 1.001)
    return min(noise, MOST_NOISE * 0.999) / _slot_noise_per_level(design, design.randomizer)


def seems_out_of_reach(design: Design, target: Target, campaigns: int) -> bool:
    """Return True if the target needs more than the largest noise, by a clear margin."""
    if isinstance(design.randomizer, LocalRandomizer):
        return _local_epsilon(design, target, campaigns) <= _LEAST_LOCAL
    return _slot_noise(design, target, campaigns) > 1.2 * MOST_NOISE


def _at_level(design: Design, level: float) -> Design:
    if isinstance(design.randomizer, GaussianNoise):
        return replace(design, randomizer=replace(design.randomizer, noise_multiplier=level))
    return replace(design, randomizer=replace(design.randomizer, local_epsilon=level))


def _slot_noise_per_level(design: Design, noise: GaussianNoise) -> float:
    return design.slot_noise(replace(noise, noise_multiplier=1.0))


def _slope(design: Design, target: Target, campaigns: int) -> float:
    """Estimate the slope of the log odds of delta as a function of the logarithm of the noise."""
    odds = 0.7 * target.delta / (1.0 - target.delta)
    less = replace(target, delta=odds / (1.0 + odds))
    level = estimated_level(design, target, campaigns)
    moved = abs(math.log(estimated_level(design, less, campaigns) / level))
    return min(max(-math.log(0.7) / moved, 2.0), 1e4) if moved > 1e-5 else _USUAL_SLOPE


def _slot_noise(design: Design, target: Target, campaigns: int) -> float:
    """Estimate the noise of a slot in units of the clip."""
    slots, participation = design.drawable_slots, design.participation
    if design.protocol is Protocol.AVERAGED:
        slots, participation = 1, 1.0
    shift = _shift(slots, participation, target, campaigns)
    if design.capacity is not None:
        method = method_at(design, delta=target.delta, campaigns=campaigns)
        if method is not Method.EXACT_POPULATION:
            shift *= 0.55  # one client may displace another, which nearly doubles the shift
    return 1.0 / shift


@lru_cache(maxsize=1 << 15)
def _shift(slots: int, participation: float, target: Target, campaigns: int) -> float:
    """Estimate the shift, which is the clip divided by the noise of a slot."""
    replaced = target.adjacency is Adjacency.REPLACE_ONE
    x = _squared_shift(slots, participation, target, campaigns)
    together = math.sqrt(math.asinh(x / 4.0) if replaced else math.log1p(x))
    allowed = target.delta / campaigns

    def fits(log_shift: float) -> bool:
        shift = math.exp(log_shift)
        return _own_slot_delta(shift, slots, participation, target.epsilon, replaced) <= allowed

    low, high = math.log(1e-7), math.log(5.0)
    alone = high if fits(high) else first_true(fits, false=high, true=low, width=2e-5)
    return min(together, math.exp(alone))


def _squared_shift(slots: int, participation: float, target: Target, campaigns: int) -> float:
    """Estimate the variance of one slot's likelihood ratio at which all slots meet the target."""
    shift = _largest_shift(target.epsilon, target.delta)
    return shift**2 * slots / (participation**2 * campaigns)


def _own_slot_delta(
    shift: float, slots: int, participation: float, epsilon: float, replaced: bool
) -> float:
    """Return delta if only one slot's likelihood ratio varies and all others equal their mean."""
    others, excess = slots / participation - 1.0, math.expm1(epsilon)
    if replaced:
        c = math.exp(-shift * shift / 2.0)
        half = others * excess
        x = (half + math.sqrt(half * half + 4.0 * c * c * math.exp(epsilon))) / (2.0 * c)
        at = math.log(x) / shift
        absent = math.exp(epsilon) * _tail(at + shift) + half * _tail(at)
    else:
        threshold = 1.0 + (others + 1.0) * excess
        at = math.log(threshold) / shift + shift / 2.0
        absent = threshold * _tail(at)
    return participation * max(_tail(at - shift) - absent, 0.0)


def _tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2.0))


def _local_epsilon(design: Design, target: Target, campaigns: int) -> float:
    slots, participation = design.drawable_slots, design.participation
    if design.protocol is Protocol.AVERAGED and design.population is not None:
        slots, participation = design.population.fewest, 1.0
    x = _squared_shift(slots, participation, target, campaigns)
    each = min(target.epsilon, 600.0) / campaigns
    known = math.log1p(math.expm1(each) / participation)
    replaced = target.adjacency is Adjacency.REPLACE_ONE
    if design.named_randomizer is not None or (design.capacity or 1) > 1:
        found = _shared_local_epsilon(
            slots,
            participation,
            design.capacity or 1,
            isinstance(design.randomizer, LaplaceReports),
            target,
            campaigns,
        )
    elif replaced:
        b = ((4.0 + x) + math.sqrt((4.0 + x) ** 2 - 8.0 * (2.0 - x))) / 4.0
        found = math.log(b)
    else:
        found = math.log(1.0 + x / 2.0 + math.sqrt(x + x * x / 4.0))
    return min(max(found, known, _LEAST_LOCAL), _MOST_LOCAL)


@lru_cache(maxsize=1 << 15)
def _shared_local_epsilon(
    slots: int,
    participation: float,
    capacity: int,
    is_laplace: bool,
    target: Target,
    campaigns: int,
) -> float:
    """Estimate the local epsilon of slots that sum several reports, or reports and dummies."""
    replaced = target.adjacency is Adjacency.REPLACE_ONE
    together = _squared_shift(slots, participation, target, campaigns)
    own = _shift(slots, participation, target, campaigns) ** 2
    with_dummies = 4.0 * math.sinh(own) if replaced else math.expm1(own)
    others = slots / participation - replaced
    gain = math.expm1(target.epsilon) * (1.0 + others if replaced else others)
    allowed = target.delta / campaigns * slots / participation

    def fits(log_epsilon: float) -> bool:
        local_epsilon = math.exp(log_epsilon)
        if is_laplace and _laplace_variance(local_epsilon, capacity, replaced) <= with_dummies:
            return True
        if _variance(local_epsilon, capacity, replaced) > together:
            return False
        if capacity == 1 or gain >= math.expm1(local_epsilon):
            return True
        counted = min(capacity, _MOST_COUNTED)
        return float(exact_calls(np.array([gain]), local_epsilon, counted)[0]) <= allowed

    low, high = math.log(_LEAST_LOCAL), math.log(_MOST_LOCAL)
    if fits(high):
        return _MOST_LOCAL
    return math.exp(first_true(fits, false=high, true=low, width=2e-3))


def _variance(local_epsilon: float, capacity: int, replaced: bool) -> float:
    """Estimate the variance of the slot ratio of any randomizer (``exact.pure_capacity``).

    For replace-one, it is the variance at privacy loss 0. The second term is for slots in which no
    report speaks against the client's.
    """
    growth = math.expm1(local_epsilon)
    shared = 2.0 * growth**2 / (2.0 + growth)
    single = shared if replaced else growth**2 / (1.0 + growth)
    if capacity == 1:
        return single
    alone = math.exp((capacity - 1) * math.log1p(-1.0 / (2.0 + growth)))
    return shared / capacity * (1.0 - alone) + single * alone


def _laplace_variance(local_epsilon: float, capacity: int, replaced: bool) -> float:
    """Return the variance of the slot ratio of Laplace reports with their dummies.

    It is the larger of the two variances whose envelope ``exact.named`` computes.
    """
    half = local_epsilon / 2.0
    copies = 1.0 + math.exp(-half) * (capacity - 1)
    up, down = math.exp(half), math.exp(-half)
    if replaced:
        alone = 4.0 / 3.0 * up + 8.0 / 3.0 * down**2 - 4.0 * down
        displacing = 2.0 * math.expm1(local_epsilon) ** 2 / (1.0 + up * up)
    else:
        alone = 2.0 / 3.0 * up + down**2 / 3.0 - 1.0
        displacing = 2.0 / 3.0 * up * up + down**4 / 3.0 - 1.0
    return max(alone / copies, displacing * capacity / (capacity + 1.0) ** 2)
