"""The learning task: data, features, model, local training and the optimizer of the server.

All values are public. Features are scaled by public constants, never by statistics of the clients'
data. Epsilon does not depend on the task, because updates are clipped and the server's optimizer is
post-processing. Real campaigns use the optimizer "sgd". "optax:NAME" names an optimizer of optax,
which is available only in simulations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from checkins import validate
from checkins.errors import InvalidValue

MAX_LOCAL_STEPS = 10**6
MAX_FEATURES = 10**4
MAX_CLASSES = 10**6
SGD = "sgd"

MAX_OPTIMIZER_ARGUMENTS = 100

_FUNCTION_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_OPTAX_KIND = re.compile(r"optax:([A-Za-z_]\w*)", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)

OptimizerArgument = tuple[str, float | bool]


class StepSizes(StrEnum):
    """The step size of step i with the rate c: either c, or c / sqrt(i).

    The latter is the step size of "Privacy Amplification via Random Check-Ins" (arXiv:2007.06605).
    """

    CONSTANT = "constant"
    INVERSE_SQRT = "inverse-sqrt"

    @property
    def decay(self) -> float:
        """The exponent d of the step size c / i^d."""
        return 0.5 if self is StepSizes.INVERSE_SQRT else 0.0


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The server's optimizer: θ ← θ − (rate / minibatch) × the sum of ``minibatch`` slots.

    ``divide_by`` is the fixed public number by which a slot's sum is divided. If it is None, a
    campaign sets it to its capacity, or to 1 if it has no capacity. Averaged updates divide by the
    number of reports, so ``divide_by`` stays None. The model is projected onto the ball of
    ``diameter`` around 0. If ``diameter`` is None, it is not projected.

    With ``momentum`` μ and the mean gradient g of a minibatch, the velocity is v ← g + μv. The step
    uses v, or g + μv if ``nesterov`` is True, as in optax.sgd. A momentum of 0 is stored as None.

    ``kind`` is "sgd" or "optax:NAME". ``arguments`` are the arguments of that optax function other
    than its rate. They are given as a mapping or as pairs, and stored as sorted pairs.

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
    arguments: tuple[OptimizerArgument, ...] = ()

    def __post_init__(self) -> None:
        require_optimizer_kind(self.kind)
        validate.one_of(StepSizes, schedule=self.schedule)
        validate.positive(rate=self.rate)
        validate.count(minibatch=self.minibatch)
        object.__setattr__(self, "kind", str(self.kind))
        validate.make_floats(self, "rate")
        if self.diameter is not None:
            validate.positive(diameter=self.diameter)
            validate.make_floats(self, "diameter")
        if self.divide_by is not None:
            validate.count(divide_by=self.divide_by)
        self._check_momentum()
        self._check_arguments()

    def _check_momentum(self) -> None:
        validate.one_of(bool, nesterov=self.nesterov)
        if self.momentum is None:
            if self.nesterov:
                raise InvalidValue("nesterov", True, "requires momentum")
            return
        if self.kind != SGD:
            raise InvalidValue("momentum", self.momentum, 'requires kind = "sgd"')
        validate.probability(momentum=self.momentum)
        if self.momentum == 1:
            raise InvalidValue("momentum", self.momentum, "must be below 1")
        if self.momentum == 0:  # 0 and None must give the same seal (hash)
            object.__setattr__(self, "momentum", None)
            object.__setattr__(self, "nesterov", False)
        else:
            validate.make_floats(self, "momentum")

    def _check_arguments(self) -> None:
        arguments: object = self.arguments
        pairs: Iterable[OptimizerArgument] = (
            arguments.items() if isinstance(arguments, Mapping) else self.arguments
        )
        sorted_pairs = sorted(optimizer_argument(name, value) for name, value in pairs)
        names = [name for name, _ in sorted_pairs]
        if sorted_pairs and self.kind == SGD:
            raise InvalidValue("arguments", names, 'require kind = "optax:NAME"')
        if len(sorted_pairs) > MAX_OPTIMIZER_ARGUMENTS or len(set(names)) < len(names):
            raise InvalidValue(
                "arguments", names, f"must be at most {MAX_OPTIMIZER_ARGUMENTS}, each named once"
            )
        object.__setattr__(self, "arguments", tuple(sorted_pairs))

    @property
    def optax(self) -> str | None:
        """The NAME of "optax:NAME". None for "sgd"."""
        match = _OPTAX_KIND.fullmatch(self.kind)
        return match and match[1]


def require_optimizer_kind(kind: object) -> None:
    """Raise InvalidValue unless ``kind`` is "sgd" or "optax:NAME"."""
    is_short_text = isinstance(kind, str) and len(kind) <= validate.LONGEST_TEXT
    if not is_short_text or not (kind == SGD or _OPTAX_KIND.fullmatch(str(kind))):
        raise InvalidValue("kind", kind, 'must be "sgd", or "optax:NAME" for a simulation')


def optimizer_argument(name: object, value: object) -> OptimizerArgument:
    """Return one checked argument of an optimizer.

    An integer becomes a float, so that 1 and 1.0 give the same seal (hash of the campaign).
    """
    validate.text(arguments=name)
    if not _IDENTIFIER.fullmatch(str(name)):
        raise InvalidValue("arguments", name, "must have a name of letters, digits and _")
    if name == "learning_rate":
        raise InvalidValue("arguments", name, "is set by rate and schedule")
    if isinstance(value, bool):
        return str(name), value
    if isinstance(value, int | float):
        try:
            number = float(value)
            validate.non_negative(arguments=abs(number))  # a finite number of either sign
            return str(name), number + 0.0  # −0.0 becomes 0.0, so that both give the same seal
        except (InvalidValue, OverflowError):
            pass
    raise InvalidValue("arguments", name, "must be a finite number, true or false")


class DataSet(StrEnum):
    """Data sets that the package can load."""

    PATIENTS = "patients"
    FASHION_MNIST = "fashion-mnist"
    SYNTHETIC = "synthetic"


DEVICES = "devices"
"""The ``data`` of a task whose data only the devices have, such as that of a Flower app."""


class Model(StrEnum):
    """Models that the package defines. Any other model is named as ``module:function``."""

    LOGISTIC = "logistic"
    SOFTMAX = "softmax"
    MLP = "mlp"
    CNN = "cnn"


class Features(StrEnum):
    """Features that are computed from each example separately, before training."""

    SCATTERING = "scattering"


SCATTERING_NEEDS_PICTURES = 'scattering is for pictures, so it needs data = "fashion-mnist"'


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file: its path, and which of its columns contain client, label and features.

    ``ranges`` contains one (low, high) for each feature, in the order of ``features``. Values are
    clipped to this range and scaled by it, so it must be a public constant. ``classes`` is the
    number of labels. If it is None, the labels in the data must be 0, 1, ... up to the largest.
    ``holdout`` is the share of clients whose data are used for testing, chosen by a public hash of
    their ids. Their data are not protected.
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
            validate.text(**{name: getattr(self, name)})
        object.__setattr__(self, "features", tuple(self.features))
        columns = (self.client_column, self.label_column, *self.features)
        for feature in self.features:
            validate.text(features=feature)
        if not 1 <= len(self.features) <= MAX_FEATURES:
            raise InvalidValue(
                "features", len(self.features), f"must be 1 to {MAX_FEATURES:,} columns"
            )
        for column in columns:
            if columns.count(column) > 1:
                raise InvalidValue("features", column, "a column can be used only once")
        if len(self.ranges) != len(self.features):
            raise InvalidValue("ranges", len(self.ranges), "must be one range for each feature")
        object.__setattr__(self, "ranges", tuple(_checked_range(pair) for pair in self.ranges))
        if self.classes is not None:
            validate.count(most=MAX_CLASSES, classes=self.classes)
            if self.classes < 2:
                raise InvalidValue("classes", self.classes, "must be at least 2")
        validate.probability(holdout=self.holdout)
        if self.holdout == 1:
            raise InvalidValue("holdout", self.holdout, "must be below 1, or no clients are left")
        object.__setattr__(self, "holdout", float(self.holdout) + 0.0)


def _checked_range(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = (_finite_float(end) for end in pair)
    if not low < high:
        raise InvalidValue("ranges", [low, high], "the first number must be below the second")
    return low, high


def _finite_float(value: float) -> float:
    validate.non_negative(ranges=abs(value))  # a finite number of either sign
    return float(value) + 0.0  # −0.0 becomes 0.0, so that both give the same seal


@dataclass(frozen=True, slots=True)
class Task:
    """The data, the model, and the training of a client and of the server.

    If ``local_steps`` is 1, a client reports one gradient. If it is larger, the client makes this
    many training steps of size s = ``local_step_size``, and reports (start − end) / s, where start
    and end are the models before and after its steps. This is a sum of gradients. A ``local_rate``
    of 1 is the default, and stored as None. ``features`` are computed from each example before
    training. If ``features`` is None, the values of the data are used as they are. ``average`` is
    the share of the slots that an average of the released models covers
    (``checkins.protocol.model_update``). If it is None, no average is computed.

    If ``data`` is "devices", only the devices know the data and how to train, and report what their
    own trainers return. ``model`` then names a function without arguments that returns the public
    initial arrays. Such a campaign can be served, and not simulated.

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
    average: float | None = None

    def __post_init__(self) -> None:
        validate.one_of((str, DataFile), data=self.data)
        validate.one_of(Optimizer, optimizer=self.optimizer)
        validate.count(most=MAX_LOCAL_STEPS, local_steps=self.local_steps)
        if isinstance(self.data, str):
            if self.data not in [*DataSet, DEVICES]:
                names = ", ".join([*DataSet, DEVICES])
                raise InvalidValue("data", self.data, f"must be {names} or a table with a file")
            object.__setattr__(self, "data", str(self.data))
        if self.model not in list(Model):
            validate.text(model=self.model)
            if not _FUNCTION_PATH.fullmatch(self.model):
                raise InvalidValue(
                    "model", self.model, f'must be {", ".join(Model)} or "module:function"'
                )
        object.__setattr__(self, "model", str(self.model))
        if self.data == DEVICES:
            self._check_devices()
        self._check_local_rate()
        validate.one_of((Features, type(None)), features=self.features)
        if not features_fit(self.features, self.data):
            raise InvalidValue("features", str(self.features), SCATTERING_NEEDS_PICTURES)
        if self.average is not None:
            validate.positive(average=self.average)
            validate.probability(average=self.average)
            validate.make_floats(self, "average")

    def _check_devices(self) -> None:
        if self.model in list(Model):
            expected = (
                f'must be "module:function" with data = "{DEVICES}": a function without arguments'
                " that returns the initial arrays"
            )
            raise InvalidValue("model", self.model, expected)
        if self.local_steps != 1:
            expected = f'must be 1 with data = "{DEVICES}", because the devices decide how to train'
            raise InvalidValue("local_steps", self.local_steps, expected)

    def _check_local_rate(self) -> None:
        if self.local_rate is None:
            return
        validate.positive(local_rate=self.local_rate)
        if self.local_steps == 1:
            raise InvalidValue("local_rate", self.local_rate, "requires local_steps above 1")
        rate = float(self.local_rate)
        object.__setattr__(self, "local_rate", None if rate == 1.0 else rate)

    @property
    def local_step_size(self) -> float:
        """The size of a client's training steps."""
        return 1.0 if self.local_rate is None else self.local_rate


def features_fit(features: Features | None, data: str | DataFile) -> bool:
    """Return True if these features can be computed from this data."""
    return features is not Features.SCATTERING or data == DataSet.FASHION_MNIST
