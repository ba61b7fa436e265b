"""From a question to a few proven designs: rank everything by guesses, prove what is shown.

A guess decides only what is looked at more closely. Each design that leaves this file has a noise
that was proven to keep its target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from checkins.errors import InvalidValue
from checkins.planning.figures import Figures, figures
from checkins.planning.front import dominates, pareto
from checkins.planning.noise import guessed, proven_level
from checkins.planning.priced import PricedDesign
from checkins.planning.question import Question
from checkins.planning.shape import Shape
from checkins.planning.space import shapes, with_slots
from checkins.planning.target import FINE, Target
from checkins.protocol.campaign import RandomizerKind

WORTH = 0.05
"""Twice the uploads must better the proxy by a factor 2^0.05, 3.5 per cent, to be recommended."""
FINALISTS = 5
SAME_LOAD = 1.02
SHARES = (0.5, 0.25)
"""Of the budget that a front also shows designs for."""
CUTS = (3.0, 10.0, 30.0)
"""How much less time, and how much less load, a front also shows designs for."""
AROUND = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)
"""Slots of the curve, relative to the recommended ones."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A shape at the noise it would about need."""

    shape: Shape
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
    space = shapes(question)
    guesses = _guesses(space, target, question)
    proven = Prover(question)
    chosen = _best(proven, target, _ranked(guesses, question))
    around = _around(chosen, target, proven)
    if question.fixed.slots is None:
        chosen = min((*around, chosen), key=_better(chosen, question))
    wanted = [
        *_cheaper(guesses, chosen),
        *(
            (Target(share * target.epsilon, target.delta, target.adjacency), shape)
            for share in SHARES
            for shape in _best_at(share, space, target, chosen, question)
        ),
    ]
    others = [proven(shape, goal or target) for goal, shape in wanted]
    known = [chosen, *(one for one in others if one is not None)]
    better = [one for one in known if dominates(one.axes, chosen.axes)]
    if better:  # the guesses were off: something is nowhere worse
        chosen = min(better, key=lambda one: one.axes)
        around = _around(chosen, target, proven)
    curve = {one.shape.slots: one for one in (*around, chosen)}
    return Found(chosen, tuple(pareto(known)), tuple(curve[slots] for slots in sorted(curve)))


class Prover:
    """Finds levels, and remembers them."""

    def __init__(self, question: Question, cells: int = FINE) -> None:
        self.question, self.cells = question, cells
        self._known: dict[tuple[Shape, Target], PricedDesign | None] = {}

    def __call__(self, shape: Shape, target: Target) -> PricedDesign | None:
        """The design at the least noise that was proven; None where none is."""
        key = shape, target
        if key not in self._known:
            level = proven_level(shape, target, self.cells)
            self._known[key] = (
                None
                if level is None
                else PricedDesign.of(shape, tidy(shape, level), target, self.question)
            )
        return self._known[key]


def tidy(shape: Shape, level: float) -> float:
    """Four digits, on the side that spends less: more noise, or less local epsilon."""
    if level <= 0.0 or not math.isfinite(level):
        return level
    place = 10.0 ** (math.floor(math.log10(level)) - 3)
    whole = level / place
    steps = math.ceil(whole - 1e-9) if shape.is_gaussian else math.floor(whole + 1e-9)
    rounded = float(f"{steps * place:.6g}")
    safe = rounded >= level if shape.is_gaussian else rounded <= level
    return rounded if safe else level


def _guesses(space: Sequence[Shape], target: Target, question: Question) -> list[Guess]:
    found = []
    for shape in space:
        level = guessed(shape, target)
        found.append(Guess(shape, level, figures(shape, level, question)))
    return found


def _ranked(guesses: Sequence[Guess], question: Question) -> list[Shape]:
    """Best first, a larger load counted against a better proxy."""
    able = [one for one in guesses if _may_be_recommended(one.shape, question)] or list(guesses)
    able.sort(key=lambda one: score(one.figures.proxy, one.load))
    return [one.shape for one in able]


def score(proxy: float, load: float) -> float:
    """What the recommended design has least of: the proxy, weighed a little by the uploads."""
    return proxy * float(load**WORTH)


def _may_be_recommended(shape: Shape, question: Question) -> bool:
    return shape.randomizer is not RandomizerKind.PRIVUNIT or _wants_privunit(question)


def _wants_privunit(question: Question) -> bool:
    return question.fixed.randomizer is RandomizerKind.PRIVUNIT


def _best(proven: Prover, target: Target, ranked: Sequence[Shape]) -> PricedDesign:
    """The best of the first few that are proven."""
    found: list[PricedDesign] = []
    for tried, shape in enumerate(ranked):
        if len(found) >= FINALISTS or tried >= 8 * FINALISTS:
            break
        design = proven(shape, target)
        found += [] if design is None else [design]
    if not found:
        raise InvalidValue(
            "epsilon",
            target.epsilon,
            f"out of reach at delta = {target.delta!r} ({target.adjacency}) for the designs asked"
            " for: fix less, or spend more",
        )
    return min(found, key=lambda one: score(one.figures.proxy, one.load))


def _around(chosen: PricedDesign, target: Target, proven: Prover) -> list[PricedDesign]:
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


def _cheaper(guesses: Sequence[Guess], chosen: PricedDesign) -> list[tuple[Target | None, Shape]]:
    """The most accurate of all, and the most accurate within less time, or within less load."""
    limits: list[Callable[[Guess], bool]] = [lambda one: True]
    for cut in CUTS:
        limits.append(lambda one, cut=cut: one.load <= chosen.load / cut)  # type: ignore[misc]
        limits.append(
            lambda one, cut=cut: one.figures.duration_s <= chosen.figures.duration_s / cut  # type: ignore[misc]
        )
    found: list[tuple[Target | None, Shape]] = []
    for within in limits:
        fitting = [one for one in guesses if within(one) and not _is_privunit(one.shape)]
        if fitting:
            best = min(fitting, key=lambda one: (one.figures.proxy, one.load))
            found.append((None, best.shape))
    return found


def _is_privunit(shape: Shape) -> bool:
    return shape.randomizer is RandomizerKind.PRIVUNIT


def _best_at(
    share: float,
    space: Sequence[Shape],
    target: Target,
    chosen: PricedDesign,
    question: Question,
) -> list[Shape]:
    """The most accurate shape at part of the budget, asking no more of devices."""
    part = replace(target, epsilon=share * target.epsilon)
    guesses = [
        one
        for one in _guesses(space, part, question)
        if one.load <= SAME_LOAD * chosen.load and not _is_privunit(one.shape)
    ]
    if not guesses:
        return [chosen.shape]
    return [min(guesses, key=lambda one: one.figures.proxy).shape]
