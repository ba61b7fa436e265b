"""The scenario of an audit of the state machines, and the scores that an adversary computes.

A larger score is evidence that the canary took part. The first score is the likelihood ratio of all
releases, which is the best score if the implementation is correct. The other scores detect
implementation errors: missing noise, a predictable slot, or information that must not be released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency
from checkins.audit.machine_run import CANARY, Observations
from checkins.audit.releases import GaussianSum, LaplaceSum, Noise
from checkins.campaign import Campaign
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import Participant
from checkins.protocol.rules import FixedWindow, SlidingWindow
from checkins.randomizers import DeviceSampler, Gaussian, Randomizer

Update = NDArray[np.float64]

EXCESS = 3.0
"""Length of the canary's update in units of the clip. A correct device clips it to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """The canary's two updates, and the other devices.

    Updates are along the last coordinate, in units of the clip. ``with_`` is the canary's update in
    one half of the runs and ``without`` its update in the other half. It is None if the canary does
    not take part in that half (add-remove). ``others`` devices check in to every slot. Their
    clipped update is −1, and the adversary knows their slots. ``strangers`` devices draw their own
    slots and have the update 0.
    """

    name: str
    with_: float = EXCESS
    without: float | None = None
    others: int = 0
    strangers: int = 0


def scenarios_for(campaign: Campaign) -> tuple[Scenario, ...]:
    """Return the worst scenarios for a campaign.

    The canary is alone, or in full slots if slots have a capacity. If the campaign declares a
    population, the canary is among that many devices.
    """
    design = campaign.design
    replaced = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    other_data = -EXCESS if replaced else None
    if design.population is not None:
        strangers = design.population.fewest - 1
        return (Scenario("among others", EXCESS, other_data, strangers=strangers),)
    scenes = [Scenario("alone among dummies", EXCESS, other_data)]
    if design.capacity is not None:
        scenes.append(Scenario("in full slots", EXCESS, other_data, others=design.capacity))
    return tuple(scenes)


def update_of(clips: float, sampler: DeviceSampler) -> Update:
    """Return an update of ``clips`` times the clip along the last coordinate."""
    update = np.zeros(sampler.dimension)
    update[-1] = clips * sampler.randomizer.clip  # type: ignore[union-attr]
    return update


def wake_of(campaign: Campaign) -> int:
    """Return the first slot at which a device can wake so that its window is after the warm-up."""
    return campaign.design.window or 1


def neighbours(scenario: Scenario, campaign: Campaign) -> dict[str, tuple[Participant, float]]:
    """Return all devices except the canary, with their updates in units of the clip."""
    design = campaign.design
    known = {
        f"other-{slot}-{index}": (Participant(1.0, FixedWindow((slot,))), -EXCESS)
        for slot in range(1, design.slots + 1)
        for index in range(scenario.others)
    }
    window = SlidingWindow(design.window) if design.window else FixedWindow.whole(design.slots)
    unknown = {
        f"stranger-{index}": (Participant(design.participation, window), 0.0)
        for index in range(scenario.strangers)
    }
    return known | unknown


AttackScores = dict[str, float]
"""The scores of one run, by the name of the attack."""

LIKELIHOOD = "likelihood ratio"


def noise_ratio(randomizer: Randomizer, reports: int, sums: Sequence[float], shift: float) -> float:
    """Return the log-likelihood ratio of sums with the mean ``shift`` and with the mean 0.

    The noise of a sum is that of ``reports`` reports. Everything is in units of the clip.
    """
    noise: Noise
    if isinstance(randomizer, Gaussian):
        noise = GaussianSum(randomizer.noise_multiplier * math.sqrt(reports))
    else:
        noise = LaplaceSum(2.0 / randomizer.privacy_spec.local_epsilon, reports)
    return math.fsum(noise.log_ratio(np.asarray(sums, np.float64), np.full(1, shift)))


@dataclass(frozen=True)
class Adversary:
    """An adversary who knows a small campaign and its scenario, and scores one run at a time."""

    campaign: Campaign
    scenario: Scenario
    slots: Sequence[int]
    """The slots that the canary draws from."""
    randomizer: Randomizer
    reports: int
    """The number of reports with noise in the sum of a slot."""

    @cached_property
    def _update(self) -> ModelUpdate:
        return ModelUpdate.of(self.campaign)

    def releases(self, observed: Observations) -> AttackScores:
        """Return scores computed from all released models."""
        sums = self._sums(observed)
        clips = {
            slot: [float(one[-1]) + self.scenario.others for one in some]
            for slot, some in sums.items()
        }
        flat = [y for some in clips.values() for y in some] or [0.0]
        first, last = (min(clips), max(clips)) if clips else (0, 0)
        quiet = sum(not np.any(one) for some in sums.values() for one in some)
        return {
            LIKELIHOOD: self._likelihood(clips, observed),
            "largest sum": max(flat),
            "smallest sum": min(flat),
            "all sums together": math.fsum(flat),
            "loudness": math.fsum(y * y for y in flat),
            "first slot": math.fsum(clips.get(first, [])),
            "last slot": math.fsum(clips.get(last, [])),
            "slots that moved": float(len(flat) - quiet),
        }

    def ledger(self, observed: Observations) -> AttackScores:
        """Return scores computed from the ledger's counts."""
        counts = [count for _, count in observed.closings if count is not None]
        return {"counts in the ledger": float(sum(counts)) if counts else -1.0}

    def disks(self, observed: Observations) -> AttackScores:
        """Return scores computed from what the disks contain after the campaign."""
        slot, device = observed.server_disk.slot, observed.device_disk
        report = None if device is None else device.report
        value = 0.0 if report is None else float(report.values[-1]) * self._unit
        return {
            "server's disk": float(slot is not None and CANARY in slot.waiting),
            "device's disk": value,
        }

    @property
    def _unit(self) -> float:
        grid, clip = self.campaign.randomizer.grid, self.campaign.randomizer.clip
        return (grid or 1.0) / (clip or 1.0)

    def _sums(self, observed: Observations) -> dict[int, list[NDArray[np.float64]]]:
        """Return the sums of each slot in units of the clip, computed from the released models.

        A slot has one sum for each distinct model that was released for it. A correct server
        releases one.
        """
        counts = dict(observed.closings)
        before, sums = observed.start, dict[int, list[NDArray[np.float64]]]()
        base, step = before, self._update.rate * self._update.unit / self._unit
        released: dict[int, set[bytes]] = {}
        for slot, model in observed.releases:
            if slot not in sums:
                base, sums[slot], released[slot] = before, [], set()
            before = model
            if model.tobytes() not in released[slot]:
                released[slot].add(model.tobytes())
                sums[slot].append((base - model) * ((counts.get(slot) or 1) / step))
        return sums

    def _likelihood(self, clips: dict[int, list[float]], observed: Observations) -> float:
        """Return the log-likelihood ratio. See docs/theory/one-likelihood-ratio.md."""
        scenario = self.scenario
        ratio = self._log_f(clips, _clipped(scenario.with_), observed)
        if scenario.without is None:
            return ratio
        return ratio - self._log_f(clips, _clipped(scenario.without), observed)

    def _log_f(self, clips: dict[int, list[float]], data: float, observed: Observations) -> float:
        scenario, participation = self.scenario, self.campaign.design.participation
        if scenario.strangers:
            return self._log_average(clips, data, dict(observed.closings))
        shift = data + (1.0 if scenario.others else 0.0)
        used = scenario.others / (scenario.others + 1.0) if scenario.others else 1.0
        terms = [math.log1p(-participation)] if participation < 1.0 else []
        share = participation / len(self.slots)
        for slot in self.slots:
            sums = clips.get(slot, ())
            ratio = noise_ratio(self.randomizer, self.reports, sums, shift)
            terms.append(math.log(share * used) + ratio)
            if used < 1.0:
                terms.append(math.log(share * (1.0 - used)))
        return float(np.logaddexp.reduce(terms))

    def _log_average(
        self, clips: dict[int, list[float]], data: float, counts: dict[int, int | None]
    ) -> float:
        """Return log f of averaged updates, where each slot is weighted by its reports."""
        terms = [
            math.log(count) + noise_ratio(self.randomizer, count, some, data)
            for slot, some in clips.items()
            if (count := counts.get(slot) or 0) > 0
        ]
        return float(np.logaddexp.reduce(terms)) if terms else 0.0


def _clipped(clips: float) -> float:
    """Return the length after clipping, in units of the clip. The sign is kept."""
    return math.copysign(min(abs(clips), 1.0), clips)
