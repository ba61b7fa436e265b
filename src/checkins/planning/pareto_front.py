"""Which designs nothing beats: no other is at least as good on every axis and better on one."""

from __future__ import annotations

from collections.abc import Sequence

from checkins.planning.priced import PricedDesign

MOST_SHOWN = 12


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` is nowhere worse than ``other`` and somewhere better; less is better.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (1, 2)), dominates((1, 2), (2, 1))
    (True, False, False)
    """
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto(designs: Sequence[PricedDesign]) -> list[PricedDesign]:
    """The designs that no other one of the list dominates, best proxy first, each axes once."""
    kept: dict[tuple[float, ...], PricedDesign] = {}
    for design in designs:
        kept.setdefault(design.axes, design)
    free = [
        design
        for axes, design in kept.items()
        if not any(dominates(others, axes) for others in kept)
    ]
    return sorted(free, key=lambda design: design.axes)


def shown(front: Sequence[PricedDesign], always: PricedDesign) -> list[PricedDesign]:
    """At most ``MOST_SHOWN`` of a front, ``always`` among them."""
    if len(front) <= MOST_SHOWN:
        return list(front)
    spread = [
        front[round(place * (len(front) - 1) / (MOST_SHOWN - 2))] for place in range(MOST_SHOWN - 1)
    ]
    chosen = {id(design): design for design in (*spread, always)}
    return sorted(chosen.values(), key=lambda design: design.axes)
