"""Noise at the server: width of the epsilon interval and run time, beside PLD-accounting."""

from __future__ import annotations

from itertools import product

import PLD_accounting

from bench.measure import Section, timed
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import CELLS
from checkins.accounting.exact.slot_sum import AddRemove
from checkins.accounting.solve import Interval

NOISES = (0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
SLOTS = (1, 10, 100, 10**3, 10**4, 10**5)
DELTAS = (1e-5, 1e-8, 1e-12)


def ours(noise: float, slots: int, delta: float) -> Interval:
    return AddRemove(GaussianCampaign(noise, slots, 1.0), delta=delta, cells=CELLS).epsilon(delta)


def peers(noise: float, slots: int, delta: float) -> tuple[float, float]:
    return PLD_accounting.gaussian_allocation_epsilon_range(
        sigma=noise, num_steps=slots, delta=delta
    )


def grid() -> Section:
    rows, widest_all, slowest_all = [], 0.0, 0.0
    for slots in SLOTS:
        widest, slowest = 0.0, 0.0
        for noise, delta in product(NOISES, DELTAS):
            bounds, seconds = timed(lambda: ours(noise, slots, delta), repeats=1)  # noqa: B023
            widest = max(widest, bounds.upper / bounds.lower - 1.0)
            slowest = max(slowest, seconds)
        rows.append([f"{slots:,}", f"{100 * widest:.3f} %", f"{slowest:.2f} s"])
        widest_all, slowest_all = max(widest_all, widest), max(slowest_all, slowest)
    return Section(
        "Noise at the server, add/remove: the interval and its time",
        "Over sigma 0.3 to 10 and delta 1e-5 to 1e-12, [lower, upper] is within 1% and 3 s.",
        widest_all < 0.01 and slowest_all < 3.0,
        ("slots", "widest interval", "slowest"),
        rows,
    )


def peer() -> Section:
    rows, holds = [], True
    for noise, slots, delta in ((1.0, 10, 1e-6), (1.0, 100, 1e-6), (1.0, 1000, 1e-6)):
        bounds, seconds = timed(lambda: ours(noise, slots, delta))  # noqa: B023
        (upper, lower), theirs = timed(lambda: peers(noise, slots, delta), repeats=1)  # noqa: B023
        inside = lower <= bounds.lower and bounds.upper <= upper
        if slots == 1000:
            holds = inside and theirs >= 10 * seconds
        rows.append(
            [
                f"{slots:,}",
                f"[{bounds.lower:.5f}, {bounds.upper:.5f}] in {seconds:.2f} s",
                f"[{lower:.5f}, {upper:.5f}] in {theirs:.2f} s",
                f"{theirs / seconds:,.0f} times",
                f"{(upper - lower) / (bounds.upper - bounds.lower):.0f} times",
            ]
        )
    return Section(
        "Compared with PLD-accounting 2.0 (compiled), add/remove, sigma 1, delta 1e-6",
        "At 1,000 slots it is at least 10 times faster, and its interval lies inside the other"
        " one.",
        holds,
        ("slots", "checkins", "PLD-accounting", "faster", "tighter"),
        rows,
    )
