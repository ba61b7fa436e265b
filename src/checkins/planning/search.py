"""From a question to a few proven designs: rank everything by guesses, prove what is shown.

A guess decides only what is looked at more closely. Each design that leaves this file has a noise
that was proven to keep its target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from checkins.accounting import Protocol, total_variation
from checkins.campaign import PartialRun, RandomizerKind
from checkins.errors import InvalidValue
from checkins.planning.campaign import campaign_of
from checkins.planning.candidate import DesignCandidate
from checkins.planning.metrics import Figures, figures
from checkins.planning.noise import guessed, proven_level, seems_out_of_reach
from checkins.planning.pareto_front import dominates, pareto
from checkins.planning.priced import PricedDesign
from checkins.planning.question import Question
from checkins.planning.space import shapes, with_slots
from checkins.planning.target import FINE, Precision, Target

WORTH = 0.05
"""Twice the uploads must better the proxy by a factor 2^0.05, 3.5 per cent, to be recommended."""
FINALISTS, MOST_TRIED = 5, 24
SAME_LOAD = 1.02
SHARES = (0.5, 0.25)
"""Of the budget that a front also shows designs for."""
ROOM_FOR_GRIDS = 1e-12
"""Above this delta, what devices draw on grids never uses it up."""
CUTS = (3.0, 10.0, 30.0)
"""How much less time, and how much less load, a front also shows designs for."""
AROUND = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)
"""Slots of the curve, relative to the recommended ones."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A shape at the noise it would about need."""

    shape: DesignCandidate
    level: float
    figures: Figures

    @property
    def load(self) -> float:
        return self.figures.turnout.upload_bytes_per_client(self.shape)


@dataclass(frozen=True, slots=True)
class Found:
    """The recommended design, the front it lies on, and the slots around it."""

    recommended: PricedDesign
    front: tuple[PricedDesign, ...]
    slots: tuple[PricedDesign, ...]


def search(question: Question) -> Found:
    """The recommended design, proven, and the front around it."""
    target = Target(question.epsilon, question.delta, question.adjacency)
    guesses = _guesses(shapes(question), target, question)
    proven = CachedCalibrator(question)
    chosen = _best(proven, target, _ranked(guesses, target, question))
    around = _around(chosen, target, proven)
    if question.fixed.slots is None:
        chosen = min((*around, chosen), key=_better(chosen, question))
    light = [
        one.shape
        for one in guesses
        if one.load <= SAME_LOAD * chosen.load and not _is_privunit(one.shape)
    ]
    parts = [replace(target, epsilon=share * target.epsilon) for share in SHARES]
    wanted = [
        *_cheaper(guesses, chosen),
        *((part, _best_at(part, light or [chosen.shape], question)) for part in parts),
    ]
    others = [proven(shape, goal or target) for goal, shape in wanted]
    known = [chosen, *(one for one in others if one is not None)]
    better = [one for one in known if dominates(one.axes, chosen.axes)]
    if better:  # the guesses were off: something is nowhere worse
        chosen = min(better, key=lambda one: one.axes)
        around = _around(chosen, target, proven)
    curve = {one.shape.slots: one for one in (*around, chosen)}
    return Found(chosen, tuple(pareto(known)), tuple(curve[slots] for slots in sorted(curve)))


Family = tuple[Protocol, RandomizerKind, bool, bool]


def family(shape: DesignCandidate) -> Family:
    """Shapes of one family are priced in one way: what is off for one is off for the next."""
    return shape.protocol, shape.randomizer, shape.repeats > 1, shape.capacity is None


class CachedCalibrator:
    """Finds levels, and remembers them, and by how much guesses were off."""

    def __init__(self, question: Question, precision: Precision = FINE) -> None:
        self.question, self.precision = question, precision
        self._known: dict[tuple[DesignCandidate, Target], PricedDesign | None] = {}
        self._levels: dict[tuple[DesignCandidate, Target], float | None] = {}
        self._off: dict[Family, float] = {}

    def __call__(self, shape: DesignCandidate, target: Target) -> PricedDesign | None:
        """The design at the least noise that was proven; None where none is."""
        key = shape, target
        if key not in self._known:
            self._known[key] = self._proven(shape, target)
        return self._known[key]

    def learn(self, design: PricedDesign) -> None:
        """Start from what this design needs: the next ones are like it."""
        self._off[family(design.shape)] = design.level / guessed(design.shape, design.target)

    def _proven(self, shape: DesignCandidate, target: Target) -> PricedDesign | None:
        like = shape.priced_as, target
        if like not in self._levels:
            guess = guessed(shape, target) * self._off.get(family(shape), 1.0)
            self._levels[like] = proven_level(shape, target, self.precision, guess=guess)
        level = self._levels[like]
        if level is None:
            return None
        found = PricedDesign.of(shape, tidy(shape, level), target, self.question)
        self.learn(found)
        return found


def tidy(shape: DesignCandidate, level: float) -> float:
    """Four digits, on the side that spends less: more noise, or less local epsilon."""
    if level <= 0.0 or not math.isfinite(level):
        return level
    place = 10.0 ** (math.floor(math.log10(level)) - 3)
    whole = level / place
    steps = math.ceil(whole - 1e-9) if shape.is_gaussian else math.floor(whole + 1e-9)
    rounded = float(f"{steps * place:.6g}")
    safe = rounded >= level if shape.is_gaussian else rounded <= level
    return rounded if safe else level


def _guesses(space: Sequence[DesignCandidate], target: Target, question: Question) -> list[Guess]:
    found = []
    for shape in space:
        level = guessed(shape, target)
        found.append(Guess(shape, level, figures(shape, level, question)))
    return found


def _ranked(guesses: Sequence[Guess], target: Target, question: Question) -> list[DesignCandidate]:
    """Best first, a larger load counted against a better proxy; last what may be out of reach."""
    able = [one for one in guesses if _may_be_recommended(one.shape, question)] or list(guesses)
    able.sort(key=lambda one: score(one.figures.proxy, one.load))
    ranked = [one.shape for one in able]
    return sorted(ranked, key=lambda shape: seems_out_of_reach(shape, target))


def score(proxy: float, load: float) -> float:
    """What the recommended design has least of: the proxy, weighed a little by the uploads."""
    return proxy * float(load**WORTH)


def _may_be_recommended(shape: DesignCandidate, question: Question) -> bool:
    return shape.randomizer is not RandomizerKind.PRIVUNIT or _wants_privunit(question)


def _wants_privunit(question: Question) -> bool:
    return question.fixed.randomizer is RandomizerKind.PRIVUNIT


def _best(
    proven: CachedCalibrator, target: Target, ranked: Sequence[DesignCandidate]
) -> PricedDesign:
    """The best of the first few that are proven.

    Where a shape is out of reach, others that differ little from it are passed over.
    """
    found: list[PricedDesign] = []
    failed: set[tuple[Family, float, int]] = set()
    refusal: InvalidValue | None = None
    tried = 0
    for shape in ranked:
        if len(found) >= FINALISTS or tried >= MOST_TRIED:
            break
        like = family(shape), shape.participation, shape.priced_as.slots
        if like in failed:
            continue
        tried += 1
        try:
            check_it_can_run(shape, target, proven.question)
            design = proven(shape, target)
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
            f"out of reach at delta = {target.delta!r} ({target.adjacency}) for the designs asked"
            " for: fix less, or spend more",
        )
    return min(found, key=lambda one: score(one.figures.proxy, one.load))


def check_it_can_run(shape: DesignCandidate, target: Target, question: Question) -> None:
    """Refuse what no campaign can be written of, or what leaves nothing of a tiny delta to it."""
    design = PricedDesign.of(shape, tidy(shape, guessed(shape, target)), target, question)
    campaign = campaign_of(design)
    if target.delta < ROOM_FOR_GRIDS:
        spent = total_variation.charge(epsilon=0.0, variation=PartialRun.whole(campaign).variation)
        if spent > target.delta / 2.0:
            raise InvalidValue(
                "delta",
                target.delta,
                f"is too small: noise on the grids of devices takes {spent:.1g} of it;"
                f" must be above {2.0 * spent:.1g} for the designs asked for",
            )


def _around(chosen: PricedDesign, target: Target, proven: CachedCalibrator) -> list[PricedDesign]:
    """The same design with more slots and with fewer, each with its own noise."""
    question, shape = proven.question, chosen.shape
    least = max(shape.minibatch, question.fixed.window or 1)
    counts = {max(least, round(shape.slots * times)) for times in AROUND} - {shape.slots}
    found = (proven(with_slots(shape, slots, question), target) for slots in sorted(counts))
    return [one for one in found if one is not None]


def _better(chosen: PricedDesign, question: Question) -> Callable[[PricedDesign], float]:
    """A score to compare by: one that takes longer must be better by a per cent."""

    def rank(one: PricedDesign) -> float:
        weighed = score(one.figures.proxy, one.load)
        if one.figures.duration_s > question.server.duration_s * (1.0 + 1e-9):
            return math.inf
        longer = one.figures.duration_s > chosen.figures.duration_s
        return weighed * 1.01 if longer else weighed

    return rank


def _cheaper(
    guesses: Sequence[Guess], chosen: PricedDesign
) -> list[tuple[Target | None, DesignCandidate]]:
    """The most accurate of all, and the most accurate within less time, or within less load."""
    limits: list[Callable[[Guess], bool]] = [lambda one: True]
    for cut in CUTS:
        limits.append(lambda one, cut=cut: one.load <= chosen.load / cut)  # type: ignore[misc]
        limits.append(
            lambda one, cut=cut: one.figures.duration_s <= chosen.figures.duration_s / cut  # type: ignore[misc]
        )
    found: list[tuple[Target | None, DesignCandidate]] = []
    for within in limits:
        fitting = [one for one in guesses if within(one) and not _is_privunit(one.shape)]
        if fitting:
            best = min(fitting, key=lambda one: (one.figures.proxy, one.load))
            found.append((None, best.shape))
    return found


def _is_privunit(shape: DesignCandidate) -> bool:
    return shape.randomizer is RandomizerKind.PRIVUNIT


def _best_at(part: Target, light: Sequence[DesignCandidate], question: Question) -> DesignCandidate:
    """The most accurate shape at part of the budget, of those that ask no more of devices."""
    return min(_guesses(light, part, question), key=lambda one: one.figures.proxy).shape
