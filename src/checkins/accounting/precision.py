"""Delta and epsilon of a design at a chosen precision, for callers that try many designs.

A coarser precision takes less time and only ever gives a larger bound: every bound here is proved,
and noise that meets a budget here meets it in a certificate.

Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, docs/theory/windows-and-capacity.md.
Neighbours:  as asked for.
Rounding:    delta and epsilon up.
"""

from __future__ import annotations

import time
from dataclasses import replace
from enum import IntEnum, StrEnum

from checkins.accounting import composition
from checkins.accounting.adversaries import against_server
from checkins.accounting.certificate import (
    Alternative,
    Certificate,
    assumptions,
    charged_to_delta,
    versions,
)
from checkins.accounting.design import Adjacency, Design, GaussianNoise, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.solve import crossing
from checkins.errors import CheckinsError

_RARE = 0.01
"""Largest part of delta that may be charged for slots that overflow."""
_EPSILON_PRECISION = 5e-3


class Precision(IntEnum):
    """How many cells a grid has: from 100, to draw curves with, to 448, to settle a design with."""

    DRAFT = 100
    FINE = 200
    FINER = 280
    FINEST = 448


class Method(StrEnum):
    """The methods of a certificate that prove ``delta_at``."""

    EXACT = "exact"
    EXACT_POPULATION = "exact-population"
    NO_AMPLIFICATION = "no-amplification"


def delta_at(
    design: Design,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    precision: Precision,
    campaigns: int = 1,
) -> float:
    """Return an upper bound on the delta of the design at ``epsilon``.

    ``delta`` is the one of interest: the bound is sharp around it, and 0 if the client takes part
    with a probability of at most ``delta``.
    """
    accounted, overflow = _accounted(design, delta=delta, campaigns=campaigns)
    if design.participation * campaigns <= delta:
        return 0.0
    if campaigns == 1:
        found = campaign_divergence.divergence(accounted, adjacency, delta=delta, cells=precision)
        return min(1.0, found.upper(epsilon) + overflow)
    compose = (
        composition.composed_delta
        if accounted.protocol is Protocol.AVERAGED
        else composition.composed_delta_quickly
    )
    composed = compose(
        (accounted,), adjacency, campaigns=campaigns, epsilon=epsilon, delta=delta, cells=precision
    )
    return min(1.0, composed + overflow)


def epsilon_at(
    design: Design,
    *,
    delta: float,
    adjacency: Adjacency,
    precision: Precision,
    campaigns: int = 1,
    guess: float = 1.0,
) -> float:
    """Return the smallest epsilon that ``delta_at`` proves, within 0.5 %; infinity if none.

    The search starts at ``guess``.
    """

    def spent(epsilon: float) -> float:
        try:
            return delta_at(
                design,
                epsilon=max(epsilon, 1e-12),
                delta=delta,
                adjacency=adjacency,
                precision=precision,
                campaigns=campaigns,
            )
        except CheckinsError:
            return 1.0

    return crossing(
        spent, delta, guess=guess, precision=_EPSILON_PRECISION, surely_above_at_zero=True
    ).upper


def method_at(design: Design, *, delta: float, campaigns: int = 1) -> Method:
    """Return the method by which ``delta_at`` is proved; it does not depend on the noise."""
    if _is_averaged_gaussian(design):
        return Method.NO_AMPLIFICATION
    if _rare_overflow(design, delta=delta, campaigns=campaigns) is not None:
        return Method.EXACT_POPULATION
    return Method.EXACT


def certify_at(
    design: Design,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    precision: Precision,
    method: Method,
    campaigns: int = 1,
    variation: float = 0.0,
    started: float | None = None,
) -> Certificate:
    """Return the certificate of an epsilon that ``delta_at`` has proved at ``precision``.

    ``delta_at`` must have been at most what ``variation`` leaves of ``delta``: that is not checked
    again. Nothing is proved too small. ``started`` is the ``time.perf_counter()`` at which the work
    began; None means now.
    """
    started = time.perf_counter() if started is None else started
    lines = assumptions(
        design,
        adjacency=adjacency,
        uses_population=method is Method.EXACT_POPULATION,
        campaigns=campaigns,
    )
    note = f"on a grid of {precision:d} cells; checkins check uses a finer one"
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=0.0,
        delta=delta,
        adjacency=adjacency,
        method=str(method),
        assumptions=(*lines, *charged_to_delta(variation=variation, epsilon=epsilon)),
        alternatives=(Alternative(str(method), epsilon, note, proves=True),),
        campaigns=campaigns,
        variation=variation,
        against_server=against_server((design,), delta=delta, campaigns=campaigns),
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy"),
    )


def _accounted(design: Design, *, delta: float, campaigns: int) -> tuple[Design, float]:
    """Return the design that is accounted for in place of this one, and what delta grows by."""
    if _is_averaged_gaussian(design):  # as if every client's slot were known
        return replace(campaign_divergence.uncapped(design), slots=1), 0.0
    overflow = _rare_overflow(design, delta=delta, campaigns=campaigns)
    if overflow is None:
        return design, 0.0
    return campaign_divergence.uncapped(design), overflow


def _is_averaged_gaussian(design: Design) -> bool:
    return design.protocol is Protocol.AVERAGED and isinstance(design.randomizer, GaussianNoise)


def _rare_overflow(design: Design, *, delta: float, campaigns: int) -> float | None:
    """Return the probability that any slot overflows; None if unknown or too large to charge."""
    probability = campaign_divergence.overflow_probability_of(design)
    if probability is None or probability * campaigns > _RARE * delta:
        return None
    return probability * campaigns
