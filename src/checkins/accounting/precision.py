"""Delta, epsilon and noise of a design at a chosen precision, for callers that try many designs.

A coarser precision takes less time and only ever gives a larger bound: every bound here is proved,
and noise that meets a budget here meets it in a certificate.

``calibrate_at`` searches noise between proven bounds. Its start is a closed-form estimate, which
takes the larger of two noises: one at which the likelihood ratio of the client's own slot meets the
budget, one at which the variance of the ratio over all slots does. The estimate is within some ten
per cent of the exact noise, and is no bound. The *level* of a design is the noise multiplier of its
Gaussian noise, or the local epsilon of its randomizer.

Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, docs/theory/windows-and-capacity.md.
Neighbours:  as asked for.
Rounding:    delta and epsilon up; levels to the side that spends less; estimates to nearest.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache

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
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.gaussian import largest_shift
from checkins.accounting.solve import crossing, first_true, just_enough
from checkins.errors import CheckinsError

_RARE = 0.01
"""Largest part of delta that may be charged for slots that overflow."""
_EPSILON_PRECISION = 5e-3


class Precision(IntEnum):
    """How many cells a grid has: from 100, to draw curves with, to 448, to settle a design with."""

    DRAFT = 100
    FINE = 200
    FINER = 280
    FINEST = 448


class Method(StrEnum):
    """The methods of a certificate that prove ``delta_at``."""

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

    ``delta`` is the one of interest: the bound is sharp around it, and 0 if the client takes part
    with a probability of at most ``delta``.
    """
    accounted, overflow = _accounted(design, delta=delta, campaigns=campaigns)
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
    """Return the smallest epsilon that ``delta_at`` proves, within 0.5 %; infinity if none.

    The search starts at ``guess``.
    """

    def spent(epsilon: float) -> float:
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

    return crossing(
        spent, delta, guess=guess, precision=_EPSILON_PRECISION, surely_above_at_zero=True
    ).upper


def method_at(design: Design, *, delta: float, campaigns: int = 1) -> Method:
    """Return the method by which ``delta_at`` is proved; it does not depend on the noise."""
    if _is_averaged_gaussian(design):
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

    ``delta_at`` must have been at most what ``variation`` leaves of ``delta``: that is not checked
    again. Nothing is proved too small. ``started`` is the ``time.perf_counter()`` at which the work
    began; None means now.
    """
    started = time.perf_counter() if started is None else started
    lines = assumptions(
        design,
        adjacency=adjacency,
        uses_population=method is Method.EXACT_POPULATION,
        campaigns=campaigns,
    )
    note = f"on a grid of {precision:d} cells; checkins check uses a finer one"
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


def _accounted(design: Design, *, delta: float, campaigns: int) -> tuple[Design, float]:
    """Return the design that is accounted for in place of this one, and what delta grows by."""
    if _is_averaged_gaussian(design):  # as if every client's slot were known
        return replace(campaign_divergence.uncapped(design), slots=1), 0.0
    overflow = _rare_overflow(design, delta=delta, campaigns=campaigns)
    if overflow is None:
        return design, 0.0
    return campaign_divergence.uncapped(design), overflow


def _is_averaged_gaussian(design: Design) -> bool:
    return design.protocol is Protocol.AVERAGED and isinstance(design.randomizer, GaussianNoise)


def _rare_overflow(design: Design, *, delta: float, campaigns: int) -> float | None:
    """Return the probability that any slot overflows; None if unknown or too large to charge."""
    probability = campaign_divergence.overflow_probability_of(design)
    if probability is None or probability * campaigns > _RARE * delta:
        return None
    return probability * campaigns


_LEAST_LOCAL, _MOST_LOCAL = 1e-5, 30.0
"""Smallest and largest local epsilon that are searched."""
_USUAL_SLOPE = 20.0
"""Approximate slope of the log odds of delta in the log of the noise."""
_largest_shift = lru_cache(maxsize=256)(largest_shift)


@dataclass(frozen=True, slots=True)
class Target:
    """The (epsilon, delta) that all campaigns together may spend, for a neighbour relation."""

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
    slack: float = 0.004,
) -> float | None:
    """Return the level that meets the target with the least noise; None if no level does.

    The design's own level is replaced. The search starts at ``guess``; None means at the estimate.
    The noise exceeds the least by a factor of about 1 + ``slack`` at most.
    """

    def spent(level: float) -> float:
        return delta_at(
            _at_level(design, level),
            epsilon=target.epsilon,
            delta=target.delta,
            adjacency=target.adjacency,
            precision=precision,
            campaigns=campaigns,
        )

    start = estimated_level(design, target, campaigns) if guess is None else guess
    slope = _slope(design, target, campaigns)
    if isinstance(design.randomizer, GaussianNoise):
        per_level = _slot_noise_per_level(design, design.randomizer)
        least, most = LEAST_NOISE / per_level * (1 + 1e-9), MOST_NOISE / per_level * (1 - 1e-9)
        start = min(max(start, least), most)
        return just_enough(
            spent, target.delta, start=start, least=least, most=most, slack=slack, slope=slope
        )
    inverse = just_enough(
        lambda inverse: spent(1.0 / inverse),
        target.delta,
        start=1.0 / min(max(start, _LEAST_LOCAL), _MOST_LOCAL),
        least=1.0 / _MOST_LOCAL,
        most=1.0 / _LEAST_LOCAL,
        slack=slack / 4.0,  # evaluations are fast, and delta is 0 from some level on
        slope=slope,
    )
    return None if inverse is None else 1.0 / inverse


def estimated_level(design: Design, target: Target, campaigns: int) -> float:
    """Return the level that approximately meets the target; the design's own level is ignored."""
    if isinstance(design.randomizer, LocalRandomizer):
        return _local_epsilon(design, target, campaigns)
    noise = min(
        max(_slot_noise(design, target, campaigns), LEAST_NOISE * 1.001), MOST_NOISE * 0.999
    )
    return noise / _slot_noise_per_level(design, design.randomizer)


def seems_out_of_reach(design: Design, target: Target, campaigns: int) -> bool:
    """Return whether the target needs more noise than the largest, beyond an estimate's error."""
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
    """Return the slope of the log odds of delta in the log of the noise, by the estimates."""
    odds = 0.7 * target.delta / (1.0 - target.delta)
    less = replace(target, delta=odds / (1.0 + odds))
    moved = abs(
        math.log(
            estimated_level(design, less, campaigns) / estimated_level(design, target, campaigns)
        )
    )
    return min(max(-math.log(0.7) / moved, 2.0), 1e4) if moved > 1e-5 else _USUAL_SLOPE


def _slot_noise(design: Design, target: Target, campaigns: int) -> float:
    """Estimate the noise of a slot over the clip."""
    slots, participation = design.choices, design.participation
    if design.protocol is Protocol.AVERAGED:
        slots, participation = 1, 1.0
    shift = _shift(slots, participation, target, campaigns)
    if design.capacity is not None:
        method = method_at(design, delta=target.delta, campaigns=campaigns)
        if method is not Method.EXACT_POPULATION:
            shift *= 0.55  # one client may displace another: nearly twice the shift
    return 1.0 / shift


@lru_cache(maxsize=1 << 15)
def _shift(slots: int, participation: float, target: Target, campaigns: int) -> float:
    """Estimate the clip over the noise of a slot: the smaller of two shifts."""
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
    """Estimate the variance of one slot's ratio with which all slots together meet the target."""
    shift = _largest_shift(target.epsilon, target.delta)
    return shift**2 * slots / (participation**2 * campaigns)


def _own_slot_delta(
    shift: float, slots: int, participation: float, epsilon: float, replaced: bool
) -> float:
    """Return delta of one slot's likelihood ratio, with all other slots at their mean."""
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
    slots, participation = design.choices, design.participation
    if design.protocol is Protocol.AVERAGED and design.population is not None:
        slots, participation = design.population.fewest, 1.0
    x = _squared_shift(slots, participation, target, campaigns)
    if target.adjacency is Adjacency.REPLACE_ONE:
        b = ((4.0 + x) + math.sqrt((4.0 + x) ** 2 - 8.0 * (2.0 - x))) / 4.0
    else:
        b = 1.0 + x / 2.0 + math.sqrt(x + x * x / 4.0)
    each = min(target.epsilon, 600.0) / campaigns
    known = math.log1p(math.expm1(each) / participation)
    return min(max(math.log(b), known, _LEAST_LOCAL), _MOST_LOCAL)
