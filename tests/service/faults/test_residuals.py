"""The checker of correlated noise finds each fault that it looks for, and none in a right run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from checkins.campaign import parse_campaign
from checkins.ledger import SlotClosed
from tests.service.faults.findings import Findings, Kind
from tests.service.faults.residuals import check_noise
from tests.service.faults.story import Story
from tests.support.campaigns import DIMENSION, Plan

SLOTS, CLIENTS_A_SLOT, LOST_AFTER = 12, 4, 6
CAMPAIGN = parse_campaign(Plan(slots=SLOTS, correlated=True).text).campaign
STRATEGY = CAMPAIGN.strategy
assert STRATEGY is not None
assert CAMPAIGN.randomizer.grid is not None
UNITS = round(1.0 / CAMPAIGN.randomizer.grid)
DEVIATION = 0.2 * UNITS * 2**STRATEGY.bits
Arrays = tuple[NDArray[np.int64], NDArray[np.int64]]


def findings(change: Callable[[Arrays], NDArray[np.int64]]) -> Findings:
    """Judge the totals that ``change`` makes of the exact sums and the noise of a run."""
    dice = np.random.default_rng(1)
    noise = np.rint(dice.standard_normal((SLOTS, DIMENSION)) * DEVIATION).astype(np.int64)
    sums, stories = np.zeros((SLOTS, DIMENSION), np.int64), {}
    for client in range(SLOTS * CLIENTS_A_SLOT):
        slot, units = client % SLOTS, np.zeros(DIMENSION, dtype="<i4")
        units[client] = UNITS
        stories[client] = Story(
            client,
            drawn={slot + 1},
            reports={units.tobytes()},
            taken=client != 5,  # a report without an answer may count too
        )
        sums[slot] += units
    model = np.zeros(DIMENSION)
    entries = [
        SlotClosed.of(slot=slot, total=total, model=model)
        for slot, total in enumerate(change((sums, noise)), start=1)
    ]
    found = Findings()
    check_noise(CAMPAIGN, entries, stories, found)
    assert found.chance < 1e-9
    return found


def right(arrays: Arrays) -> NDArray[np.int64]:
    sums, totals = arrays[0], arrays[1].copy()
    for age, numerator in enumerate(STRATEGY.numerators):
        totals[age:] += numerator * sums[: SLOTS - age]
    return totals


def forgotten(arrays: Arrays) -> NDArray[np.int64]:
    """A crash after a slot forgets all sums."""
    sums, noise = arrays
    parts = [(sums[:LOST_AFTER], noise[:LOST_AFTER]), (sums[LOST_AFTER:], noise[LOST_AFTER:])]
    totals = [part_noise.copy() for _, part_noise in parts]
    for total, (part, _) in zip(totals, parts, strict=True):
        for age, numerator in enumerate(STRATEGY.numerators):
            total[age:] += numerator * part[: len(part) - age]
    return np.concatenate(totals)


def a_slot_lost(arrays: Arrays) -> NDArray[np.int64]:
    sums = arrays[0].copy()
    sums[LOST_AFTER] = 0
    return right((sums, arrays[1]))


def counted_twice(arrays: Arrays) -> NDArray[np.int64]:
    sums = arrays[0].copy()
    sums[LOST_AFTER] *= 2
    return right((sums, arrays[1]))


def noise_reused(arrays: Arrays) -> NDArray[np.int64]:
    noise = arrays[1].copy()
    noise[LOST_AFTER] = noise[LOST_AFTER - 1]
    return right((arrays[0], noise))


def noise_missing(arrays: Arrays) -> NDArray[np.int64]:
    noise = arrays[1].copy()
    noise[LOST_AFTER] = 0
    return right((arrays[0], noise))


def test_a_right_run_is_found_right() -> None:
    assert findings(right).violations == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (forgotten, Kind.FORGOTTEN),
        (a_slot_lost, Kind.FORGOTTEN),
        (counted_twice, Kind.FORGOTTEN),
        (noise_reused, Kind.NOISE),
        (noise_missing, Kind.NOISE),
    ],
)
def test_each_fault_is_found(fault: Callable[[Arrays], NDArray[np.int64]], kind: Kind) -> None:
    assert kind in {violation.kind for violation in findings(fault).violations}
