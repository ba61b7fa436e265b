"""Delta, epsilon and noise of a design at a chosen precision, for callers that try many designs.

Every bound here is proved. A coarser precision takes less time and gives a larger bound. Noise that
meets a budget here also meets it in a certificate.

The *level* of a design is the noise multiplier of its Gaussian noise, or the local epsilon of its
randomizer. ``calibrate_at`` searches for the level with the least noise. It starts from a
closed-form estimate, which is the larger of two amounts of noise. The first amount would meet the
budget if only the likelihood ratio of the client's own slot varied. The second amount would meet it
if the privacy loss of all slots together were normally distributed. The estimate is within about
ten percent of the exact noise, but it is not a bound.

Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, docs/theory/windows-and-capacity.md.
Neighbours:  the relation that the caller passes.
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
    charge_assumptions,
    versions,
)
from checkins.accounting.composition import Composition
from checkins.accounting.design import (
    LEAST_SLOT_NOISE,
    MOST_SLOT_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.gaussian import largest_shift
from checkins.accounting.exact.pure_capacity import stop_loss_upper_bounds
from checkins.accounting.solve import crossing, first_true, smallest_meeting
from checkins.errors import CheckinsError

_OVERFLOW_SHARE = 0.01
"""Largest share of delta to charge for slots that overflow (more check-ins than capacity)."""


class Precision(IntEnum):
    """The number of grid cells: 100 is enough to draw curves, and 448 is for a final design."""

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

    The bound is accurate near ``delta``. It is 0 if the probability that a client takes part is at
    most ``delta``.
    """
    accounted, overflow = _design_and_overflow(design, delta=delta, campaigns=campaigns)
    if design.participation * campaigns <= delta:
        return 0.0
    if campaigns == 1:
        bounds = campaign_divergence.divergence(accounted, adjacency, delta=delta, cells=precision)
        return min(1.0, bounds.upper(epsilon) + overflow)
    composed = Composition((accounted,), adjacency, campaigns)
    is_averaged = accounted.protocol is Protocol.AVERAGED
    curve = (composed.curve if is_averaged else composed.triangle_curve)(delta, precision)
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

    Return infinity if no epsilon is proved. The search starts at ``guess``.
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
    """Return the method that proves the bound of ``delta_at``, which is the same for any noise."""
    if _averages_gaussian_reports(design):
        return Method.NO_AMPLIFICATION
    if _charged_overflow(design, delta=delta, campaigns=campaigns) is not None:
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
        assumptions=(*lines, *charge_assumptions(variation=variation, epsilon=epsilon)),
        alternatives=(Alternative(str(method), epsilon, note, proves=True),),
        campaigns=campaigns,
        variation=variation,
        against_server=against_server((design,), delta=delta, campaigns=campaigns),
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy"),
    )


def _design_and_overflow(design: Design, *, delta: float, campaigns: int) -> tuple[Design, float]:
    """Return a design whose delta, plus the returned number, bounds the delta of ``design``."""
    if _averages_gaussian_reports(design):
        return campaign_divergence.with_known_slot(design), 0.0
    overflow = _charged_overflow(design, delta=delta, campaigns=campaigns)
    if overflow is None:
        return design, 0.0
    return campaign_divergence.uncapped(design), overflow


def _averages_gaussian_reports(design: Design) -> bool:
    return design.protocol is Protocol.AVERAGED and isinstance(design.randomizer, GaussianNoise)


def _charged_overflow(design: Design, *, delta: float, campaigns: int) -> float | None:
    """Return a bound on the probability that any slot overflows.

    Return None if no bound is known, or if the bound is too large to charge to delta.
    """
    # For add/remove, the probability of replace-one is an upper bound.
    probability = campaign_divergence.overflow_probability_of(design, Adjacency.REPLACE_ONE)
    if probability is None or probability * campaigns > _OVERFLOW_SHARE * delta:
        return None
    return probability * campaigns


_LEAST_LOCAL_EPSILON, _MOST_LOCAL_EPSILON = 1e-5, 30.0
"""Smallest and largest local epsilon that a search tries."""
_MOST_ESTIMATED_CAPACITY = 10**4
"""Largest capacity for which levels are estimated. A larger capacity is estimated like this one, to
save time."""
_TYPICAL_SLOPE = 20.0
"""Typical rate at which the log odds of delta decrease with the logarithm of the noise."""
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

    The design's own level is ignored. The search starts at ``guess``. If ``guess`` is None, it
    starts at the estimate. The noise is at most about 1 + ``noise_tolerance`` times the least
    possible noise.
    """

    arguments = {**asdict(target), "precision": precision, "campaigns": campaigns}

    def delta_with(level: float) -> float:
        return delta_at(_with_level(design, level), **arguments)

    start = estimated_level(design, target, campaigns) if guess is None else guess
    slope = _estimated_slope(design, target, campaigns)
    if isinstance(design.randomizer, GaussianNoise):
        per_level = _slot_noise_per_level(design, design.randomizer)
        least = LEAST_SLOT_NOISE / per_level * (1 + 1e-9)
        most = MOST_SLOT_NOISE / per_level * (1 - 1e-9)
        start = min(max(start, least), most)
        return smallest_meeting(
            delta_with,
            target.delta,
            start=start,
            least=least,
            most=most,
            tolerance=noise_tolerance,
            slope=slope,
        )
    inverse = smallest_meeting(
        lambda inverse: delta_with(1.0 / inverse),
        target.delta,
        start=1.0 / min(max(start, _LEAST_LOCAL_EPSILON), _MOST_LOCAL_EPSILON),
        least=1.0 / _MOST_LOCAL_EPSILON,
        most=1.0 / _LEAST_LOCAL_EPSILON,
        tolerance=noise_tolerance / 4.0,  # evaluations are fast here
        slope=slope,
    )
    return None if inverse is None else 1.0 / inverse


def estimated_level(design: Design, target: Target, campaigns: int) -> float:
    """Return a level that approximately meets the target. The design's own level is ignored."""
    if isinstance(design.randomizer, LocalRandomizer):
        return _estimated_local_epsilon(design, target, campaigns)
    noise = max(_estimated_slot_noise(design, target, campaigns), LEAST_SLOT_NOISE * 1.001)
    return min(noise, MOST_SLOT_NOISE * 0.999) / _slot_noise_per_level(design, design.randomizer)


def seems_out_of_reach(design: Design, target: Target, campaigns: int) -> bool:
    """Return True if the estimated noise is clearly above the largest supported noise."""
    if isinstance(design.randomizer, LocalRandomizer):
        return _estimated_local_epsilon(design, target, campaigns) <= _LEAST_LOCAL_EPSILON
    return _estimated_slot_noise(design, target, campaigns) > 1.2 * MOST_SLOT_NOISE


def _with_level(design: Design, level: float) -> Design:
    if isinstance(design.randomizer, GaussianNoise):
        return replace(design, randomizer=replace(design.randomizer, noise_multiplier=level))
    return replace(design, randomizer=replace(design.randomizer, local_epsilon=level))


def _slot_noise_per_level(design: Design, noise: GaussianNoise) -> float:
    return design.slot_noise(replace(noise, noise_multiplier=1.0))


def _estimated_slope(design: Design, target: Target, campaigns: int) -> float:
    """Estimate how fast the log odds of delta decrease with the logarithm of the noise."""
    odds = 0.7 * target.delta / (1.0 - target.delta)
    stricter = replace(target, delta=odds / (1.0 + odds))
    level = estimated_level(design, target, campaigns)
    log_change = abs(math.log(estimated_level(design, stricter, campaigns) / level))
    return min(max(-math.log(0.7) / log_change, 2.0), 1e4) if log_change > 1e-5 else _TYPICAL_SLOPE


def _estimated_slot_noise(design: Design, target: Target, campaigns: int) -> float:
    """Estimate the standard deviation of a slot's noise, in clip norms."""
    slots, participation = design.drawable_slots, design.participation
    if design.protocol is Protocol.AVERAGED:
        slots, participation = 1, 1.0
    shift = _estimated_shift(slots, participation, target, campaigns)
    if design.capacity is not None:
        method = method_at(design, delta=target.delta, campaigns=campaigns)
        if method is not Method.EXACT_POPULATION:
            shift *= 0.55  # a client may displace another, which nearly doubles its effect
    return 1.0 / shift


@lru_cache(maxsize=1 << 15)
def _estimated_shift(slots: int, participation: float, target: Target, campaigns: int) -> float:
    """Estimate the shift, which is the clip norm divided by the noise of a slot."""
    is_replace_one = target.adjacency is Adjacency.REPLACE_ONE
    variance = _largest_variance(slots, participation, target, campaigns)
    all_slots = math.sqrt(math.asinh(variance / 4.0) if is_replace_one else math.log1p(variance))
    delta = target.delta / campaigns

    def fits(log_shift: float) -> bool:
        shift = math.exp(log_shift)
        return _own_slot_delta(shift, slots, participation, target.epsilon, is_replace_one) <= delta

    low, high = math.log(1e-7), math.log(5.0)
    log_own_slot = high if fits(high) else first_true(fits, false=high, true=low, width=2e-5)
    return min(all_slots, math.exp(log_own_slot))


def _largest_variance(slots: int, participation: float, target: Target, campaigns: int) -> float:
    """Estimate the variance of one slot's likelihood ratio at which all slots meet the target."""
    shift = _largest_shift(target.epsilon, target.delta)
    return shift**2 * slots / (participation**2 * campaigns)


def _own_slot_delta(
    shift: float, slots: int, participation: float, epsilon: float, is_replace_one: bool
) -> float:
    """Return delta if only one slot's likelihood ratio varies and all others equal their mean."""
    others, excess = slots / participation - 1.0, math.expm1(epsilon)
    if is_replace_one:
        c = math.exp(-shift * shift / 2.0)
        half = others * excess
        x = (half + math.sqrt(half * half + 4.0 * c * c * math.exp(epsilon))) / (2.0 * c)
        at = math.log(x) / shift
        absent = math.exp(epsilon) * _normal_tail(at + shift) + half * _normal_tail(at)
    else:
        threshold = 1.0 + (others + 1.0) * excess
        at = math.log(threshold) / shift + shift / 2.0
        absent = threshold * _normal_tail(at)
    return participation * max(_normal_tail(at - shift) - absent, 0.0)


def _normal_tail(x: float) -> float:
    """Return the probability that a standard normal variable exceeds x."""
    return 0.5 * math.erfc(x / math.sqrt(2.0))


def _estimated_local_epsilon(design: Design, target: Target, campaigns: int) -> float:
    """Estimate the largest local epsilon that meets the target."""
    slots, participation = design.drawable_slots, design.participation
    if design.protocol is Protocol.AVERAGED and design.population is not None:
        slots, participation = design.population.fewest, 1.0
    variance = _largest_variance(slots, participation, target, campaigns)
    epsilon_each = min(target.epsilon, 600.0) / campaigns
    known_slot = math.log1p(math.expm1(epsilon_each) / participation)
    is_replace_one = target.adjacency is Adjacency.REPLACE_ONE
    if design.named_randomizer is not None or design.reports_per_slot > 1:
        estimate = _estimated_shared_epsilon(
            slots,
            participation,
            design.reports_per_slot,
            isinstance(design.randomizer, LaplaceReports),
            target,
            campaigns,
        )
    elif is_replace_one:
        b = ((4.0 + variance) + math.sqrt((4.0 + variance) ** 2 - 8.0 * (2.0 - variance))) / 4.0
        estimate = math.log(b)
    else:
        estimate = math.log(1.0 + variance / 2.0 + math.sqrt(variance + variance * variance / 4.0))
    return min(max(estimate, known_slot, _LEAST_LOCAL_EPSILON), _MOST_LOCAL_EPSILON)


@lru_cache(maxsize=1 << 15)
def _estimated_shared_epsilon(
    slots: int,
    participation: float,
    capacity: int,
    is_laplace: bool,
    target: Target,
    campaigns: int,
) -> float:
    """Estimate the local epsilon of slots that sum several reports, or reports and dummies."""
    is_replace_one = target.adjacency is Adjacency.REPLACE_ONE
    any_dummies = _largest_variance(slots, participation, target, campaigns)
    own_slot = _estimated_shift(slots, participation, target, campaigns) ** 2
    with_dummies = 4.0 * math.sinh(own_slot) if is_replace_one else math.expm1(own_slot)
    others = slots / participation - is_replace_one
    gain = math.expm1(target.epsilon) * (1.0 + others if is_replace_one else others)
    allowed = target.delta / campaigns * slots / participation

    def fits(log_epsilon: float) -> bool:
        local_epsilon = math.exp(log_epsilon)
        if (
            is_laplace
            and _laplace_ratio_variance(local_epsilon, capacity, is_replace_one) <= with_dummies
        ):
            return True
        if _slot_ratio_variance(local_epsilon, capacity, is_replace_one) > any_dummies:
            return False
        if capacity == 1 or gain >= math.expm1(local_epsilon):
            return True
        counted_capacity = min(capacity, _MOST_ESTIMATED_CAPACITY)
        return (
            float(stop_loss_upper_bounds(np.array([gain]), local_epsilon, counted_capacity)[0])
            <= allowed
        )

    low, high = math.log(_LEAST_LOCAL_EPSILON), math.log(_MOST_LOCAL_EPSILON)
    if fits(high):
        return _MOST_LOCAL_EPSILON
    return math.exp(first_true(fits, false=high, true=low, width=2e-3))


def _slot_ratio_variance(local_epsilon: float, capacity: int, is_replace_one: bool) -> float:
    """Estimate the variance of the slot ratio of any randomizer (``exact.pure_capacity``).

    The slot ratio is the likelihood ratio of the release of the client's slot, with and without the
    client.

    For replace-one, it is the variance at privacy loss 0.
    """
    growth = math.expm1(local_epsilon)
    shared = 2.0 * growth**2 / (2.0 + growth)
    single = shared if is_replace_one else growth**2 / (1.0 + growth)
    if capacity == 1:
        return single
    single_weight = math.exp((capacity - 1) * math.log1p(-1.0 / (2.0 + growth)))
    return shared / capacity * (1.0 - single_weight) + single * single_weight


def _laplace_ratio_variance(local_epsilon: float, capacity: int, is_replace_one: bool) -> float:
    """Return the variance of the slot ratio of Laplace reports with their dummies.

    The slot ratio is as in ``_slot_ratio_variance``. The result is the larger of two variances: if
    the client replaces a dummy, and if it displaces another report.
    """
    half = local_epsilon / 2.0
    copies = 1.0 + math.exp(-half) * (capacity - 1)
    up, down = math.exp(half), math.exp(-half)
    if is_replace_one:
        replaces_dummy = 4.0 / 3.0 * up + 8.0 / 3.0 * down**2 - 4.0 * down
        displaces_report = 2.0 * math.expm1(local_epsilon) ** 2 / (1.0 + up * up)
    else:
        replaces_dummy = 2.0 / 3.0 * up + down**2 / 3.0 - 1.0
        displaces_report = 2.0 / 3.0 * up * up + down**4 / 3.0 - 1.0
    return max(replaces_dummy / copies, displaces_report * capacity / (capacity + 1.0) ** 2)
