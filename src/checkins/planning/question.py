"""What a planner is asked: a population, a budget, a model, and what devices and server can do.

Nothing that privacy depends on has a default. What devices and the server can do has one: a wrong
guess there costs time or accuracy, never privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from checkins import validate
from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
from checkins.campaign import RandomizerKind
from checkins.errors import InvalidValue
from checkins.planning.learning import Learning

ALL = "all"
MOST_DIMENSION = 10**9
MOST_CLIENTS = 10**10
MOST_EPSILON = 100.0
"""A larger one promises nothing: no reports are private by themselves at more."""
MOST_SECONDS = 100 * 365 * 86_400
MOST_REPEATS = 10_000
MOST_PLANNED_SLOTS = 10**7
SEARCHED = (RandomizerKind.GAUSSIAN, RandomizerKind.LAPLACE, RandomizerKind.PRIVUNIT)


@dataclass(frozen=True, slots=True)
class Devices:
    """What a device can do.

    ``availability_s`` is for how long a device that has joined can keep an appointment; None: for
    as long as the campaign lasts. ``dropout`` is the chance that one that is chosen never reports.
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
            raise InvalidValue("dropout", self.dropout, "must be below 1: nobody would report")


@dataclass(frozen=True, slots=True)
class Server:
    """What the server can take: reports in a second, and how long all campaigns may last."""

    updates_per_s: float = 1_000.0
    duration_s: float = 86_400.0

    def __post_init__(self) -> None:
        validate.positive(updates_per_s=self.updates_per_s, duration_s=self.duration_s)
        if self.duration_s > MOST_SECONDS:
            raise InvalidValue("duration_s", self.duration_s, "must be at most a hundred years")


@dataclass(frozen=True, slots=True)
class Constraints:
    """What is not to be searched: None is for the planner to choose.

    ``capacity`` may be "all": every check-in is used, with the noise at the server.

    >>> Constraints(slots=100).named()
    {'slots': 100}
    """

    protocol: Protocol | None = None
    slots: int | None = None
    participation: float | None = None
    capacity: int | str | None = None
    window: int | None = None
    minibatch: int | None = None
    repeats: int | None = None
    noise_at: NoiseAt | None = None
    randomizer: RandomizerKind | None = None

    def __post_init__(self) -> None:
        if self.protocol is not None:
            validate.one_of(Protocol, protocol=self.protocol)
        if self.noise_at is not None:
            validate.one_of(NoiseAt, noise_at=self.noise_at)
        if self.slots is not None:
            validate.count(most=MOST_PLANNED_SLOTS, slots=self.slots)
        if self.repeats is not None:
            validate.count(most=MOST_REPEATS, repeats=self.repeats)
        for name in ("window", "minibatch"):
            if getattr(self, name) is not None:
                validate.count(most=MOST_PLANNED_SLOTS, **{name: getattr(self, name)})
        if self.capacity is not None and self.capacity != ALL:
            validate.count(capacity=self.capacity)
        if self.participation is not None:
            validate.probability(participation=self.participation)
            if self.participation == 0.0:
                raise InvalidValue("participation", 0.0, "must be above 0: nobody would take part")
        if self.randomizer is not None:
            validate.one_of(RandomizerKind, randomizer=self.randomizer)
            if self.randomizer not in SEARCHED:
                raise InvalidValue(
                    "randomizer", str(self.randomizer), "must be gaussian, laplace or privunit"
                )
        self._check_pairs()

    def _check_pairs(self) -> None:
        pure = self.randomizer in (RandomizerKind.LAPLACE, RandomizerKind.PRIVUNIT)
        averaged = self.protocol is Protocol.AVERAGED
        server = self.noise_at is NoiseAt.SERVER
        if pure and server:
            raise InvalidValue(
                "noise_at", "server", f"{self.randomizer} reports carry their noise themselves"
            )
        if averaged and server:
            raise InvalidValue(
                "noise_at", "server", "averaged updates divide by a count that shows: use fixed"
            )
        if averaged and self.participation not in (None, 1.0):
            raise InvalidValue(
                "participation", self.participation, "averaged updates are proved for 1 only"
            )
        if averaged and self.capacity is not None:
            raise InvalidValue(
                "capacity", self.capacity, "averaged updates use every report: leave it out"
            )
        if averaged and self.minibatch not in (None, 1):
            raise InvalidValue("minibatch", self.minibatch, "averaged updates step in every slot")
        if self.window is not None and self.protocol not in (None, Protocol.SLIDING):
            raise InvalidValue("window", self.window, "goes with the sliding protocol only")
        if self.window is not None and self.slots is not None and self.window > self.slots:
            raise InvalidValue("window", self.window, f"must be at most slots = {self.slots}")
        if self.minibatch is not None and self.slots is not None and self.minibatch > self.slots:
            raise InvalidValue("minibatch", self.minibatch, f"must be at most slots = {self.slots}")
        if self.capacity == ALL and (pure or self.noise_at is NoiseAt.CLIENT):
            raise InvalidValue("capacity", ALL, "goes with Gaussian noise at the server only")

    def named(self) -> dict[str, object]:
        """Only what is fixed, as plain values."""
        given = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {
            name: value if isinstance(value, int | float) else str(value)
            for name, value in given
            if value is not None
        }


@dataclass(frozen=True, slots=True)
class Question:
    """A design is wanted for this population, budget and model.

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
        if self.epsilon > MOST_EPSILON:
            raise InvalidValue("epsilon", self.epsilon, f"must be at most {MOST_EPSILON:g}")
        validate.open_unit(delta=self.delta)
        validate.one_of(Adjacency, adjacency=self.adjacency)
        validate.count(most=MOST_DIMENSION, dimension=self.dimension)
        validate.one_of(Devices, devices=self.devices)
        validate.one_of(Server, server=self.server)
        validate.one_of(Constraints, fixed=self.fixed)
        validate.one_of(Learning, learning=self.learning)
        if self.population.most > MOST_CLIENTS:
            raise InvalidValue(
                "population", self.population.most, f"must be at most {MOST_CLIENTS:,}"
            )
        averaged = self.fixed.protocol is Protocol.AVERAGED
        if averaged and self.adjacency is Adjacency.ADD_REMOVE:
            raise InvalidValue(
                "adjacency",
                str(self.adjacency),
                "a lone client shows in averaged updates (delta = 1): use replace-one",
            )

    @property
    def clients(self) -> int:
        """How many clients a plan reckons with: the middle of the range, on a log scale."""
        return round(math.sqrt(self.population.fewest * self.population.most))

    @property
    def availability_s(self) -> float:
        """For how long a device can keep an appointment; the whole time unless it is less."""
        asked = self.devices.availability_s
        return self.server.duration_s if asked is None else min(asked, self.server.duration_s)

    def as_dict(self) -> dict[str, object]:
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
            "fixed": self.fixed.named(),
            "task": self.learning.name,
        }
