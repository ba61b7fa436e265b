"""Search designs: rank all candidates by estimates, and calibrate the best with proven bounds.

Every design that the search returns has a level of noise that is proved to meet its target.
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
"""Exponent of the load in the score. A design with twice the uploads has the same score if its
proxy (the expected error, see ``cost_model``) is 3.4% smaller."""
FINALISTS, MOST_TRIED = 5, 24
"""Number of calibrated candidates from which the best is chosen, and the limit on attempts."""
LOAD_TOLERANCE = 1.02
"""Designs whose loads differ by at most this factor count as equally demanding."""
BUDGET_SHARES = (0.5, 0.25)
"""Shares of the budget for which the front also shows designs."""
LEAST_DELTA_WITHOUT_ROUNDING_CHECK = 1e-12
"""From this delta on, rounded noise is known to be charged less than half of delta."""
TIME_AND_LOAD_REDUCTIONS = (3.0, 10.0, 30.0)
"""For each factor f, the front has the most accurate design with 1/f of the recommended design's
time, and the one with 1/f of its load."""
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
        return self.metrics.slot_load.upload_bytes_per_client(self.candidate)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The recommended design, the front, and the same design with more and fewer slots."""

    recommended: CalibratedDesign
    front: tuple[CalibratedDesign, ...]
    slots: tuple[CalibratedDesign, ...]


def search(question: Question) -> SearchResult:
    """Return the recommended design, the front, and the curve over numbers of slots."""
    target = Target(question.epsilon, question.delta, question.adjacency)
    estimates = _estimates(candidates(question), target, question)
    proven = CachedCalibrator(question)
    chosen = _best(proven, target, _ranked(estimates, target, question))
    with_other_slots = _with_other_slots(chosen, target, proven)
    if question.fixed.slots is None:
        chosen = min((*with_other_slots, chosen), key=_score_compared_with(chosen, question))
    affordable = [
        one.candidate
        for one in estimates
        if one.load <= LOAD_TOLERANCE * chosen.load and not _is_privunit(one.candidate)
    ]
    parts = [replace(target, epsilon=share * target.epsilon) for share in BUDGET_SHARES]
    wanted = [
        *((target, candidate) for candidate in _less_demanding(estimates, chosen)),
        *((part, _best_at(part, affordable or [chosen.candidate], question)) for part in parts),
    ]
    others = [proven(candidate, goal) for goal, candidate in wanted]
    known = [chosen, *(one for one in others if one is not None)]
    better = [one for one in known if dominates(one.axes, chosen.axes)]
    if better:  # the estimates were wrong, and another design dominates
        chosen = min(better, key=lambda one: one.axes)
        with_other_slots = _with_other_slots(chosen, target, proven)
    curve = {one.candidate.slots: one for one in (*with_other_slots, chosen)}
    return SearchResult(
        chosen, tuple(pareto(known)), tuple(curve[slots] for slots in sorted(curve))
    )


Family = tuple[Protocol, RandomizerKind, bool, bool]


def family(candidate: DesignCandidate) -> Family:
    """Return the family of a candidate. Estimates within a family have similar errors."""
    repeated, uncapped = candidate.repeats > 1, candidate.capacity is None
    return candidate.protocol, candidate.randomizer, repeated, uncapped


class CachedCalibrator:
    """Finds and caches proven levels, and records the errors of the estimates."""

    def __init__(self, question: Question, precision: Precision = Precision.FINE) -> None:
        self.question, self.precision = question, precision
        self._designs: dict[tuple[DesignCandidate, Target], CalibratedDesign | None] = {}
        self._levels: dict[tuple[DesignCandidate, Target], float | None] = {}
        self._off: dict[Family, float] = {}

    def __call__(self, candidate: DesignCandidate, target: Target) -> CalibratedDesign | None:
        """Return the design at the least proven noise, or None if no noise meets the target."""
        key = candidate, target
        if key not in self._designs:
            self._designs[key] = self._calibrate(candidate, target)
        return self._designs[key]

    def learn(self, design: CalibratedDesign) -> None:
        """Record the error of the design's estimate, to correct other estimates of its family."""
        self._off[family(design.candidate)] = design.level / design.candidate.estimated_level(
            design.target
        )

    def _calibrate(self, candidate: DesignCandidate, target: Target) -> CalibratedDesign | None:
        like = candidate.equivalent, target
        if like not in self._levels:
            guess = candidate.estimated_level(target) * self._off.get(family(candidate), 1.0)
            self._levels[like] = candidate.proven_level(target, self.precision, guess=guess)
        level = self._levels[like]
        if level is None:
            return None
        found = CalibratedDesign.of(candidate, round_level(candidate, level), target, self.question)
        self.learn(found)
        return found


def round_level(candidate: DesignCandidate, level: float) -> float:
    """Return the level with four digits, rounded to more noise or to a smaller local epsilon."""
    if level <= 0.0 or not math.isfinite(level):
        return level
    place = 10.0 ** (math.floor(math.log10(level)) - 3)
    whole = level / place
    steps = math.ceil(whole - 1e-9) if candidate.is_gaussian else math.floor(whole + 1e-9)
    rounded = float(f"{steps * place:.6g}")
    safe = rounded >= level if candidate.is_gaussian else rounded <= level
    return rounded if safe else level


def _estimates(
    space: Sequence[DesignCandidate], target: Target, question: Question
) -> list[Estimate]:
    levels = ((candidate, candidate.estimated_level(target)) for candidate in space)
    return [Estimate(one, level, design_metrics(one, level, question)) for one, level in levels]


def _ranked(
    estimates: Sequence[Estimate], target: Target, question: Question
) -> list[DesignCandidate]:
    """Return the candidates ordered by score.

    Candidates for which no level seems to meet the target come last.
    """
    able = list(estimates)
    if question.fixed.randomizer is not RandomizerKind.PRIVUNIT:
        able = [one for one in estimates if not _is_privunit(one.candidate)] or able
    able.sort(key=lambda one: score(one.metrics.proxy, one.load))
    ranked = [one.candidate for one in able]
    return sorted(ranked, key=lambda candidate: candidate.seems_out_of_reach(target))


def score(proxy: float, load: float) -> float:
    """Return the score to minimise, which is the proxy with a small weight for the uploads."""
    return proxy * float(load**LOAD_EXPONENT)


def _best(
    proven: CachedCalibrator, target: Target, ranked: Sequence[DesignCandidate]
) -> CalibratedDesign:
    """Return the best of the first few candidates that meet the target.

    If a candidate does not meet it, similar candidates are skipped. Raise ``InvalidValue`` if none
    meets it.
    """
    found: list[CalibratedDesign] = []
    failed: set[tuple[Family, float, int]] = set()
    refusal: InvalidValue | None = None
    tried = 0
    for candidate in ranked:
        if len(found) >= FINALISTS or tried >= MOST_TRIED:
            break
        like = family(candidate), candidate.participation, candidate.equivalent.slots
        if like in failed:
            continue
        tried += 1
        try:
            check_it_can_run(candidate, target, proven.question)
            design = proven(candidate, target)
        except InvalidValue as error:
            design, refusal = None, refusal or error
        if design is None:
            failed.add(like)
        else:
            found.append(design)
    if not found:
        raise refusal or InvalidValue(
            "epsilon",
            target.epsilon,
            f"no allowed design meets it at delta = {target.delta!r} ({target.adjacency});"
            " fix fewer parameters, or allow a larger epsilon or delta",
        )
    return min(found, key=lambda one: score(one.metrics.proxy, one.load))


def check_it_can_run(candidate: DesignCandidate, target: Target, question: Question) -> None:
    """Raise ``InvalidValue`` if the candidate cannot run as a campaign.

    Also raise it if delta is so small that rounding the noise on devices uses more than half of it.
    """
    design = CalibratedDesign.of(
        candidate, round_level(candidate, candidate.estimated_level(target)), target, question
    )
    campaign = campaign_of(design)
    if target.delta < LEAST_DELTA_WITHOUT_ROUNDING_CHECK:
        spent = total_variation.charge(epsilon=0.0, variation=PartialRun.whole(campaign).variation)
        if spent > target.delta / 2.0:
            raise InvalidValue(
                "delta",
                target.delta,
                f"is too small, because rounding the noise to a grid uses {spent:.1g} of it;"
                f" must be above {2.0 * spent:.1g} for the allowed designs",
            )


def _with_other_slots(
    chosen: CalibratedDesign, target: Target, proven: CachedCalibrator
) -> list[CalibratedDesign]:
    """Return the design with more and with fewer slots, each with the noise that it needs."""
    question, candidate = proven.question, chosen.candidate
    least = max(candidate.minibatch, question.fixed.window or 1)
    counts = {max(least, round(candidate.slots * times)) for times in SLOT_FACTORS} - {
        candidate.slots
    }
    found = (proven(with_slots(candidate, slots, question), target) for slots in sorted(counts))
    return [one for one in found if one is not None]


def _score_compared_with(
    chosen: CalibratedDesign, question: Question
) -> Callable[[CalibratedDesign], float]:
    """Return a function that scores designs.

    A design that takes longer than ``chosen`` must be better by one percent. A design that takes
    longer than the server allows has an infinite score.
    """

    def rank(one: CalibratedDesign) -> float:
        weighed = score(one.metrics.proxy, one.load)
        if one.metrics.duration_s > question.server.duration_s * (1.0 + 1e-9):
            return math.inf
        longer = one.metrics.duration_s > chosen.metrics.duration_s
        return weighed * 1.01 if longer else weighed

    return rank


def _less_demanding(
    estimates: Sequence[Estimate], chosen: CalibratedDesign
) -> list[DesignCandidate]:
    """Return the most accurate candidates: overall, with less time, and with less load."""
    load, duration_s = chosen.load, chosen.metrics.duration_s
    limits = [(math.inf, math.inf)]
    for cut in TIME_AND_LOAD_REDUCTIONS:
        limits += [(load / cut, math.inf), (math.inf, duration_s / cut)]
    found = []
    for most_load, most_s in limits:
        fitting = [
            one
            for one in estimates
            if one.load <= most_load
            and one.metrics.duration_s <= most_s
            and not _is_privunit(one.candidate)
        ]
        if fitting:
            found.append(min(fitting, key=lambda one: (one.metrics.proxy, one.load)).candidate)
    return found


def _is_privunit(candidate: DesignCandidate) -> bool:
    return candidate.randomizer is RandomizerKind.PRIVUNIT


def _best_at(
    part: Target, affordable: Sequence[DesignCandidate], question: Question
) -> DesignCandidate:
    """Return the most accurate of the ``affordable`` candidates for the smaller target ``part``."""
    return min(_estimates(affordable, part, question), key=lambda one: one.metrics.proxy).candidate
