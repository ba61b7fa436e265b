"""Measure the excess risk of the protocols on a convex problem with a known optimum.

The utility theorems bound the expected risk, over data, check-ins and noise. It is estimated by the
mean over many simulated runs, each with independent clients and noise. Clients are i.i.d., and
every check-in is by a new client, so it does not matter which of a slot's check-ins the fixed
window uses. The mean of the noise of S reports is drawn as one Gaussian of deviation σ/√S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from checkins import validate
from checkins.accounting.paper import utility
from checkins.errors import InvalidValue
from checkins.tasks.data.synthetic import Problem

CONFIDENCE = 0.999
"""One-sided confidence level of the upper limit of a measured risk, for each trial."""
FEWEST_RUNS = 10
"""Least number of runs. With fewer runs, Student's t fits the mean of skewed values poorly."""
MOST_RUNS = 100_000
MOST_SLOTS = 2**20

_ROWS = 1 << 18  # largest number of clients' rows, or of reports, in memory at a time
_Models = NDArray[np.float64]


class Scheme(StrEnum):
    """The model update of a slot, and the model that a run returns."""

    FIXED = "fixed"
    """Algorithm 1. Slot i uses one report, real or dummy, with step size κ/√i.

    The run returns the last model.
    """
    AVERAGED = "averaged"
    """Algorithm 2. Slot i uses the mean of all its reports, if there are any, with step size κ/√i.

    The run returns the last model.
    """
    SMOOTH = "averaged-smooth"
    """Algorithm 2 on a smooth loss, with a constant step size.

    The run returns the mean of the models θ₁..θ_m.
    """


@dataclass(frozen=True, slots=True)
class Trial:
    """A problem, a protocol and the noise of a report; the theorem determines the step size."""

    problem: Problem
    scheme: Scheme
    slots: int
    clients: int
    noise_std: float
    """Standard deviation σ of a report's noise, for each coordinate."""
    participation: float = 1.0

    def __post_init__(self) -> None:
        validate.one_of(Problem, problem=self.problem)
        validate.one_of(Scheme, scheme=self.scheme)
        validate.count(most=MOST_SLOTS, slots=self.slots)
        validate.count(clients=self.clients)
        validate.non_negative(noise_std=self.noise_std)
        validate.probability(participation=self.participation)
        if self.scheme is not Scheme.FIXED and self.participation != 1.0:
            why = "must be 1 with averaged updates"
            raise InvalidValue("participation", self.participation, why)
        if self.scheme is Scheme.SMOOTH and self.problem.smoothness is None:
            raise InvalidValue("problem", str(self.problem.loss_kind), "must have a smooth loss")

    @property
    def rate(self) -> float:
        """κ of the step size κ/√i, or the constant step of the smooth scheme."""
        match self.scheme:
            case Scheme.FIXED:
                return utility.fixed_window_rate(participation=self.participation, **self._given)
            case Scheme.AVERAGED:
                return utility.averaged_rate(**self._given)
            case Scheme.SMOOTH:
                return utility.averaged_smooth_step(smoothness=self._smoothness, **self._given)

    @property
    def bound(self) -> float:
        """The smallest proved bound on the expected excess risk at this step size.

        Theorem:     [BKMTT20, Thm 3.5 and 4.2], arXiv:2007.06605v2, as ``accounting.paper.utility``
                     proves them. The fixed window uses ``last_iterate_risk``.
        Neighbours:  none. The expectation is over data, check-ins and noise.
        Rounding:    up.
        """
        match self.scheme:
            case Scheme.FIXED:
                moment = self.problem.lipschitz**2 + self.problem.dimension * self.noise_std**2
                return utility.last_iterate_risk(
                    participation=self.participation,
                    rate=self.rate,
                    second_moment=moment,
                    diameter=self.problem.diameter,
                    clients=self.clients,
                    slots=self.slots,
                )
            case Scheme.AVERAGED:
                return utility.averaged_risk(**self._given)
            case Scheme.SMOOTH:
                return utility.averaged_smooth_risk(smoothness=self._smoothness, **self._given)

    @property
    def paper_bound(self) -> float:
        """The bound that the paper's theorem states.

        For the fixed window it is larger than ``bound``; otherwise it is equal.
        """
        if self.scheme is not Scheme.FIXED:
            return self.bound
        return utility.fixed_window_risk(participation=self.participation, **self._given)

    @property
    def worst(self) -> float:
        """Excess risk of the worst model in the ball. A bound above it says nothing."""
        return worst_risk(self.problem)

    @property
    def _given(self) -> dict[str, Any]:
        """The arguments that all bounds of ``utility`` share."""
        names = ("lipschitz", "diameter", "dimension")
        given = {name: getattr(self.problem, name) for name in names}
        return given | {"clients": self.clients, "slots": self.slots, "noise_std": self.noise_std}

    @property
    def _smoothness(self) -> float:
        return self.problem.smoothness or 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The mean excess risk of a trial's runs, and its standard error."""

    trial: Trial
    runs: int
    risk: float
    error: float
    """Standard error of ``risk``."""

    @property
    def upper(self) -> float:
        """Upper confidence limit of the expected risk at ``CONFIDENCE``, by Student's t."""
        return self.risk + float(stdtrit(self.runs - 1, CONFIDENCE)) * self.error

    @property
    def share(self) -> float:
        """``upper`` divided by the bound. A value above 1 would contradict the theorem."""
        return self.upper / self.trial.bound


def measure(trial: Trial, *, runs: int, seed: int) -> Measured:
    """Run the trial ``runs`` times. Different seeds share no client and no randomness."""
    validate.one_of(Trial, trial=trial)
    validate.count(most=MOST_RUNS, runs=runs)
    if not runs >= FEWEST_RUNS:
        raise InvalidValue("runs", runs, f"must be at least {FEWEST_RUNS}")
    risks = [trial.problem.excess_risk(model) for model in learned(trial, runs=runs, seed=seed)]
    spread = float(np.std(risks, ddof=1))
    return Measured(trial, runs, float(np.mean(risks)), spread / math.sqrt(runs))


def learned(trial: Trial, *, runs: int, seed: int) -> _Models:
    """Return the learned models, one row per run."""
    generator = np.random.default_rng([seed, 3])
    loads = check_ins(trial, generator, runs=runs)
    if trial.scheme is Scheme.FIXED:
        loads = np.minimum(loads, 1)
    models = np.zeros((runs, trial.problem.dimension))
    visited = np.zeros_like(models)
    rate, met = trial.rate, 0
    block = max(1, _ROWS * trial.slots // max(int(loads.sum()), runs * trial.slots))
    for first in range(0, trial.slots, block):
        part = loads[first : first + block]
        size = int(part.sum())
        features, targets = trial.problem.clients(
            np.arange(met, met + size), stream=f"utility:{seed}"
        )
        met += size
        deviations = trial.noise_std / np.sqrt(np.maximum(part, 1))
        noise = generator.standard_normal((*part.shape, trial.problem.dimension))
        noise *= deviations[:, :, None]
        ends = np.cumsum(part.sum(axis=1))
        for slot, (load, report) in enumerate(zip(part, noise, strict=True), start=first + 1):
            visited += models
            end = int(ends[slot - first - 1])
            here = slice(end - int(load.sum()), end)
            clients = features[here], targets[here]
            _add_gradients(trial.problem, report, models, load, clients)
            if trial.scheme is not Scheme.FIXED:
                report[load == 0] = 0.0
            step = rate if trial.scheme is Scheme.SMOOTH else rate / math.sqrt(slot)
            models = _projected(models - step * report, trial.problem.diameter / 2.0)
    return visited / trial.slots if trial.scheme is Scheme.SMOOTH else models


def check_ins(trial: Trial, generator: np.random.Generator, *, runs: int) -> NDArray[np.int64]:
    """Draw the number of check-ins, one row per slot and one column per run.

    Theorem:     Algorithm 1, client's side. The counts of a run are multinomial.
    """
    takers = generator.binomial(trial.clients, trial.participation, runs)
    return generator.multinomial(takers, np.full(trial.slots, 1.0 / trial.slots)).T


def worst_risk(problem: Problem) -> float:
    """Return the excess risk at the point of the ball that is farthest from the optimum.

    No model of the ball is worse. Among models of equal norm, the worst one points away from the
    optimum c. For the first two losses this is so because the risk grows with the distance to c.
    For the third, E[log(1 + eˢ)] depends only on the norm, and E[yx] is a positive multiple of c.
    Along the ray away from c, a convex risk grows, so the worst model is on the sphere.
    """
    away = -problem.optimum / np.linalg.norm(problem.optimum)
    return problem.excess_risk(away * (problem.diameter / 2.0))


_Clients = tuple[NDArray[np.float64], NDArray[np.generic]]


def _add_gradients(
    problem: Problem, reports: _Models, models: _Models, loads: NDArray[np.int64], clients: _Clients
) -> None:
    """Add to each run's report the mean gradient of the run's clients, in place.

    ``loads`` are the numbers of clients of the runs. The rows of ``clients`` are ordered by run.
    """
    features, targets = clients
    if not len(features):
        return
    runs = np.repeat(np.arange(len(models)), loads)
    scores = np.einsum("ij,ij->i", features, models[runs])
    gradients = features * problem.loss_derivative(scores, targets)[:, None]
    busy = loads > 0
    if len(features) > int(busy.sum()):
        starts = (np.cumsum(loads) - loads)[busy]
        gradients = np.add.reduceat(gradients, starts, axis=0) / loads[busy][:, None]
    reports[busy] += gradients


def _projected(models: _Models, radius: float) -> _Models:
    norms = np.sqrt(np.einsum("ij,ij->i", models, models))
    shrunk: _Models = models * np.minimum(1.0, radius / np.maximum(norms, 1e-300))[:, None]
    return shrunk
