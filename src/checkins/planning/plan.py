"""Make a plan for a question: a recommended design, its certificate, a front, and reasons.

>>> from checkins.accounting import Adjacency, Population
>>> asked = Question(Population(9000, 11000), 1.0, 1e-6, Adjacency.ADD_REMOVE, dimension=14)
>>> plan = make_plan(asked)
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
    thinned,
)
from checkins.planning.explain import Reason, SensitivityRow, reasons, sensitivity
from checkins.planning.question import Question
from checkins.planning.search import CachedCalibrator, round_level, search

BUDGETS = (0.25, 0.5, 2.0, 4.0)
"""Budgets on the curve, relative to the epsilon of the question."""
MOST_EPSILON = 50.0
"""Largest epsilon on the curve."""


def slots_curve(designs: Iterable[CalibratedDesign]) -> list[dict[str, object]]:
    """Return one point of the curve for each number of slots, all at the same epsilon."""
    return [
        {
            "slots": one.candidate.slots,
            **_level(one),
            "noise_per_step": one.metrics.noise_per_step,
            "dummies_share": one.metrics.slot_load.dummies_share,
            "proxy": one.metrics.proxy,
            "epsilon": one.epsilon,
        }
        for one in sorted(designs, key=lambda one: one.candidate.slots)
    ]


def budget_curve(design: CalibratedDesign) -> list[dict[str, object]]:
    """Return the same design at several budgets, each with the noise that it needs."""
    proven = CachedCalibrator(design.question, Precision.DRAFT)
    proven.learn(design)
    target = design.target
    budgets = [replace(target, epsilon=times * target.epsilon) for times in BUDGETS]
    others = [proven(design.candidate, one) for one in budgets if one.epsilon <= MOST_EPSILON]
    found = [design, *(one for one in others if one is not None)]
    return [
        {
            "epsilon": one.target.epsilon,
            **_level(one),
            "noise_per_step": one.metrics.noise_per_step,
            "proxy": one.metrics.proxy,
        }
        for one in sorted(found, key=lambda one: one.target.epsilon)
    ]


def _level(one: CalibratedDesign) -> dict[str, object]:
    return {"noise_multiplier" if one.candidate.is_gaussian else "local_epsilon": one.level}


MOST_SLOTS_OF_FULL_CERTIFICATE = 300
"""Largest number of slots for which a replace-one design gets a full certificate here.

With more slots, the full certificate takes too long."""
BUDGET_SHARE_BEFORE_CHECK = 0.99
"""Safety margin: the share of epsilon to use if the full certificate is not computed here.

`checkins check` composes in another way. In tests its epsilon was at most 0.2 % larger."""
NOISE_TOLERANCE = 0.0015
_STEP, _MOST_TURNS = 1.0005, 8


def certified(design: CalibratedDesign) -> tuple[CalibratedDesign, Campaign, Certificate]:
    """Calibrate the design on a finer grid. Return it with its campaign and its certificate."""
    started = time.perf_counter()
    quick = is_quick(campaign_of(design))
    target = design.target
    if not quick:
        target = replace(target, epsilon=BUDGET_SHARE_BEFORE_CHECK * target.epsilon)
    found, run = _calibrated(design, target, charged=not quick)
    if not quick:
        return found, run.campaign, _coarse_certificate(found, run, started)
    for _ in range(_MOST_TURNS):
        certificate = certify_runs([run])
        if certificate.epsilon <= target.epsilon:
            return replace(found, epsilon=certificate.epsilon), run.campaign, certificate
        more = max(certificate.epsilon / target.epsilon, _STEP)
        level = found.level * more if found.candidate.is_gaussian else found.level / more
        found, run = _at_level(found, level)
    raise _no_noise_found(target)


def _calibrated(
    design: CalibratedDesign, target: Target, *, charged: bool
) -> tuple[CalibratedDesign, PartialRun]:
    """Return the design at a level that is proved on a finer grid.

    If ``charged``, a part of delta is reserved for the rounding to the devices' grid. That part
    depends on the level, so the first attempt assumes a very small one.
    """
    candidate = _without_unused_population(design)
    guess = (
        design.level * candidate.estimated_level(target) / candidate.estimated_level(design.target)
    )
    left = target.delta * (1.0 - 2.0**-20)
    for _ in range(_MOST_TURNS):
        goal = replace(target, delta=left)
        level = candidate.proven_level(
            goal, precision_for(candidate, target), guess=guess, noise_tolerance=NOISE_TOLERANCE
        )
        if level is None:
            break
        found, run = _at_level(
            CalibratedDesign.of(candidate, level, target, design.question), level
        )
        if not charged:
            return found, run
        assumed, left = (
            left,
            total_variation.share(
                delta=target.delta, epsilon=target.epsilon, variation=run.variation
            ),
        )
        if left >= assumed:
            return found, run
    raise _no_noise_found(target)


def _at_level(design: CalibratedDesign, level: float) -> tuple[CalibratedDesign, PartialRun]:
    rounded = round_level(design.candidate, level)
    found = CalibratedDesign.of(design.candidate, rounded, design.target, design.question)
    return found, PartialRun.whole(campaign_of(found))


def precision_for(candidate: DesignCandidate, target: Target) -> Precision:
    """Return the precision of the final calibration.

    A single replace-one run uses less precision, because every trial builds a new grid.
    """
    finest = candidate.repeats > 1 or target.adjacency is Adjacency.ADD_REMOVE
    return Precision.FINEST if finest else Precision.FINER


def _no_noise_found(target: Target) -> NotCovered:
    return NotCovered(
        "epsilon", target.epsilon, "no noise was found for which a certificate meets the budget"
    )


def _without_unused_population(design: CalibratedDesign) -> DesignCandidate:
    """Return the candidate. Drop its population if epsilon does not depend on the population."""
    candidate = design.candidate
    averaged = candidate.protocol is Protocol.AVERAGED
    if averaged or candidate.method(design.target) is Method.EXACT_POPULATION:
        return candidate
    return replace(candidate, population=None)


def is_quick(campaign: Campaign) -> bool:
    """Return True if the full certificate takes about a second or less."""
    if campaign.budget.adjacency is Adjacency.ADD_REMOVE:
        return True
    if campaign.repeats > 1 or campaign.noise_multiplier is None:
        return campaign.repeats == 1
    return (
        campaign.design.slots <= MOST_SLOTS_OF_FULL_CERTIFICATE and campaign.design.capacity is None
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
    found = search(question)
    design, campaign, certificate = certified(found.recommended)
    others = [one for one in found.front if one is not found.recommended]
    front = pareto([design, *others])
    curve = [design if one is found.recommended else one for one in found.slots]
    return Plan(
        question=question,
        recommended=design,
        front=tuple(thinned(front, design)),
        reasons=tuple(reasons(design, front, curve)),
        sensitivity=tuple(sensitivity(design)),
        curves={"slots": slots_curve(curve), "budget": budget_curve(design)},
        campaign=campaign,
        text=campaign_file_text(design, campaign),
        certificate=certificate,
        seconds=time.perf_counter() - started,
    )
