"""How the recommended design changes with its slots and with the budget, noise found anew."""

from __future__ import annotations

from collections.abc import Iterable

from checkins.planning.priced import PricedDesign
from checkins.planning.search import CachedCalibrator
from checkins.planning.target import QUICK, Target

BUDGETS = (0.25, 0.5, 2.0, 4.0)
MOST_EPSILON = 50.0


def slots_curve(designs: Iterable[PricedDesign]) -> list[dict[str, object]]:
    """One point for each number of slots, at the same epsilon."""
    return [
        {
            "slots": one.shape.slots,
            **_level(one),
            "noise_per_step": one.figures.noise_per_step,
            "dummies_share": one.figures.turnout.dummies_share,
            "proxy": one.figures.proxy,
            "epsilon": one.epsilon,
        }
        for one in sorted(designs, key=lambda one: one.shape.slots)
    ]


def budget_curve(design: PricedDesign) -> list[dict[str, object]]:
    """The same design at other budgets."""
    proven = CachedCalibrator(design.question, QUICK)
    proven.learn(design)
    target = design.target
    found: list[PricedDesign] = [design]
    for times in BUDGETS:
        epsilon = times * target.epsilon
        if epsilon <= MOST_EPSILON:
            other = proven(design.shape, Target(epsilon, target.delta, target.adjacency))
            found += [] if other is None else [other]
    return [
        {
            "epsilon": one.target.epsilon,
            **_level(one),
            "noise_per_step": one.figures.noise_per_step,
            "proxy": one.figures.proxy,
        }
        for one in sorted(found, key=lambda one: one.target.epsilon)
    ]


def _level(one: PricedDesign) -> dict[str, object]:
    return {"noise_multiplier" if one.shape.is_gaussian else "local_epsilon": one.level}
