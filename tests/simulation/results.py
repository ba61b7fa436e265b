"""Made-up results as a simulation would return them, to look at the report and to test it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from checkins.accounting import Adjacency, Certificate, Protocol
from checkins.accounting.certificate import Alternative
from checkins.campaign import Campaign, parse_campaign
from checkins.simulation.baselines import Baseline, CalibratedBaseline
from checkins.simulation.engine.evaluation import CurvePoint
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import Curve, Outcome
from checkins.simulation.engine.training import Scenario
from checkins.simulation.population import Histogram
from checkins.simulation.result import BaselineResult, DataSummary, SimulationResult, SweepResult

CLIENTS, SLOTS, CAPACITY, SEEDS = 17_549, 200, 96, 5
WIDTH = 3
TEXT = (
    (Path(__file__).resolve().parents[2] / "examples" / "patients.toml")
    .read_text("utf-8")
    .replace("capacity = 176", f"capacity = {CAPACITY}")
)
NOISE = "Gaussian, 0.1 clips on each report, 0.9798 on a sum"


def campaign(*, epsilon: float = 0.5, capacity: int = CAPACITY) -> Campaign:
    found = parse_campaign(TEXT).campaign
    assert found.design.protocol is Protocol.FIXED
    return replace(
        found,
        budget=replace(found.budget, epsilon=epsilon),
        design=replace(found.design, capacity=capacity),
    )


def patients(*, seeds: int = SEEDS, slots: int = SLOTS) -> SimulationResult:
    """A whole campaign with every piece that a page can show."""
    random = np.random.default_rng(7)
    return SimulationResult(
        campaign=campaign(),
        certificate=certificate(),
        complete=True,
        seeds=tuple(outcome(seed, slots, random) for seed in range(1, seeds + 1)),
        scenario=Scenario(CLIENTS),
        data=DataSummary("patients", CLIENTS, CLIENTS, 2, 3_510),
        model="logistic",
        dimension=21,
        noise=NOISE,
        on_holdout=True,
        epsilon_by_slot=_epsilon_by_slot(slots),
        occupancy=_occupancy(slots, random),
        dummies_expected=_expected_dummies(slots),
        baselines=_baselines(seeds, slots, random),
    )


def averaged() -> SimulationResult:
    """A campaign whose average of models is better than its last model by 0.05 of AUC."""
    result = patients()
    seeds = (
        replace(seed, average_curve=changed(seed.curve, lambda auc: auc + 0.05))
        for seed in result.seeds
    )
    return replace(result, seeds=tuple(seeds))


def stopped() -> SimulationResult:
    """What Ctrl-C leaves: two seeds done, the third stopped at slot 80."""
    result = patients(seeds=3)
    *done, last = result.seeds
    last = replace(last, complete=False, slots=80, curve=last.curve[:9])
    return replace(result, complete=False, seeds=(*done, last))


def diverged(result: SimulationResult) -> SimulationResult:
    """The same with models that did not stay finite."""
    return replace(result, seeds=tuple(Outcome.of_divergence(one.seed) for one in result.seeds))


def sweep(
    key: str = "protocol.slots", values: tuple[Any, ...] = (50, 100, 200, 400)
) -> SweepResult:
    """A campaign at several settings."""
    runs = []
    for place, value in enumerate(values):
        slots = value if key == "protocol.slots" else SLOTS
        run = patients(seeds=3, slots=slots)
        better = 0.004 * place - 0.002 * place**2
        runs.append(
            replace(
                run,
                settings={key: value},
                certificate=replace(
                    run.certificate, epsilon=run.certificate.epsilon * (1.0 + 0.2 * place)
                ),
                seeds=tuple(
                    replace(one, curve=changed(one.curve, lambda auc, by=better: auc + by))
                    for one in run.seeds
                ),
            )
        )
    return SweepResult(tuple(runs))


def changed(curve: Curve, change: Any, *, metric: str = "auc") -> Curve:
    """A learning curve with other values of one metric."""
    return tuple(
        CurvePoint(one.slots, {**one.metrics, metric: change(one.metrics[metric])}) for one in curve
    )


def over_budget(budget: float = 0.2) -> SimulationResult:
    """A campaign that spends more than its budget."""
    return replace(patients(), campaign=campaign(epsilon=budget))


def sweep_over_budget(over: tuple[int, ...] = (1,), without: tuple[int, ...] = ()) -> SweepResult:
    """A sweep some of whose settings are over budget, or have no model in the end."""
    runs = [
        replace(run, campaign=campaign(epsilon=0.2 if place in over else 0.5))
        for place, run in enumerate(sweep().runs)
    ]
    return SweepResult(
        tuple(diverged(run) if place in without else run for place, run in enumerate(runs))
    )


def certificate() -> Certificate:
    return Certificate(
        epsilon=0.2505022389725925,
        epsilon_lower=0.2502631852099479,
        delta=1e-06,
        adjacency=Adjacency.ADD_REMOVE,
        method="exact-population",
        variation=1.1e-26,
        assumptions=(
            "the server is trusted, clients are honest, their channels hidden; every release is"
            " seen",
            "each client takes part with probability at most 1 and draws its slot uniformly from"
            " 200, independently of all else",
            "updates are clipped, and the Gaussian noise is drawn exactly on the declared grid",
            "every slot sums exactly 96 reports, dummies included",
            "clients do not disclose whether they were chosen",
            "at most 20,000 clients exist, each of which checks in to any one slot with probability"
            " at most 1.0/200",
        ),
        alternatives=(
            Alternative(
                "exact",
                2.6237897294840318,
                "holds for any number of clients and any model",
                True,
            ),
            Alternative(
                "poisson",
                0.28314619581400474,
                "a server samples each client with probability 0.005 in each of 200 steps",
                False,
            ),
        ),
        seconds=0.465,
    )


def _baselines(seeds: int, slots: int, random: np.random.Generator) -> tuple[BaselineResult, ...]:
    """Three that ran, and one that could not."""
    ran = (
        (Baseline.NON_PRIVATE, None, 0.868, 0.0012),
        (Baseline.POISSON, 0.2505, 0.846, 0.0035),
        (Baseline.NO_AMPLIFICATION, 0.2505, 0.701, 0.016),
    )
    found = []
    for kind, epsilon, level, jitter in ran:
        private = epsilon is not None
        calibrated = CalibratedBaseline(
            kind,
            epsilon,
            1e-6 if private else None,
            Adjacency.ADD_REMOVE if private else None,
            Mechanism.of(campaign(), 21) if private else None,
        )
        outcomes = tuple(
            outcome(seed, slots, random, level=level, jitter=jitter) for seed in range(1, seeds + 1)
        )
        found.append(BaselineResult(calibrated, outcomes))
    why = "its bound needs replace-one neighbours"
    shuffling = CalibratedBaseline(
        Baseline.SHUFFLING, 0.2505, 1e-6, Adjacency.REPLACE_ONE, unavailable=why
    )
    return (*found, BaselineResult(shuffling, ()))


def outcome(
    seed: int,
    slots: int,
    random: np.random.Generator,
    *,
    level: float = 0.841,
    jitter: float = 0.010,
) -> Outcome:
    """A seed whose AUC rises from one half to ``level``, and fluctuates less and less."""
    at = np.unique(np.linspace(0, slots, 21).round().astype(int))
    rise = 1.0 - np.exp(-at / (0.18 * slots))
    own = level + random.normal(0.0, jitter)
    auc = 0.5 + (own - 0.5) * rise + random.normal(0.0, jitter, at.size) * (1.0 - 0.6 * rise)
    curve = tuple(
        CurvePoint(
            int(place), {"loss": 1.168 - 0.95 * one, "accuracy": 0.15 + 0.9 * one, "auc": one}
        )
        for place, one in zip(at, auc.tolist(), strict=True)
    )
    counts = random.multinomial(CLIENTS, [1.0 / slots] * slots)
    used = int(np.minimum(counts, CAPACITY).sum())
    return Outcome(
        seed=seed,
        complete=True,
        slots=slots,
        check_ins=CLIENTS,
        client_updates=used,
        dummies=slots * CAPACITY - used,
        contributors=(used,),
        curve=curve,
        seconds=0.46,
        updates_per_second=36_614.7,
        model=np.zeros(21, np.float32),
    )


def _epsilon_by_slot(slots: int) -> tuple[tuple[int, float], ...]:
    at = np.unique(np.linspace(1, slots, 40).round().astype(int))
    epsilon = certificate().epsilon * (at / slots) ** 0.56
    return tuple(zip(at.tolist(), epsilon.tolist(), strict=True))


def _occupancy(slots: int, random: np.random.Generator) -> Histogram:
    distribution = binom(CLIENTS, 1.0 / slots)
    low, high = int(distribution.ppf(1e-4)), int(distribution.ppf(1.0 - 1e-4))
    edges = np.arange(low, high + WIDTH + 1, WIDTH)
    counts = random.multinomial(CLIENTS, [1.0 / slots] * slots)
    measured = np.histogram(counts, edges)[0] / slots
    expected = np.diff(distribution.cdf(edges - 1))
    return Histogram(edges[:-1].tolist(), WIDTH, measured.tolist(), expected.tolist())


def _expected_dummies(slots: int) -> float:
    counts = np.arange(CAPACITY + 1)
    return float(slots * ((CAPACITY - counts) * binom(CLIENTS, 1.0 / slots).pmf(counts)).sum())
