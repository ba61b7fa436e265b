"""What an adversary makes of a campaign: a few numbers for each run, the larger the more suspect.

The first is the likelihood ratio of honest releases. The others are for code that is not honest:
where noise is missing, a slot is known, or something is told that must not be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkins.audit.machines.scene import Scene, clipped
from checkins.audit.machines.world import CANARY, Seen
from checkins.campaign import Campaign
from checkins.protocol.model_update import ModelUpdate
from checkins.randomizers import Gaussian, Randomizer

Found = dict[str, float]
"""Scores by the name of the attack."""

LIKELIHOOD = "likelihood ratio"


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a slot's sum of ``reports`` noises, in clips."""

    randomizer: Randomizer
    reports: int

    def log_ratio(self, values: Iterable[float], shift: float) -> float:
        """log of how much likelier the values are, one release each, if ``shift`` is in them."""
        match self.randomizer:
            case Gaussian(noise_multiplier=sigma):
                variance = self.reports * sigma**2
            case _:
                scale = 2.0 / self.randomizer.privacy_spec.local_epsilon
                if self.reports == 1:
                    return sum((abs(y) - abs(y - shift)) / scale for y in values)
                variance = self.reports * 2.0 * scale**2
        return sum((y * shift - shift**2 / 2.0) / variance for y in values)


@dataclass(frozen=True)
class Adversary:
    """Knows everything public about a small campaign and its scene; sees one run at a time."""

    campaign: Campaign
    scene: Scene
    slots: Sequence[int]
    """Those that the canary draws from."""
    noise: Noise

    @cached_property
    def _update(self) -> ModelUpdate:
        return ModelUpdate.of(self.campaign)

    def releases(self, seen: Seen) -> Found:
        """Scores of all models that were shown."""
        sums = self._sums(seen)
        clips = {
            slot: [float(one[-1]) + self.scene.others for one in some]
            for slot, some in sums.items()
        }
        flat = [y for some in clips.values() for y in some] or [0.0]
        first, last = (min(clips), max(clips)) if clips else (0, 0)
        quiet = sum(not np.any(one) for some in sums.values() for one in some)
        return {
            LIKELIHOOD: self._likelihood(clips, seen),
            "largest sum": max(flat),
            "smallest sum": min(flat),
            "all sums together": math.fsum(flat),
            "loudness": math.fsum(y * y for y in flat),
            "first slot": math.fsum(clips.get(first, [])),
            "last slot": math.fsum(clips.get(last, [])),
            "slots that moved": float(len(flat) - quiet),
        }

    def ledger(self, seen: Seen) -> Found:
        """Scores of what the ledger tells besides."""
        told = [count for _, count in seen.closings if count is not None]
        return {"counts told": float(sum(told)) if told else -1.0}

    def remains(self, seen: Seen) -> Found:
        """Scores of what lies on the disks once all is over."""
        slot, device = seen.server_disk.slot, seen.device_disk
        report = None if device is None else device.report
        kept = 0.0 if report is None else float(report.values[-1]) * self._unit
        return {
            "server's disk": float(slot is not None and CANARY in slot.waiting),
            "device's disk": kept,
        }

    @property
    def _unit(self) -> float:
        grid, clip = self.campaign.randomizer.grid, self.campaign.randomizer.clip
        return (grid or 1.0) / (clip or 1.0)

    def _sums(self, seen: Seen) -> dict[int, list[NDArray[np.float64]]]:
        """The sum of each slot in clips, one for each model that was shown of it."""
        counts = dict(seen.closings)
        before, sums = seen.start, dict[int, list[NDArray[np.float64]]]()
        base, step = before, self._update.rate * self._update.unit / self._unit
        shown: dict[int, set[bytes]] = {}
        for slot, model in seen.releases:
            if slot not in sums:
                base, sums[slot], shown[slot] = before, [], set()
            before = model
            if model.tobytes() not in shown[slot]:
                shown[slot].add(model.tobytes())
                sums[slot].append((base - model) * ((counts.get(slot) or 1) / step))
        return sums

    def _likelihood(self, clips: dict[int, list[float]], seen: Seen) -> float:
        """log f of MATH.md B1, less log f of the other data where there are such."""
        scene = self.scene
        ratio = self._log_f(clips, clipped(scene.with_), seen)
        if scene.without is None:
            return ratio
        return ratio - self._log_f(clips, clipped(scene.without), seen)

    def _log_f(self, clips: dict[int, list[float]], data: float, seen: Seen) -> float:
        scene, participation = self.scene, self.campaign.design.participation
        if scene.strangers:
            return self._log_average(clips, data, dict(seen.closings))
        shift = data + (1.0 if scene.others else 0.0)
        used = scene.others / (scene.others + 1.0) if scene.others else 1.0
        terms = [math.log1p(-participation)] if participation < 1.0 else []
        share = participation / len(self.slots)
        for slot in self.slots:
            ratio = self.noise.log_ratio(clips.get(slot, ()), shift)
            terms.append(math.log(share * used) + ratio)
            if used < 1.0:
                terms.append(math.log(share * (1.0 - used)))
        return float(np.logaddexp.reduce(terms))

    def _log_average(
        self, clips: dict[int, list[float]], data: float, counts: dict[int, int | None]
    ) -> float:
        """Averaged updates: a slot of c reports holds the canary in proportion to c."""
        terms = [
            math.log(count) + Noise(self.noise.randomizer, count).log_ratio(some, data)
            for slot, some in clips.items()
            if (count := counts.get(slot) or 0) > 0
        ]
        return float(np.logaddexp.reduce(terms)) if terms else 0.0
