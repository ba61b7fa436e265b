"""Certify campaigns that were chosen after earlier releases, by a privacy filter.

Theorem:     docs/theory/adaptive-campaigns.md.
Neighbours:  as asked for.
Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from checkins.accounting import total_variation
from checkins.accounting.accountant import certify, check, lower_of
from checkins.accounting.adversaries import AgainstServer, against_server
from checkins.accounting.certificate import (
    Alternative,
    Certificate,
    assumptions,
    charged_to_delta,
    versions,
)
from checkins.accounting.design import MOST_EPSILON, Adjacency, Design
from checkins.accounting.filters import Block, Filter, filtered_epsilon
from checkins.errors import InvalidValue, NotCovered

BEFOREHAND = "parameters fixed beforehand"
"""The last words of the assumption under which campaigns compose without a filter."""
_MOST_COMPARED = 1000
"""Largest number of campaigns for which the comparison without a filter is computed."""


def certify_adaptive(
    blocks: Sequence[Block],
    chosen: Filter,
    *,
    delta: float,
    adjacency: Adjacency,
    variation: float = 0.0,
    budget: float = 0.0,
) -> Certificate:
    """Certify blocks of campaigns, each of which may depend on all earlier releases.

    ``chosen`` is the filter, which was fixed before the first release. The certificate's epsilon is
    the smallest budget under which the filter admits these blocks. It is a guarantee only if no
    larger budget was allowed. If a larger ``budget`` was promised, the total variation is charged
    at that epsilon.
    """
    started = time.perf_counter()
    designs = [design for block in blocks for design in block.designs]
    check(designs, delta=delta, adjacency=adjacency, campaigns=1)
    total_variation.check(variation)
    epsilon = filtered_epsilon(
        blocks, chosen, delta=delta, adjacency=adjacency, variation=variation, budget=budget
    )
    if not math.isfinite(epsilon):
        raise _unbounded(blocks, chosen, delta=delta, adjacency=adjacency, variation=variation)
    fixed = _fixed_beforehand(blocks, delta=delta, adjacency=adjacency, variation=variation)
    own = Alternative(chosen.method, epsilon, f"{chosen}; chosen after earlier releases", True)
    others = () if fixed is None else fixed.alternatives
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=0.0 if fixed is None else min(fixed.epsilon_lower, epsilon),
        delta=delta,
        adjacency=adjacency,
        method=chosen.method,
        assumptions=(
            *_assumed(blocks, chosen, adjacency),
            *charged_to_delta(variation=variation, epsilon=max(epsilon, budget)),
        ),
        alternatives=(
            own,
            *(replace(other, note=f"with {BEFOREHAND}", proves=False) for other in others),
        ),
        epsilon_lower_of=lower_of(designs),
        variation=variation,
        against_server=_against_server(blocks, delta),
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy", "dp-accounting"),
    )


def chosen_after_releases(blocks: Sequence[Block], chosen: Filter) -> str:
    """Return the assumption that replaces "parameters fixed beforehand"."""
    runs = sum(block.runs for block in blocks)
    return (
        f"{runs:,} campaigns in {len(blocks):,} blocks, each with fresh randomness; a block may be"
        f" chosen after earlier releases, within a filter ({chosen}) fixed before the first release"
    )


def _against_server(blocks: Sequence[Block], delta: float) -> AgainstServer:
    """Compose the reports as if fixed beforehand, because no filter covers the server's view."""
    runs = [design for block in blocks for design in block.designs * block.campaigns]
    found = against_server(runs, delta=delta)
    if len(blocks) == 1 or not math.isfinite(found.epsilon):
        return found
    return replace(found, note=f"{found.note}; with {BEFOREHAND}")


def _assumed(blocks: Sequence[Block], chosen: Filter, adjacency: Adjacency) -> tuple[str, ...]:
    """Return the assumptions of the blocks, including declared populations, and of the filter."""
    lines = (
        line
        for block in blocks
        for design in block.designs
        for line in assumptions(
            design, adjacency=adjacency, uses_population=design.capacity is not None
        )
        if not line.endswith(BEFOREHAND)
    )
    return (*dict.fromkeys(lines), chosen_after_releases(blocks, chosen))


def _fixed_beforehand(
    blocks: Sequence[Block], *, delta: float, adjacency: Adjacency, variation: float
) -> Certificate | None:
    """Certify the campaigns as if fixed beforehand.

    Return None if nothing is proved, or if there are too many campaigns.
    """
    times: dict[Design, int] = {}
    for block in blocks:
        for design in block.designs:
            times[design] = times.get(design, 0) + block.campaigns
    rounds = math.gcd(*times.values())
    if sum(times.values()) // rounds > _MOST_COMPARED:
        return None
    try:
        return certify(
            [design for design, count in times.items() for _ in range(count // rounds)],
            delta=delta,
            adjacency=adjacency,
            campaigns=rounds,
            compare=False,
            variation=variation,
        )
    except InvalidValue:
        return None


def _unbounded(
    blocks: Sequence[Block], chosen: Filter, *, delta: float, adjacency: Adjacency, variation: float
) -> InvalidValue:
    without = filtered_epsilon(blocks, chosen, delta=delta, adjacency=adjacency)
    if variation > 0.0 and math.isfinite(without):
        return total_variation.exhausted(delta, variation)
    return NotCovered(
        "delta",
        delta,
        f"no epsilon below {MOST_EPSILON:g} is proved at it for campaigns chosen after earlier"
        f" releases (filter {chosen}); add noise or slots, or run less",
    )
