"""How a server correlates the noise of successive slots: the coefficients, described exactly.

``checkins.strategies`` proposes coefficients, and ``exact.correlated_noise`` certifies them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from checkins import validate
from checkins.errors import InvalidValue

MOST_BANDS, MOST_STRATEGY_BITS = 1024, 24
"""Largest number of coefficients of correlated noise, and of binary digits of a coefficient."""


@dataclass(frozen=True, slots=True)
class NoiseStrategy:
    """Exact coefficients with which the server correlates the noise of successive slots.

    The coefficients c_0 >= c_1 >= ... > 0 are ``numerators`` divided by 2**bits, and their squares
    sum to at most 1. Let x_t be the sum of slot t, and Z_t fresh noise. The server releases

        v_t = c_0 x_t + c_1 x_{t-1} + ... + c_{b-1} x_{t-b+1} + Z_t

    where b is the number of bands. Everyone computes y from v by y_t = (v_t - c_1 y_{t-1} - ...
    - c_{b-1} y_{t-b+1}) / c_0. This is x_t plus noise that is correlated across slots. One band
    with c_0 = 1 is independent noise.

    Coefficients that do not increase keep the recursion for y stable (docs/theory/
    correlated-noise.md).

    >>> NoiseStrategy((3, 3), bits=2)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: strategy = '18/16': the squares ... must sum to at most 1
    """

    numerators: tuple[int, ...]
    bits: int

    def __post_init__(self) -> None:
        if self.bits != 0 or not isinstance(self.bits, int) or isinstance(self.bits, bool):
            validate.count(most=MOST_STRATEGY_BITS, bits=self.bits)
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "numerators", tuple(self.numerators))
        validate.count(most=MOST_BANDS, bands=len(self.numerators))
        for numerator in self.numerators:
            validate.count(most=2**self.bits, numerators=numerator)
        # Integers of numpy are converted, because their squares and sums may overflow.
        object.__setattr__(self, "numerators", tuple(map(int, self.numerators)))
        if any(later > earlier for earlier, later in pairwise(self.numerators)):
            raise InvalidValue("numerators", list(self.numerators), "must not increase")
        squares = sum(numerator**2 for numerator in self.numerators)
        if squares > 4**self.bits:
            raise InvalidValue(
                "strategy",
                f"{squares}/{4**self.bits}",
                "the squares of the coefficients must sum to at most 1",
            )

    @property
    def bands(self) -> int:
        """The number b of coefficients: the server remembers the last b - 1 sums of slots."""
        return len(self.numerators)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The coefficients as floats, which represent them exactly."""
        return tuple(math.ldexp(numerator, -self.bits) for numerator in self.numerators)

    @property
    def is_independent(self) -> bool:
        """Whether the noise of different slots is independent, with the declared deviation."""
        return self.numerators == (2**self.bits,)
