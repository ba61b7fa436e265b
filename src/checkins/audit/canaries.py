"""The canaries: clients whose presence in a run an attack tries to detect.

A certificate holds for any behaviour and any data of the other clients, so an attack may choose
their behaviour and data. Either there are no other clients, so that dummy reports (drawn by the
server in place of missing reports) fill the slots, or every slot is full of clients whose update is
the opposite of the canary's update.

Theorem:     docs/theory/pure.md: for add/remove, a randomizer with two outcomes attains the
             certified epsilon. For replace-one, randomizers with two or three outcomes attain the
             lower bound on epsilon. docs/theory/gaussian.md has three worst cases: a client alone
             among dummies; a client in a slot full of opposite updates, which takes the place of
             one of them with probability w = K/(K+1), where K is the capacity; and, for
             replace-one, a client with either an update or its opposite. docs/theory/pure.md,
             "Named randomizers": if a certificate is for one particular randomizer, a client alone
             among its dummies attains the lower bound on epsilon.
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
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
)
from checkins.accounting.design import NamedRandomizer
from checkins.accounting.exact.pure import attained_three_points
from checkins.audit import releases
from checkins.audit.bounds import Trials
from checkins.audit.releases import GaussianSum, Response, RunParameters, SlotLoads, SumDraws
from checkins.campaign import Campaign, RandomizerKind
from checkins.errors import NotCovered
from checkins.randomizers import PrivUnit, RandomizedResponse

_VALUES_PER_BATCH = 1 << 19
"""Number of values drawn at a time, few enough to fit into the processor's cache."""


CAP_ATTACK = "a client with an update of the clip norm. The attack counts the reports in its cap"
"""The description of a canary whose report is randomized by PrivUnit."""


class Canary(Interface):
    """One attack. It simulates runs of the protocol and computes a score from their releases."""

    @property
    def name(self) -> str: ...
    @property
    def explained(self) -> str:
        """What the canary is and what it is compared with, in words."""

    @property
    def statistic(self) -> str:
        """How the score is computed, in words."""

    @property
    def note(self) -> str:
        """A remark for the report, or an empty string."""

    @property
    def batch_size(self) -> int:
        """The fastest batch size: the number of runs per batch with the least time per run."""

    @property
    def smallest_batch_size(self) -> int:
        """The smallest batch size.

        If every other size would need a new warm-up, it is ``batch_size``, so that the size never
        changes.
        """

    @property
    def warmup_s(self) -> float:
        """Estimated seconds of warm-up before the first run."""

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        """Return the scores of ``runs`` runs with the canary, and of ``runs`` runs without it."""


class _WorstCaseCanary:
    """Base class of the worst-case canaries."""

    __slots__ = ()
    name: str
    run: RunParameters
    statistic = "likelihood ratio of all releases"
    note = ""
    smallest_batch_size = 1
    warmup_s = 0.0

    @property
    def batch_size(self) -> int:
        return max(64, _VALUES_PER_BATCH // (self.run.slots * len(self.run.coefficients)))

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        """Return the scores of ``runs`` runs, summed over all repeats of the campaign."""
        scores = [np.stack(self.scores(runs, generator)) for _ in range(self.run.repeats)]
        present, missing = np.sum(scores, axis=0)
        return Trials(present, missing, self.name)

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        """Return the scores of ``runs`` runs with the canary, and of the same runs without it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ResponseCanary(_WorstCaseCanary):
    """A client whose report has two or three possible outcomes, like all other reports."""

    name: str
    explained: str
    response: Response
    run: RunParameters

    @property
    def reports(self) -> int:
        """The number of reports in a run. If the canary is present, one is its report."""
        return self.run.contributors if self.run.averaged else self.run.report_count

    @property
    def batch_size(self) -> int:
        return max(256, _VALUES_PER_BATCH // (8 * self.run.repeats))

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        draws = self.response.draw(self.run, runs, self.reports, generator)
        return [
            releases.response_scores(counts, self.response, self.run.check_in_probability)
            for counts in releases.response_releases(draws)
        ]


@dataclass(frozen=True, slots=True)
class SumCanary(_WorstCaseCanary):
    """A client with ``update``, compared with the same client with ``other_update``.

    Updates are along the canary's direction, in units of the clip norm. If ``other_update`` is
    None, the client is compared with a missing client. In every slot, ``others_per_slot`` clients
    check in, whose updates are ``others_update``. If ``random_others`` is not 0, that many clients
    draw their slots by the protocol instead, and the adversary knows these slots.
    """

    name: str
    explained: str
    run: RunParameters
    noise: releases.Noise
    update: float = 1.0
    other_update: float | None = None
    others_per_slot: int = 0
    others_update: float = 0.0
    random_others: int = 0

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        draws = self.draw(runs, generator)
        sums = releases.sum_releases(
            draws,
            update=self.update,
            other_update=self.other_update,
            capacity=self.run.capacity,
            coefficients=self.run.coefficients,
        )
        return [self.score(released, draws.loads) for released in sums]

    def draw(self, runs: int, generator: np.random.Generator) -> SumDraws:
        """Draw the randomness of ``runs`` runs."""
        noise = self.noise.draw((runs, self.run.slots), generator)
        return releases.draw_sums(self.run, self._loads(runs, generator), noise, generator)

    def score(self, sums: releases.FloatArray, loads: SlotLoads) -> releases.FloatArray:
        """Return the log-likelihood ratio of each run, from the sums of its slots."""
        ratio = releases.sum_log_ratio(sums, loads, self.noise, self.update, self.run)
        if self.other_update is None:
            return ratio
        return ratio - releases.sum_log_ratio(sums, loads, self.noise, self.other_update, self.run)

    def _loads(self, runs: int, generator: np.random.Generator) -> SlotLoads:
        slots = self.run.slots
        if not self.random_others:
            same_counts = np.full((1, slots), self.others_per_slot, dtype=np.int64)
            return SlotLoads(same_counts, self.others_update)
        participants = generator.binomial(self.random_others, self.run.participation, runs)
        counts = generator.multinomial(participants, np.full(slots, 1.0 / slots))
        return SlotLoads(counts, self.others_update)


@dataclass(frozen=True, slots=True)
class AveragedCanary(_WorstCaseCanary):
    """A client in a campaign of averaged updates, with Gaussian noise at the device.

    The norm of its update is the clip norm. It is compared with the same client with the opposite
    update. All other clients send only noise. ``deviation`` is the standard deviation of the noise
    of one report, in units of the clip norm. The adversary knows the number of reports of each
    slot.
    """

    name: str
    explained: str
    run: RunParameters
    deviation: float

    def scores(self, runs: int, generator: np.random.Generator) -> Sequence[releases.FloatArray]:
        slots = self.run.slots
        canary_draws = releases.CanaryDraws.draw(self.run, runs, generator)
        shares = np.full(slots, 1.0 / slots)
        counts = generator.multinomial(self.run.contributors - 1, shares, runs)
        counts[np.arange(runs), canary_draws.slot] += 1
        noise = GaussianSum(self.deviation * np.sqrt(np.maximum(counts, 1)))
        loads = SlotLoads(counts, 0.0)
        slot_noise = noise.draw((runs, slots), generator)
        draws = SumDraws(canary_draws, np.zeros(runs, dtype=np.int64), loads, slot_noise)
        sums = releases.sum_releases(draws, update=1.0, other_update=-1.0, capacity=None)
        return [
            releases.sum_log_ratio(released, loads, noise, 1.0, self.run)
            - releases.sum_log_ratio(released, loads, noise, -1.0, self.run)
            for released in sums
        ]


def worst_case_canaries(
    campaign: Campaign, *, uses_population: bool, dimension: int | None = None
) -> tuple[Canary, ...]:
    """Return the worst-case canaries that fit the campaign.

    If ``uses_population`` is True, the certificate assumes the declared population. Then there are
    at most as many clients as declared, and the other clients draw their slots by the protocol.
    ``dimension`` is the dimension of the model, None if it is not known.
    """
    run = RunParameters.of(campaign.design, repeats=campaign.repeats)
    if isinstance(campaign.design.randomizer, GaussianNoise):
        noise = campaign.design.randomizer
        if not run.averaged:
            return tuple(_gaussian_canaries(campaign, run, noise, uses_population))
        explained = "a client with an update of the clip norm; all other clients send only noise"
        return (AveragedCanary("averaged", explained, run, noise.noise_multiplier),)
    replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    if campaign.design.named_randomizer is not None:
        named = campaign.design.named_randomizer
        named_canaries = tuple(_named_randomizer_canaries(named, run, replace_one))
        # The declared clients are too few to fill every slot.
        return named_canaries[:1] if uses_population else named_canaries
    local_epsilon = campaign.design.randomizer.local_epsilon
    canaries: list[Canary] = [
        ResponseCanary(f"{name} response", explained, response, run)
        for name, explained, response in _worst_responses(local_epsilon, replace_one)
    ]
    canary = _randomizer_canary(campaign, run, dimension)
    return (*canaries, canary) if canary is not None else tuple(canaries)


def _worst_responses(epsilon: float, replace_one: bool) -> Iterator[tuple[str, str, Response]]:
    """Yield name, description and probabilities of the worst randomizers with a local epsilon."""
    b = math.exp(epsilon)
    r = 1.0 / (1.0 + b)
    base = (r, 1.0 - r)
    template = (
        "a client with the worst randomizer for this local epsilon. {}; others report mostly {}"
    )
    explained = template.format("It has two outcomes", "the second")
    yield "binary", explained, Response(first=(1.0 - r, r), other=base, base=base)
    if not replace_one:
        return
    for name, point in zip(
        ("ternary", "mirrored ternary"), attained_three_points(epsilon), strict=False
    ):
        middle = 1.0 - 2.0 * point.probability
        base3 = (point.probability, middle, point.probability)
        ratios_by_outcome = (point.up, point.middle, point.down)
        first, other = (
            tuple(mass * ratios[i] for mass, ratios in zip(base3, ratios_by_outcome, strict=True))
            for i in (0, 1)
        )
        explained = template.format("It has three outcomes", "the middle one")
        yield name, explained, Response(first=first, other=other, base=base3)


def _gaussian_canaries(
    campaign: Campaign, run: RunParameters, noise: GaussianNoise, uses_population: bool
) -> Iterator[Canary]:
    noise_sum = GaussianSum(campaign.design.slot_noise(noise))
    other_update = -1.0 if campaign.budget.adjacency is Adjacency.REPLACE_ONE else None
    other = "a missing client" if other_update is None else "a client with the opposite update"
    against = f"The attack distinguishes it from {other}"
    canary = partial(SumCanary, run=run, noise=noise_sum, other_update=other_update)
    client = "a client whose update has the largest allowed norm, the clip norm"
    yield canary("alone", f"{client}. There are no other clients. {against}")
    if run.capacity is None:
        return
    population = campaign.design.population
    if not uses_population or population is None:
        explained = f"{client}. All slots are full of clients with the opposite update. {against}"
        yield canary("displacing", explained, others_per_slot=run.capacity, others_update=-1.0)
    elif campaign.design.protocol is Protocol.FIXED and population.most > 1:
        others = population.most - 1
        explained = f"{client}. {others:,} other clients have the opposite update. {against}"
        yield canary("in a crowd", explained, others_update=-1.0, random_others=others)


def _named_randomizer_canaries(
    randomizer: NamedRandomizer, run: RunParameters, replace_one: bool
) -> Iterator[Canary]:
    """Yield the canaries for a certificate that holds for one particular randomizer.

    Such a certificate depends on the distribution of the randomizer's dummies, so the adversary
    knows this distribution. The first canary is alone among dummies. The second canary displaces a
    client in slots that are full of clients with other data.
    """
    choice_probability = (run.capacity or 1) / ((run.capacity or 1) + 1.0)
    full_run = replace(run, participation=run.participation * choice_probability)
    full = "in slots full of clients with other data"
    match randomizer:
        case RandomizedResponseReports(local_epsilon=local_epsilon, categories=categories):
            response = RandomizedResponse(categories, local_epsilon)
            outcomes = _category_probabilities(response, replace_one=replace_one, averaged=False)
            yield ResponseCanary("own response", "a client with one fixed category", outcomes, run)
            outcomes = _category_probabilities(response, replace_one=True, averaged=True)
            if not replace_one:
                outcomes = replace(outcomes, other=outcomes.base)
            explained = f"a client with one fixed category, {full}"
            yield ResponseCanary("own displacing", explained, outcomes, full_run)
        case LaplaceReports(local_epsilon=local_epsilon):
            capacity = run.capacity or 1
            noise = releases.LaplaceSum(2.0 / local_epsilon, capacity)
            other_update = -1.0 if replace_one else None
            canary = partial(SumCanary, run=run, noise=noise, other_update=other_update)
            explained = "a client with an update of one coordinate, equal to the clip norm"
            yield canary("own laplace", f"{explained}, without other clients")
            explained = f"{explained}, {full}"
            yield canary("own displacing", explained, others_per_slot=capacity, others_update=-1.0)
        case PrivUnitReports(local_epsilon=local_epsilon, dimension=dimension):
            unit = PrivUnit(1.0, local_epsilon, dimension)
            outcomes = cap_probabilities(unit, replace_one=replace_one)
            yield ResponseCanary("own cap", CAP_ATTACK, outcomes, run)
            outcomes = cap_probabilities(unit, replace_one=True)
            outcomes = replace(outcomes, base=outcomes.other)  # others have the opposite update
            yield ResponseCanary("own displacing", f"{CAP_ATTACK}, {full}", outcomes, full_run)
        case _:
            raise NotCovered("randomizer", randomizer.describe(), "has no canary of its own")


def _randomizer_canary(
    campaign: Campaign, run: RunParameters, dimension: int | None
) -> Canary | None:
    """Return a canary with the worst data for a randomizer that the certificate does not name.

    Return None if a parameter of the randomizer is not known, or if no attack on it is implemented.
    """
    kind, clip = campaign.randomizer.kind, campaign.randomizer.clip
    has_needed_clip = kind is RandomizerKind.RANDOMIZED_RESPONSE or clip is not None
    if not has_needed_clip or (kind is RandomizerKind.PRIVUNIT and dimension is None):
        return None
    replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    match campaign.mechanism(dimension or 1):
        case RandomizedResponse() as response:
            outcomes = _category_probabilities(
                response, replace_one=replace_one, averaged=run.averaged
            )
            return ResponseCanary("own response", "a client with one fixed category", outcomes, run)
        case PrivUnit() as unit if not run.averaged:
            outcomes = cap_probabilities(unit, replace_one=replace_one)
            return ResponseCanary("own cap", CAP_ATTACK, outcomes, run)
    return None


def _category_probabilities(
    randomizer: RandomizedResponse, *, replace_one: bool, averaged: bool
) -> Response:
    """Return the outcome probabilities of randomized response, for the canary and for others.

    The outcomes are the canary's category, for replace-one the category that replaces it, and, if
    there is one, any other category. Dummies are uniform. In averaged updates there are no dummies,
    and the category of all other clients is the last outcome.
    """
    k, truth = randomizer.categories, randomizer.truth_probability
    lie = randomizer.lie_probability / (k - 1)
    if not replace_one:
        base = (1.0 / k, 1.0 - 1.0 / k)
        return Response(first=(truth, 1.0 - truth), other=base, base=base)
    if k == 2:
        base = (lie, truth) if averaged else (0.5, 0.5)
        return Response(first=(truth, lie), other=(lie, truth), base=base)
    rest = 1.0 - truth - lie
    base3 = (lie, lie, 1.0 - 2 * lie) if averaged else (1.0 / k, 1.0 / k, 1.0 - 2.0 / k)
    return Response(first=(truth, lie, rest), other=(lie, truth, rest), base=base3)


def cap_probabilities(unit: PrivUnit, *, replace_one: bool) -> Response:
    """Return the probabilities that a PrivUnit report is in the update's cap, or the opposite cap.

    A cap is the part of the sphere near a direction. For add/remove, only the update's cap is used.
    """
    cap = unit.cap
    base = (cap.mass, 1.0 - cap.mass)
    if not replace_one or cap.threshold <= 0.0:
        # For replace-one, the two caps are the two halves of the sphere: there is no third outcome.
        other = (cap.outside, cap.inside) if replace_one else base
        return Response(first=(cap.inside, cap.outside), other=other, base=base)
    opposite = cap.outside * cap.mass / (1.0 - cap.mass)
    rest = cap.outside - opposite
    return Response(
        first=(cap.inside, opposite, rest),
        other=(opposite, cap.inside, rest),
        base=(cap.mass, cap.mass, 1.0 - 2.0 * cap.mass),
    )
