"""Find the value of one parameter with which a design just meets a target (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from checkins import validate
from checkins.accounting import total_variation
from checkins.accounting.accountant import certify, check_arguments
from checkins.accounting.adversaries import against_curious
from checkins.accounting.certificate import Certificate
from checkins.accounting.composition import Composition
from checkins.accounting.design import (
    LEAST_SLOT_NOISE,
    MOST_LOCAL_EPSILON,
    MOST_SLOT_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.solve import crossing, first_true
from checkins.errors import InvalidValue, NotCovered
from checkins.validate import MAX_SLOTS

_COARSE_CELLS, _FINE_CELLS = 200, 512
"""Numbers of grid cells for the first and the last search. A certificate uses more cells."""


class Parameter(StrEnum):
    """The parameters that ``calibrate`` solves for."""

    NOISE_MULTIPLIER = "noise-multiplier"
    LOCAL_EPSILON = "local-epsilon"
    PARTICIPATION = "participation"
    SLOTS = "slots"
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The value of a parameter that meets a target, and the design and certificate with it."""

    parameter: Parameter
    value: float
    design: Design
    certificate: Certificate

    def as_dict(self) -> dict[str, object]:
        return {"parameter": str(self.parameter), "value": self.value, **self.certificate.as_dict()}


@dataclass(frozen=True, slots=True)
class _Target:
    """The (epsilon, delta) to meet. ``delta`` excludes the charge for ``variation``."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    campaigns: int
    curious: int

    def delta_of(self, design: Design, *, cells: int) -> float:
        """Return an upper bound on the design's delta at the target's epsilon.

        If no exact accountant covers the design, return 0 if its certificate meets the target, and
        1 otherwise.
        """
        if design.participation * self.campaigns <= self.delta:
            return 0.0
        try:
            if not self.curious:
                return self._exact_delta(design, cells)
            [accounted], exposure = against_curious(
                (design,), self.curious, delta=self.delta, campaigns=self.campaigns
            )
            charge = total_variation.charge(epsilon=self.epsilon, variation=0.0, exposure=exposure)
            return self._exact_delta(accounted, cells) + charge
        except NotCovered:
            try:
                epsilon = self.certify(design, delta=self.delta).epsilon
            except InvalidValue:  # the design is not covered, or the charges exceed delta
                return 1.0
            return 0.0 if epsilon <= self.epsilon else 1.0

    def certify(self, design: Design, *, delta: float, variation: float = 0.0) -> Certificate:
        return certify(
            design,
            delta=delta,
            adjacency=self.adjacency,
            campaigns=self.campaigns,
            compare=False,
            variation=variation,
            curious=self.curious,
        )

    def _exact_delta(self, design: Design, cells: int) -> float:
        if self.campaigns > 1:
            composed = Composition((design,), self.adjacency, self.campaigns)
            return composed.curve(self.delta, cells)(self.epsilon)
        methods = (campaign_divergence.divergence, campaign_divergence.with_population)
        divergences = (
            method(design, self.adjacency, delta=self.delta, cells=cells) for method in methods
        )
        return min(bounds.upper(self.epsilon) for bounds in divergences if bounds is not None)


@dataclass(frozen=True, slots=True)
class _SearchRange:
    """A parameter with its most and its least private value.

    ``with_value`` returns the design with a value of the parameter. The search begins at ``start``.
    """

    name: str
    with_value: Callable[[float], Design]
    most_private: float
    least_private: float
    is_integer: bool = False
    start: float = 1.0
    is_package_limit: bool = False
    """Whether ``least_private`` is a limit of this package, and not of the parameter itself."""

    def more_private(self, value: float, target: _Target) -> float:
        """Return a slightly more private value: 1 larger for integers, else changed by 0.01 %."""
        if value == self.most_private:
            raise self.out_of_reach(target)
        increases = self.most_private > self.least_private
        value = value + 1 if self.is_integer else value * (1.0 + (1e-4 if increases else -1e-4))
        return min(value, self.most_private) if increases else max(value, self.most_private)

    def out_of_reach(self, target: _Target) -> NotCovered:
        return NotCovered(
            "epsilon",
            target.epsilon,
            f"out of reach: even {self.name} = {self.most_private:g} gives a larger epsilon",
        )


def calibrate(
    design: Design,
    *,
    parameter: Parameter,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
    curious: int = 0,
) -> Calibration:
    """Find the value of ``parameter`` with which the design just meets (epsilon, delta).

    This is the smallest noise, number of slots or capacity, or the largest local epsilon or
    participation. The design's own value of the parameter is ignored. The certificate contains no
    comparisons with other protocols. ``variation`` and ``curious`` are as in ``certify``.
    ``variation`` is not computed again, so it must also be an upper bound for the design that is
    returned.

    Rounding:    to the more private side, so the certificate's epsilon is at most ``epsilon``.

    >>> from checkins.accounting.design import Protocol
    >>> design = Design(
    ...     Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0)
    ... )
    >>> calibration = calibrate(
    ...     design,
    ...     parameter=Parameter.LOCAL_EPSILON,
    ...     epsilon=0.5,
    ...     delta=1e-6,
    ...     adjacency=Adjacency.ADD_REMOVE,
    ... )
    >>> round(calibration.value, 3), calibration.certificate.epsilon <= 0.5
    (2.57, True)
    """
    validate.one_of(Parameter, parameter=parameter)
    validate.positive(epsilon=epsilon)
    check_arguments(
        [design], delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation
    )
    share = total_variation.remaining_delta(delta=delta, epsilon=epsilon, variation=variation)
    parameter_range = _search_range(design, parameter)
    target = _Target(epsilon, share, adjacency, campaigns, curious)
    solve = _solve_integer if parameter_range.is_integer else _solve_real
    value = solve(parameter_range, target)
    while True:
        calibrated = parameter_range.with_value(value)
        certificate = target.certify(calibrated, delta=delta, variation=variation)
        if certificate.epsilon <= epsilon:
            break
        value = parameter_range.more_private(value, target)  # the certificate uses another grid
    value = int(value) if parameter_range.is_integer else value
    return Calibration(parameter, value, calibrated, certificate)


def _search_range(design: Design, parameter: Parameter) -> _SearchRange:
    randomizer = design.randomizer
    match parameter, randomizer:
        case Parameter.NOISE_MULTIPLIER, GaussianNoise():
            slot_noise_per_unit = design.slot_noise(replace(randomizer, noise_multiplier=1.0))
            return _SearchRange(
                "noise_multiplier",
                lambda x: replace(design, randomizer=replace(randomizer, noise_multiplier=x)),
                MOST_SLOT_NOISE
                / slot_noise_per_unit
                / math.sqrt(design.least_reports or 1)
                * (1 - 1e-12),
                LEAST_SLOT_NOISE / slot_noise_per_unit * (1 + 1e-12),
                is_package_limit=True,
            )
        case Parameter.LOCAL_EPSILON, LocalRandomizer():
            return _SearchRange(
                "local_epsilon",
                lambda x: replace(design, randomizer=replace(randomizer, local_epsilon=x)),
                1e-9,
                MOST_LOCAL_EPSILON,
                is_package_limit=True,
            )
        case Parameter.PARTICIPATION, _ if design.protocol is not Protocol.AVERAGED:
            return _SearchRange(
                "participation", lambda x: replace(design, participation=x), 1e-12, 1.0, start=0.5
            )
        case Parameter.SLOTS, _ if design.protocol is Protocol.FIXED:
            return _SearchRange(
                "slots", lambda x: replace(design, slots=int(x)), MAX_SLOTS, 1, is_integer=True
            )
        case Parameter.CAPACITY, GaussianNoise(at=NoiseAt.CLIENT) if design.capacity is not None:
            noise = randomizer.noise_multiplier
            most_capacity = min(int((MOST_SLOT_NOISE / noise) ** 2 * (1 - 1e-12)), MAX_SLOTS)
            least_capacity = max(1, math.ceil((LEAST_SLOT_NOISE / noise) ** 2))
            return _SearchRange(
                "capacity",
                lambda x: replace(design, capacity=int(x)),
                most_capacity,
                least_capacity,
                is_integer=True,
            )
        case Parameter.CAPACITY, LocalRandomizer() if design.protocol is not Protocol.AVERAGED:
            return _SearchRange(
                "capacity",
                lambda x: replace(design, capacity=int(x)),
                MAX_SLOTS,
                1,
                is_integer=True,
            )
    raise InvalidValue("solve", str(parameter), _NOT_APPLICABLE[parameter])


_NOT_APPLICABLE = {
    Parameter.NOISE_MULTIPLIER: "needs Gaussian noise; solve for local-epsilon instead",
    Parameter.LOCAL_EPSILON: "needs a local randomizer; solve for noise-multiplier instead",
    Parameter.PARTICIPATION: "averaged updates are proved for participation 1 only",
    Parameter.SLOTS: "affects epsilon in the fixed protocol only",
    Parameter.CAPACITY: "affects epsilon if slots sum private reports; averaged updates use all",
}


def _solve_real(search: _SearchRange, target: _Target) -> float:
    """Search the logarithm of the parameter, first on a coarse grid and then on a fine one."""
    log_range = math.log(search.most_private / search.least_private)

    def value_at(step: float) -> float:
        return search.least_private * math.exp(math.copysign(min(step, abs(log_range)), log_range))

    def delta_at_step(step: float, cells: int) -> float:
        return target.delta_of(search.with_value(value_at(step)), cells=cells)

    if delta_at_step(0.0, _COARSE_CELLS) <= target.delta:
        if search.is_package_limit:
            raise InvalidValue(
                "epsilon",
                target.epsilon,
                f"even {search.name} = {search.least_private:g}, the smallest or largest supported"
                " value, gives a smaller epsilon",
            )
        return search.least_private
    if delta_at_step(abs(log_range), _COARSE_CELLS) > target.delta:
        raise search.out_of_reach(target)
    coarse_step = crossing(
        lambda step: delta_at_step(step, _COARSE_CELLS),
        target.delta,
        guess=abs(math.log(search.start / search.least_private)),
        precision=1e-3,
        surely_above_at_zero=True,
    ).upper
    fine_step = crossing(
        lambda step: delta_at_step(step, _FINE_CELLS),
        target.delta,
        guess=coarse_step,
        precision=3e-5,
        stride=5e-3,
        surely_above_at_zero=True,
    ).upper
    return value_at(fine_step)


def _solve_integer(search: _SearchRange, target: _Target) -> int:
    """Return the smallest integer that meets the target, by doubling and bisection."""

    def fits(x: int) -> bool:
        return target.delta_of(search.with_value(x), cells=_FINE_CELLS) <= target.delta

    too_small, large_enough = int(search.least_private) - 1, int(search.least_private)
    while not fits(large_enough):
        if large_enough >= search.most_private:
            raise search.out_of_reach(target)
        too_small, large_enough = large_enough, min(2 * large_enough, int(search.most_private))
    return first_true(fits, false=too_small, true=large_enough)
