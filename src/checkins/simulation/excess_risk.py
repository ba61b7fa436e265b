"""Measure the excess risk of the protocols on a convex problem with a known optimum.

The utility theorems bound the expected risk, over data, check-ins and noise. The expectation is
estimated by the mean over many simulated runs, each with independent clients and noise. Clients are
i.i.d., and every check-in is by a new client. It therefore does not matter which of a slot's
check-ins Algorithm 1 (the fixed window) uses. The mean of the noise of S reports is drawn as one
Gaussian with standard deviation σ/√S.
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
"""Confidence level of the upper limit (one-sided) of the risk of one trial."""
MIN_RUNS = 10
"""Least number of runs. With fewer, Student's t describes the mean of skewed risks poorly."""
MAX_RUNS = 100_000
MAX_SLOTS = 2**20

_MAX_ROWS = 1 << 18  # largest number of clients' rows, or of updates, in memory at a time
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
        validate.count(most=MAX_SLOTS, slots=self.slots)
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
        """κ of the step size κ/√i in slot i, or the constant step size of ``Scheme.SMOOTH``."""
        match self.scheme:
            case Scheme.FIXED:
                return utility.fixed_window_rate(
                    participation=self.participation, **self._arguments
                )
            case Scheme.AVERAGED:
                return utility.averaged_rate(**self._arguments)
            case Scheme.SMOOTH:
                return utility.averaged_smooth_step(smoothness=self._smoothness, **self._arguments)

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
                noise = self.problem.dimension * self.noise_std**2
                return utility.last_iterate_risk(
                    participation=self.participation,
                    rate=self.rate,
                    second_moment=self.problem.lipschitz**2 + noise,
                    diameter=self.problem.diameter,
                    clients=self.clients,
                    slots=self.slots,
                )
            case Scheme.AVERAGED:
                return utility.averaged_risk(**self._arguments)
            case Scheme.SMOOTH:
                return utility.averaged_smooth_risk(smoothness=self._smoothness, **self._arguments)

    @property
    def paper_bound(self) -> float:
        """The bound that the paper's theorem states.

        For the fixed window it is larger than ``bound``; otherwise it is equal.
        """
        if self.scheme is not Scheme.FIXED:
            return self.bound
        return utility.fixed_window_risk(participation=self.participation, **self._arguments)

    @property
    def worst_risk(self) -> float:
        """Excess risk of the worst model in the ball. A bound above this value is vacuous."""
        return worst_risk(self.problem)

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments that all functions of ``accounting.paper.utility`` share."""
        names = ("lipschitz", "diameter", "dimension")
        sizes = {"clients": self.clients, "slots": self.slots, "noise_std": self.noise_std}
        return {name: getattr(self.problem, name) for name in names} | sizes

    @property
    def _smoothness(self) -> float:
        """β of the problem; 0 if the loss is not smooth."""
        return self.problem.smoothness or 0.0


@dataclass(frozen=True, slots=True)
class MeasuredRisk:
    """The mean excess risk of a trial's runs, and its standard error."""

    trial: Trial
    runs: int
    risk: float
    standard_error: float
    """Standard error of ``risk``."""

    @property
    def upper_limit(self) -> float:
        """Upper confidence limit of the expected risk at ``CONFIDENCE``, by Student's t."""
        return self.risk + float(stdtrit(self.runs - 1, CONFIDENCE)) * self.standard_error

    @property
    def share_of_bound(self) -> float:
        """``upper_limit`` divided by the bound. A value above 1 would contradict the theorem."""
        return self.upper_limit / self.trial.bound


def measure(trial: Trial, *, runs: int, seed: int) -> MeasuredRisk:
    """Run the trial ``runs`` times. Different seeds share no client and no randomness."""
    validate.one_of(Trial, trial=trial)
    validate.count(most=MAX_RUNS, runs=runs)
    if not runs >= MIN_RUNS:
        raise InvalidValue("runs", runs, f"must be at least {MIN_RUNS}")
    models = train_models(trial, runs=runs, seed=seed)
    risks = [trial.problem.excess_risk(model) for model in models]
    deviation = float(np.std(risks, ddof=1))
    return MeasuredRisk(trial, runs, float(np.mean(risks)), deviation / math.sqrt(runs))


def train_models(trial: Trial, *, runs: int, seed: int) -> _Models:
    """Return the trained models, one row per run."""
    generator = np.random.default_rng([seed, 3])
    reports = draw_check_ins(trial, generator, runs=runs)
    if trial.scheme is Scheme.FIXED:
        reports = np.minimum(reports, 1)
    models = np.zeros((runs, trial.problem.dimension))
    model_sum = np.zeros_like(models)
    rate, clients_used = trial.rate, 0
    block_slots = max(1, _MAX_ROWS * trial.slots // max(int(reports.sum()), runs * trial.slots))
    for block_start in range(0, trial.slots, block_slots):
        block_reports = reports[block_start : block_start + block_slots]
        block_clients = int(block_reports.sum())
        features, targets = trial.problem.clients(
            np.arange(clients_used, clients_used + block_clients), stream=f"utility:{seed}"
        )
        clients_used += block_clients
        noise_stds = trial.noise_std / np.sqrt(np.maximum(block_reports, 1))
        noise = generator.standard_normal((*block_reports.shape, trial.problem.dimension))
        noise *= noise_stds[:, :, None]
        slot_ends = np.cumsum(block_reports.sum(axis=1))
        rows = zip(block_reports, noise, strict=True)
        for slot, (run_reports, updates) in enumerate(rows, start=block_start + 1):
            model_sum += models
            end = int(slot_ends[slot - block_start - 1])
            slot_rows = slice(end - int(run_reports.sum()), end)
            clients = features[slot_rows], targets[slot_rows]
            _add_gradients(trial.problem, updates, models, run_reports, clients)
            if trial.scheme is not Scheme.FIXED:
                updates[run_reports == 0] = 0.0
            step = rate if trial.scheme is Scheme.SMOOTH else rate / math.sqrt(slot)
            models = _projected(models - step * updates, trial.problem.diameter / 2.0)
    return model_sum / trial.slots if trial.scheme is Scheme.SMOOTH else models


def draw_check_ins(trial: Trial, generator: np.random.Generator, *, runs: int) -> NDArray[np.int64]:
    """Draw the numbers of check-ins: one row per slot and one column per run.

    Theorem:     Algorithm 1, client's side. The counts of a run are multinomial.
    """
    participants = generator.binomial(trial.clients, trial.participation, runs)
    return generator.multinomial(participants, np.full(trial.slots, 1.0 / trial.slots)).T


def worst_risk(problem: Problem) -> float:
    """Return the excess risk at the point of the ball that is farthest from the optimum.

    No model of the ball is worse. Among models of equal norm, the worst one points away from the
    optimum c. For the absolute and the squared loss, this is so because the risk grows with the
    distance to c. For the logistic loss, E[log(1 + eˢ)] depends only on the norm of the model, and
    E[yx] is a positive multiple of c. Along the ray away from c, a convex risk grows, so the worst
    model is on the sphere.
    """
    direction = -problem.optimum / np.linalg.norm(problem.optimum)
    return problem.excess_risk(direction * (problem.diameter / 2.0))


_Clients = tuple[NDArray[np.float64], NDArray[np.generic]]


def _add_gradients(
    problem: Problem,
    updates: _Models,
    models: _Models,
    run_reports: NDArray[np.int64],
    clients: _Clients,
) -> None:
    """Add to each run's update the mean gradient of the run's clients, in place.

    ``run_reports`` are the numbers of reports of the runs. The rows of ``clients`` are ordered by
    run.
    """
    features, targets = clients
    if not len(features):
        return
    runs = np.repeat(np.arange(len(models)), run_reports)
    scores = np.einsum("ij,ij->i", features, models[runs])
    gradients = features * problem.loss_derivative(scores, targets)[:, None]
    has_reports = run_reports > 0
    if len(features) > int(has_reports.sum()):
        starts = (np.cumsum(run_reports) - run_reports)[has_reports]
        gradients = np.add.reduceat(gradients, starts, axis=0) / run_reports[has_reports][:, None]
    updates[has_reports] += gradients


def _projected(models: _Models, radius: float) -> _Models:
    norms = np.sqrt(np.einsum("ij,ij->i", models, models))
    projected: _Models = models * np.minimum(1.0, radius / np.maximum(norms, 1e-300))[:, None]
    return projected
