"""Hypothesis strategies for every public description: values that a user may really give.

``DESCRIPTIONS`` names them all; a description without an entry fails a test.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from checkins.accounting.design import (
    LEAST_SLOT_NOISE,
    MOST_LOCAL_EPSILON,
    MOST_SLOT_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    NoiseAt,
    Population,
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
    WakeTimes,
)
from checkins.accounting.noise_strategy import NoiseStrategy
from checkins.accounting.random_allocation import RandomAllocation, StepDraw

MOST = 10**12


def _powers(low: float, high: float) -> SearchStrategy[float]:
    """Numbers spread evenly over their orders of magnitude."""
    spread = st.floats(math.log10(low), math.log10(high)).map(lambda power: 10.0**power)
    return spread.map(lambda x: min(max(x, low), high))


def counts(most: int = MOST) -> SearchStrategy[int]:
    return st.one_of(st.integers(1, min(most, 50)), st.integers(1, most))


deltas = _powers(1e-15, 0.5)
participations = st.one_of(st.just(1.0), st.just(0.0), st.floats(0.0, 1.0), _powers(1e-12, 1.0))
adjacencies = st.sampled_from(Adjacency)
local_epsilons = _powers(1e-6, MOST_LOCAL_EPSILON)
noise_multipliers = _powers(LEAST_SLOT_NOISE, MOST_SLOT_NOISE / 1e6)
"""At most 1: times the root of the largest capacity, it is still at most MOST_SLOT_NOISE."""

pure_randomizers = st.builds(LocalRandomizer, local_epsilons)
approximate_randomizers = st.builds(LocalRandomizer, local_epsilons, _powers(1e-15, 0.5))
local_randomizers = st.one_of(pure_randomizers, approximate_randomizers)
client_noises = st.builds(GaussianNoise, noise_multipliers, st.just(NoiseAt.CLIENT))


@st.composite
def noise_strategies(draw: st.DrawFn, most_bands: int = 40) -> NoiseStrategy:
    """Coefficients that do not increase, from one band to many, of any norm up to 1."""
    bits = draw(st.integers(4, 20))
    most = math.isqrt(4**bits)
    numerators: list[int] = []
    for _ in range(draw(st.integers(1, min(most_bands, 4**bits // 4)))):
        room = math.isqrt(4**bits - sum(one * one for one in numerators))
        most = min(most, room)
        if most == 0:
            break
        numerators.append(draw(st.integers(1 + 3 * most // 4, most) | st.integers(1, most)))
        most = numerators[-1]
    return NoiseStrategy(tuple(numerators), bits)


server_noises = st.builds(
    GaussianNoise,
    _powers(LEAST_SLOT_NOISE, MOST_SLOT_NOISE),
    st.just(NoiseAt.SERVER),
    st.none() | noise_strategies(),
)
gaussian_noises = st.one_of(client_noises, server_noises)


@st.composite
def populations(draw: st.DrawFn) -> Population:
    fewest, most = sorted((draw(counts()), draw(counts())))
    return Population(fewest, most)


@st.composite
def designs(draw: st.DrawFn, most_slots: int = MOST) -> Design:
    """Any design that is not refused."""
    protocol = draw(st.sampled_from(Protocol))
    slots = draw(counts(most_slots))
    population = draw(st.one_of(st.none(), populations()))
    if protocol is Protocol.AVERAGED:
        averaged = draw(st.one_of(local_randomizers, client_noises))
        clients = population or draw(populations())
        least_reports = None
        if isinstance(averaged, GaussianNoise):
            least_reports = draw(st.one_of(st.none(), counts(clients.most)))
        return Design(
            protocol,
            slots=slots,
            participation=1.0,
            randomizer=averaged,
            population=clients,
            least_reports=least_reports,
        )
    randomizer = draw(st.one_of(local_randomizers, gaussian_noises))
    capacities: SearchStrategy[int | None] = counts()
    if not (isinstance(randomizer, GaussianNoise) and randomizer.at is NoiseAt.CLIENT):
        capacities = st.one_of(st.none(), capacities)
    return Design(
        protocol,
        slots=slots,
        participation=draw(participations),
        randomizer=randomizer,
        capacity=draw(capacities),
        window=draw(counts(slots)) if protocol is Protocol.SLIDING else None,
        population=population,
        arrivals=draw(st.one_of(st.none(), counts())) if protocol is Protocol.SLIDING else None,
        wake_times=draw(st.sampled_from(WakeTimes))
        if protocol is Protocol.SLIDING
        else WakeTimes.INDEPENDENT,
    )


@st.composite
def random_allocations(draw: st.DrawFn) -> RandomAllocation:
    """Training by random allocation, with every draw of steps."""
    kind = draw(st.sampled_from(StepDraw))
    participations, epoch = draw(counts(10**6)), draw(counts(10**6))
    steps = participations * epoch
    if kind is StepDraw.WHOLE_RUN:
        steps += draw(st.integers(0, participations - 1))
    least = LEAST_SLOT_NOISE * math.sqrt(participations)
    return RandomAllocation(
        steps, participations, draw(_powers(1.01 * least, MOST_SLOT_NOISE)), kind
    )


DESCRIPTIONS: dict[type, SearchStrategy[object]] = {
    LocalRandomizer: local_randomizers,
    LaplaceReports: st.builds(LaplaceReports, local_epsilons),
    PrivUnitReports: st.builds(
        PrivUnitReports, st.floats(1e-6, 30.0), st.just(0.0), st.integers(1, 10**8)
    ),
    RandomizedResponseReports: st.builds(
        RandomizedResponseReports, local_epsilons, st.just(0.0), st.integers(2, 10**6)
    ),
    GaussianNoise: gaussian_noises,
    NoiseStrategy: noise_strategies(),
    Population: populations(),
    Design: designs(),
    RandomAllocation: random_allocations(),
}
