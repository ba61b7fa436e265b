"""What leaves one device: every report it ever sends for its one participation.

Whoever taps the line of a device, or runs the server, sees no less than these bytes. The promise
is the local randomizer's own: its epsilon, or the profile of Gaussian noise. A report that is made
anew on a retry, noise that is too small and noise with holes in it break it.

Floating-point noise has holes [Mironov12]: numbers that are possible under one input and
impossible under another. On the grid that shows in the last binary digits: noise that was rounded
to fewer digits than the grid has ends in zeros once the right input is taken off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from checkins import validate
from checkins.accounting import Design, NoiseAt, Protocol
from checkins.audit.machines.adversity import Adversity
from checkins.audit.machines.attacks import LIKELIHOOD, Found
from checkins.audit.machines.scene import EXCESS, update_of
from checkins.audit.machines.small import PLENTY, plain
from checkins.audit.machines.stage import Claim, best_attack
from checkins.audit.machines.world import CANARY, World
from checkins.audit.trials import Trials
from checkins.campaign import Campaign
from checkins.errors import NotCovered
from checkins.ledger import Ledger, spending_of
from checkins.protocol.factories import sampler_of, server_of
from checkins.protocol.participant import Participant
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow
from checkins.protocol.server import Server
from checkins.randomizers import DeviceSampler, Gaussian

RESTARTS = Adversity(repeated=1, crashes_after_report=8)
"""A device that loses its memory again and again after it has sent its report."""
_MOST_EPSILON = 200.0


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStage:
    """One device with one of two updates; it takes part for certain, in a campaign of one slot."""

    server: Server
    sampler: DeviceSampler
    updates: tuple[np.ndarray, np.ndarray]
    adversity: Adversity
    claim: Claim

    def scores(self, *, present: bool) -> Found:
        """What is made of all that the device sent; ``present`` takes the first update."""
        update = self.updates[not present]
        seen = World(
            self.server,
            self.sampler,
            {CANARY: Participant(1.0, FixedWindow((1,)))},
            lambda token: Report.from_device(self.sampler.privatize(update)),
            self.adversity,
        ).run()
        distinct = list(dict.fromkeys(seen.sent))
        ends = [int(report.values[-1]) for report in distinct]
        mine, other = (int(self.sampler.encode(one).units[-1]) for one in self.updates)
        last = ends[-1]
        return {
            LIKELIHOOD: float(sum(ends)),
            "last report": float(last),
            "holes in the noise": float(_zeros(last - mine) - _zeros(last - other)),
            "round reports": float(_zeros(last)),
            "reports sent": float(len(distinct)),
        }

    def trials(self, runs: int) -> Trials:
        """Scores of so many participations with either update, by the best attack."""
        validate.count(runs=runs)
        halves: tuple[list[Found], list[Found]] = ([], [])
        for _ in range(runs):
            for present in (True, False):
                halves[not present].append(self.scores(present=present))
        return best_attack(halves, delta=self.claim.delta, canary="one device")


def device_stage(
    campaign: Campaign,
    *,
    delta: float,
    adversity: Adversity = RESTARTS,
    odd: bool = False,
) -> DeviceStage:
    """The audit of one device of a campaign with noise at the client, with the campaign's noise.

    Its two updates are too long by far, in opposite directions. With ``odd`` they fit the clip
    and are an odd number of grid steps apart, which no rounding of the noise can hide.
    """
    if campaign.noise_at is NoiseAt.SERVER:
        raise NotCovered("noise_at", "server", "a device then promises nothing by itself")
    single = _single(campaign)
    sampler = sampler_of(single, dimension=1)
    updates = (update_of(EXCESS, sampler), update_of(-EXCESS, sampler))
    if odd:
        units, step = int(sampler.grid.clip_units(_clip(sampler))), sampler.grid.step
        near = units - 1 - units % 2
        updates = (np.array([(near + 0.5) * step]), np.array([-(near - 0.5) * step]))
    claim = Claim(local_epsilon(sampler, delta=delta), delta, "the local randomizer's promise")
    server = server_of(single, np.zeros(1), affordable=spending_of(Ledger(), single).affordable())
    return DeviceStage(server, sampler, updates, adversity, claim)


def local_epsilon(sampler: DeviceSampler, *, delta: float) -> float:
    """What one report promises for any two updates, at ``delta``; rounded up.

    Theorem:     [BW18, Thm 8] for Gaussian noise; the randomizer's own epsilon otherwise.
    """
    randomizer = sampler.randomizer
    if not isinstance(randomizer, Gaussian):
        return float(randomizer.privacy_spec.local_epsilon)
    low, high = 0.0, _MOST_EPSILON
    while high - low > 1e-9 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if randomizer.delta(epsilon=middle) <= delta else (middle, high)
    return high


def _single(campaign: Campaign) -> Campaign:
    """One slot, in which one report is used; the budget ends nothing."""
    design = Design(
        Protocol.FIXED,
        slots=1,
        participation=1.0,
        capacity=1,
        randomizer=campaign.design.randomizer,
    )
    budget = replace(campaign.budget, epsilon=PLENTY)
    return replace(campaign, design=design, repeats=1, budget=budget, task=plain(campaign.task))


def _clip(sampler: DeviceSampler) -> float:
    return float(sampler.randomizer.clip)  # type: ignore[union-attr]


def _zeros(number: int) -> int:
    """Binary zeros that a number ends in; 0 ends in more than any report."""
    return 32 if number == 0 else (number & -number).bit_length() - 1
