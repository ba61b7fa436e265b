"""Search designs: rank all candidates by estimates, and calibrate the best with proven bounds.

Every design that the search returns has a *level*, which is its noise multiplier or its local
epsilon. The level is proved to meet the design's target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from checkins.accounting import Protocol, total_variation
from checkins.accounting.precision import Precision, Target
from checkins.campaign import PartialRun, RandomizerKind
from checkins.errors import InvalidValue
from checkins.planning.candidate import DesignCandidate
from checkins.planning.cost_model import (
    CalibratedDesign,
    DesignMetrics,
    campaign_of,
    design_metrics,
    dominates,
    pareto,
)
from checkins.planning.question import Question
from checkins.planning.search_space import candidates, with_slots

LOAD_EXPONENT = 0.05
"""Exponent of the load (the number of bytes that a client uploads) in the score.

The score is the proxy (the expected error, see ``cost_model``) times load^LOAD_EXPONENT. So the
score stays the same if the proxy decreases by 3.4% per doubling of the load.
"""
FINALISTS, MOST_CANDIDATES_TRIED = 5, 24
"""The search stops when FINALISTS candidates are calibrated, or MOST_CANDIDATES_TRIED are tried. It
returns the best calibrated candidate."""
LOAD_TOLERANCE = 1.02
"""A load that is larger by at most this factor counts as the same load."""
BUDGET_SHARES = (0.5, 0.25)
"""Shares of the epsilon budget. The Pareto front also has a design for each of them."""
MIN_DELTA_WITHOUT_ROUNDING_CHECK = 1e-12
"""For a delta of at least this size, the rounding of noise on devices uses less than half of it."""
TIME_AND_LOAD_REDUCTIONS = (3.0, 10.0, 30.0)
"""For each factor f, the front has the most accurate design with 1/f of the recommended design's
time, and the most accurate design with 1/f of its load."""
SLOT_FACTORS = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)
"""The result has the recommended design with its number of slots times each of these factors."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A candidate with its estimated level and its metrics at that level."""

    candidate: DesignCandidate
    level: float
    metrics: DesignMetrics

    @property
    def load(self) -> float:
        """The expected number of bytes that one client uploads in all runs."""
        return self.metrics.slot_load.upload_bytes_per_client(self.candidate)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The recommended design, the Pareto front, and the recommended design with other slots.

    ``slots_curve`` is ordered by the number of slots and includes the recommended design.
    """

    recommended: CalibratedDesign
    front: tuple[CalibratedDesign, ...]
    slots_curve: tuple[CalibratedDesign, ...]


def search(question: Question) -> SearchResult:
    """Search all candidates that the question allows, and return the best designs."""
    target = Target(question.epsilon, question.delta, question.adjacency)
    estimates = _estimates(candidates(question), target, question)
    calibrate = CachedCalibrator(question)
    best = _best_proven(calibrate, target, _ranked(estimates, target, question))
    with_other_slots = _with_other_slots(best, target, calibrate)
    if question.fixed.slots is None:
        best = min((*with_other_slots, best), key=_score_relative_to(best, question))
    affordable = [
        one.candidate
        for one in estimates
        if one.load <= LOAD_TOLERANCE * best.load and not _is_privunit(one.candidate)
    ]
    affordable = affordable or [best.candidate]
    smaller_targets = [replace(target, epsilon=share * target.epsilon) for share in BUDGET_SHARES]
    targets_and_candidates = [
        *((target, candidate) for candidate in _most_accurate_within_limits(estimates, best)),
        *((less, _most_accurate_at(less, affordable, question)) for less in smaller_targets),
    ]
    others = [calibrate(candidate, goal) for goal, candidate in targets_and_candidates]
    designs = [best, *(design for design in others if design is not None)]
    dominating = [design for design in designs if dominates(design.objectives, best.objectives)]
    if dominating:  # the estimates were wrong, and another design dominates the best one
        best = min(dominating, key=lambda design: design.objectives)
        with_other_slots = _with_other_slots(best, target, calibrate)
    curve = {design.candidate.slots: design for design in (*with_other_slots, best)}
    return SearchResult(
        best, tuple(pareto(designs)), tuple(curve[slots] for slots in sorted(curve))
    )


Family = tuple[Protocol, RandomizerKind, bool, bool, bool]
"""Protocol, randomizer, whether there are several runs, whether slots have no capacity, and whether
noise is correlated."""


def family(candidate: DesignCandidate) -> Family:
    """Return the family of a candidate, within which estimates of the level have similar errors."""
    repeated, uncapped = candidate.repeats > 1, candidate.capacity is None
    is_correlated = candidate.bands > 1
    return candidate.protocol, candidate.randomizer, repeated, uncapped, is_correlated


class CachedCalibrator:
    """Calibrates candidates with proven bounds, and caches the results.

    It also records the errors of the estimated levels, for a better start of later searches.
    """

    def __init__(self, question: Question, precision: Precision = Precision.FINE) -> None:
        self.question, self.precision = question, precision
        self._designs: dict[tuple[DesignCandidate, Target], CalibratedDesign | None] = {}
        self._levels: dict[tuple[DesignCandidate, Target], float | None] = {}
        self._estimate_errors: dict[Family, float] = {}

    def __call__(self, candidate: DesignCandidate, target: Target) -> CalibratedDesign | None:
        """Return the design with the least noise that provably meets the target.

        Return None if no amount of noise is proved to meet it.
        """
        key = candidate, target
        if key not in self._designs:
            self._designs[key] = self._calibrate(candidate, target)
        return self._designs[key]

    def learn(self, design: CalibratedDesign) -> None:
        """Record the error of the design's estimate, to correct other estimates of its family."""
        self._estimate_errors[family(design.candidate)] = (
            design.level / design.candidate.estimated_level(design.target)
        )

    def _calibrate(self, candidate: DesignCandidate, target: Target) -> CalibratedDesign | None:
        key = candidate.simplest_equivalent, target
        if key not in self._levels:
            error = self._estimate_errors.get(family(candidate), 1.0)
            guess = candidate.estimated_level(target) * error
            self._levels[key] = candidate.proven_level(target, self.precision, guess=guess)
        level = self._levels[key]
        if level is None:
            return None
        level = round_level(candidate, level)
        calibrated = CalibratedDesign.of(candidate, level, target, self.question)
        self.learn(calibrated)
        return calibrated


def round_level(candidate: DesignCandidate, level: float) -> float:
    """Return the level with four digits, rounded to more noise or to a smaller local epsilon."""
    if level <= 0.0 or not math.isfinite(level):
        return level
    unit = 10.0 ** (math.floor(math.log10(level)) - 3)
    units = level / unit
    rounded_units = math.ceil(units - 1e-9) if candidate.is_gaussian else math.floor(units + 1e-9)
    rounded = float(f"{rounded_units * unit:.6g}")
    is_safe = rounded >= level if candidate.is_gaussian else rounded <= level
    return rounded if is_safe else level


def _estimates(
    space: Sequence[DesignCandidate], target: Target, question: Question
) -> list[Estimate]:
    levels = ((candidate, candidate.estimated_level(target)) for candidate in space)
    return [Estimate(one, level, design_metrics(one, level, question)) for one, level in levels]


def _ranked(
    estimates: Sequence[Estimate], target: Target, question: Question
) -> list[DesignCandidate]:
    """Return the candidates, best score first.

    Candidates for which no level seems to meet the target come last. PrivUnit is left out unless
    it is requested or nothing else is possible.
    """
    usable = list(estimates)
    if question.fixed.randomizer is not RandomizerKind.PRIVUNIT:
        usable = [one for one in estimates if not _is_privunit(one.candidate)] or usable
    usable.sort(key=lambda one: score(one.metrics.proxy, one.load))
    ordered = [one.candidate for one in usable]
    return sorted(ordered, key=lambda candidate: candidate.seems_out_of_reach(target))


def score(proxy: float, load: float) -> float:
    """Return the score of a design: the proxy with a small weight for the load. Less is better."""
    return proxy * float(load**LOAD_EXPONENT)


def _best_proven(
    calibrate: CachedCalibrator, target: Target, ranked: Sequence[DesignCandidate]
) -> CalibratedDesign:
    """Return the best of the first few candidates that meet the target.

    If a candidate does not meet the target, similar candidates are skipped. Raise ``InvalidValue``
    if no candidate meets the target.
    """
    designs: list[CalibratedDesign] = []
    failed: set[tuple[Family, float, int]] = set()
    first_error: InvalidValue | None = None
    tried = 0
    for candidate in ranked:
        if len(designs) >= FINALISTS or tried >= MOST_CANDIDATES_TRIED:
            break
        similarity = family(candidate), candidate.participation, candidate.simplest_equivalent.slots
        if similarity in failed:
            continue
        tried += 1
        try:
            check_runnable(candidate, target, calibrate.question)
            design = calibrate(candidate, target)
        except InvalidValue as error:
            design, first_error = None, first_error or error
        if design is None:
            failed.add(similarity)
        else:
            designs.append(design)
    if not designs:
        raise first_error or InvalidValue(
            "epsilon",
            target.epsilon,
            f"no allowed design meets this epsilon at delta = {target.delta!r}"
            f" ({target.adjacency}); fix fewer parameters, or allow a larger epsilon or delta",
        )
    return min(designs, key=lambda one: score(one.metrics.proxy, one.load))


def check_runnable(candidate: DesignCandidate, target: Target, question: Question) -> None:
    """Raise ``InvalidValue`` if the candidate cannot run as a campaign.

    Also raise it if delta is so small that rounding the noise on devices uses more than half of it.
    """
    design = CalibratedDesign.of(
        candidate, round_level(candidate, candidate.estimated_level(target)), target, question
    )
    campaign = campaign_of(design)
    if target.delta < MIN_DELTA_WITHOUT_ROUNDING_CHECK:
        spent = total_variation.charge(epsilon=0.0, variation=PartialRun.whole(campaign).variation)
        if spent > target.delta / 2.0:
            raise InvalidValue(
                "delta",
                target.delta,
                f"is too small, because rounding the noise to a grid uses {spent:.1g} of it;"
                f" must be above {2.0 * spent:.1g} for the allowed designs",
            )


def _with_other_slots(
    recommended: CalibratedDesign, target: Target, calibrate: CachedCalibrator
) -> list[CalibratedDesign]:
    """Return ``recommended`` with more and with fewer slots, each with the noise that it needs."""
    question, candidate = calibrate.question, recommended.candidate
    least_slots = max(candidate.minibatch, question.fixed.window or 1, candidate.bands)
    counts = {max(least_slots, round(candidate.slots * factor)) for factor in SLOT_FACTORS} - {
        candidate.slots
    }
    variants = (with_slots(candidate, slots, question) for slots in sorted(counts))
    designs = (calibrate(variant, target) for variant in variants)
    return [design for design in designs if design is not None]


def _score_relative_to(
    recommended: CalibratedDesign, question: Question
) -> Callable[[CalibratedDesign], float]:
    """Return a function that scores designs. Less is better.

    The score of a design that takes longer than ``recommended`` is increased by one percent. A
    design that takes longer than the server allows has an infinite score.
    """

    def compared_score(design: CalibratedDesign) -> float:
        design_score = score(design.metrics.proxy, design.load)
        if design.metrics.duration_s > question.server.duration_s * (1.0 + 1e-9):
            return math.inf
        longer = design.metrics.duration_s > recommended.metrics.duration_s
        return design_score * 1.01 if longer else design_score

    return compared_score


def _most_accurate_within_limits(
    estimates: Sequence[Estimate], recommended: CalibratedDesign
) -> list[DesignCandidate]:
    """Return the most accurate candidate overall, and those with less time or less load."""
    load, duration_s = recommended.load, recommended.metrics.duration_s
    limits = [(math.inf, math.inf)]
    for factor in TIME_AND_LOAD_REDUCTIONS:
        limits += [(load / factor, math.inf), (math.inf, duration_s / factor)]
    most_accurate = []
    for most_load, most_duration_s in limits:
        allowed = [
            one
            for one in estimates
            if one.load <= most_load
            and one.metrics.duration_s <= most_duration_s
            and not _is_privunit(one.candidate)
        ]
        if allowed:
            most_accurate.append(
                min(allowed, key=lambda one: (one.metrics.proxy, one.load)).candidate
            )
    return most_accurate


def _is_privunit(candidate: DesignCandidate) -> bool:
    return candidate.randomizer is RandomizerKind.PRIVUNIT


def _most_accurate_at(
    target: Target, affordable: Sequence[DesignCandidate], question: Question
) -> DesignCandidate:
    """Return the candidate in ``affordable`` with the best estimated proxy at ``target``."""
    estimates = _estimates(affordable, target, question)
    return min(estimates, key=lambda one: one.metrics.proxy).candidate
