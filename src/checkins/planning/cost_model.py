"""Expected accuracy and load of designs, their Pareto front, and the campaign of a design.

The *proxy* is one number that stands for the expected error of a design. Smaller is better:

    proxy = R/(2ηT) + √V,     V = g²/N + ρ d s²/T

R is the distance from the first model to a good model. The estimated excess loss is the proxy times
the clip norm times R. The first term measures how far the model still is from a good one after T
steps of the largest stable size η, which is larger with momentum. V is the variance of the mean of
all steps. g² is the mean square of an update in clip norms, N is the number of clients, and d is
the dimension. s is the standard deviation of one coordinate of the mean update of one step, in clip
norms. It is the noise of a slot's sum divided by the number of client reports in the sum. So
dummies, dropouts and dismissed check-ins make s larger. ρ is 1 if the noise of slots is
independent. If it is correlated, ρ is the factor by which the mean square of the noise in the
released models is smaller than with independent noise of the same s.

Theorem:     the form of Theorem 4.2 of the paper, [BKMTT20], for smooth losses ([B15, Thm 6.3]),
             without its constants. If a theorem of the paper covers a design, its bound on the risk
             is reported too.
Rounding:    none, because the proxy is not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from checkins.accounting import NoiseAt, Protocol
from checkins.accounting.paper.occupancy import expected_inverse_load
from checkins.accounting.paper.utility import averaged_risk, fixed_window_risk
from checkins.accounting.precision import Target
from checkins.campaign import (
    Budget,
    Campaign,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    Task,
    campaign_text,
)
from checkins.campaign.file import SCHEDULE
from checkins.errors import InvalidValue
from checkins.planning.candidate import CHECK_IN_SHARE, DesignCandidate, SlotLoad, slot_load
from checkins.planning.question import ALL, Question
from checkins.randomizers.grid import GridTooFine

EFFECTIVE_NOISE = "effective-noise"
"""Name of this proxy in JSON."""


@dataclass(frozen=True, slots=True)
class DesignMetrics:
    """The expected accuracy of a design, and its load on devices and server."""

    proxy: float
    noise_per_step: float
    variance: float
    """The variance V of the mean of all steps."""
    steps: int
    clients_per_step: float
    slot_load: SlotLoad

    @property
    def duration_s(self) -> float:
        return self.slot_load.duration_s


@dataclass(frozen=True, slots=True)
class TheoremRisk:
    """The paper's bound on the excess risk if the Lipschitz constant and the diameter are 1."""

    risk: float
    theorem: str


def design_metrics(
    candidate: DesignCandidate,
    level: float,
    question: Question,
    *,
    clients: int | None = None,
    slot_s: float | None = None,
) -> DesignMetrics:
    """Return the metrics of a candidate at this level.

    If ``clients`` is None, the planned number of clients is used. If ``slot_s`` is None, the
    shortest possible slot is used.
    """
    client_count = question.clients if clients is None else clients
    load = slot_load(candidate, question, clients=client_count, slot_s=slot_s)
    dimension, minibatch, steps = question.dimension, candidate.minibatch, candidate.steps
    reports = max(load.reports, 1e-12)
    active_steps = float(steps)
    if candidate.protocol is Protocol.AVERAGED:
        report_variance = candidate.report_variance(level, dimension=dimension)
        step_variance = report_variance * _inverse_load(reports)
        active_steps *= max(1.0 - load.empty_probability, 1e-12)
    else:
        slot_variance = candidate.slot_variance(level, dimension=dimension, reports=reports)
        step_variance = slot_variance / (minibatch * reports * reports)
    uploading = load.share_that_uploads(candidate) * client_count
    uploading = max(min(reports * minibatch * active_steps, uploading), 1e-12)
    noise_variance = candidate.noise_gain * dimension * step_variance / active_steps
    variance = question.learning.mean_square / uploading + noise_variance
    proxy = question.learning.bias(active_steps) + math.sqrt(variance)
    return DesignMetrics(
        proxy=proxy,
        noise_per_step=math.sqrt(step_variance),
        variance=variance,
        steps=steps,
        clients_per_step=load.reports * minibatch,
        slot_load=load,
    )


def theorem_risk(
    candidate: DesignCandidate, level: float, question: Question
) -> TheoremRisk | None:
    """Return the paper's bound on the risk, or None if the paper does not cover the design.

    The paper covers one run with one Gaussian report per slot, or with averaged updates.
    """
    if candidate.repeats > 1 or candidate.minibatch > 1:
        return None
    problem: dict[str, Any] = {"lipschitz": 1.0, "diameter": 1.0, "dimension": question.dimension}
    problem |= {"clients": question.clients, "slots": candidate.slots}
    local_noise = candidate.is_gaussian and candidate.noise_at is NoiseAt.CLIENT
    try:
        if candidate.protocol is Protocol.AVERAGED:
            variance = candidate.report_variance(level, dimension=question.dimension)
            risk = averaged_risk(**problem, noise_std=math.sqrt(variance))
            return TheoremRisk(risk, "paper, Theorem 4.2")
        if candidate.protocol is Protocol.FIXED and local_noise and candidate.capacity == 1:
            participation = candidate.participation
            risk = fixed_window_risk(**problem, participation=participation, noise_std=level)
            return TheoremRisk(risk, "paper, Theorem 3.5")
    except InvalidValue:
        pass
    return None


def _inverse_load(reports: float) -> float:
    """Return E[1/S | S > 0] if the number S of reports in a slot has the mean ``reports``."""
    if reports >= 200.0:
        return 1.0 / reports * (1.0 + 1.0 / reports)
    clients = 100_000  # with so many clients, S is nearly Poisson
    return expected_inverse_load(clients=clients, slots=max(2, round(clients / reports)))


@dataclass(frozen=True, slots=True)
class CalibratedDesign:
    """A candidate with its level (noise multiplier or local epsilon) and its metrics.

    ``epsilon`` is a proven upper bound at the target's delta. It is the target's epsilon or a
    certificate's epsilon.
    """

    candidate: DesignCandidate
    level: float
    epsilon: float
    target: Target
    metrics: DesignMetrics
    question: Question

    @classmethod
    def of(
        cls, candidate: DesignCandidate, level: float, target: Target, question: Question
    ) -> CalibratedDesign:
        """Return the design at a level that is proven to meet the target."""
        metrics = design_metrics(candidate, level, question)
        return cls(candidate, level, target.epsilon, target, metrics, question)

    @property
    def load(self) -> float:
        """The expected number of bytes that one client uploads in all runs."""
        return self.metrics.slot_load.upload_bytes_per_client(self.candidate)

    @property
    def objectives(self) -> tuple[float, float, float, float]:
        """The proxy, epsilon, duration and load of the design. For each of them, less is better."""
        return self.metrics.proxy, self.epsilon, self.metrics.duration_s, self.load

    @property
    def can_run(self) -> bool:
        """Whether devices can run the design. PrivUnit can only be simulated: no exact sampler."""
        return self.candidate.randomizer is not RandomizerKind.PRIVUNIT

    @property
    def capacity(self) -> int | str | None:
        if self.candidate.protocol is Protocol.AVERAGED:
            return None
        return ALL if self.candidate.capacity is None else self.candidate.capacity

    @property
    def label(self) -> str:
        """The most important parameters, such as ``fixed protocol, 200 slots, server noise``."""
        candidate = self.candidate
        words = [f"{candidate.protocol} protocol"]
        runs = f"{candidate.repeats:,} runs of " if candidate.repeats > 1 else ""
        words.append(f"{runs}{candidate.slots:,} slot{'' if candidate.slots == 1 else 's'}")
        if candidate.window is not None:
            words.append(f"window {candidate.window:,}")
        if candidate.participation < 1.0:
            words.append(f"participation {candidate.participation:g}")
        randomizer = (
            f"{candidate.noise_at} noise" if candidate.is_gaussian else candidate.randomizer
        )
        words.append(str(randomizer))
        if candidate.bands > 1:
            words.append(f"{candidate.bands:,} bands")
        return ", ".join(words)

    def as_json(self) -> dict[str, object]:
        candidate, metrics, load = self.candidate, self.metrics, self.metrics.slot_load
        theorem = theorem_risk(candidate, self.level, self.question)
        return {
            "label": self.label,
            "protocol": str(candidate.protocol),
            "slots": candidate.slots,
            "participation": candidate.participation,
            "capacity": self.capacity,
            "window": candidate.window,
            "minibatch": candidate.minibatch,
            "repeats": candidate.repeats,
            "bands": candidate.bands,
            "noise_at": str(candidate.noise_at),
            "randomizer": str(candidate.randomizer),
            "noise_multiplier": self.level if candidate.is_gaussian else None,
            "local_epsilon": None if candidate.is_gaussian else self.level,
            "epsilon": self.epsilon,
            "delta": self.target.delta,
            "adjacency": str(self.target.adjacency),
            "method": str(candidate.method(self.target)),
            "rounding": "epsilon is rounded up",
            "proxy": metrics.proxy,
            "proxy_kind": EFFECTIVE_NOISE,
            "theorem_risk": None if theorem is None else theorem.risk,
            "theorem": None if theorem is None else theorem.theorem,
            "noise_per_step": metrics.noise_per_step,
            "steps": metrics.steps,
            "clients_per_step": metrics.clients_per_step,
            "dummies_share": load.dummies_share,
            "duration_s": load.duration_s,
            "slot_s": load.slot_s,
            "upload_bytes_per_client": self.load,
            "share_of_clients_that_upload": load.share_that_uploads(candidate),
            "server_updates_per_s": load.server_updates_per_s,
            "can_run_on_devices": self.can_run,
        }


MAX_DESIGNS_SHOWN = 12
"""Largest number of designs of the Pareto front that a plan shows."""


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return True if no entry of ``one`` is larger than in ``other``, and some entry is smaller.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (1, 2)), dominates((1, 2), (2, 1))
    (True, False, False)
    """
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto(designs: Sequence[CalibratedDesign]) -> list[CalibratedDesign]:
    """Return the designs that no other design dominates, without duplicates, best proxy first."""
    distinct = {design.objectives: design for design in reversed(designs)}
    front = (one for one in distinct if not any(dominates(other, one) for other in distinct))
    return [distinct[objectives] for objectives in sorted(front)]


def thinned_front(
    front: Sequence[CalibratedDesign], always: CalibratedDesign
) -> list[CalibratedDesign]:
    """Return at most ``MAX_DESIGNS_SHOWN`` designs of a front, evenly spread, and ``always``."""
    if len(front) <= MAX_DESIGNS_SHOWN:
        return list(front)
    step = (len(front) - 1) / (MAX_DESIGNS_SHOWN - 2)
    evenly_spread = [front[round(index * step)] for index in range(MAX_DESIGNS_SHOWN - 1)]
    shown = {id(design): design for design in (*evenly_spread, always)}
    return sorted(shown.values(), key=lambda design: design.objectives)


FINEST_GRID, COARSEST_GRID = 1e-6, 1.0
"""Smallest and largest grid step that is tried for the reports of a campaign."""
AVERAGE_SHARE = 0.25
"""The share of the slots that the average of the models covers. It is declared with correlated
noise only, where the last model is clearly worse. With independent noise, both are nearly equal."""
SIGNIFICANT_DIGITS = 3
"""Significant digits of a planned learning rate or clip norm."""


def campaign_of(design: CalibratedDesign) -> Campaign:
    """Return the campaign that runs this design."""
    question, candidate = design.question, design.candidate
    slot_s = design.metrics.slot_load.slot_s
    return Campaign(
        name=question.name,
        population_id=question.population_id,
        budget=Budget(question.epsilon, question.delta, question.adjacency),
        design=candidate.design(design.level),
        repeats=candidate.repeats,
        randomizer=_randomizer_config(design),
        task=_task_with_optimizer(design),
        schedule=Schedule(
            SCHEDULE.start, slot_s=slot_s, choose_s=round(CHECK_IN_SHARE * slot_s, 6)
        ),
    )


def campaign_file_text(design: CalibratedDesign, campaign: Campaign) -> str:
    """Return the text of campaign.toml, with the planning question as a comment at the top."""
    question = design.question
    population = question.population
    fewest = "" if population.fewest == population.most else f"{population.fewest:,} to "
    clients = f"{fewest}{population.most:,} clients"
    head = [
        f"Planned for {clients} and a model of {question.dimension:,} numbers.",
        "checkins plan chose the slots, the noise and the other parameters to meet the budget.",
        "To see its certificate and whether it meets its budget: checkins check FILE",
    ]
    return campaign_text(campaign, head=head, is_chosen=True)


def _randomizer_config(design: CalibratedDesign) -> RandomizerConfig:
    candidate, clip = design.candidate, design.question.learning.clip
    if candidate.randomizer is RandomizerKind.PRIVUNIT:
        return RandomizerConfig(candidate.randomizer, clip=clip, dimension=candidate.dimension)
    if not candidate.is_gaussian:
        clip = _rounded(clip * math.sqrt(design.question.dimension))
    noise, grid = candidate.design(design.level).randomizer, FINEST_GRID
    while True:
        try:
            config = RandomizerConfig(candidate.randomizer, clip=clip, grid=grid)
            config.check_noise(noise)
            return config
        except GridTooFine:
            if grid >= COARSEST_GRID:
                raise
            grid = float(f"{grid * 10.0:.1e}")


def _task_with_optimizer(design: CalibratedDesign) -> Task | None:
    task = design.question.learning.task
    if task is None:
        return None
    average = AVERAGE_SHARE if design.candidate.bands > 1 else None
    return replace(task, optimizer=optimizer_of(design), average=average)


def optimizer_of(design: CalibratedDesign) -> Optimizer:
    """Return the optimizer whose step size R/(T√V) balances bias and noise.

    Momentum is used if that step is larger than the largest stable step. A slot's sum is divided by
    the expected number of reports, which is a public number.
    """
    learning, candidate, metrics = design.question.learning, design.candidate, design.metrics
    step = learning.step(steps=metrics.steps, variance=metrics.variance)
    momentum = learning.momentum(steps=metrics.steps, step=step)
    count: int | None = max(1, round(metrics.slot_load.reports))
    if candidate.protocol is Protocol.AVERAGED:
        count = None
    return Optimizer(
        rate=_rounded(step * (1.0 - momentum) / learning.clip),
        minibatch=candidate.minibatch,
        divide_by=count,
        momentum=momentum or None,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
