"""Compute the charges to delta for an inexact implementation and for curious clients.

For every input, the distribution of all releases of a run is within total variation distance τ of
the distribution of some function, such as rounding, of all releases of its design. If the design is
(ε, δ′)-DP, the run is (ε, δ′ + (1 + e^ε) τ)-DP.

Curious clients follow the protocol, but disclose what they see. If a client displaces a curious
client, that is, takes its place in a full slot, the curious client learns that another client came.
The *exposure* h is an upper bound on the probability that this happens
(``adversaries.against_curious``). Another e^ε h is then added to δ. The two added amounts are the
*charges*. The argument ``variation`` is τ, and ``exposure`` is h.

Theorem:     docs/theory/total-variation.md, docs/theory/curious.md.
Neighbours:  any.
Rounding:    e^ε is rounded up, and sums are compared as rational numbers. So a τ far below the last
             digit of δ is still charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from checkins import formatting
from checkins.errors import DeltaExhausted


def delta_shares(delta: float) -> Iterator[float]:
    """Yield the shares of ``delta`` to try as the design's own delta, the largest first.

    The shares do not depend on τ. So a larger τ never leads to a larger share or to a smaller
    epsilon.
    """
    yield math.nextafter(delta, 0.0)
    for bits in (46, 40, 34, 28, 22, 17, 13, 10, 8, 7, 6, 5, 4, 3, 2):
        yield delta * (1.0 - 2.0**-bits)
    for bits in range(1, 21):
        yield delta * 2.0**-bits


def charges_fit(
    share: float, *, delta: float, epsilon: float, variation: float, exposure: float = 0.0
) -> bool:
    """Return True if ``share`` plus the charges for τ and h at this epsilon is at most ``delta``.

    >>> charges_fit(0.5, delta=0.5, epsilon=0.0, variation=1e-300)
    False
    """
    if not share > 0.0:
        return False
    charges = _rational_charge(epsilon, variation, exposure)
    return charges is not None and Fraction(share) + charges <= Fraction(delta)


def remaining_delta(*, delta: float, epsilon: float, variation: float) -> float:
    """Return the largest of the ``delta_shares`` that fits into ``delta`` with the charge for τ.

    The charge is computed at ``epsilon``. If ``variation`` is 0, return ``delta``. Raise
    ``DeltaExhausted`` if no share fits.
    """
    if variation == 0.0:
        return delta
    for delta_share in delta_shares(delta):
        if charges_fit(delta_share, delta=delta, epsilon=epsilon, variation=variation):
            return delta_share
    raise delta_exhausted(delta, variation)


def increased_delta(*, delta: float, epsilon: float, variation: float) -> float:
    """Return ``delta`` plus the charge for τ, rounded up.

    Lower bounds on epsilon are computed at this larger delta: if the run is (ε, δ)-DP, the function
    of the design's releases is (ε, δ + (1 + e^ε) τ)-DP.
    """
    charges = _rational_charge(epsilon, variation)
    if charges is None:
        return 1.0
    total = Fraction(delta) + charges
    nearest = float(total)
    return min(1.0, nearest if Fraction(nearest) >= total else math.nextafter(nearest, 1.0))


def charge(*, epsilon: float, variation: float, exposure: float = 0.0) -> float:
    """Return the amount (1 + e^ε) τ + e^ε h that is charged to delta, rounded up."""
    charges = _rational_charge(epsilon, variation, exposure)
    if charges is None:
        return 1.0
    return min(1.0, math.nextafter(float(charges), math.inf))


def delta_exhausted(
    delta: float, variation: float, exposure: float = 0.0, *, curious: int = 0
) -> DeltaExhausted:
    """Return the error to raise if the charges for τ or h use up delta.

    The error is about ``curious``, the number of curious clients, if ``exposure`` (h) is larger
    than ``variation`` (τ). Otherwise it is about ``variation``.
    """
    if exposure > variation:
        return DeltaExhausted(
            "curious",
            curious,
            f"the probability {formatting.up(exposure, 3)} that a client displaces a curious client"
            f" uses up all of delta = {delta!r}: add slots or capacity, allow fewer curious"
            " clients, or choose a larger delta",
        )
    return DeltaExhausted(
        "variation",
        variation,
        f"uses up all of delta = {delta!r}: the implementation is too far from the design",
    )


def _rational_charge(epsilon: float, variation: float, exposure: float = 0.0) -> Fraction | None:
    """Return (1 + e^ε) τ + e^ε h, rounded up, or None if it exceeds every possible delta."""
    if not epsilon < 700.0:
        return None
    growth = Fraction(math.nextafter(math.exp(epsilon) * (1.0 + 1e-15), math.inf))
    return (1 + growth) * Fraction(variation) + growth * Fraction(exposure)
