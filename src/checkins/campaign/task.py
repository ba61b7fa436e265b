"""What is learned, as its campaign seals it: data, features, model and local work.

Public values only. Scaling is a public constant, never fitted on the clients' data; what follows
from a slot's sum is post-processing, so no price depends on this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from checkins import validate
from checkins.campaign.optimizer import Optimizer
from checkins.campaign.validators import require_text
from checkins.errors import InvalidValue

MOST_LOCAL_STEPS = 10**6
MOST_FEATURES = 10**4
MOST_CLASSES = 10**6

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


class Features(StrEnum):
    """Public features that are computed from an example before anything is learned."""

    SCATTERING = "scattering"


NOT_PICTURES = 'scattering is for pictures: it goes with data = "fashion-mnist"'


@dataclass(frozen=True, slots=True)
class DataFile:
    """Anyone's table: a column that says whose a row is, one that says what to predict, features.

    ``ranges`` holds one (low, high) for each feature, in the features' order: public constants that
    a value is clipped to and scaled by. ``classes`` is how many labels there are: without it they
    must be 0, 1, ... up to some number. ``holdout`` is the share of clients that a public hash of
    the id makes public, to test on: nothing protects those.
    """

    file: str
    client_column: str
    label_column: str
    features: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    classes: int | None = None
    holdout: float = 0.0

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
        if self.classes is not None:
            validate.count(most=MOST_CLASSES, classes=self.classes)
            if self.classes < 2:
                raise InvalidValue("classes", self.classes, "must be at least 2")
        validate.probability(holdout=self.holdout)
        if self.holdout == 1:
            raise InvalidValue("holdout", self.holdout, "must be below 1: it leaves no clients")
        object.__setattr__(self, "holdout", float(self.holdout) + 0.0)


def _range(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = (_finite(end) for end in pair)
    if not low < high:
        raise InvalidValue("ranges", [low, high], "the first must be below the second")
    return low, high


def _finite(value: float) -> float:
    validate.non_negative(ranges=abs(value))  # finite, of either sign
    return float(value) + 0.0  # no minus zero: it would have a seal of its own


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned from what, and how much of the work a client does.

    With ``local_steps`` above 1 a client takes steps of its own of ``local_step_size`` s, from the
    model it was given to where they end, and reports (start − end) / s, a sum of gradients. A
    ``local_rate`` of 1 is the default, and kept as None. ``features`` are computed from an example
    before learning; None are the data's own.

    >>> Task("patients", "linear", Optimizer(rate=0.5))
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: model = 'linear': must be logistic, ... or "module:function"
    """

    data: str | DataFile
    model: str
    optimizer: Optimizer
    local_steps: int = 1
    local_rate: float | None = None
    features: Features | None = None

    def __post_init__(self) -> None:
        validate.one_of((str, DataFile), data=self.data)
        validate.one_of(Optimizer, optimizer=self.optimizer)
        validate.count(most=MOST_LOCAL_STEPS, local_steps=self.local_steps)
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
        self._check_local_rate()
        validate.one_of((Features, type(None)), features=self.features)
        if not fits(self.features, self.data):
            raise InvalidValue("features", str(self.features), NOT_PICTURES)

    def _check_local_rate(self) -> None:
        if self.local_rate is None:
            return
        validate.positive(local_rate=self.local_rate)
        if self.local_steps == 1:
            raise InvalidValue("local_rate", self.local_rate, "goes with local_steps above 1")
        rate = float(self.local_rate)
        object.__setattr__(self, "local_rate", None if rate == 1.0 else rate)

    @property
    def local_step_size(self) -> float:
        """The step of a client's own steps."""
        return 1.0 if self.local_rate is None else self.local_rate


def fits(features: Features | None, data: str | DataFile) -> bool:
    """Whether these features can be computed from this data."""
    return features is not Features.SCATTERING or data == DataSet.FASHION_MNIST
