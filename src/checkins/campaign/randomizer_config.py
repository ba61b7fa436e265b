"""Which randomizer a campaign uses, and on which grid: what its file says of it.

The mechanism itself, which needs the dimension of a report, is in ``checkins.randomizers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from checkins import validate
from checkins.accounting import GaussianNoise, LocalRandomizer, NoiseAt
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse, Randomizer
from checkins.randomizers.grid import MOST_UNITS, Grid
from checkins.randomizers.normal import LEAST_SCALE
from checkins.randomizers.response import MOST_CATEGORIES
from checkins.randomizers.rounded import GAUSSIAN_CUT, LAPLACE_CUT


class RandomizerKind(StrEnum):
    """How a report is made private."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    PRIVUNIT = "privunit"
    RANDOMIZED_RESPONSE = "randomized-response"


@dataclass(frozen=True, slots=True)
class RandomizerConfig:
    """The randomizer of a campaign; it becomes a mechanism once the model's dimension is known.

    Gaussian: ``noise_multiplier``, ``noise_at``, ``clip`` (L2). Laplace: ``local_epsilon``,
    ``clip`` (L1). PrivUnit: ``local_epsilon``, ``clip`` (L2). Randomized response:
    ``local_epsilon``, ``categories``. Without a ``grid``, on which reports are integers, Gaussian
    and Laplace campaigns can be simulated and not run.
    """

    kind: RandomizerKind
    clip: float | None = None
    grid: float | None = None
    noise_multiplier: float | None = None
    noise_at: NoiseAt | None = None
    local_epsilon: float | None = None
    categories: int | None = None

    def __post_init__(self) -> None:
        validate.one_of(RandomizerKind, kind=self.kind)
        wanted, allowed = _FIELDS[self.kind]
        for name in ("clip", "grid", "noise_multiplier", "local_epsilon"):
            if getattr(self, name) is not None:
                validate.positive(**{name: getattr(self, name)})
                object.__setattr__(self, name, float(getattr(self, name)))
        for name in _NAMES:
            if getattr(self, name) is not None and name not in allowed:
                raise InvalidValue(name, getattr(self, name), self._misfit(name))
        for name in _NAMES:
            if getattr(self, name) is None and name in wanted:
                raise InvalidValue(name, None, "is missing; it has no default")
        if self.noise_at is not None:
            validate.one_of(NoiseAt, noise_at=self.noise_at)
        if self.categories is not None:
            validate.count(most=MOST_CATEGORIES, categories=self.categories)
            if self.categories < 2:
                raise InvalidValue("categories", self.categories, "must be at least 2")
        if self.grid is not None:
            self._check_grid(self.grid)
        self.promise  # noqa: B018  # refuses an epsilon that no accountant takes

    def _misfit(self, name: str) -> str:
        kinds = " or ".join(kind for kind in RandomizerKind if name in _FIELDS[kind][1])
        why = _WHY_NOT.get((self.kind, name), f"it is for {kinds}")
        return f'does not go with kind = "{self.kind}": {why}'

    def _check_grid(self, grid: float) -> None:
        """Fine enough that sums of rounded noises are Gaussian, coarse enough for 32-bit integers.

        The device sampler's own conditions (MATH.md B8), in the same exact arithmetic.
        """
        if self.clip is None:
            raise InvalidValue("clip", None, "is missing; a grid goes with a clip")
        self.describe(1)  # refuses a noise that no float can hold
        clip = Grid(grid).clip_units(self.clip)
        if self.noise_multiplier is not None:
            scale = Fraction(self.noise_multiplier) * clip
            if scale < LEAST_SCALE:
                most = float(scale * Fraction(grid) / LEAST_SCALE)
                raise InvalidValue(
                    "grid", grid, f"must be at most a third of the noise, {most:.4g}"
                )
            reach = GAUSSIAN_CUT * scale
        else:
            reach = LAPLACE_CUT * 2 * clip / Fraction(self.local_epsilon or 1.0)
        longest = clip + reach * Fraction(513, 512) + 2
        if longest > MOST_UNITS:
            least = float(Fraction(grid) * longest / MOST_UNITS)
            raise InvalidValue(
                "grid", grid, f"must be at least {least * 1.01:.3g}, or reports outgrow 32 bits"
            )

    @property
    def promise(self) -> LocalRandomizer | GaussianNoise:
        """What the accountant is told."""
        if self.noise_multiplier is not None and self.noise_at is not None:
            return GaussianNoise(self.noise_multiplier, self.noise_at)
        if self.local_epsilon is None:
            raise InvalidValue("local_epsilon", None, f"is missing; {self.kind} needs it")
        return LocalRandomizer(self.local_epsilon)

    def describe(self, dimension: int) -> Randomizer:
        """The mechanism for reports of this dimension, as ``checkins.randomizers`` describes it."""
        validate.count(dimension=dimension)
        clip, local_epsilon = self.clip, self.local_epsilon
        if clip is not None and self.noise_multiplier is not None:
            return Gaussian(clip, self.noise_multiplier)
        if self.categories is not None and local_epsilon is not None:
            return RandomizedResponse(self.categories, local_epsilon)
        if clip is None or local_epsilon is None:
            raise InvalidValue("clip", clip, "is missing: this campaign can be priced, not run")
        if self.kind is RandomizerKind.LAPLACE:
            return Laplace(clip, local_epsilon)
        return PrivUnit(clip, local_epsilon, dimension)


_NAMES = ("noise_at", "noise_multiplier", "local_epsilon", "categories", "clip", "grid")

_FIELDS: dict[RandomizerKind, tuple[frozenset[str], frozenset[str]]] = {
    RandomizerKind.GAUSSIAN: (
        frozenset({"noise_multiplier", "noise_at", "clip"}),
        frozenset({"noise_multiplier", "noise_at", "clip", "grid"}),
    ),
    RandomizerKind.LAPLACE: (
        frozenset({"local_epsilon"}),
        frozenset({"local_epsilon", "clip", "grid"}),
    ),
    RandomizerKind.PRIVUNIT: (frozenset({"local_epsilon"}), frozenset({"local_epsilon", "clip"})),
    RandomizerKind.RANDOMIZED_RESPONSE: (
        frozenset({"local_epsilon", "categories"}),
        frozenset({"local_epsilon", "categories"}),
    ),
}
"""What each kind needs, and what it may have."""

_WHY_NOT = {
    (RandomizerKind.PRIVUNIT, "grid"): "it has no exact device sampler, and can be simulated only",
    (RandomizerKind.RANDOMIZED_RESPONSE, "grid"): "a category is a whole number already",
}
