"""Make a plan: a recommended design, its certificate, a Pareto front of designs, and reasons.

>>> from checkins.accounting import Adjacency, Population
>>> question = Question(Population(9000, 11000), 1.0, 1e-6, Adjacency.ADD_REMOVE, dimension=14)
>>> plan = make_plan(question)
>>> plan.recommended.candidate.protocol.value, plan.certificate.epsilon <= 1.0
('fixed', True)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from checkins.accounting import Adjacency, Certificate, Protocol, total_variation
from checkins.accounting.certificate import versions
from checkins.accounting.precision import Method, Precision, Target, certify_at
from checkins.campaign import Campaign, PartialRun, certify_runs
from checkins.errors import NotCovered
from checkins.planning.candidate import DesignCandidate
from checkins.planning.cost_model import (
    CalibratedDesign,
    campaign_file_text,
    campaign_of,
    pareto,
    thinned_front,
)
from checkins.planning.explain import Reason, SensitivityRow, reasons, sensitivity
from checkins.planning.question import Question
from checkins.planning.search import CachedCalibrator, round_level, search

BUDGET_FACTORS = (0.25, 0.5, 2.0, 4.0)
"""The budget curve shows the epsilon of the question times each of these factors."""
MAX_CURVE_EPSILON = 50.0
"""Largest epsilon on the budget curve."""


def slots_curve(designs: Iterable[CalibratedDesign]) -> list[dict[str, object]]:
    """Return one point of the curve for each number of slots, all at the same epsilon."""
    return [
        {
            "slots": design.candidate.slots,
            **_level_entry(design),
            "noise_per_step": design.metrics.noise_per_step,
            "dummies_share": design.metrics.slot_load.dummies_share,
            "proxy": design.metrics.proxy,
            "epsilon": design.epsilon,
        }
        for design in sorted(designs, key=lambda design: design.candidate.slots)
    ]


def budget_curve(design: CalibratedDesign) -> list[dict[str, object]]:
    """Return the same design at several budgets, each with the noise that it needs."""
    calibrate = CachedCalibrator(design.question, Precision.DRAFT)
    calibrate.learn(design)
    target = design.target
    budgets = [replace(target, epsilon=factor * target.epsilon) for factor in BUDGET_FACTORS]
    targets = [budget for budget in budgets if budget.epsilon <= MAX_CURVE_EPSILON]
    calibrated = [calibrate(design.candidate, budget) for budget in targets]
    points = [design, *(point for point in calibrated if point is not None)]
    return [
        {
            "epsilon": point.target.epsilon,
            **_level_entry(point),
            "noise_per_step": point.metrics.noise_per_step,
            "proxy": point.metrics.proxy,
        }
        for point in sorted(points, key=lambda point: point.target.epsilon)
    ]


def _level_entry(design: CalibratedDesign) -> dict[str, object]:
    """Return the level of a design under the name of its parameter."""
    return {"noise_multiplier" if design.candidate.is_gaussian else "local_epsilon": design.level}


MAX_SLOTS_OF_FULL_CERTIFICATE = 300
"""Largest number of slots for which a replace-one design gets a full certificate here.

With more slots, the full certificate takes too long."""
BUDGET_SHARE_BEFORE_CHECK = 0.99
"""Safety margin: the share of epsilon to use if the full certificate is not computed here.

`checkins check` computes the full certificate in another way. In tests, the epsilon of that
certificate was at most 0.2 % larger."""
NOISE_TOLERANCE = 0.0015
"""Accepted excess of the recommended design over the least noise, as a fraction."""
_MIN_INCREASE, _MOST_ATTEMPTS = 1.0005, 8
"""Least factor by which noise is increased if a certificate misses the budget, and the limit on
attempts."""


def certify_design(
    design: CalibratedDesign,
) -> tuple[CalibratedDesign, Campaign, Certificate]:
    """Calibrate the design on a finer grid. Return the result, its campaign and its certificate."""
    started = time.perf_counter()
    has_full_certificate = is_quick_to_certify(campaign_of(design))
    target = design.target
    if not has_full_certificate:
        target = replace(target, epsilon=BUDGET_SHARE_BEFORE_CHECK * target.epsilon)
    calibrated, run = _finely_calibrated(design, target, reserves_rounding=not has_full_certificate)
    if not has_full_certificate:
        return calibrated, run.campaign, _coarse_certificate(calibrated, run, started)
    for _ in range(_MOST_ATTEMPTS):
        certificate = certify_runs([run])
        if certificate.epsilon <= target.epsilon:
            return replace(calibrated, epsilon=certificate.epsilon), run.campaign, certificate
        factor = max(certificate.epsilon / target.epsilon, _MIN_INCREASE)
        level, is_gaussian = calibrated.level, calibrated.candidate.is_gaussian
        level = level * factor if is_gaussian else level / factor
        calibrated, run = _at_level(calibrated, level)
    raise _no_noise_found(target)


def _finely_calibrated(
    design: CalibratedDesign, target: Target, *, reserves_rounding: bool
) -> tuple[CalibratedDesign, PartialRun]:
    """Return the design at a level that is proved on a finer grid.

    If ``reserves_rounding``, a share of delta is reserved for the rounding of noise to the devices'
    grid. The share depends on the level, so the first attempt assumes a very small share.
    """
    candidate = _without_unused_population(design)
    guess = (
        design.level * candidate.estimated_level(target) / candidate.estimated_level(design.target)
    )
    remaining_delta = target.delta * (1.0 - 2.0**-20)
    for _ in range(_MOST_ATTEMPTS):
        goal = replace(target, delta=remaining_delta)
        level = candidate.proven_level(
            goal,
            precision_for(candidate, target),
            guess=guess,
            noise_tolerance=NOISE_TOLERANCE,
        )
        if level is None:
            break
        calibrated, run = _at_level(
            CalibratedDesign.of(candidate, level, target, design.question), level
        )
        if not reserves_rounding:
            return calibrated, run
        assumed_delta, remaining_delta = (
            remaining_delta,
            total_variation.remaining_delta(
                delta=target.delta, epsilon=target.epsilon, variation=run.variation
            ),
        )
        if remaining_delta >= assumed_delta:
            return calibrated, run
    raise _no_noise_found(target)


def _at_level(design: CalibratedDesign, level: float) -> tuple[CalibratedDesign, PartialRun]:
    """Return the design at the rounded level, and its campaign as a complete run."""
    rounded = round_level(design.candidate, level)
    calibrated = CalibratedDesign.of(design.candidate, rounded, design.target, design.question)
    return calibrated, PartialRun.whole(campaign_of(calibrated))


def precision_for(candidate: DesignCandidate, target: Target) -> Precision:
    """Return the precision of the final calibration.

    A single replace-one run uses less precision, because every trial builds a new grid.
    """
    is_fast = candidate.repeats > 1 or target.adjacency is Adjacency.ADD_REMOVE
    return Precision.FINEST if is_fast else Precision.FINER


def _no_noise_found(target: Target) -> NotCovered:
    return NotCovered(
        "epsilon", target.epsilon, "no noise was found for which a certificate meets the budget"
    )


def _without_unused_population(design: CalibratedDesign) -> DesignCandidate:
    """Return the candidate, without its population if epsilon does not depend on that."""
    candidate = design.candidate
    is_averaged = candidate.protocol is Protocol.AVERAGED
    if is_averaged or candidate.method(design.target) is Method.EXACT_POPULATION:
        return candidate
    return replace(candidate, population=None)


def is_quick_to_certify(campaign: Campaign) -> bool:
    """Return True if computing the full certificate takes about a second or less."""
    if campaign.budget.adjacency is Adjacency.ADD_REMOVE:
        return True
    if campaign.repeats > 1 or campaign.noise_multiplier is None:
        return campaign.repeats == 1
    return (
        campaign.design.slots <= MAX_SLOTS_OF_FULL_CERTIFICATE and campaign.design.capacity is None
    )


def _coarse_certificate(design: CalibratedDesign, run: PartialRun, started: float) -> Certificate:
    """Return a certificate at the precision of the calibration, which is looser but valid."""
    candidate, target, campaign = design.candidate, design.target, run.campaign
    return certify_at(
        campaign.design,
        epsilon=target.epsilon,
        delta=target.delta,
        adjacency=target.adjacency,
        precision=precision_for(candidate, target),
        method=candidate.method(target),
        campaigns=campaign.repeats,
        variation=run.variation,
        started=started,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a question. The epsilon of each design in it is a proven upper bound."""

    question: Question
    recommended: CalibratedDesign
    front: tuple[CalibratedDesign, ...]
    reasons: tuple[Reason, ...]
    sensitivity: tuple[SensitivityRow, ...]
    curves: dict[str, list[dict[str, object]]]
    campaign: Campaign
    text: str
    certificate: Certificate
    seconds: float

    def as_json(self) -> dict[str, object]:
        """Return plain values for JSON, for ``checkins plan --json`` and for the page."""
        return {
            "question": self.question.as_json(),
            "recommended": self.recommended.as_json(),
            "front": [design.as_json() for design in self.front],
            "reasons": [asdict(reason) for reason in self.reasons],
            "sensitivity": [row.as_json() for row in self.sensitivity],
            "curves": self.curves,
            "campaign": self.text,
            "certificate": self.certificate.as_dict(),
            "seconds": round(self.seconds, 3),
            "versions": versions("checkins", "numpy", "scipy"),
        }


def make_plan(question: Question) -> Plan:
    """Return the plan for a question.

    Raise ``InvalidValue`` if no design meets the budget and the duration.
    """
    started = time.perf_counter()
    result = search(question)
    design, campaign, certificate = certify_design(result.recommended)
    others = [other for other in result.front if other is not result.recommended]
    front = pareto([design, *others])
    curve = [design if other is result.recommended else other for other in result.slots_curve]
    return Plan(
        question=question,
        recommended=design,
        front=tuple(thinned_front(front, design)),
        reasons=tuple(reasons(design, front, curve)),
        sensitivity=tuple(sensitivity(design)),
        curves={"slots": slots_curve(curve), "budget": budget_curve(design)},
        campaign=campaign,
        text=campaign_file_text(design, campaign),
        certificate=certificate,
        seconds=time.perf_counter() - started,
    )
