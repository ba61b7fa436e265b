"""Totals of correlated noise: what remains without the known reports is new noise in every slot.

A client of the fault tests reports the clip in one coordinate, that of its number. So the exact
sum of a slot is known in all coordinates but those of clients that sent a report without an answer.
There the total of slot t, without the n_k x_(t-k) of the known reports, is the noise Z_t: numbers
of a rounded Gaussian, independent of every other slot.

A score is a sum of this noise with known weights, divided by its standard deviation. It is normal
with variance 1 if nothing is wrong. If all sums before a slot were forgotten, the score of the
pattern that they should leave is about -sqrt(energy of the pattern) instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from checkins.campaign import Campaign
from checkins.ledger import SlotClosed
from tests.service.faults.findings import Findings, Kind
from tests.service.faults.story import Story

CHANCE_OF_A_RUN = 5e-10
"""The probability with which anything in a right run is called wrong."""


def check_noise(
    campaign: Campaign,
    entries: Sequence[SlotClosed],
    stories: Mapping[int, Story],
    findings: Findings,
) -> None:
    """Find slots whose noise is not new, and totals that lack the sum of an earlier slot."""
    strategy, noise_multiplier = campaign.strategy, campaign.noise_multiplier
    grid, clip = campaign.release_grid, campaign.randomizer.clip
    assert strategy is not None
    assert noise_multiplier is not None
    assert grid is not None
    assert clip is not None
    totals = np.array([entry.numbers() for entry in entries], dtype=np.float64)
    known, doubtful = np.zeros(totals.shape), np.zeros(totals.shape[1], dtype=np.bool_)
    for story in stories.values():
        if not story.reports or story.slot is None:
            continue
        if story.taken:
            known[story.slot - 1] += story.units
            findings.acknowledged += 1
        else:
            doubtful |= story.units != 0
            findings.unacknowledged_out += 1
    known[:, doubtful] = 0.0
    noise = (totals - _spread(known, strategy.numerators)) / (noise_multiplier * clip / grid)
    noise[:, doubtful] = 0.0
    known /= noise_multiplier * clip / grid
    slots = len(entries)
    # One score for each pair of slots, one for the level of each slot, and two for its patterns.
    chance = CHANCE_OF_A_RUN / (slots * (slots - 1) / 2 + 3 * slots)
    findings.chance += CHANCE_OF_A_RUN
    _check_levels(noise, int((~doubtful).sum()), chance / 2, findings)
    limit = float(norm.isf(chance / 2))
    _check_pairs(noise, limit, findings)
    for slot in range(slots):
        first, last = max(0, slot + 1 - strategy.bands), min(slots, slot + strategy.bands)
        alone = np.zeros((last - slot, known.shape[1]))
        alone[0] = known[slot]
        pattern = _spread(alone, strategy.numerators)
        _check_pattern(noise[slot:last], pattern, limit, f"of slot {slot + 1}", findings)
        before = known[first:last].copy()
        before[slot - first :] = 0.0
        pattern = _spread(before, strategy.numerators)[slot - first :]
        what = f"of the slots before {slot + 1}"
        _check_pattern(noise[slot:last], pattern, limit, what, findings)


def _spread(sums: NDArray[np.float64], numerators: Sequence[int]) -> NDArray[np.float64]:
    """What sums add to the totals of their slot and of later slots."""
    spread = np.zeros(sums.shape)
    for age, numerator in enumerate(numerators[: len(sums)]):
        spread[age:] += numerator * sums[: len(sums) - age]
    return spread


def _check_levels(
    noise: NDArray[np.float64], coordinates: int, chance: float, findings: Findings
) -> None:
    lowest, highest = chi2.ppf(chance, coordinates), chi2.isf(chance, coordinates)
    for slot, energy in enumerate((noise**2).sum(axis=1), start=1):
        if not lowest <= energy <= highest:
            level = (energy / coordinates) ** 0.5
            findings.add(Kind.NOISE, f"slot {slot} has {level:.2f} times its deviation")


def _check_pairs(noise: NDArray[np.float64], limit: float, findings: Findings) -> None:
    """Noise that was used twice is in two totals."""
    for first in range(len(noise)):
        later = noise[first + 1 :]
        # Given the first, its product with another is normal, with its length as deviation.
        scores = later @ noise[first] / max(float((noise[first] ** 2).sum()) ** 0.5, 1e-9)
        for second in np.flatnonzero(np.abs(scores) > limit):
            both = f"slots {first + 1} and {first + 2 + second}"
            findings.add(Kind.NOISE, f"{both} have noise in common")


def _check_pattern(
    noise: NDArray[np.float64],
    pattern: NDArray[np.float64],
    limit: float,
    what: str,
    findings: Findings,
) -> None:
    energy = float((pattern**2).sum())
    if energy == 0.0:
        return
    findings.full_slots += 1
    score = float((noise * pattern).sum()) / energy**0.5
    if abs(score) > limit:
        findings.add(Kind.FORGOTTEN, f"{what}: a score of {score:.1f}")
