"""The mechanism of a campaign or baseline: sampling, noise of a slot's sum, and its divisor.

Theorem:     Algorithms 1 and 2, and section 4.2: the noise of a slot's sum, and its divisor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Design, NoiseAt, Protocol
from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, Randomizer
from checkins.simulation.engine.loop import IGNORED, SKIPPED
from checkins.simulation.engine.noise import NoiseKind
from checkins.simulation.engine.updates import Clip
from checkins.simulation.population import Counts, Sampling


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A design with its randomizer and divisor, run ``runs`` times with independent randomness."""

    design: Design
    runs: int
    randomizer: Randomizer
    noise_at: NoiseAt
    divide_by: int | None
    """The public count that a slot's sum is divided by; None if reports are averaged."""
    sampling: Sampling = Sampling.CHECK_INS

    def __post_init__(self) -> None:
        if not isinstance(self.randomizer, Gaussian | Laplace | PrivUnit):
            why = "reports categories, not model updates: use gaussian, laplace or privunit"
            raise InvalidValue("randomizer", type(self.randomizer).__name__, why)

    @classmethod
    def of(cls, campaign: Campaign, dimension: int) -> Mechanism:
        """Return the mechanism of a campaign."""
        optimizer = None if campaign.task is None else campaign.task.optimizer
        return cls(
            campaign.design,
            campaign.repeats,
            campaign.mechanism(dimension),
            campaign.noise_at or NoiseAt.CLIENT,
            None if optimizer is None else optimizer.divide_by,
        )

    @property
    def averaged(self) -> bool:
        return self.design.protocol is Protocol.AVERAGED

    @property
    def noise_kind(self) -> NoiseKind:
        """The distribution of a sum's noise; PrivUnit draws whole reports instead."""
        if isinstance(self.randomizer, Gaussian):
            return NoiseKind.GAUSSIAN
        return NoiseKind.LAPLACE if isinstance(self.randomizer, Laplace) else NoiseKind.PER_REPORT

    @property
    def clip(self) -> Clip:
        return Clip(self.randomizer.clip, l1=isinstance(self.randomizer, Laplace))  # type: ignore[union-attr]

    def noises(self, reports: Counts) -> Counts:
        """Return the number of reports, dummies included, whose noise is in each slot's sum."""
        if self.averaged:
            return reports
        return np.full_like(reports, self.design.capacity or 1)

    def scales(self, reports: Counts) -> NDArray[np.float64]:
        """Return the factor of each slot's noise."""
        if isinstance(self.randomizer, Gaussian):
            scale = self.randomizer.clip * self.randomizer.noise_multiplier
            if self.noise_at is NoiseAt.SERVER:
                return np.full(reports.shape, scale)
            return scale * np.sqrt(self.noises(reports))
        if isinstance(self.randomizer, Laplace):
            return np.full(reports.shape, self.randomizer.scale)
        return np.full(reports.shape, 0.0 if self.averaged else 1.0)  # of the dummies

    def counts(self, reports: Counts) -> NDArray[np.float64]:
        """Return the divisor of each slot's sum, or ``SKIPPED``, or ``IGNORED``."""
        if self.averaged:
            return np.where(reports > 0, reports, SKIPPED)
        counts = np.full(reports.shape, float(self.divide_by or 1))
        if self.design.window is not None:
            counts[: self.design.window - 1] = IGNORED  # the server warms up: no step is counted
        return counts

    def dummies(self, reports: Counts) -> int:
        """Return the number of dummies that the server made in a run."""
        if self.averaged or self.noise_at is NoiseAt.SERVER or self.sampling is Sampling.POISSON:
            return 0
        missing = (self.design.capacity or 1) - reports
        return int(missing[(self.design.window or 1) - 1 :].sum())

    @property
    def noise_description(self) -> str:
        """The noise in a few words, for a table."""
        r: Any = self.randomizer
        if isinstance(r, Gaussian):
            shown = f"{r.noise_multiplier:.4g}"
            noise = f"Gaussian, {shown} {'clip' if shown == '1' else 'clips'}"
            if self.noise_at is NoiseAt.SERVER:
                return f"{noise} on the sum of a slot"
            if self.averaged or not self.design.capacity:
                return f"{noise} on each report"
            total = math.sqrt(self.design.capacity) * r.noise_multiplier
            return f"{noise} on each report, {total:.4g} on a sum"
        return f"{type(r).__name__}, local epsilon {r.local_epsilon:.4g}"
