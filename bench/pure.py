"""Measure the run time of the exact accountant for pure randomizers, up to 10⁹ slots."""

from __future__ import annotations

from itertools import product

from bench.measure import Section, timed
from checkins.accounting.exact.pure import PureAddRemove, PureCampaign, PureReplaceOne

LIMITS = {10**6: 0.1, 10**9: 1.0}


def pure() -> Section:
    rows, holds = [], True
    cases = product(LIMITS, (0.1, 1.0, 4.0), (0.01, 0.37, 1.0), (1e-6, 1e-15))
    worst: dict[tuple[int, str], tuple[float, str]] = {}
    for slots, local_epsilon, participation, delta in cases:
        campaign = PureCampaign(local_epsilon, slots, participation)
        for name, make in (("add-remove", PureAddRemove), ("replace-one", PureReplaceOne)):
            bounds, seconds = timed(lambda: make(campaign, delta=delta).epsilon(delta), repeats=2)  # noqa: B023
            sane = 0.0 <= bounds.lower <= bounds.upper <= local_epsilon
            holds = holds and sane and seconds < LIMITS[slots]
            setting = f"eps0 {local_epsilon:g}, p0 {participation:g}, delta {delta:g}"
            worst[slots, name] = max(worst.get((slots, name), (0.0, "")), (seconds, setting))
    for (slots, name), (seconds, setting) in worst.items():
        rows.append([f"{slots:,}", name, f"{seconds:.4f} s", f"{LIMITS[slots]:g} s", setting])
    return Section(
        "Pure randomizers: time to compute an epsilon",
        "The slowest of 18 settings stays below its time limit, and every lower bound is at most"
        " its upper bound.",
        holds,
        ("slots", "neighbours", "slowest", "limit", "at"),
        rows,
    )
