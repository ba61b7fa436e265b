"""Hypothesis strategies for the descriptions of randomizers; ``RANDOMIZERS`` names them all."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse


def _powers(low: float, high: float) -> SearchStrategy[float]:
    """Numbers spread evenly over their orders of magnitude."""
    spread = st.floats(math.log10(low), math.log10(high)).map(lambda power: 10.0**power)
    return spread.map(lambda x: min(max(x, low), high))


clips = _powers(1e-9, 1e9)
local_epsilons = _powers(1e-6, 100.0)
dimensions = st.one_of(st.integers(1, 20), st.integers(1, 10**6), st.integers(1, 10**8))

gaussians = st.builds(Gaussian, clips, _powers(1e-4, 1e7))
laplaces = st.builds(Laplace, clips, local_epsilons)
privunits = st.builds(PrivUnit, clips, local_epsilons, dimensions)
responses = st.builds(
    RandomizedResponse, st.one_of(st.integers(2, 12), st.integers(2, 2**31 - 1)), local_epsilons
)

RANDOMIZERS: dict[type, SearchStrategy[object]] = {
    Gaussian: gaussians,
    Laplace: laplaces,
    PrivUnit: privunits,
    RandomizedResponse: responses,
}
