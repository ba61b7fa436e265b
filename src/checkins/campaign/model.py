"""A campaign: all its public parameters, checked on construction and sealed by a hash.

The accountant certifies a ``Campaign``, the server and its clients follow it, and the ledger
records it. It contains only public values. Defaults that do not affect epsilon are filled in on
construction, so a file that states a default and a file that leaves it out give equal campaigns.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, ClassVar

from checkins import validate
from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    NoiseStrategy,
    Protocol,
)
from checkins.campaign import fields
from checkins.campaign.field_types import SCHEMA
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.task import Task
from checkins.errors import InvalidValue
from checkins.randomizers import Randomizer

MAX_REPORTS_PER_RUN = 2**31
"""Largest number of reports of a run, because at most this many clients enrol."""
MAX_REPORTS_IN_SUM = 2**32 - 1
"""Largest number of 32-bit reports whose sum always fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest epsilon that a campaign may have, with its delta and neighbour relation.

    A campaign stops before a release that would exceed this epsilon.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.open_unit(delta=self.delta)
        validate.one_of(Adjacency, adjacency=self.adjacency)
        validate.make_floats(self, "epsilon", "delta")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the slots of a campaign are, on the server's clock.

    Slot i is [start + (i−1) slot_s, start + i slot_s). A slot accepts check-ins for its first
    ``choose_s`` seconds. Then the server chooses the check-ins that it uses.
    """

    start: datetime
    slot_s: float
    choose_s: float

    def __post_init__(self) -> None:
        validate.one_of(datetime, start=self.start)
        if self.start.utcoffset() is None:
            raise InvalidValue(
                "start", self.start.isoformat(), "must state its UTC offset: end it with Z for UTC"
            )
        try:
            object.__setattr__(self, "start", self.start.astimezone(UTC).replace(fold=0))
        except OverflowError:
            raise InvalidValue("start", self.start.isoformat(), "is out of range") from None
        validate.positive(slot_s=self.slot_s, choose_s=self.choose_s)
        if not self.choose_s < self.slot_s:
            raise InvalidValue("choose_s", self.choose_s, f"must be below slot_s = {self.slot_s!r}")
        validate.make_floats(self, "slot_s", "choose_s")

    def slot_start(self, slot: int) -> datetime:
        """Return when slot ``slot`` begins. The first slot is 1."""
        return self.start + timedelta(seconds=(slot - 1) * self.slot_s)


@dataclass(frozen=True, slots=True)
class Campaign:
    """One campaign: its budget, design, randomizer, learning task and schedule.

    ``design`` is what the accountant certifies, including the amount of noise. ``randomizer`` says
    which mechanism draws the noise. A campaign without ``task`` or ``schedule`` can be certified,
    but not run (see ``missing``). ``population_id`` is None if no other campaign has the same
    clients.
    """

    schema: ClassVar[int] = SCHEMA

    name: str
    population_id: str | None
    budget: Budget
    design: Design
    repeats: int
    randomizer: RandomizerConfig
    task: Task | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        validate.text(name=self.name)
        if self.population_id is not None:
            validate.text(population_id=self.population_id)
        validate.one_of(Budget, budget=self.budget)
        validate.one_of(RandomizerConfig, randomizer=self.randomizer)
        validate.one_of((Task, type(None)), task=self.task)
        validate.one_of((Schedule, type(None)), schedule=self.schedule)
        validate.one_of(Design, design=self.design)
        validate.count(most=validate.MAX_CAMPAIGNS, campaigns=self.repeats)
        self.design.check_adjacency(self.budget.adjacency)
        self.randomizer.check_noise(self.design.randomizer)
        self._fill_in_design()
        if self.task is not None:
            self._check_optimizer(self.task)
        self._check_sums()
        if self.schedule is not None:
            self._check_end(self.schedule)

    def _fill_in_design(self) -> None:
        """Fill in the capacity and the name of a local randomizer.

        The default capacity is 1, as in "Privacy Amplification via Random Check-Ins"
        (arXiv:2007.06605). With the name, the accountant knows the distribution of dummy reports.
        """
        is_local = isinstance(self.design.randomizer, LocalRandomizer)
        design = replace(self.design, participation=float(self.design.participation) + 0.0)
        if is_local and design.capacity is None and design.protocol is not Protocol.AVERAGED:
            design = replace(design, capacity=1)
        if isinstance(design.randomizer, LocalRandomizer):
            design = replace(design, randomizer=self.randomizer.noise_with_name(design.randomizer))
        object.__setattr__(self, "design", design)

    def _check_optimizer(self, task: Task) -> None:
        """Check ``minibatch`` and ``divide_by``. Set an absent ``divide_by`` to its default."""
        optimizer = task.optimizer
        if optimizer.minibatch > self.design.slots:
            raise InvalidValue(
                "minibatch", optimizer.minibatch, f"must be at most slots = {self.design.slots}"
            )
        if self.design.protocol is Protocol.AVERAGED:
            if optimizer.minibatch != 1:
                raise InvalidValue(
                    "minibatch", optimizer.minibatch, "must be 1 for averaged updates"
                )
            if optimizer.divide_by is not None:
                raise InvalidValue(
                    "divide_by",
                    optimizer.divide_by,
                    "must be absent: averaged updates divide by the number of reports",
                )
        elif optimizer.divide_by is None:
            filled = replace(optimizer, divide_by=self.design.reports_per_slot)
            object.__setattr__(self, "task", replace(task, optimizer=filled))

    def _check_sums(self) -> None:
        """Raise InvalidValue if the sum of the reports of a minibatch may exceed 64 bits."""
        capacity = self.design.capacity
        self._check_correlated_totals(capacity or MAX_REPORTS_PER_RUN)
        if capacity is None or self.randomizer.grid is None:
            return
        minibatch = 1 if self.task is None else self.task.optimizer.minibatch
        largest = MAX_REPORTS_IN_SUM // minibatch
        if capacity > largest:
            condition = "" if minibatch == 1 else f" with minibatch = {minibatch:,}"
            expected = (
                f"must be at most {largest:,}{condition}, or sums of reports may exceed 64 bits"
            )
            raise InvalidValue("capacity", capacity, expected)

    def _check_correlated_totals(self, reports: int) -> None:
        """Raise InvalidValue if a total with weighted sums of earlier slots may exceed 64 bits.

        The noise is at most 2^31 in size, and a sum of ``reports`` reports at most that many times
        the clip norm.
        """
        strategy, grid, clip = self.strategy, self.randomizer.grid, self.randomizer.clip
        if strategy is None or grid is None or clip is None:
            return
        clip_units = math.floor(Fraction(clip) / Fraction(grid))
        if sum(strategy.numerators) * reports * clip_units + 2**31 >= 2**63:
            expected = (
                f"is too fine: with {strategy.bands} bands of {strategy.bits} bits, a total of"
                f" {reports:,} reports may exceed 64 bits: use a coarser grid, fewer bands or bits"
            )
            raise InvalidValue("grid", grid, expected)

    def _check_end(self, schedule: Schedule) -> None:
        try:
            schedule.slot_start(self.design.slots + 1)
        except OverflowError:
            raise InvalidValue(
                "slot_s", schedule.slot_s, "makes the campaign end after the year 9999"
            ) from None

    @property
    def warm_up(self) -> int:
        """Number of slots at the start of the sliding protocol that release nothing."""
        return 0 if self.design.window is None else self.design.window - 1

    @property
    def noise_multiplier(self) -> float | None:
        """Standard deviation of the noise / clip norm. None if the noise is not Gaussian."""
        noise = self.design.randomizer
        return float(noise.noise_multiplier) if isinstance(noise, GaussianNoise) else None

    @property
    def noise_at(self) -> NoiseAt | None:
        """Who adds the Gaussian noise. None if the randomizer is not Gaussian."""
        noise = self.design.randomizer
        return noise.at if isinstance(noise, GaussianNoise) else None

    @property
    def strategy(self) -> NoiseStrategy | None:
        """How noise is correlated across slots. None if the noise of slots is independent."""
        noise = self.design.randomizer
        return noise.strategy if isinstance(noise, GaussianNoise) else None

    @property
    def release_grid(self) -> float | None:
        """The step of the grid of a slot's released integers. None without a grid.

        With correlated noise, it is finer than the grid of reports by the factor 2**bits of the
        strategy, so that the released sums and their noise are integers.
        """
        grid, strategy = self.randomizer.grid, self.strategy
        if grid is None or strategy is None:
            return grid
        return math.ldexp(grid, -strategy.bits)

    @property
    def local_epsilon(self) -> float | None:
        """The epsilon of one report. None if the randomizer is Gaussian."""
        noise = self.design.randomizer
        return float(noise.local_epsilon) if isinstance(noise, LocalRandomizer) else None

    def mechanism(self, dimension: int) -> Randomizer:
        """Return the mechanism that randomizes reports of this dimension."""
        return self.randomizer.mechanism(self.design.randomizer, dimension=dimension)

    @property
    def missing(self) -> tuple[str, ...]:
        """The settings that must be added or changed before real clients can join."""
        is_categorical = self.randomizer.kind is RandomizerKind.RANDOMIZED_RESPONSE
        is_missing = {
            "[randomizer] clip": self.randomizer.clip is None and not is_categorical,
            "[randomizer] grid": self.randomizer.grid is None
            and self.randomizer.kind in (RandomizerKind.GAUSSIAN, RandomizerKind.LAPLACE),
            "[randomizer] kind = gaussian, laplace or privunit": is_categorical
            and self.task is not None,
            "[task]": self.task is None,
            '[task] optimizer kind = "sgd"': self.task is not None
            and self.task.optimizer.optax is not None,
            "[schedule]": self.schedule is None,
        }
        return tuple(setting for setting, missing in is_missing.items() if missing)

    @property
    def population_key(self) -> str:
        """The name of the campaign's population, which identifies its ledger.

        A campaign without a ``population_id`` has a population of its own, named after its seal.
        """
        if self.population_id is None:
            return f"seal {self.seal}"
        return f"population {self.population_id}"

    def canonical(self) -> str:
        """Return the canonical form: JSON in UTF-8 with sorted keys and no spaces.

        Two campaign files with the same values have the same canonical form. The order of keys,
        comments, the spelling of numbers, and defaults that are left out do not matter. If any
        value differs, the canonical form differs. Floats are written as Python prints them, times
        are in UTC, and absent values have no key. ``campaign_from_canonical`` reads this form. A
        ledger contains it, so the ledger can be verified without any other file.
        """
        values: dict[str, Any] = {}
        for section in fields.SECTIONS:
            if section.is_in(self):
                table = values
                for part in section.name.split(".") if section.name else ():
                    table = table.setdefault(part, {})
                sealed = {key.name: key.sealed_value(self) for key in section.keys if key.read}
                table |= {name: value for name, value in sealed.items() if value is not None}
        return json.dumps(
            values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )

    @property
    def seal(self) -> str:
        """The hash of the campaign's canonical form (invariant 9 of docs/invariants.md)."""
        return seal_of(self.canonical())


def seal_of(canonical: str) -> str:
    """Return the seal of a canonical form: ``sha256:`` and the 64 digits of its hash.

    >>> seal_of("")
    'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
    """
    return f"sha256:{hashlib.sha256(canonical.encode('utf-8')).hexdigest()}"
