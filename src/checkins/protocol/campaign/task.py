"""What is learned, as its campaign seals it: data, model, local work and the server's optimizer.

Public values only. Scaling is a public constant, never fitted on the clients' data; everything the
optimizer does with a slot's sum is post-processing, so no price depends on this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from checkins.accounting import require
from checkins.errors import InvalidValue
from checkins.protocol.campaign.texts import require_text

MOST_LOCAL_STEPS = 10**6
MOST_FEATURES = 10**4

_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class DataSet(StrEnum):
    """Data that the package knows how to get."""

    PATIENTS = "patients"
    FASHION_MNIST = "fashion-mnist"
    SYNTHETIC = "synthetic"


class Model(StrEnum):
    """Models that the package has itself; any other is named as ``module:function``."""

    LOGISTIC = "logistic"
    SOFTMAX = "softmax"
    MLP = "mlp"
    CNN = "cnn"


class OptimizerKind(StrEnum):
    """What the server does with the sum of a slot."""

    SGD = "sgd"


class StepSizes(StrEnum):
    """How the step size of step i follows from the rate: c, or the paper's c / sqrt(i)."""

    CONSTANT = "constant"
    INVERSE_SQRT = "inverse-sqrt"

    @property
    def decay(self) -> float:
        """The power d of c / i^d."""
        return 0.5 if self is StepSizes.INVERSE_SQRT else 0.0


@dataclass(frozen=True, slots=True)
class DataFile:
    """Anyone's table: a column that says whose a row is, one that says what to predict, features.

    ``ranges`` holds one (low, high) for each feature, in the features' order: public constants that
    a value is clipped to and scaled by.
    """

    file: str
    client_column: str
    label_column: str
    features: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for name in ("file", "client_column", "label_column"):
            require_text(**{name: getattr(self, name)})
        object.__setattr__(self, "features", tuple(self.features))
        columns = (self.client_column, self.label_column, *self.features)
        for feature in self.features:
            require_text(features=feature)
        if not 1 <= len(self.features) <= MOST_FEATURES:
            raise InvalidValue(
                "features", len(self.features), f"must be 1 to {MOST_FEATURES:,} columns"
            )
        for column in columns:
            if columns.count(column) > 1:
                raise InvalidValue("features", column, "a column can be used only once")
        if len(self.ranges) != len(self.features):
            raise InvalidValue("ranges", len(self.ranges), "must hold one range for each feature")
        object.__setattr__(self, "ranges", tuple(_range(pair) for pair in self.ranges))


def _range(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = (_finite(end) for end in pair)
    if not low < high:
        raise InvalidValue("ranges", [low, high], "the first must be below the second")
    return low, high


def _finite(value: float) -> float:
    require.non_negative(ranges=abs(value))  # finite, of either sign
    return float(value) + 0.0  # no minus zero: it would have a seal of its own


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Steps of the server: θ ← θ − (rate / minibatch) × the sum of ``minibatch`` slots.

    ``divide_by`` is the fixed public count that a slot's sum is divided by; a campaign fills it in
    with its capacity, or 1 where every check-in is used; averaged updates have none. ``diameter``
    is that of the ball around 0 onto which the model is projected.
    """

    rate: float
    minibatch: int = 1
    schedule: StepSizes = StepSizes.CONSTANT
    diameter: float | None = None
    divide_by: int | None = None
    kind: OptimizerKind = OptimizerKind.SGD

    def __post_init__(self) -> None:
        require.one_of(OptimizerKind, kind=self.kind)
        require.one_of(StepSizes, schedule=self.schedule)
        require.positive(rate=self.rate)
        require.count(minibatch=self.minibatch)
        object.__setattr__(self, "rate", float(self.rate))
        if self.diameter is not None:
            require.positive(diameter=self.diameter)
            object.__setattr__(self, "diameter", float(self.diameter))
        if self.divide_by is not None:
            require.count(divide_by=self.divide_by)


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned from what, and how much of the work a client does.

    >>> Task("patients", "linear", Optimizer(rate=0.5))
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: model = 'linear': must be logistic, ... or "module:function"
    """

    data: str | DataFile
    model: str
    optimizer: Optimizer
    local_steps: int = 1

    def __post_init__(self) -> None:
        require.one_of((str, DataFile), data=self.data)
        require.one_of(Optimizer, optimizer=self.optimizer)
        require.count(most=MOST_LOCAL_STEPS, local_steps=self.local_steps)
        if isinstance(self.data, str):
            if self.data not in list(DataSet):
                raise InvalidValue(
                    "data", self.data, f"must be {', '.join(DataSet)} or a table that names a file"
                )
            object.__setattr__(self, "data", str(self.data))
        if self.model not in list(Model):
            require_text(model=self.model)
            if not _FUNCTION.fullmatch(self.model):
                raise InvalidValue(
                    "model", self.model, f'must be {", ".join(Model)} or "module:function"'
                )
        object.__setattr__(self, "model", str(self.model))
