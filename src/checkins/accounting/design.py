"""Describe a campaign's mechanism by the public parameters that its epsilon depends on.

A ``Design`` contains public facts only. Its constructor raises ``NotCovered`` if no theorem covers
the parameters. Parameters that every design needs have no default values. This module imports no
accountant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from checkins import validate
from checkins.accounting.noise_strategy import NoiseStrategy
from checkins.errors import InvalidValue, NotCovered

LEAST_SLOT_NOISE, MOST_SLOT_NOISE = 0.2, 1e6
"""Smallest and largest standard deviation of a slot's noise, in clip norms.

Outside this range, the accountant's floating-point numbers are too inaccurate."""
MOST_LOCAL_EPSILON = 100.0
"""Largest local epsilon that the accountant supports."""
MOST_PRIVUNIT_DIMENSION, LEAST_PRIVUNIT_EPSILON = 10**8, 1e-6
"""Largest dimension and smallest local epsilon for which PrivUnit is computed accurately."""
MOST_EPSILON = 500.0
"""Largest epsilon that a search tries, because a larger epsilon is no meaningful guarantee."""


class Protocol(StrEnum):
    """How clients draw a slot, and how the server uses the check-ins of a slot.

    Fixed: a client draws one of all slots, and the server uses at most ``capacity`` check-ins.
    Sliding: the same, but a client draws one of the next ``window`` slots after it wakes.
    Averaged: a client draws one of all slots, and the server averages all reports of a slot.
    """

    FIXED = "fixed"
    AVERAGED = "averaged"
    SLIDING = "sliding"


class Adjacency(StrEnum):
    """The neighbour relation: how two neighbouring datasets differ in one client."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


class NoiseAt(StrEnum):
    """Who adds the Gaussian noise."""

    CLIENT = "client"
    SERVER = "server"


class WakeTimes(StrEnum):
    """Whether the time at which a client wakes in the sliding protocol may depend on its data."""

    INDEPENDENT = "independent"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class LocalRandomizer:
    """Any randomizer for which a single report is (local_epsilon, local_delta)-DP."""

    local_epsilon: float
    local_delta: float = 0.0

    def __post_init__(self) -> None:
        validate.positive(local_epsilon=self.local_epsilon)
        if self.local_epsilon > MOST_LOCAL_EPSILON:
            raise InvalidValue(
                "local_epsilon", self.local_epsilon, f"must be at most {MOST_LOCAL_EPSILON:g}"
            )
        if self.local_delta != 0.0:
            validate.open_unit(local_delta=self.local_delta)

    @property
    def is_pure(self) -> bool:
        return self.local_delta == 0.0


class RandomizerName(StrEnum):
    """The names of the randomizers for which the accountant knows how dummy reports are drawn."""

    RANDOMIZED_RESPONSE = "randomized-response"
    LAPLACE = "laplace"
    PRIVUNIT = "privunit"


@dataclass(frozen=True, slots=True)
class NamedRandomizer(LocalRandomizer):
    """A randomizer whose distribution of dummies is known, so that epsilon is smaller.

    A dummy is a report without data, which the server draws in place of a missing report. The base
    class stands for any randomizer with the same local epsilon, and any dummies. If a design
    declares no capacity, the accountant does not use the name.
    """

    def __post_init__(self) -> None:
        LocalRandomizer.__post_init__(self)
        if self.local_delta != 0.0:
            raise InvalidValue("local_delta", self.local_delta, f"must be 0 for {self.describe()}")

    def describe(self) -> str:
        """Return the name of the randomizer with its parameters."""
        raise NotImplementedError

    def describe_dummy(self) -> str:
        """Return a noun phrase that says what a dummy is."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RandomizedResponseReports(NamedRandomizer):
    """Randomized response over ``categories`` values. A dummy is a uniform category."""

    categories: int = 2

    def __post_init__(self) -> None:
        NamedRandomizer.__post_init__(self)
        validate.count(categories=self.categories)
        if self.categories < 2:
            raise InvalidValue("categories", self.categories, "must be at least 2")

    def describe(self) -> str:
        return f"randomized response with {self.categories:,} categories"

    def describe_dummy(self) -> str:
        return "a uniform category"


@dataclass(frozen=True, slots=True)
class LaplaceReports(NamedRandomizer):
    """Laplace noise of scale 2C / local_epsilon on updates with L1 norm at most C.

    A dummy is only noise. Reports may be rounded to a grid afterwards.
    """

    def describe(self) -> str:
        return "Laplace noise"

    def describe_dummy(self) -> str:
        return "only noise"


@dataclass(frozen=True, slots=True)
class PrivUnitReports(NamedRandomizer):
    """PrivUnit for updates of this dimension. A dummy is a uniform point of the sphere."""

    dimension: int = 1

    def __post_init__(self) -> None:
        NamedRandomizer.__post_init__(self)
        validate.count(most=MOST_PRIVUNIT_DIMENSION, dimension=self.dimension)
        if self.local_epsilon < LEAST_PRIVUNIT_EPSILON:
            raise InvalidValue(
                "local_epsilon",
                self.local_epsilon,
                f"must be at least {LEAST_PRIVUNIT_EPSILON:g} for PrivUnit",
            )

    def describe(self) -> str:
        return f"PrivUnit in dimension {self.dimension:,}"

    def describe_dummy(self) -> str:
        return "a uniform point of the sphere"


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Gaussian noise of standard deviation ``noise_multiplier`` times the clipping norm C.

    With ``NoiseAt.CLIENT``, every report gets this noise. With ``NoiseAt.SERVER``, the sum of a
    slot gets it once. With a ``strategy``, the server correlates the noise of successive slots, and
    this is the deviation of Z_t (see ``NoiseStrategy``). None means independent noise. A strategy
    with independent noise is stored as None.
    """

    noise_multiplier: float
    at: NoiseAt
    strategy: NoiseStrategy | None = None

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.one_of(NoiseAt, at=self.at)
        validate.one_of((NoiseStrategy, type(None)), strategy=self.strategy)
        if self.strategy is None:
            return
        if self.at is not NoiseAt.SERVER:
            raise NotCovered(
                "noise_at",
                str(self.at),
                "noise can be correlated across slots only at the server: leave out bands and"
                " strategy, or add the noise at the server",
            )
        if self.strategy.is_independent:
            object.__setattr__(self, "strategy", None)


@dataclass(frozen=True, slots=True)
class Population:
    """The declared smallest and largest number of clients."""

    fewest: int
    most: int

    def __post_init__(self) -> None:
        validate.count(population=self.fewest)
        validate.count(population=self.most)
        if self.fewest > self.most:
            raise InvalidValue(
                "population",
                f"{self.fewest}..{self.most}",
                "the smallest number must not exceed the largest",
            )


@dataclass(frozen=True, slots=True)
class Design:
    """The public parameters of one campaign that its epsilon depends on.

    ``capacity`` is the largest number of check-ins that a slot uses. With noise at the server, None
    means that a slot uses all check-ins. With a local randomizer, None means that the capacity is
    not declared, and bounds that hold for every capacity are used. ``window`` is None unless the
    protocol is sliding. ``population`` is None if no number of clients is declared.
    ``least_reports`` is the smallest number of Gaussian reports that an averaged slot releases.
    The server skips a slot with fewer reports. None means that only empty slots are skipped.
    ``arrivals`` is the largest number of clients that wake in any ``window`` consecutive slots of
    the sliding protocol. None means that only ``population`` bounds it. ``wake_times`` says what is
    assumed about the time at which a client wakes in the sliding protocol.

    >>> Design(Protocol.FIXED, slots=0, participation=1.0, randomizer=LocalRandomizer(1.0))
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: slots = 0: must be an integer from 1 to 1,000,000,000,000
    """

    protocol: Protocol
    slots: int
    participation: float
    randomizer: LocalRandomizer | GaussianNoise
    capacity: int | None = None
    window: int | None = None
    population: Population | None = None
    least_reports: int | None = None
    arrivals: int | None = None
    wake_times: WakeTimes = WakeTimes.INDEPENDENT

    def __post_init__(self) -> None:
        validate.one_of(Protocol, protocol=self.protocol)
        validate.one_of(WakeTimes, wake_times=self.wake_times)
        validate.one_of((LocalRandomizer, GaussianNoise), randomizer=self.randomizer)
        validate.one_of((Population, type(None)), population=self.population)
        validate.count(slots=self.slots)
        validate.probability(participation=self.participation)
        if self.capacity is not None:
            validate.count(capacity=self.capacity)
        self._check_window()
        if self.protocol is Protocol.AVERAGED:
            self._check_averaged()
        if isinstance(self.randomizer, GaussianNoise):
            self._check_gaussian(self.randomizer)
        if self.least_reports is not None:
            self._check_least_reports(self.least_reports)

    def _check_window(self) -> None:
        if self.protocol is not Protocol.SLIDING:
            if self.window is not None:
                raise InvalidValue(
                    "window", self.window, "is for the sliding protocol only: leave it out"
                )
            if self.arrivals is not None:
                raise InvalidValue(
                    "arrivals", self.arrivals, "is for the sliding protocol only: leave it out"
                )
            if self.wake_times is not WakeTimes.INDEPENDENT:
                raise InvalidValue(
                    "wake_times",
                    str(self.wake_times),
                    "is for the sliding protocol only: leave it out",
                )
            return
        if self.window is None:
            raise InvalidValue(
                "window", None, "the sliding protocol needs a window from 1 to slots"
            )
        validate.count(window=self.window)
        if self.window > self.slots:
            raise InvalidValue("window", self.window, f"must be at most slots = {self.slots}")
        if self.arrivals is not None:
            validate.count(arrivals=self.arrivals)

    def _check_averaged(self) -> None:
        if self.participation != 1.0:
            raise NotCovered(
                "participation",
                self.participation,
                "averaged updates are proved for participation 1 only; use the fixed protocol",
            )
        if self.capacity is not None:
            raise InvalidValue(
                "capacity", self.capacity, "averaged updates use every report: leave it out"
            )
        if self.population is None:
            raise InvalidValue(
                "population",
                None,
                "averaged updates need the number of clients that contribute: LOW..HIGH",
            )

    def _check_gaussian(self, noise: GaussianNoise) -> None:
        if noise.at is NoiseAt.SERVER and self.protocol is Protocol.AVERAGED:
            raise NotCovered(
                "noise_at",
                str(noise.at),
                "the averaged protocol reveals the number of reports: use the fixed protocol",
            )
        sums_reports = noise.at is NoiseAt.CLIENT and self.protocol is not Protocol.AVERAGED
        if sums_reports and self.capacity is None:
            raise InvalidValue(
                "capacity", None, "Gaussian noise at the client needs a capacity of at least 1"
            )
        slot_noise = self.slot_noise(noise)
        if not LEAST_SLOT_NOISE <= slot_noise <= MOST_SLOT_NOISE:
            raise InvalidValue(
                "noise_multiplier",
                noise.noise_multiplier,
                f"the noise of a slot, {slot_noise:.4g} times the clip, must be"
                f" from {LEAST_SLOT_NOISE:g} to {MOST_SLOT_NOISE:,.0f}",
            )

    def _check_least_reports(self, least_reports: int) -> None:
        validate.count(least_reports=least_reports)
        noise = self.randomizer
        if self.protocol is not Protocol.AVERAGED or not isinstance(noise, GaussianNoise):
            raise InvalidValue(
                "least_reports",
                least_reports,
                "is for averaged Gaussian reports only: leave it out",
            )
        if noise.noise_multiplier * math.sqrt(least_reports) > MOST_SLOT_NOISE:
            raise InvalidValue(
                "least_reports",
                least_reports,
                f"makes the noise of a slot exceed {MOST_SLOT_NOISE:,.0f} times the clip",
            )
        if self.population is not None and least_reports > self.population.most:
            raise InvalidValue(
                "least_reports",
                least_reports,
                f"must be at most the {self.population.most:,} clients, or no slot has enough",
            )

    @property
    def reports_per_slot(self) -> int:
        """The number of reports with noise in the sum of a slot, dummies included.

        It is the capacity, or 1 if no capacity is declared. With noise at the server, a slot gets
        noise only once, and sums all check-ins if no capacity is declared.
        """
        return self.capacity or 1

    def slot_noise(self, noise: GaussianNoise) -> float:
        """Return the standard deviation of the noise of a slot's output, in clip norms.

        With capacity K and noise at the client, it is sqrt(K) times that of one report.
        """
        if noise.at is NoiseAt.SERVER or self.capacity is None:
            return noise.noise_multiplier
        return math.sqrt(self.capacity) * noise.noise_multiplier

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raise ``NotCovered`` if no theorem covers this neighbour relation for the protocol."""
        if self.protocol is Protocol.AVERAGED and adjacency is Adjacency.ADD_REMOVE:
            raise NotCovered(
                "adjacency",
                str(adjacency),
                "a lone client is visible in averaged updates (delta = 1): use replace-one",
            )

    @property
    def named_randomizer(self) -> NamedRandomizer | None:
        """The randomizer if the accountant uses how its dummies are drawn, and None otherwise."""
        uses_name = self.capacity is not None and self.protocol is not Protocol.AVERAGED
        return (
            self.randomizer if uses_name and isinstance(self.randomizer, NamedRandomizer) else None
        )

    @property
    def displaces_clients(self) -> bool:
        """Whether a client may take the place of another client in a full slot."""
        if self.protocol is Protocol.AVERAGED:
            return False
        return isinstance(self.randomizer, LocalRandomizer) or self.capacity is not None

    def has_unrelated_windows(self, adjacency: Adjacency) -> bool:
        """Return True if new data may change a client's window, and epsilon depends on this.

        It does not if the server adds independent noise to the sum of all check-ins.
        """
        is_replaced = adjacency is Adjacency.REPLACE_ONE
        matters = self.displaces_clients or self.has_correlated_noise
        return is_replaced and self.wake_times is WakeTimes.ANY and matters

    @property
    def has_correlated_noise(self) -> bool:
        """Whether the server correlates the noise of successive slots."""
        return isinstance(self.randomizer, GaussianNoise) and self.randomizer.strategy is not None

    @property
    def most_clients(self) -> int | None:
        """The largest number of clients that may check in to the slots of a client's window.

        None if it is not declared.
        """
        declared = [] if self.population is None else [self.population.most]
        if self.arrivals is not None:
            declared.append(self.arrivals)
        return min(declared, default=None)

    @property
    def drawable_slots(self) -> int:
        """The number of slots from which a client draws its slot: the window, or all slots."""
        return self.slots if self.window is None else self.window

    def after(self, slots: int) -> Design:
        """Return the design of a campaign that stops after ``slots`` slots.

        ``slots`` must be fixed beforehand. A client takes part only if it draws one of these slots,
        so the participation shrinks in proportion to the number of slots.
        """
        validate.count(most=self.slots, slots=slots)
        if self.protocol is Protocol.AVERAGED:
            return self
        drawable = min(slots, self.drawable_slots)
        return replace(
            self,
            slots=slots,
            window=None if self.window is None else drawable,
            participation=self.participation * drawable / self.drawable_slots,
        )
