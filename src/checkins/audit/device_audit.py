"""Audit one device: everything that it sends, which the server and its network can see.

The sent reports must satisfy the guarantee of the local randomizer: its local epsilon, or the
privacy profile of Gaussian noise. New noise on a retry, too little noise, noise with holes, and a
category that is reported truthfully too often all violate this guarantee.

Floating-point noise has holes [Mironov12]: numbers that are possible under one input and impossible
under another. If noise was rounded to fewer binary digits than the grid has, its last digits are
zeros. Then the report minus the true input ends in zeros too, so the adversary recognizes the true
input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from checkins.accounting import Design, NoiseAt, Protocol
from checkins.accounting.solve import first_true
from checkins.audit.adversary import (
    LIKELIHOOD_RATIO,
    UNCLIPPED_NORM,
    AttackScores,
    Update,
    last_axis_update,
)
from checkins.audit.bounds import Trials
from checkins.audit.machine_audit import (
    UNLIMITED_EPSILON,
    Claim,
    new_server,
    trials_of_best_attack,
    with_plain_sgd,
)
from checkins.audit.machine_run import CANARY, Faults, MachineRun
from checkins.campaign import Campaign
from checkins.errors import NotCovered
from checkins.protocol.participant import Participant
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow, sampler_of
from checkins.protocol.server import Server
from checkins.randomizers import DeviceSampler, Gaussian, RandomizedResponse

RESTARTS_AFTER_REPORT = Faults(repeated_messages=1, crashes_after_report=8)
"""A device restarts several times after it has sent its report, and messages arrive twice."""
_MAX_EPSILON = 200.0  # the local epsilon is searched below this


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAudit:
    """The audit of one device. Half of the runs use the first update, half the second update.

    The campaign has one slot, and the device always takes part.
    """

    server: Server
    sampler: DeviceSampler
    updates: tuple[Update, Update]
    faults: Faults
    claim: Claim

    def scores(self, *, present: bool) -> AttackScores:
        """Return scores of everything that the device sent in one run.

        The device has the first update if ``present``, else the second update.
        """
        update = self.updates[not present]
        noise_scores: AttackScores = {}

        def make_report(token: str) -> Report:
            return Report.from_device(self.sampler.privatize(update))

        devices = {CANARY: Participant(1.0, FixedWindow((1,)))}
        observed = MachineRun(self.server, self.sampler, devices, make_report, self.faults).run()
        distinct = list(dict.fromkeys(observed.sent_reports))
        entries = [int(report.values[-1]) for report in distinct]
        last = entries[-1]
        if isinstance(self.sampler.randomizer, RandomizedResponse):
            # The updates are the last and the first category.
            entries = [int(report.values[-1]) - int(report.values[0]) for report in distinct]
        else:
            first, second = (int(self.sampler.encode(vector).units[-1]) for vector in self.updates)
            zeros = [_trailing_zero_bits(last - unit) for unit in (first, second)]
            noise_scores["holes in the noise"] = float(zeros[0] - zeros[1])
            noise_scores["round reports"] = float(_trailing_zero_bits(last))
        return {
            LIKELIHOOD_RATIO: float(sum(entries)),  # a monotone function of the ratio
            "last report": float(last),
            "reports sent": float(len(distinct)),
        } | noise_scores

    def trials(self, runs: int) -> Trials:
        """Return the best attack's scores of ``runs`` runs with each of the two updates."""
        return trials_of_best_attack(self, runs, canary="one device")


def prepare_device_audit(
    campaign: Campaign, *, faults: Faults = RESTARTS_AFTER_REPORT, odd_distance: bool = False
) -> DeviceAudit:
    """Prepare the audit of one device of a campaign whose devices add the noise.

    The device's two updates have opposite directions and are longer than the clip norm. With
    randomized response, they are two categories. If
    ``odd_distance`` is True, they are shorter than the clip norm and differ by an odd number of
    grid steps. Then noise that was rounded to an even number of steps shows which update was sent.
    """
    if campaign.noise_at is NoiseAt.SERVER:
        raise NotCovered("noise_at", "server", "a report without noise has no local guarantee")
    noise, delta = campaign.design.randomizer, campaign.budget.delta
    one_slot = replace(
        campaign,
        design=Design(Protocol.FIXED, slots=1, participation=1.0, capacity=1, randomizer=noise),
        repeats=1,
        budget=replace(campaign.budget, epsilon=UNLIMITED_EPSILON),
        task=with_plain_sgd(campaign.task),
    )
    dimension = campaign.randomizer.categories or 1
    sampler = sampler_of(one_slot, dimension=dimension)
    first, second = (last_axis_update(sign * UNCLIPPED_NORM, sampler) for sign in (1, -1))
    if odd_distance:
        step = sampler.grid.step
        clip_units = int(sampler.grid.clip_units(float(last_axis_update(1.0, sampler)[0])))
        odd_units = clip_units - 1 - clip_units % 2
        first, second = (
            np.array([(odd_units + 0.5) * step]),
            np.array([-(odd_units - 0.5) * step]),
        )
    claim = Claim(local_epsilon(sampler, delta=delta), delta)
    return DeviceAudit(new_server(one_slot, dimension), sampler, (first, second), faults, claim)


def local_epsilon(sampler: DeviceSampler, *, delta: float) -> float:
    """Return the epsilon of one report at ``delta``, for any two updates, rounded up.

    Theorem:     [BW18, Thm 8] for Gaussian noise. Other randomizers state their epsilon.
    """
    randomizer = sampler.randomizer
    if not isinstance(randomizer, Gaussian):
        return float(randomizer.privacy_spec.local_epsilon)

    def meets_delta(epsilon: float) -> bool:
        return randomizer.delta(epsilon=epsilon) <= delta

    return first_true(meets_delta, false=0.0, true=_MAX_EPSILON, precision=1e-9)


def _trailing_zero_bits(number: int) -> int:
    """Return the number of trailing zero bits. For 0 it is 32, because reports have 32 bits."""
    return 32 if number == 0 else (number & -number).bit_length() - 1
