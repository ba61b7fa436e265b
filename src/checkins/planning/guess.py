"""About how much noise a budget asks for: closed forms to rank designs by, proven by nobody.

Two ways to be seen are weighed. In one slot: the client's own slot stands out, which the likelihood
ratio of that slot alone decides. Over all slots: the sum is nearly normal, which the variance of
the ratio decides. The larger noise of the two is within some ten per cent of the exact one. What a
user sees is never this number: every design that is shown is priced by ``target``.
"""

from __future__ import annotations

import math
from functools import lru_cache

from checkins.accounting import Adjacency, Protocol
from checkins.accounting.design import LEAST_NOISE, MOST_NOISE
from checkins.planning.candidate import DesignCandidate
from checkins.planning.target import Target

MOST_LOCAL = 30.0
LEAST_LOCAL = 1e-5


def guessed_level(shape: DesignCandidate, target: Target, *, roomy: bool) -> float:
    """The noise multiplier, or the local epsilon, that about meets the target."""
    if not shape.is_gaussian:
        return _local_epsilon(shape, target)
    noise = min(
        max(_slot_noise(shape, target, roomy=roomy), LEAST_NOISE * 1.001), MOST_NOISE * 0.999
    )
    return noise if shape.capacity is None else noise / _root(shape)


def is_out_of_reach(shape: DesignCandidate, target: Target, *, roomy: bool) -> bool:
    """Whether the target asks for more noise than there is, by far more than a guess is off."""
    if not shape.is_gaussian:
        return _local_epsilon(shape, target) <= LEAST_LOCAL
    return _slot_noise(shape, target, roomy=roomy) > 1.2 * MOST_NOISE


def _slot_noise(shape: DesignCandidate, target: Target, *, roomy: bool) -> float:
    shift = _shift(shape, target)
    if shape.capacity is not None and not roomy:
        shift *= 0.55  # one client may displace another: twice the shift, a little diluted
    return 1.0 / shift


def _root(shape: DesignCandidate) -> float:
    at_server = shape.noise_at.value == "server"
    return 1.0 if at_server or shape.capacity is None else math.sqrt(shape.capacity)


def _shift(shape: DesignCandidate, target: Target) -> float:
    """Clip over the noise of a slot."""
    slots, chance = shape.choices, shape.participation
    if shape.protocol is Protocol.AVERAGED:
        slots, chance = 1, 1.0
    return _slot_shift(slots, chance, shape.repeats, target)


@lru_cache(maxsize=1 << 15)
def _slot_shift(slots: int, chance: float, repeats: int, target: Target) -> float:
    x = _normal_shift(target.epsilon, target.delta) ** 2 * slots / (chance**2 * repeats)
    replaced = target.adjacency is Adjacency.REPLACE_ONE
    together = math.sqrt(math.asinh(x / 4.0) if replaced else math.log1p(x))
    low, high = 1e-7, 5.0
    allowed = target.delta / repeats
    if _alone(high, slots, chance, target.epsilon, replaced) <= allowed:
        return min(together, high)
    for _ in range(20):
        middle = math.sqrt(low * high)
        if _alone(middle, slots, chance, target.epsilon, replaced) > allowed:
            high = middle
        else:
            low = middle
    return min(together, low)


def _alone(s: float, slots: int, chance: float, epsilon: float, replaced: bool) -> float:
    """The delta that one slot's ratio gives away, all others taken as they are on average."""
    others, excess = slots / chance - 1.0, math.expm1(epsilon)
    if replaced:
        c = math.exp(-s * s / 2.0)
        half = others * excess
        x = (half + math.sqrt(half * half + 4.0 * c * c * math.exp(epsilon))) / (2.0 * c)
        at = math.log(x) / s
        gone = math.exp(epsilon) * _tail(at + s) + half * _tail(at)
    else:
        threshold = 1.0 + (others + 1.0) * excess
        at = math.log(threshold) / s + s / 2.0
        gone = threshold * _tail(at)
    return chance * max(_tail(at - s) - gone, 0.0)


def _tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2.0))


@lru_cache(maxsize=256)
def _normal_shift(epsilon: float, delta: float) -> float:
    """μ of the two normals a distance μ apart that have this delta at this epsilon."""
    low, high = 1e-9, 100.0
    for _ in range(80):
        mu = math.sqrt(low * high)
        seen = _tail(epsilon / mu - mu / 2.0)
        if seen - math.exp(min(epsilon, 700.0)) * _tail(epsilon / mu + mu / 2.0) > delta:
            high = mu
        else:
            low = mu
    return low


def _local_epsilon(shape: DesignCandidate, target: Target) -> float:
    slots, chance = shape.choices, shape.participation
    if shape.protocol is Protocol.AVERAGED and shape.population is not None:
        slots, chance = shape.population.fewest, 1.0
    x = _normal_shift(target.epsilon, target.delta) ** 2 * slots / (chance**2 * shape.repeats)
    if target.adjacency is Adjacency.REPLACE_ONE:
        b = ((4.0 + x) + math.sqrt((4.0 + x) ** 2 - 8.0 * (2.0 - x))) / 4.0
    else:
        b = 1.0 + x / 2.0 + math.sqrt(x + x * x / 4.0)
    known = math.log1p(math.expm1(min(target.epsilon, 600.0) / shape.repeats) / chance)
    return min(max(math.log(b), known, LEAST_LOCAL), MOST_LOCAL)
