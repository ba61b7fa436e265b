"""Account for DP-SGD by random allocation: every example takes part in k of m steps.

Libraries for DP-SGD assume Poisson sampling, but many loaders use every example once per epoch. If
each example draws its step independently, an epoch is a campaign: an example is a client, a step is
a slot, and the trainer adds Gaussian noise to the sum of every step.

>>> allocation = RandomAllocation(
...     steps=1000, participations=10, noise_multiplier=1.0, draw=StepDraw.EACH_EPOCH
... )
>>> certificate = certify_random_allocation(
...     allocation, delta=1e-5, adjacency=Adjacency.ADD_REMOVE
... )
>>> round(certificate.epsilon, 3), round(certificate.epsilon_lower, 3)
(1.702, 1.701)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from checkins import validate
from checkins.accounting.accountant import certify
from checkins.accounting.certificate import Certificate
from checkins.accounting.comparisons import poisson
from checkins.accounting.design import (
    LEAST_SLOT_NOISE,
    MOST_SLOT_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    NoiseAt,
    Protocol,
)
from checkins.errors import InvalidValue


class StepDraw(StrEnum):
    """When examples draw the steps in which they take part.

    Every draw is uniform, and independent of the data and of the draws of other examples.

    Each epoch: in each of k epochs of m/k steps, an example draws one step.
    First epoch: an example draws one of the m/k steps of an epoch, and uses it in all k epochs.
    Whole run: an example draws k of all m steps, and every set of k steps is equally likely.
    """

    EACH_EPOCH = "each-epoch"
    FIRST_EPOCH = "first-epoch"
    WHOLE_RUN = "whole-run"


@dataclass(frozen=True, slots=True)
class RandomAllocation:
    """Training in which every example takes part in ``participations`` of ``steps`` steps.

    In every step, Gaussian noise with standard deviation ``noise_multiplier`` times the clipping
    norm is added to the sum of the clipped gradients, and the sum is divided by a public number.
    """

    steps: int
    participations: int
    noise_multiplier: float
    draw: StepDraw

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)
        validate.count(
            most=min(self.steps, validate.MAX_CAMPAIGNS), participations=self.participations
        )
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.one_of(StepDraw, draw=self.draw)
        if self.draw is not StepDraw.WHOLE_RUN and self.steps % self.participations:
            raise InvalidValue(
                "steps",
                self.steps,
                f"must be a multiple of participations = {self.participations:,}, so that all"
                " epochs have the same number of steps",
            )
        least = LEAST_SLOT_NOISE
        if self.draw is StepDraw.FIRST_EPOCH:
            least *= math.sqrt(self.participations)
        if not least < self.noise_multiplier <= MOST_SLOT_NOISE:
            raise InvalidValue(
                "noise_multiplier",
                self.noise_multiplier,
                f"must be larger than {least:.4g}, and at most {MOST_SLOT_NOISE:,.0f}",
            )

    @property
    def designs(self) -> tuple[Design, ...]:
        """The designs of campaigns that dominate the training. All of them run ``repeats`` times.

        Theorem:     docs/theory/random-allocation.md.
        """
        slots, longer = divmod(self.steps, self.participations)
        if self.draw is StepDraw.FIRST_EPOCH:
            shrunk = self.noise_multiplier / math.sqrt(self.participations)
            return (self._campaign(slots, math.nextafter(shrunk, 0.0)),)
        shorter = self.participations - longer
        return (
            *[self._campaign(slots, self.noise_multiplier)] * (shorter // self.repeats),
            *[self._campaign(slots + 1, self.noise_multiplier)] * (longer // self.repeats),
        )

    @property
    def repeats(self) -> int:
        """The number of times that the campaigns of ``designs`` run."""
        if self.draw is StepDraw.FIRST_EPOCH:
            return 1
        return math.gcd(self.participations, self.steps % self.participations)

    @staticmethod
    def _campaign(slots: int, noise_multiplier: float) -> Design:
        noise = GaussianNoise(noise_multiplier, NoiseAt.SERVER)
        return Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=noise)


def certify_random_allocation(
    allocation: RandomAllocation, *, delta: float, adjacency: Adjacency, compare: bool = True
) -> Certificate:
    """Certify the smallest epsilon that is proved for the training of one allocation.

    Two neighbouring datasets differ in one example. For replace-one, both have the same size, and
    a gradient may change by twice the clipping norm. If ``compare`` is True and the relation is
    add/remove, the alternatives include Poisson sampling at the same rate. If examples draw k of m
    steps and 1 < k < m, no lower bound is known, and ``epsilon_lower`` is 0.

    Theorem:     docs/theory/random-allocation.md.
    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    validate.one_of(RandomAllocation, allocation=allocation)
    found = certify(
        allocation.designs,
        delta=delta,
        adjacency=adjacency,
        campaigns=allocation.repeats,
        compare=False,
    )
    is_exact = allocation.draw is not StepDraw.WHOLE_RUN or (
        allocation.participations in (1, allocation.steps)
    )
    alternatives = found.alternatives
    epoch_steps, rest = divmod(allocation.steps, allocation.participations)
    if compare and adjacency is Adjacency.ADD_REMOVE and not rest:
        noise = GaussianNoise(allocation.noise_multiplier, NoiseAt.SERVER)
        epoch = Design(Protocol.FIXED, slots=epoch_steps, participation=1.0, randomizer=noise)
        other = poisson(epoch, campaigns=allocation.participations, delta=delta)
        alternatives = (*alternatives, other)
    return replace(
        found,
        epsilon_lower=found.epsilon_lower if is_exact else 0.0,
        assumptions=tuple(_assumptions(allocation)),
        alternatives=alternatives,
    )


def _assumptions(allocation: RandomAllocation) -> Iterator[str]:
    steps, times = allocation.steps, allocation.participations
    yield (
        "the trainer is trusted; the adversary sees every model, but not the steps of an example or"
        " the sizes of batches"
    )
    match allocation.draw:
        case StepDraw.EACH_EPOCH:
            yield (
                f"in each of {times:,} epochs, every example draws one of {steps // times:,} steps"
                " uniformly, independently of data, of other examples and of other epochs"
            )
        case StepDraw.FIRST_EPOCH:
            yield (
                f"every example draws one of {steps // times:,} steps uniformly, independently of"
                f" data and of other examples, and takes part in this step of each of {times:,}"
                " epochs"
            )
        case StepDraw.WHOLE_RUN:
            yield (
                f"every example draws {times:,} of {steps:,} steps, every set with the same"
                " probability, independently of data and of other examples"
            )
    yield (
        "batches have no fixed size: an example is used in all steps that it draws, no example is"
        " dropped, and no batch is filled with other examples"
    )
    yield (
        "gradients are clipped, Gaussian noise is added to the sum of every step, even of an empty"
        " one, and the sum is divided by a public number"
    )
    yield "the numbers of steps and epochs and the noise are fixed beforehand"
