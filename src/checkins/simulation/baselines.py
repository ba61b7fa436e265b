"""The same budget spent otherwise: what a campaign is compared with, in the same simulation.

Each baseline is calibrated to the epsilon that the campaign is certified at, for the same delta,
and takes as many steps of the same size. None of them is what runs on devices.

Rounding:    noise up: no baseline spends more than the campaign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Parameter,
    Protocol,
    calibrate,
)
from checkins.accounting.comparisons import poisson, shuffled
from checkins.accounting.design import LEAST_NOISE, MOST_EPSILON, MOST_NOISE
from checkins.errors import InvalidValue, NotCovered
from checkins.randomizers import Gaussian, Laplace, PrivUnit, Randomizer
from checkins.simulation.mechanism import Mechanism
from checkins.simulation.population import Sampling

_PRECISION = 1e-4


class Baseline(StrEnum):
    """Other ways to learn from the same clients."""

    NON_PRIVATE = "non-private"
    POISSON = "poisson"
    SHUFFLING = "shuffling"
    NO_AMPLIFICATION = "no-amplification"


WHAT = {
    Baseline.NON_PRIVATE: "all rows in one place, neither clipped nor noised",
    Baseline.POISSON: "a server draws every client anew for each step (DP-SGD)",
    Baseline.SHUFFLING: "a trusted shuffler mixes one private report from each client",
    Baseline.NO_AMPLIFICATION: "the same check-ins, priced as if everyone's slot were known",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """A baseline made ready: its method, or why there is none; non-private learning has neither."""

    baseline: Baseline
    epsilon: float | None
    delta: float | None
    adjacency: Adjacency | None
    method: Mechanism | None = None
    unavailable: str | None = None


def alternative(
    baseline: Baseline, method: Mechanism, certificate: Certificate, *, clients: int, dimension: int
) -> Alternative:
    """The baseline for a campaign's method at its certificate."""
    if baseline is Baseline.NON_PRIVATE:
        return Alternative(baseline, None, None, None)
    adjacency = certificate.adjacency
    if baseline is Baseline.SHUFFLING:
        adjacency = Adjacency.REPLACE_ONE  # what the shuffle model speaks of
    found = Alternative(baseline, certificate.epsilon, certificate.delta, adjacency)
    makers: dict[Baseline, Callable[[], Mechanism]] = {
        Baseline.POISSON: lambda: _poisson(method, certificate),
        Baseline.SHUFFLING: lambda: _shuffling(method, certificate, clients, dimension),
        Baseline.NO_AMPLIFICATION: lambda: _known_slot(method, certificate, dimension),
    }
    try:
        return replace(found, method=makers[baseline]())
    except (InvalidValue, NotCovered) as error:
        return replace(found, unavailable=str(error))


def _poisson(method: Mechanism, certificate: Certificate) -> Mechanism:
    """Every client in each of m steps with probability p0/m, its noise at the server's sum."""
    if certificate.adjacency is not Adjacency.ADD_REMOVE:
        raise NotCovered(
            "adjacency", str(certificate.adjacency), "Poisson accountants speak of add-remove"
        )
    if method.averaged or not isinstance(method.randomizer, Gaussian):
        raise NotCovered(
            "randomizer", type(method.randomizer).__name__, "DP-SGD adds Gaussian noise to sums"
        )

    def sampled(noise: float) -> Design:
        return Design(
            Protocol.FIXED,
            slots=method.design.slots,
            participation=method.design.participation,
            randomizer=GaussianNoise(noise, NoiseAt.SERVER),
        )

    def epsilon(noise: float) -> float:
        return poisson(sampled(noise), campaigns=method.runs, delta=certificate.delta).epsilon

    noise = _least(epsilon, certificate.epsilon, low=LEAST_NOISE, high=MOST_NOISE)
    return replace(
        method,
        design=sampled(noise),
        randomizer=Gaussian(method.randomizer.clip, noise),
        noise_at=NoiseAt.SERVER,
        sampling=Sampling.POISSON,
    )


def _shuffling(
    method: Mechanism, certificate: Certificate, clients: int, dimension: int
) -> Mechanism:
    """Every client once, in random order, in as many steps; each report private by itself."""
    if method.runs > 1:
        raise NotCovered("repeats", method.runs, "one report from each client is priced, not more")

    def spent(private: float) -> float:
        return shuffled(private, clients=clients, delta=certificate.delta)

    # A larger local epsilon costs more: search its inverse, of which the least is wanted.
    inverse = _least(lambda value: spent(1.0 / value), certificate.epsilon, low=0.02, high=1e6)
    local_epsilon = 1.0 / inverse
    slots = min(method.design.slots, clients)
    each = -(-clients // slots)
    design = Design(
        Protocol.FIXED,
        slots=slots,
        participation=1.0,
        randomizer=LocalRandomizer(local_epsilon),
        capacity=each,
    )
    return replace(
        method,
        design=design,
        randomizer=_pure(method.randomizer, local_epsilon, dimension),
        noise_at=NoiseAt.CLIENT,
        divide_by=each,
        sampling=Sampling.SHUFFLED,
    )


def _pure(randomizer: Randomizer, local_epsilon: float, dimension: int) -> Randomizer:
    """The campaign's own kind of report if it is pure, else PrivUnit of the same clip."""
    if isinstance(randomizer, Laplace):
        return replace(randomizer, local_epsilon=local_epsilon)
    if isinstance(randomizer, Gaussian | PrivUnit):
        return PrivUnit(randomizer.clip, local_epsilon, dimension)
    raise NotCovered("randomizer", type(randomizer).__name__, "no model steps by categories")


def _known_slot(method: Mechanism, certificate: Certificate, dimension: int) -> Mechanism:
    """The same check-ins with the noise that a slot needs if everyone knows who is in it.

    Gaussian noise is put on the sum of all of them: with a capacity, a client that is known to be
    there would also show by whom it keeps out, and the comparison is with the best of its kind.
    """
    gaussian = isinstance(method.randomizer, Gaussian)
    randomizer = GaussianNoise(1.0, NoiseAt.SERVER) if gaussian else LocalRandomizer(1.0)
    solved = calibrate(
        Design(Protocol.FIXED, slots=1, participation=1.0, randomizer=randomizer),
        parameter=Parameter.NOISE_MULTIPLIER if gaussian else Parameter.LOCAL_EPSILON,
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        adjacency=certificate.adjacency,
        campaigns=method.runs,
    )
    if not isinstance(method.randomizer, Gaussian):
        return replace(method, randomizer=_pure(method.randomizer, solved.value, dimension))
    design = method.design
    if not method.averaged:
        noise = GaussianNoise(solved.value, NoiseAt.SERVER)
        design = replace(design, capacity=None, randomizer=noise)
    return replace(
        method,
        design=design,
        randomizer=replace(method.randomizer, noise_multiplier=solved.value),
        noise_at=NoiseAt.SERVER,
    )


def _least(price: Callable[[float], float], target: float, *, low: float, high: float) -> float:
    """The smallest value whose price, which falls, is at most ``target``; rounded up."""
    if not target < MOST_EPSILON or price(high) > target:
        raise NotCovered("epsilon", target, "no noise that we price is enough for it")
    if price(low) <= target:
        return low
    # From below in doublings, so that no price far from the target is asked for.
    upper = low
    while price(min(2.0 * upper, high)) > target:
        upper *= 2.0
    low, high = upper, min(2.0 * upper, high)
    while high / low > 1.0 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if price(middle) <= target else (middle, high)
    return high
