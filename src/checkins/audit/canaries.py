"""The canaries: clients whose presence in a run an attack tries to detect.

A certificate holds for any behaviour and any data of the other clients, so an attack may choose
both. There are either no other clients, so that dummy reports (drawn by the server in place of
missing reports) fill the slots, or every slot is full of clients with the opposite update.

Theorem:     docs/theory/pure.md: a randomizer with two outcomes attains the epsilon of add/remove,
             and the extreme distributions of replace-one belong to real randomizers.
             docs/theory/gaussian.md: a client alone among dummies, a client that displaces one with
             the opposite update with probability w = K/(K+1), and two opposite updates.
             docs/theory/pure.md, "Named randomizers": a client alone among the dummies that run
             attains the lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol as Interface

import numpy as np

from checkins.accounting import (
    Adjacency,
    GaussianNoise,
    LaplaceReports,
    Protocol,
    RandomizedResponseReports,
)
from checkins.accounting.design import NamedRandomizer
from checkins.accounting.exact.pure import attained
from checkins.audit import releases
from checkins.audit.bounds import Trials
from checkins.audit.releases import GaussianSum, Response, RunParameters, SlotLoads, SumDraws
from checkins.campaign import Campaign, RandomizerKind
from checkins.errors import NotCovered
from checkins.randomizers import PrivUnit, RandomizedResponse

_BLOCK = 1 << 19
"""Number of values drawn at a time. They fit into the processor's cache."""


class Canary(Interface):
    """One attack. It simulates runs of the protocol and computes a score from their releases."""

    @property
    def name(self) -> str: ...
    @property
    def explained(self) -> str: ...
    @property
    def statistic(self) -> str:
        """Name of the score."""

    @property
    def note(self) -> str:
        """A remark for the report, or an empty string."""

    @property
    def batch(self) -> int:
        """The number of runs in a batch that is fastest per run."""

    @property
    def smallest_batch(self) -> int:
        """The smallest number of runs in a batch that needs no new warm-up."""

    @property
    def warmup_s(self) -> float:
        """Estimated seconds of warm-up before the first run."""

    def trials(self, runs: int, generator: np.random.Generator) -> Trials: ...


class _WorstCase:
    """What all worst-case canaries share."""

    __slots__ = ()
    name: str
    run: RunParameters
    statistic = "likelihood ratio of all releases"
    note = ""
    smallest_batch = 1
    warmup_s = 0.0

    @property
    def batch(self) -> int:
        return max(64, _BLOCK // self.run.slots)

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        """Add the scores of all repeats of the campaign."""
        scores = [np.stack(self.scores(runs, generator)) for _ in range(self.run.repeats)]
        present, missing = np.sum(scores, axis=0)
        return Trials(present, missing, self.name)

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        """Return the scores of ``runs`` runs with the canary, and of the same runs without it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ResponseCanary(_WorstCase):
    """A client whose report is one of two or three outcomes.

    All other reports are dummies or come from other clients.
    """

    name: str
    explained: str
    response: Response
    run: RunParameters

    @property
    def reports(self) -> int:
        """The number of reports in a run. The canary's report is one of them if it is present."""
        return self.run.contributors if self.run.averaged else self.run.places

    @property
    def batch(self) -> int:
        return max(256, _BLOCK // (8 * self.run.repeats))

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        draws = self.response.draw(self.run, runs, self.reports, generator)
        return [
            releases.response_scores(counts, self.response, self.run.reach)
            for counts in releases.response_releases(draws)
        ]


@dataclass(frozen=True, slots=True)
class SumCanary(_WorstCase):
    """A client whose update is ``first`` times the clip, compared with ``other`` times the clip.

    If ``other`` is None, it is compared with a missing client. In every slot, ``others`` clients
    check in, whose updates are ``level`` times the clip in the canary's direction. If ``crowd`` is
    not 0, that many clients draw their slots by the protocol instead, and the adversary knows these
    slots.
    """

    name: str
    explained: str
    run: RunParameters
    noise: releases.Noise
    first: float = 1.0
    other: float | None = None
    others: int = 0
    level: float = 0.0
    crowd: int = 0

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        draws, capacity = self.draw(runs, generator), self.run.capacity
        sums = releases.sum_releases(draws, first=self.first, other=self.other, capacity=capacity)
        return [self.score(released, draws.loads) for released in sums]

    def draw(self, runs: int, generator: np.random.Generator) -> SumDraws:
        """Draw the randomness of ``runs`` runs."""
        noise = self.noise.draw((runs, self.run.slots), generator)
        return releases.draw_sums(self.run, self._loads(runs, generator), noise, generator)

    def score(self, sums: releases.FloatArray, loads: SlotLoads) -> releases.FloatArray:
        """Return log f of the first data. For replace-one, subtract log f of the other data."""
        first = releases.sum_ratio(sums, loads, self.noise, self.first, self.run)
        if self.other is None:
            return first
        return first - releases.sum_ratio(sums, loads, self.noise, self.other, self.run)

    def _loads(self, runs: int, generator: np.random.Generator) -> SlotLoads:
        slots = self.run.slots
        if not self.crowd:
            return SlotLoads(np.full((1, slots), self.others, dtype=np.int64), self.level)
        takers = generator.binomial(self.crowd, self.run.participation, runs)
        counts = generator.multinomial(takers, np.full(slots, 1.0 / slots))
        return SlotLoads(counts, self.level)


@dataclass(frozen=True, slots=True)
class AveragedCanary(_WorstCase):
    """A client of averaged updates with Gaussian noise at the device.

    Its update has the norm of the clip, and is compared with the opposite update. All other clients
    send only noise. The adversary knows the number of reports of each slot.
    """

    name: str
    explained: str
    run: RunParameters
    deviation: float

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        slots = self.run.slots
        arrival = releases.Arrival.draw(self.run, runs, generator)
        shares = np.full(slots, 1.0 / slots)
        counts = generator.multinomial(self.run.contributors - 1, shares, runs)
        counts[np.arange(runs), arrival.slot] += 1
        noise = GaussianSum(self.deviation * np.sqrt(np.maximum(counts, 1)))
        loads = SlotLoads(counts, 0.0)
        usual = noise.draw((runs, slots), generator)
        draws = SumDraws(arrival, np.zeros(runs, dtype=np.int64), loads, usual)
        sums = releases.sum_releases(draws, first=1.0, other=-1.0, capacity=None)
        return [
            releases.sum_ratio(released, loads, noise, 1.0, self.run)
            - releases.sum_ratio(released, loads, noise, -1.0, self.run)
            for released in sums
        ]


def worst_case(
    campaign: Campaign, *, uses_population: bool, dimension: int | None = None
) -> tuple[Canary, ...]:
    """Return the worst-case canaries that fit the campaign.

    If the certificate ``uses_population``, there are at most as many clients as declared, and the
    other clients draw their slots by the protocol. ``dimension`` is the dimension of the model,
    None if it is not known.
    """
    run = RunParameters.of(campaign.design, repeats=campaign.repeats)
    if isinstance(campaign.design.randomizer, GaussianNoise):
        noise = campaign.design.randomizer
        if not run.averaged:
            return tuple(_gaussian(campaign, run, noise, uses_population))
        words = "an update of the norm of the clip or its opposite. All others send only noise"
        return (AveragedCanary("averaged", words, run, noise.noise_multiplier),)
    replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    if campaign.design.named_randomizer is not None:
        return tuple(_named(campaign.design.named_randomizer, run, replace_one))
    local_epsilon = campaign.design.randomizer.local_epsilon
    canaries: list[Canary] = [
        ResponseCanary(f"{name} response", explained, response, run)
        for name, explained, response in _responses(local_epsilon, replace_one)
    ]
    own = _own(campaign, run, dimension)
    return (*canaries, own) if own is not None else tuple(canaries)


def _responses(local_epsilon: float, replace_one: bool) -> Iterator[tuple[str, str, Response]]:
    b = math.exp(local_epsilon)
    r = 1.0 / (1.0 + b)
    base = (r, 1.0 - r)
    words = "the worst randomizer with this local epsilon. {}. All other clients mostly report {}"
    explained = words.format("It has two outcomes", "the second one")
    yield "binary", explained, Response(first=(1.0 - r, r), other=base, base=base)
    if not replace_one:
        return
    for name, point in zip(("ternary", "mirrored ternary"), attained(local_epsilon), strict=False):
        middle = 1.0 - 2.0 * point.probability
        base3 = (point.probability, middle, point.probability)
        sides = [
            tuple(usual * ratio[side] for usual, ratio in zip(base3, ratios, strict=True))
            for side in (0, 1)
            for ratios in [(point.up, point.middle, point.down)]
        ]
        explained = words.format("It has three outcomes", "the middle one")
        yield name, explained, Response(first=sides[0], other=sides[1], base=base3)


def _gaussian(
    campaign: Campaign, run: RunParameters, noise: GaussianNoise, uses_population: bool
) -> Iterator[Canary]:
    noise_sum = GaussianSum(campaign.design.slot_noise(noise))
    other = -1.0 if campaign.budget.adjacency is Adjacency.REPLACE_ONE else None
    against = "a missing client" if other is None else "one with the opposite update"
    canary = partial(SumCanary, run=run, noise=noise_sum, other=other)
    start = "a client whose update has the norm of the clip"
    yield canary("alone", f"{start}, without any other client, compared with {against}")
    if run.capacity is None:
        return
    population = campaign.design.population
    if not uses_population or population is None:
        explained = f"{start}, in slots full of opposite updates, compared with {against}"
        yield canary("displacing", explained, others=run.capacity, level=-1.0)
    elif campaign.design.protocol is Protocol.FIXED and population.most > 1:
        crowd = population.most - 1
        explained = f"{start}, among {crowd:,} opposite updates, compared with {against}"
        yield canary("in a crowd", explained, level=-1.0, crowd=crowd)


def _named(randomizer: NamedRandomizer, run: RunParameters, replace_one: bool) -> Iterator[Canary]:
    """Yield the canaries of a randomizer whose dummies the certificate assumes.

    One is alone among dummies. The other displaces a client in slots that are full of other data.
    """
    weight = (run.capacity or 1) / ((run.capacity or 1) + 1.0)
    crowded = replace(run, participation=run.participation * weight)
    full = "In slots full of clients with other data"
    match randomizer:
        case RandomizedResponseReports(local_epsilon=local_epsilon, categories=categories):
            response = RandomizedResponse(categories, local_epsilon)
            own = _own_response(response, replace_one=replace_one, averaged=False)
            yield ResponseCanary("own response", "a client with one fixed category", own, run)
            others = _own_response(response, replace_one=True, averaged=True)
            if not replace_one:
                others = replace(others, other=others.base)
            explained = f"a client with one fixed category. {full}"
            yield ResponseCanary("own displacing", explained, others, crowded)
        case LaplaceReports(local_epsilon=local_epsilon):
            noise = releases.LaplaceSum(2.0 / local_epsilon, run.capacity or 1)
            other = -1.0 if replace_one else None
            canary = partial(SumCanary, run=run, noise=noise, other=other)
            explained = "an update with one coordinate, the clip"
            yield canary("own laplace", f"{explained}. No other client checks in")
            yield canary(
                "own displacing", f"{explained}. {full}", others=run.capacity or 1, level=-1.0
            )
        case _:
            raise NotCovered("randomizer", randomizer.describe(), "has no canary of its own")


def _own(campaign: Campaign, run: RunParameters, dimension: int | None) -> Canary | None:
    """Return a canary with the worst data for a randomizer that the certificate does not name.

    Return None if the randomizer's parameters are not all known, or if there is no such canary.
    """
    kind, clip = campaign.randomizer.kind, campaign.randomizer.clip
    described = kind is RandomizerKind.RANDOMIZED_RESPONSE or clip is not None
    if not described or (kind is RandomizerKind.PRIVUNIT and dimension is None):
        return None
    replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    match campaign.mechanism(dimension or 1):
        case RandomizedResponse() as response:
            own = _own_response(response, replace_one=replace_one, averaged=run.averaged)
            return ResponseCanary("own response", "a client with one fixed category", own, run)
        case PrivUnit() as unit if not run.averaged:
            explained = "an update of the norm of the clip. The attack counts reports in its cap"
            return ResponseCanary("own cap", explained, _cap(unit, replace_one=replace_one), run)
    return None


def _own_response(randomizer: RandomizedResponse, *, replace_one: bool, averaged: bool) -> Response:
    k, keep = randomizer.categories, randomizer.truth_probability
    lie = randomizer.lie_probability / (k - 1)
    if not replace_one:
        base = (1.0 / k, 1.0 - 1.0 / k)
        return Response(first=(keep, 1.0 - keep), other=base, base=base)
    if k == 2:
        base = (lie, keep) if averaged else (0.5, 0.5)  # the other clients have the second category
        return Response(first=(keep, lie), other=(lie, keep), base=base)
    rest = 1.0 - keep - lie
    base3 = (lie, lie, 1.0 - 2 * lie) if averaged else (1.0 / k, 1.0 / k, 1.0 - 2.0 / k)
    return Response(first=(keep, lie, rest), other=(lie, keep, rest), base=base3)


def _cap(unit: PrivUnit, *, replace_one: bool) -> Response:
    """Return the probabilities that a PrivUnit report lies in the update's cap, or in its opposite.

    For add/remove, only the update's cap is used.
    """
    cap = unit.cap
    base = (cap.mass, 1.0 - cap.mass)
    if not replace_one or cap.threshold <= 0.0:
        other = (cap.outside, cap.inside) if replace_one else base  # half spheres
        return Response(first=(cap.inside, cap.outside), other=other, base=base)
    opposite = cap.outside * cap.mass / (1.0 - cap.mass)
    rest = cap.outside - opposite
    return Response(
        first=(cap.inside, opposite, rest),
        other=(opposite, cap.inside, rest),
        base=(cap.mass, cap.mass, 1.0 - 2.0 * cap.mass),
    )
