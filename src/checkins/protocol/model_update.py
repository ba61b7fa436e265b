"""How the sum of a slot's reports changes the model: the steps of Algorithms 1 and 2.

The update uses only these sums, so it is post-processing and does not affect epsilon. Algorithms 1
and 2 are those of "Privacy Amplification via Random Check-Ins" (arXiv:2007.06605), "the paper".
Likewise, the average of the released models, in which late models have larger weights, is
post-processing. With noise in every step, it is often better than the last model.

The server may correlate the noise of successive slots. Let x_t be the exact sum of the clipped
updates of slot t, in units of the campaign's grid. Slots are counted from the first one that
releases something. The server draws new noise Z_t in every slot, and publishes

    v_t = n_0 x_t + n_1 x_(t-1) + ... + n_(b-1) x_(t-b+1) + Z_t ,

where n_0, ..., n_(b-1) are the numerators of the campaign's ``NoiseStrategy``, and b is its number
of bands. These are exact integers in units of the campaign's release grid, which is finer than the
grid of reports by the factor 2^bits. Everyone, the server included, computes from v_t the noisy sum

    y_t = (v_t - n_1 y_(t-1) - ... - n_(b-1) y_(t-b+1)) / n_0 ,

in units of the campaign's grid. y_t is x_t with noise, and the noise of different slots is
correlated (docs/theory/correlated-noise.md). In both formulas, terms of slots before the first
are 0.

The server needs the exact sums of the last b − 1 slots. They are secret. Past noise is not stored,
because x_t and the public y_t determine it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting import NoiseStrategy
from checkins.campaign import Campaign
from checkins.errors import InvalidValue

Vector = NDArray[Any]


def published_total(strategy: NoiseStrategy, sums: Sequence[Vector], noise: Vector) -> Vector:
    """Return v_t. ``sums`` are x_t, x_(t-1), ..., and ``noise`` is Z_t.

    ``sums`` has b elements, or fewer in the first slots. Integers are added exactly in 64 bits
    (``Campaign`` refuses parameters with which totals could be larger).

    >>> strategy = NoiseStrategy((3, 2), bits=2)
    >>> published_total(strategy, [np.array([10]), np.array([-1])], np.array([5]))
    array([33])
    """
    total = noise.copy()
    for numerator, exact_sum in zip(strategy.numerators, sums, strict=False):
        total += numerator * exact_sum
    return total


def noisy_sum(
    strategy: NoiseStrategy, total: Vector, earlier: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return y_t. ``total`` is v_t, and ``earlier`` are y_(t-1), y_(t-2), ...

    ``earlier`` has b − 1 elements, or fewer in the first slots. The terms are subtracted in the
    order of the formula, then the result is divided. Each operation is rounded to float64, so every
    platform gets the same bits.

    >>> strategy = NoiseStrategy((3, 2), bits=2)
    >>> noisy_sum(strategy, np.array([33]), [np.array([-1.0])])
    array([11.66666667])
    """
    remainder = total.astype(np.float64)
    for numerator, noisy in zip(strategy.numerators[1:], earlier, strict=False):
        remainder -= float(numerator) * noisy
    return remainder / float(strategy.numerators[0])


Model = NDArray[np.float64]
Total = NDArray[Any]
"""A sum of reports: integers in grid units, or floats in a simulation without a grid."""


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """The state of the learning: the model θ, the accumulator g, and the number of slots so far.

    ``gradient`` is g. None means zero. ``velocity`` is the momentum vector. None means zero, and it
    stays None without momentum. ``noisy_sums`` are the noisy sums of the last slots, newest first,
    from which the next noisy sum is computed. It is empty unless noise is correlated across slots.
    """

    model: Model
    gradient: Total | None = None
    slots: int = 0
    velocity: Model | None = None
    noisy_sums: tuple[Model, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelUpdate:
    """Algorithm 1, ModelUpdate(θ, g, i): every ``minibatch`` slots θ ← θ − (η/b) g, then g ← 0.

    Here η is ``rate``, b is ``minibatch``, and g is the sum of the totals of b slots. The entries
    of a total are integers in grid units. ``unit`` converts them to model units: it is the grid
    step divided by the public number by which a slot's sum is divided. Step i has the size η / i^d,
    where d is ``decay``: 0 for a constant step size, 1/2 for the step size of the paper. After each
    step, θ is projected onto the ball around 0 with this ``diameter``; None means no projection.

    If the noise is correlated across slots, ``strategy`` says how. Then a total is the v_t of
    this module's docstring, in units of the release grid, and g is the sum of the noisy sums y_t.

    With ``momentum`` μ the steps are those of optax.sgd. If g is the mean gradient of a minibatch,
    then v ← g + μv and θ ← θ − ηv, or with ``nesterov`` θ ← θ − η(g + μv).
    """

    rate: float
    unit: float = 1.0
    minibatch: int = 1
    decay: float = 0.0
    diameter: float | None = field(default=None)
    momentum: float | None = None
    nesterov: bool = False
    strategy: NoiseStrategy | None = None

    def __post_init__(self) -> None:
        validate.positive(rate=self.rate, unit=self.unit)
        validate.count(minibatch=self.minibatch)
        validate.probability(decay=self.decay)
        if self.diameter is not None:
            validate.positive(diameter=self.diameter)
        validate.one_of(bool, nesterov=self.nesterov)
        if self.momentum is not None:
            validate.probability(momentum=self.momentum)
            if self.momentum == 1:
                raise InvalidValue("momentum", self.momentum, "must be below 1")
        elif self.nesterov:
            raise InvalidValue("nesterov", True, "requires momentum")

    @classmethod
    def of(cls, campaign: Campaign) -> ModelUpdate:
        """Return the update that a campaign declares. Raise InvalidValue if it declares none."""
        if campaign.task is None:
            raise InvalidValue("task", None, "a campaign that learns needs a [task]")
        if campaign.randomizer.categories is not None:
            raise InvalidValue(
                "randomizer",
                str(campaign.randomizer.kind),
                "reports categories, which update no model: use gaussian, laplace or privunit",
            )
        optimizer = campaign.task.optimizer
        if optimizer.optax is not None:
            raise InvalidValue(
                "optimizer",
                optimizer.kind,
                'needs optax, which only the simulator uses: real campaigns need kind = "sgd"',
            )
        grid, capacity = campaign.randomizer.grid, campaign.design.capacity
        return cls(
            rate=optimizer.rate,
            unit=(1.0 if grid is None else grid) / (optimizer.divide_by or capacity or 1),
            minibatch=optimizer.minibatch,
            decay=optimizer.schedule.decay,
            diameter=optimizer.diameter,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov,
            strategy=campaign.strategy,
        )

    def start(self, model: Model, velocity: Model | None = None) -> Learner:
        """Return the state before the first slot.

        ``velocity`` is the momentum vector at the end of the run that this run continues. None if
        this run continues none.
        """
        initial = read_only(np.array(model, dtype=np.float64))
        if velocity is None:
            return Learner(initial)
        if self.momentum is None:
            raise InvalidValue("velocity", "given", "requires momentum")
        initial_velocity = read_only(np.array(velocity, dtype=np.float64))
        if initial_velocity.shape != initial.shape:
            expected = f"must be of the shape {initial.shape}"
            raise InvalidValue("velocity", initial_velocity.shape, expected)
        return Learner(initial, velocity=initial_velocity)

    def apply(
        self, learner: Learner, total: Total | None, contributors: int | None = None
    ) -> Learner:
        """Return the state after the next slot, whose sum of reports is ``total``.

        For averaged updates (Algorithm 2), ``contributors`` is the number of reports, and the total
        is divided by it. For other protocols, ``contributors`` is None. If ``total`` is None or
        ``contributors`` is 0, the model does not change.
        """
        slots, velocity = learner.slots + 1, learner.velocity
        if total is None or contributors == 0:
            return Learner(learner.model, learner.gradient, slots, velocity)
        noisy_sums: tuple[Model, ...] = ()
        if self.strategy is not None:
            needed_sums = min(self.strategy.bands - 1, learner.slots)
            if len(learner.noisy_sums) != needed_sums:
                expected = f"must be the last {needed_sums} noisy sums"
                raise InvalidValue("noisy_sums", len(learner.noisy_sums), expected)
            total = read_only(noisy_sum(self.strategy, total, learner.noisy_sums))
            noisy_sums = (total, *learner.noisy_sums)[: self.strategy.bands - 1]
        gradient = total.copy() if learner.gradient is None else learner.gradient + total
        if slots % self.minibatch:
            return Learner(learner.model, read_only(gradient), slots, velocity, noisy_sums)
        decay_factor = _power(slots // self.minibatch, self.decay)
        if self.momentum is None:
            step = self.rate * self.unit / self.minibatch / decay_factor
            new_model = learner.model - (step / (contributors or 1)) * gradient.astype(np.float64)
        else:
            mean = (self.unit / self.minibatch / (contributors or 1)) * gradient.astype(np.float64)
            velocity = mean if velocity is None else mean + self.momentum * velocity
            direction = mean + self.momentum * velocity if self.nesterov else velocity
            new_model = learner.model - (self.rate / decay_factor) * direction
            read_only(velocity)
        return Learner(read_only(self._project(new_model)), None, slots, velocity, noisy_sums)

    def _project(self, model: Model) -> Model:
        if self.diameter is None:
            return model
        norm, radius = _norm(model), self.diameter / 2.0
        return model if norm <= radius else model * (radius / norm)


def _norm(model: Model) -> float:
    """Return the L2 norm. The sum of squares is exactly rounded, and scaled if it may overflow."""
    largest = float(np.max(np.abs(model), initial=0.0))
    if largest < 1e150:
        return math.sqrt(math.fsum(model * model))
    return largest * math.sqrt(math.fsum((model / largest) ** 2))


def _power(base: int, exponent: float) -> float:
    """Return base^exponent. For 1/2, ``math.sqrt`` gives the same result on every platform."""
    return math.sqrt(base) if exponent == 0.5 else float(base) ** exponent


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array immutable and return it."""
    array.flags.writeable = False
    return array


def average_weights(numbers: NDArray[np.integer], *, share: float) -> NDArray[np.float64]:
    r"""Return the weight of model t in the average of models 1 to t, for each t in ``numbers``.

    The average a_t of the models θ_1, ..., θ_t is computed one model at a time:

        a_t = a_{t−1} + w_t (θ_t − a_{t−1}),   w_t = (η + 1) / (t + η),   η = 2 / share − 2.

    In a_t, the weight of θ_s is nearly proportional to s^η. With ``share`` 1, it is the mean of all
    models. The mean age of the averaged models is ``share`` / 2 times the number of models, as in
    a mean of the last ``share`` of the models. The number of models need not be known beforehand.

    Theorem:     polynomial-decay averaging, [SZ13, section 4], arXiv:1212.1824.

    >>> average_weights(np.array([1, 2, 3]), share=1.0).round(3).tolist()
    [1.0, 0.5, 0.333]
    """
    validate.positive(share=share)
    validate.probability(share=share)
    exponent = 2.0 / share - 2.0
    return (exponent + 1.0) / (numbers.astype(np.float64) + exponent)


@dataclass(frozen=True, slots=True)
class RunningAverage:
    """The average of ``models`` released models. ``model`` is None before the first one.

    >>> average = RunningAverage(share=1.0).with_model(np.zeros(2)).with_model(np.ones(2))
    >>> average.models, average.model
    (2, array([0.5, 0.5]))
    """

    share: float
    models: int = 0
    model: NDArray[np.float64] | None = None

    def with_model(self, model: NDArray[np.float64]) -> RunningAverage:
        """Return the average with the next released model."""
        number = self.models + 1
        weight = float(average_weights(np.array(number), share=self.share))
        earlier = model if self.model is None else self.model
        return RunningAverage(self.share, number, earlier + weight * (model - earlier))
