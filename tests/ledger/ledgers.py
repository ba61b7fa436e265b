"""Small ledgers to take apart: built as a server would, by the same model update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign import (
    Budget,
    Campaign,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    Task,
)
from checkins.ledger.chain import Ledger
from checkins.ledger.entry import Closed, Entry, Reason, SlotClosed
from checkins.ledger.verification import certificate
from checkins.protocol.model_update import ModelUpdate

MODEL = np.array([0.5, -1.25, 3.0])


def campaign(
    kind: Protocol = Protocol.FIXED,
    *,
    slots: int = 4,
    window: int | None = None,
    participation: float = 1.0,
    epsilon: float = 3.0,
    name: str = "small",
    population_id: str | None = "clinic",
    repeats: int = 1,
    delta: float = 1e-6,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    grid: float | None = 2.0**-10,
    local_epsilon: float = 1.0,
    rate: float = 0.5,
    minibatch: int = 1,
    diameter: float | None = None,
    fewest: int = 4,
) -> Campaign:
    """A campaign with Laplace noise, whose epsilon is a finite sum: quick to certify."""
    averaged = kind is Protocol.AVERAGED
    return Campaign(
        name=name,
        population_id=population_id,
        budget=Budget(epsilon=epsilon, delta=delta, adjacency=adjacency),
        design=Design(
            kind,
            slots=slots,
            participation=participation,
            randomizer=LocalRandomizer(local_epsilon),
            capacity=None if averaged else 1,
            window=window,
            population=Population(fewest, 1000) if averaged else None,
        ),
        repeats=repeats,
        randomizer=RandomizerConfig(RandomizerKind.LAPLACE, clip=1.0, grid=grid),
        task=Task(
            "patients", "logistic", Optimizer(rate=rate, minibatch=minibatch, diameter=diameter)
        ),
        schedule=Schedule(datetime(2030, 1, 1, tzinfo=UTC), slot_s=1.0, choose_s=0.3),
    )


def at_least(least_reports: int, *, epsilon: float = 9.0) -> Campaign:
    """A campaign of averaged Gaussian reports that skips every slot with fewer reports."""
    run = campaign(Protocol.AVERAGED, epsilon=epsilon)
    noise = GaussianNoise(2.0, NoiseAt.CLIENT)
    return replace(
        run,
        design=replace(run.design, randomizer=noise, least_reports=least_reports),
        randomizer=replace(run.randomizer, kind=RandomizerKind.GAUSSIAN),
    )


def slots(
    run: Campaign,
    count: int,
    *,
    seed: int = 0,
    contributors: Sequence[int] = (),
    floats: bool = False,
) -> Iterable[SlotClosed]:
    """The first ``count`` slots of a run, with any totals at all."""
    dice = np.random.default_rng(seed)
    update = ModelUpdate.of(run)
    learner = update.start(MODEL)
    warm_up = 0 if run.design.window is None else run.design.window - 1
    for number in range(1, count + 1):
        total: Any = dice.integers(-5000, 5000, MODEL.size)
        count_here: int | None = None
        if floats:
            total = dice.normal(size=MODEL.size)
        if run.design.protocol is Protocol.AVERAGED:
            count_here = contributors[number - 1] if contributors else number - 1
        too_few = count_here is not None and count_here < (run.design.least_reports or 1)
        if number <= warm_up or too_few:
            total = None
        if number > warm_up:
            learner = update.apply(learner, total, count_here)
        yield SlotClosed.of(slot=number, total=total, model=learner.model, contributors=count_here)


class Book:
    """A ledger under construction, and its lines.

    Unless ``filtered``, it is written as before there were filters.
    """

    def __init__(self, *, filtered: bool = True) -> None:
        self.ledger = Ledger()
        self.filtered = filtered
        self.lines: list[bytes] = []

    def add(self, *entries: Entry) -> Book:
        for entry in entries:
            self.ledger, line = self.ledger.append(entry)
            self.lines.append(line)
        return self

    def open(self, run: Campaign, *, simulated: bool = False) -> Book:
        opening = self.ledger.opening(run, model=MODEL, simulated=simulated)
        return self.add(opening if self.filtered else replace(opening, filter=None))

    def run(self, run: Campaign, count: int | None = None, **options: Any) -> Book:
        """Open a campaign and run ``count`` of its slots."""
        simulated = options.pop("simulated", False)
        self.open(run, simulated=simulated)
        return self.add(*slots(run, run.design.slots if count is None else count, **options))

    def close(self, *, epsilon: float | None = None) -> Book:
        """Close the campaign with the certificate that the ledger deserves, or another epsilon."""
        current = self.ledger.running
        assert current is not None
        stated = certificate(self.ledger).as_dict()
        if epsilon is not None:
            stated["epsilon"] = epsilon
        whole = current.slots_closed == current.campaign.design.slots
        return self.add(Closed(Reason.COMPLETED if whole else Reason.STOPPED, stated))


def any_certificate(run: Campaign, **changes: object) -> dict[str, object]:
    """A certificate that fits the terms of a campaign, with any epsilon."""
    budget = run.budget
    stated = {"epsilon": 1.0, "delta": budget.delta, "adjacency": str(budget.adjacency)}
    return stated | changes


def renamed(run: Campaign, name: str) -> Campaign:
    return replace(run, name=name)
