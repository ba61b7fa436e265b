"""What the server does with the sum of a slot, as a campaign seals it.

Post-processing of what is released: no price depends on this file. Real campaigns step by "sgd",
which the pure protocol knows; "optax:NAME" is an optimizer of optax, which only a simulation has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from checkins import validate
from checkins.campaign.validators import LONGEST, require_text
from checkins.errors import InvalidValue

SGD = "sgd"
KINDS = 'must be "sgd", or "optax:NAME" for a simulation'
MOST_ARGUMENTS = 100

_OPTAX = re.compile(r"optax:([A-Za-z_]\w*)", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)

Argument = tuple[str, float | bool]


class StepSizes(StrEnum):
    """How the step size of step i follows from the rate: c, or the paper's c / sqrt(i)."""

    CONSTANT = "constant"
    INVERSE_SQRT = "inverse-sqrt"

    @property
    def decay(self) -> float:
        """The power d of c / i^d."""
        return 0.5 if self is StepSizes.INVERSE_SQRT else 0.0


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Steps of the server: θ ← θ − (rate / minibatch) × the sum of ``minibatch`` slots.

    ``divide_by`` is the fixed public count that a slot's sum is divided by; a campaign fills it in
    with its capacity, or 1 where every check-in is used; averaged updates have none. ``diameter``
    is that of the ball around 0 onto which the model is projected.

    With ``momentum`` μ the mean gradient g of a minibatch enters a velocity, v ← g + μv, and the
    step is v, or g + μv with ``nesterov``: optax.sgd's. A momentum of 0 is none.

    ``kind`` is "sgd", or "optax:NAME" with the ``arguments`` of that function besides its rate,
    given as a mapping or as pairs and kept sorted.

    >>> Optimizer(0.1, kind="optax:adam", arguments={"b2": 0.99, "b1": 0.5}).arguments
    (('b1', 0.5), ('b2', 0.99))
    """

    rate: float
    minibatch: int = 1
    schedule: StepSizes = StepSizes.CONSTANT
    diameter: float | None = None
    divide_by: int | None = None
    kind: str = SGD
    momentum: float | None = None
    nesterov: bool = False
    arguments: tuple[Argument, ...] = ()

    def __post_init__(self) -> None:
        require_kind(self.kind)
        validate.one_of(StepSizes, schedule=self.schedule)
        validate.positive(rate=self.rate)
        validate.count(minibatch=self.minibatch)
        object.__setattr__(self, "kind", str(self.kind))
        object.__setattr__(self, "rate", float(self.rate))
        if self.diameter is not None:
            validate.positive(diameter=self.diameter)
            object.__setattr__(self, "diameter", float(self.diameter))
        if self.divide_by is not None:
            validate.count(divide_by=self.divide_by)
        self._check_momentum()
        self._check_arguments()

    def _check_momentum(self) -> None:
        validate.one_of(bool, nesterov=self.nesterov)
        if self.momentum is None:
            if self.nesterov:
                raise InvalidValue("nesterov", True, "goes with momentum only")
            return
        if self.kind != SGD:
            raise InvalidValue("momentum", self.momentum, 'goes with kind = "sgd" only')
        validate.probability(momentum=self.momentum)
        if self.momentum == 1:
            raise InvalidValue("momentum", self.momentum, "must be below 1")
        if self.momentum == 0:  # means the same as none, so it is the same campaign
            object.__setattr__(self, "momentum", None)
            object.__setattr__(self, "nesterov", False)
        else:
            object.__setattr__(self, "momentum", float(self.momentum))

    def _check_arguments(self) -> None:
        given: object = self.arguments
        pairs: Iterable[Argument] = given.items() if isinstance(given, Mapping) else self.arguments
        kept = sorted(argument(name, value) for name, value in pairs)
        names = [name for name, _ in kept]
        if kept and self.kind == SGD:
            raise InvalidValue("arguments", names, 'go with kind = "optax:NAME" only')
        if len(kept) > MOST_ARGUMENTS or len(set(names)) < len(names):
            raise InvalidValue("arguments", names, f"must be at most {MOST_ARGUMENTS}, each once")
        object.__setattr__(self, "arguments", tuple(kept))

    @property
    def optax(self) -> str | None:
        """The NAME of "optax:NAME"; None for "sgd"."""
        named = _OPTAX.fullmatch(self.kind)
        return named and named[1]


def require_kind(kind: object) -> None:
    """Refuse anything but "sgd" or "optax:NAME"."""
    known = isinstance(kind, str) and len(kind) <= LONGEST
    if not known or not (kind == SGD or _OPTAX.fullmatch(str(kind))):
        raise InvalidValue("kind", kind, KINDS)


def argument(name: object, value: object) -> Argument:
    """One argument of an optimizer: a whole number is a float, so that 1 and 1.0 are one seal."""
    require_text(arguments=name)
    if not _IDENTIFIER.fullmatch(str(name)):
        raise InvalidValue("arguments", name, "must be named by letters, digits and _")
    if name == "learning_rate":
        raise InvalidValue("arguments", name, "is what rate and schedule say")
    if isinstance(value, bool):
        return str(name), value
    if isinstance(value, int | float):
        try:
            number = float(value)
            validate.non_negative(arguments=abs(number))  # finite, of either sign
            return str(name), number + 0.0  # no minus zero: it would have a seal of its own
        except (InvalidValue, OverflowError):
            pass
    raise InvalidValue("arguments", name, "must be a finite number, true or false")
