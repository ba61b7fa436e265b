"""The question to a planner: population, budget, model, and capabilities of devices and server.

No value that privacy depends on has a default. The capabilities of devices and server have
defaults, because a wrong value can only waste time or accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from checkins import validate
from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
from checkins.accounting.noise_strategy import MOST_BANDS
from checkins.campaign import Features, RandomizerKind, Task
from checkins.campaign.task import DataSet, Model
from checkins.errors import InvalidValue

STEPS_PER_MOMENTUM_FACTOR = 10
"""The momentum factor 1/(1 − momentum) is at most the number of steps divided by this,
so that momentum averages over a small part of the run."""
MAX_MOMENTUM_FACTOR = 10.0
"""Largest momentum factor 1/(1 − momentum), for any number of steps."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Constants of a learning problem, which do not affect privacy. Distances are in clip norms.

    ``radius`` is the distance from the first model to a good model. ``largest_step`` is the largest
    stable step size. A step of size s moves the model by s if the update has one clip norm.
    ``mean_square`` is the mean squared norm of an update after the first steps. It is used as the
    variance due to sampling clients. The constants of this package's tasks were chosen by
    simulating the tasks with their public holdout data. No certificate covers that choice.
    """

    name: str | None = None
    clip: float = 1.0
    radius: float = 3.0
    largest_step: float = 4.0
    mean_square: float = 0.3
    task: Task | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            validate.text(name=self.name)
        validate.positive(clip=self.clip, radius=self.radius, largest_step=self.largest_step)
        validate.positive(mean_square=self.mean_square)
        validate.one_of((Task, type(None)), task=self.task)

    @classmethod
    def of(cls, task: Task, *, name: str | None = None) -> Learning:
        """Return the constants of a task, or defaults if it is not a task of this package."""
        constants = _TASK_CONSTANTS.get((str(task.data), task.model, task.features))
        return cls(name=name, task=task) if constants is None else cls(name, *constants, task)

    def max_momentum_factor(self, steps: float) -> float:
        """Return the largest allowed value of 1/(1 − momentum) for ``steps`` steps."""
        return min(MAX_MOMENTUM_FACTOR, max(1.0, steps / STEPS_PER_MOMENTUM_FACTOR))

    def bias(self, steps: float) -> float:
        """Return R/(2ηT): the error that remains after T = ``steps`` steps without noise, over R.

        R is the radius, and η is the largest stable step size with momentum. In Theorem 4.2 of
        [BKMTT20], this error is the term βR²/(2m) with m = T and β = 1/η.
        """
        return self.radius / (2.0 * self.largest_step * self.max_momentum_factor(steps) * steps)

    def step(self, *, steps: int, variance: float) -> float:
        """Return the step size R/(T√V) that balances bias and noise, or the largest stable one.

        The smaller of these two step sizes is returned. It is the distance that an update of one
        clip norm moves the model. V is the variance of the mean of all steps.
        """
        balanced = self.radius / (steps * math.sqrt(variance))
        return min(balanced, self.largest_step * self.max_momentum_factor(steps))

    def momentum(self, *, steps: int, step: float) -> float:
        """Return the least momentum that makes the step size stable, rounded up to hundredths."""
        if step <= self.largest_step:
            return 0.0
        return math.ceil(100.0 * (1.0 - self.largest_step / step)) / 100.0


_TASK_CONSTANTS: dict[tuple[str, str, Features | None], tuple[float, float, float, float]] = {
    (DataSet.PATIENTS, Model.LOGISTIC, None): (1.0, 3.3, 20.0, 0.1),
    (DataSet.FASHION_MNIST, Model.SOFTMAX, Features.SCATTERING): (0.1, 16.0, 6.0, 0.4),
    (DataSet.SYNTHETIC, Model.LOGISTIC, None): (1.0, 1.7, 40.0, 0.5),
}
"""Clip norm, radius, largest step and mean square for the tasks of this package."""


ALL = "all"
"""The capacity of a slot that uses every check-in."""
MAX_DIMENSION = 10**9
MAX_CLIENTS = 10**10
MAX_EPSILON = 100.0
"""Largest epsilon of a budget. A larger epsilon is no meaningful guarantee."""
MAX_DURATION_S = 100 * 365 * 86_400
MAX_REPEATS = 10_000
MAX_PLANNED_SLOTS = 10**7
SEARCHED_RANDOMIZERS = (RandomizerKind.GAUSSIAN, RandomizerKind.LAPLACE, RandomizerKind.PRIVUNIT)


@dataclass(frozen=True, slots=True)
class Devices:
    """Capabilities of a device.

    ``availability_s`` is the time for which a device stays available after it has joined. None
    means for the whole campaign. ``dropout`` is the probability that a chosen device never reports.
    """

    availability_s: float | None = None
    uplink_bytes_per_s: float = 125_000.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.availability_s is not None:
            validate.positive(availability_s=self.availability_s)
        validate.positive(uplink_bytes_per_s=self.uplink_bytes_per_s)
        validate.probability(dropout=self.dropout)
        if self.dropout == 1.0:
            raise InvalidValue(
                "dropout", self.dropout, "must be below 1, because no device would report"
            )


@dataclass(frozen=True, slots=True)
class Server:
    """Capabilities of the server: its reports per second, and the longest time for all runs."""

    updates_per_s: float = 1_000.0
    duration_s: float = 86_400.0

    def __post_init__(self) -> None:
        validate.positive(updates_per_s=self.updates_per_s, duration_s=self.duration_s)
        if self.duration_s > MAX_DURATION_S:
            raise InvalidValue("duration_s", self.duration_s, "must be at most a hundred years")


@dataclass(frozen=True, slots=True)
class Constraints:
    """Parameters that the user fixes. None means that the planner chooses.

    ``capacity`` may be "all", which means that a slot uses every check-in. This needs noise at the
    server.

    >>> Constraints(slots=100).fixed_values()
    {'slots': 100}
    """

    protocol: Protocol | None = None
    slots: int | None = None
    participation: float | None = None
    capacity: int | str | None = None
    window: int | None = None
    minibatch: int | None = None
    repeats: int | None = None
    bands: int | None = None
    noise_at: NoiseAt | None = None
    randomizer: RandomizerKind | None = None

    def __post_init__(self) -> None:
        validate.one_of((Protocol, type(None)), protocol=self.protocol)
        validate.one_of((NoiseAt, type(None)), noise_at=self.noise_at)
        validate.one_of((RandomizerKind, type(None)), randomizer=self.randomizer)
        limits = {"slots": MAX_PLANNED_SLOTS, "repeats": MAX_REPEATS}
        limits |= {"window": MAX_PLANNED_SLOTS, "minibatch": MAX_PLANNED_SLOTS}
        limits |= {"bands": MOST_BANDS}
        for name, most in limits.items():
            if getattr(self, name) is not None:
                validate.count(most=most, **{name: getattr(self, name)})
        if self.capacity is not None and self.capacity != ALL:
            validate.count(capacity=self.capacity)
        if self.participation is not None:
            validate.probability(participation=self.participation)
            if self.participation == 0.0:
                raise InvalidValue(
                    "participation", 0.0, "must be above 0, because no client would take part"
                )
        if self.randomizer not in (None, *SEARCHED_RANDOMIZERS):
            raise InvalidValue(
                "randomizer", str(self.randomizer), "must be gaussian, laplace or privunit"
            )
        for violated, name, expected in self._rules():
            if violated:
                raise InvalidValue(name, self.fixed_values()[name], expected)

    def _rules(self) -> Iterator[tuple[bool, str, str]]:
        """Yield whether a rule is violated, the parameter that violates it, and the rule's text."""
        pure = self.randomizer in (RandomizerKind.LAPLACE, RandomizerKind.PRIVUNIT)
        averaged, minibatch = self.protocol is Protocol.AVERAGED, self.minibatch
        server, client = self.noise_at is NoiseAt.SERVER, self.noise_at is NoiseAt.CLIENT
        yield pure and server, "noise_at", f"{self.randomizer} noise is added at the client"
        count = "the averaged protocol reveals the number of reports: use the fixed protocol"
        yield averaged and server, "noise_at", count
        partial_participation = averaged and self.participation not in (None, 1.0)
        yield partial_participation, "participation", "averaged updates need a participation of 1"
        capped = averaged and self.capacity is not None
        yield capped, "capacity", "averaged updates use every report: leave it out"
        batched = averaged and minibatch not in (None, 1)
        yield batched, "minibatch", "averaged updates make a step in every slot"
        sliding = self.protocol in (None, Protocol.SLIDING)
        yield self.window is not None and not sliding, "window", "needs the sliding protocol"
        slots = math.inf if self.slots is None else self.slots
        yield (self.window or 1) > slots, "window", f"must be at most slots = {self.slots}"
        yield (minibatch or 1) > slots, "minibatch", f"must be at most slots = {self.slots}"
        correlated = self.bands not in (None, 1)
        elsewhere = pure or client or averaged or self.capacity not in (None, ALL)
        server_only = "above 1 needs Gaussian noise at the server, without a capacity"
        yield correlated and elsewhere, "bands", server_only
        uses_all = self.capacity == ALL and (pure or client)
        yield uses_all, "capacity", "needs Gaussian noise at the server"

    def fixed_values(self) -> dict[str, object]:
        """Return the parameters that the user fixes, by name, as plain values."""
        values = ((parameter.name, getattr(self, parameter.name)) for parameter in fields(self))
        return {
            name: value if isinstance(value, int | float) else str(value)
            for name, value in values
            if value is not None
        }


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a design for a population, a budget and a model.

    >>> Question(Population(900, 1100), 1.0, 1e-6, Adjacency.ADD_REMOVE, dimension=10).clients
    995
    """

    population: Population
    epsilon: float
    delta: float
    adjacency: Adjacency
    dimension: int
    devices: Devices = field(default_factory=Devices)
    server: Server = field(default_factory=Server)
    fixed: Constraints = field(default_factory=Constraints)
    learning: Learning = field(default_factory=Learning)
    name: str = "planned"
    population_id: str | None = None

    def __post_init__(self) -> None:
        validate.one_of(Population, population=self.population)
        validate.positive(epsilon=self.epsilon)
        if self.epsilon > MAX_EPSILON:
            raise InvalidValue("epsilon", self.epsilon, f"must be at most {MAX_EPSILON:g}")
        validate.open_unit(delta=self.delta)
        validate.one_of(Adjacency, adjacency=self.adjacency)
        validate.count(most=MAX_DIMENSION, dimension=self.dimension)
        validate.one_of(Devices, devices=self.devices)
        validate.one_of(Server, server=self.server)
        validate.one_of(Constraints, fixed=self.fixed)
        validate.one_of(Learning, learning=self.learning)
        if self.population.most > MAX_CLIENTS:
            raise InvalidValue(
                "population", self.population.most, f"must be at most {MAX_CLIENTS:,}"
            )
        averaged = self.fixed.protocol is Protocol.AVERAGED
        if averaged and self.adjacency is Adjacency.ADD_REMOVE:
            raise InvalidValue(
                "adjacency",
                str(self.adjacency),
                "a lone client is visible in averaged updates (delta = 1): use replace-one",
            )

    @property
    def clients(self) -> int:
        """The number of clients to plan for: the geometric mean of the population's two limits."""
        return round(math.sqrt(self.population.fewest * self.population.most))

    @property
    def availability_s(self) -> float:
        """Seconds for which a device stays available, at most the server's whole duration."""
        device_s = self.devices.availability_s
        return self.server.duration_s if device_s is None else min(device_s, self.server.duration_s)

    def as_json(self) -> dict[str, object]:
        return {
            "population": [self.population.fewest, self.population.most],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "dimension": self.dimension,
            "devices": {
                "availability_s": self.availability_s,
                "uplink_bytes_per_s": self.devices.uplink_bytes_per_s,
                "dropout": self.devices.dropout,
            },
            "server": {
                "updates_per_s": self.server.updates_per_s,
                "duration_s": self.server.duration_s,
            },
            "fixed": self.fixed.fixed_values(),
            "task": self.learning.name,
        }
