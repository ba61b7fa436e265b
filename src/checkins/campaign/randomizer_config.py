"""Which randomizer a campaign uses, with its clip norm, grid and number of categories.

The amount of noise is not here, but in the ``Design``, which the accountant certifies, as a
``GaussianNoise`` or a ``LocalRandomizer``. ``RandomizerConfig.mechanism`` combines this
configuration, the noise and the dimension of a report into a mechanism of ``checkins.randomizers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from checkins import validate
from checkins.accounting import (
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    NoiseAt,
    NoiseStrategy,
    PrivUnitReports,
    RandomizedResponseReports,
)
from checkins.accounting.design import MOST_PRIVUNIT_DIMENSION
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse, Randomizer
from checkins.randomizers.grid import Grid
from checkins.randomizers.randomizer import MAX_CATEGORIES

Noise = LocalRandomizer | GaussianNoise
"""The amount of noise of a randomizer, in the accountant's classes."""


class RandomizerKind(StrEnum):
    """Which mechanism makes a report private."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    PRIVUNIT = "privunit"
    RANDOMIZED_RESPONSE = "randomized-response"


@dataclass(frozen=True, slots=True)
class RandomizerConfig:
    """The randomizer of a campaign, without its amount of noise.

    Gaussian and PrivUnit clip updates to the L2 norm ``clip``, Laplace to the L1 norm ``clip``.
    Randomized response reports one of ``categories`` values. Gaussian and Laplace reports are
    integer multiples of ``grid``. If ``grid`` is None, they can only be simulated. ``dimension`` is
    the number of coordinates of a PrivUnit report, which is the number of parameters of the model.
    If it is None, PrivUnit is certified as any randomizer with its local epsilon.
    """

    kind: RandomizerKind
    clip: float | None = None
    grid: float | None = None
    categories: int | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate.one_of(RandomizerKind, kind=self.kind)
        for name in ("clip", "grid"):
            if getattr(self, name) is not None:
                validate.positive(**{name: getattr(self, name)})
                validate.make_floats(self, name)
        _check_values_of_kind(
            self.kind,
            {
                "categories": self.categories,
                "clip": self.clip,
                "dimension": self.dimension,
                "grid": self.grid,
            },
        )
        if self.categories is not None:
            validate.count(most=MAX_CATEGORIES, categories=self.categories)
            if self.categories < 2:
                raise InvalidValue("categories", self.categories, "must be at least 2")
        if self.dimension is not None:
            validate.count(most=MOST_PRIVUNIT_DIMENSION, dimension=self.dimension)
        if self.grid is not None and self.clip is None:
            raise InvalidValue("clip", None, "is missing; a grid requires a clip")

    def check_noise(self, noise: Noise) -> None:
        """Raise InvalidValue if the noise does not match the kind or the grid."""
        is_gaussian = self.kind is RandomizerKind.GAUSSIAN
        if isinstance(noise, GaussianNoise) != is_gaussian:
            expected = "Gaussian noise" if is_gaussian else "a local epsilon"
            raise InvalidValue("randomizer", noise, f'kind = "{self.kind}" needs {expected}')
        if isinstance(noise, LocalRandomizer) and not noise.is_pure:
            raise InvalidValue("randomizer", noise, f"{self.kind} has no local delta")
        if self.grid is not None:
            mechanism = self.mechanism(noise, dimension=1)
            if isinstance(mechanism, Gaussian | Laplace):
                Grid(self.grid).noise_scale(mechanism)
            if isinstance(mechanism, Gaussian) and isinstance(noise, GaussianNoise):
                bits = 0 if noise.strategy is None else noise.strategy.bits
                Grid(self.grid).noise_scale(mechanism, finer_bits=bits)

    def noise_with_name(self, noise: LocalRandomizer) -> LocalRandomizer:
        """Return the noise with the randomizer's name, so that the accountant knows its dummies.

        The name depends only on this configuration. A PrivUnit without a ``dimension`` has no name.
        """
        if self.kind is RandomizerKind.RANDOMIZED_RESPONSE and self.categories is not None:
            return RandomizedResponseReports(noise.local_epsilon, categories=self.categories)
        if self.kind is RandomizerKind.LAPLACE:
            return LaplaceReports(noise.local_epsilon)
        if self.kind is RandomizerKind.PRIVUNIT and self.dimension is not None:
            return PrivUnitReports(noise.local_epsilon, dimension=self.dimension)
        return LocalRandomizer(noise.local_epsilon, noise.local_delta)

    def check_dimension(self, parameters: int) -> None:
        """Raise InvalidValue if ``dimension`` is not the model's number of parameters."""
        if self.dimension not in (None, parameters):
            raise InvalidValue(
                "dimension",
                self.dimension,
                f"must be {parameters}, the number of parameters of the model; set it to"
                f" {parameters}, or leave it out for an epsilon that is valid in every dimension",
            )

    def mechanism(self, noise: Noise, *, dimension: int) -> Randomizer:
        """Return the mechanism for reports of this dimension with this noise."""
        validate.count(dimension=dimension)
        self.check_dimension(dimension)
        if isinstance(noise, LocalRandomizer) and self.categories is not None:
            return RandomizedResponse(self.categories, float(noise.local_epsilon))
        if self.clip is None:
            raise InvalidValue(
                "clip", None, "is missing: without it, this campaign can be certified, not run"
            )
        if isinstance(noise, GaussianNoise):
            return Gaussian(self.clip, float(noise.noise_multiplier))
        if self.kind is RandomizerKind.LAPLACE:
            return Laplace(self.clip, float(noise.local_epsilon))
        return PrivUnit(self.clip, float(noise.local_epsilon), dimension)


def noise_of_kind(
    kind: RandomizerKind,
    *,
    noise_at: NoiseAt | None = None,
    noise_multiplier: float | None = None,
    local_epsilon: float | None = None,
    strategy: NoiseStrategy | None = None,
) -> Noise:
    """Return the noise of a randomizer. Raise InvalidValue if the values are for another kind.

    >>> noise_of_kind(RandomizerKind.LAPLACE, local_epsilon=2.0)
    LocalRandomizer(local_epsilon=2.0, local_delta=0.0)
    """
    validate.one_of(RandomizerKind, kind=kind)
    noise_levels = {"noise_multiplier": noise_multiplier, "local_epsilon": local_epsilon}
    for name, value in noise_levels.items():
        if value is not None:
            validate.positive(**{name: value})
    _check_values_of_kind(kind, {"noise_at": noise_at, "strategy": strategy, **noise_levels})
    if noise_multiplier is not None and noise_at is not None:
        return GaussianNoise(float(noise_multiplier), noise_at, strategy)
    return LocalRandomizer(float(local_epsilon or 0.0))


def _check_values_of_kind(kind: RandomizerKind, values: Mapping[str, object]) -> None:
    """Raise InvalidValue for a value that ``kind`` does not allow, or a missing required value."""
    allowed = {other: _REQUIRED_KEYS[other] | _OPTIONAL_KEYS[other] for other in RandomizerKind}
    for name, value in values.items():
        if value is not None and name not in allowed[kind]:
            kinds = " or ".join(other for other, names in allowed.items() if name in names)
            reason = _REASONS_AGAINST.get((kind, name), f"it is for {kinds}")
            raise InvalidValue(name, value, f'is not used with kind = "{kind}": {reason}')
    for name, value in values.items():
        if value is None and name in _REQUIRED_KEYS[kind]:
            raise InvalidValue(name, None, "is missing; it has no default")


_REQUIRED_KEYS: Mapping[RandomizerKind, frozenset[str]] = {
    RandomizerKind.GAUSSIAN: frozenset({"noise_multiplier", "noise_at", "clip"}),
    RandomizerKind.LAPLACE: frozenset({"local_epsilon"}),
    RandomizerKind.PRIVUNIT: frozenset({"local_epsilon"}),
    RandomizerKind.RANDOMIZED_RESPONSE: frozenset({"local_epsilon", "categories"}),
}
_OPTIONAL_KEYS: Mapping[RandomizerKind, frozenset[str]] = {
    RandomizerKind.GAUSSIAN: frozenset({"grid", "strategy"}),
    RandomizerKind.LAPLACE: frozenset({"clip", "grid"}),
    RandomizerKind.PRIVUNIT: frozenset({"clip", "dimension"}),
    RandomizerKind.RANDOMIZED_RESPONSE: frozenset(),
}

_REASONS_AGAINST: Mapping[tuple[RandomizerKind, str], str] = {
    (RandomizerKind.PRIVUNIT, "grid"): "it has no exact device sampler, and can only be simulated",
    (RandomizerKind.RANDOMIZED_RESPONSE, "grid"): "a category is an integer already",
}
"""Why a kind of randomizer does not allow a key, for error messages."""
