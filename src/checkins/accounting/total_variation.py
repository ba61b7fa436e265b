"""Charges to delta: the distance between implementation and design, and curious clients.

Let τ bound the total variation between all that a run releases and some function of all that its
design releases, for every input. If the design is (ε, δ′)-DP, the run is (ε, δ′ + (1 + e^ε) τ)-DP.
Let h bound the probability that the client displaces a curious one (``accounting.curious``): it
adds e^ε h.

Theorem:     docs/theory/total-variation.md, docs/theory/curious.md.
Neighbours:  any.
Rounding:    sums are compared as rationals, e^ε is rounded up: a τ far below the last digit of δ
             is charged all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from checkins import validate
from checkins.errors import InvalidValue


def check(variation: float) -> None:
    """Refuse what is no total variation."""
    validate.probability(variation=variation)


def shares(delta: float) -> Iterator[float]:
    """The parts of ``delta`` that a design may be priced at, the largest first.

    They do not depend on τ: so a larger τ can only lead to a smaller one, and a larger epsilon.
    """
    yield math.nextafter(delta, 0.0)
    for bits in (46, 40, 34, 28, 22, 17, 13, 10, 8, 7, 6, 5, 4, 3, 2):
        yield delta * (1.0 - 2.0**-bits)
    for bits in range(1, 21):
        yield delta * 2.0**-bits


def fits(
    share: float, *, delta: float, epsilon: float, variation: float, exposure: float = 0.0
) -> bool:
    """Whether ``share`` and the charges for τ and h at this epsilon stay within ``delta``.

    >>> fits(0.5, delta=0.5, epsilon=0.0, variation=1e-300)
    False
    """
    if not share > 0.0:
        return False
    charged = _charge(epsilon, variation, exposure)
    return charged is not None and Fraction(share) + charged <= Fraction(delta)


def share(*, delta: float, epsilon: float, variation: float, exposure: float = 0.0) -> float:
    """What is left of ``delta`` for the design at this epsilon."""
    if variation == 0.0 and exposure == 0.0:
        return delta
    for part in shares(delta):
        if fits(part, delta=delta, epsilon=epsilon, variation=variation, exposure=exposure):
            return part
    raise exhausted(delta, variation, exposure)


def widened(*, delta: float, epsilon: float, variation: float) -> float:
    """A delta above ``delta`` plus the charge for τ: the lower end is read off there."""
    charged = _charge(epsilon, variation)
    if charged is None:
        return 1.0
    total = Fraction(delta) + charged
    above = float(total)
    return min(1.0, above if Fraction(above) >= total else math.nextafter(above, 1.0))


def charge(*, epsilon: float, variation: float, exposure: float = 0.0) -> float:
    """(1 + e^ε) τ + e^ε h, rounded up: the part of delta that is charged."""
    charged = _charge(epsilon, variation, exposure)
    if charged is None:
        return 1.0
    return min(1.0, math.nextafter(float(charged), math.inf))


def exhausted(delta: float, variation: float, exposure: float = 0.0) -> InvalidValue:
    """The refusal of a charge that exceeds delta."""
    if exposure > variation:
        return InvalidValue(
            "curious",
            f"exposes {exposure:.3g}",
            f"leaves nothing of delta = {delta!r}: add slots or capacity, allow fewer of them,"
            " or take a larger delta",
        )
    return InvalidValue(
        "variation",
        variation,
        f"leaves nothing of delta = {delta!r}: what runs is too far from what is priced",
    )


def _charge(epsilon: float, variation: float, exposure: float = 0.0) -> Fraction | None:
    """(1 + e^ε) τ + e^ε h from above; None where it exceeds every delta."""
    if not epsilon < 700.0:
        return None
    grown = Fraction(math.nextafter(math.exp(epsilon) * (1.0 + 1e-15), math.inf))
    return (1 + grown) * Fraction(variation) + grown * Fraction(exposure)
