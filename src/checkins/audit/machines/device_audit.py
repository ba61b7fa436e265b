"""Audit everything one device sends for its one participation.

Whoever intercepts the traffic of a device, or runs the server, sees no less than these bytes. The
bound to check is the local randomizer's own: its epsilon, or the privacy profile of Gaussian noise.
A report that is generated again on a retry, noise that is too small and noise with holes in it
violate the bound.

Floating-point noise has holes [Mironov12]: numbers that are possible under one input and impossible
under another. On the grid they show in the last binary digits: noise that was rounded to fewer
digits than the grid has ends in zeros once the right input is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from checkins import validate
from checkins.accounting import Design, NoiseAt, Protocol
from checkins.accounting.solve import first_true
from checkins.audit.bounds import Trials
from checkins.audit.machines.adversary import EXCESS, LIKELIHOOD, AttackScores, update_of
from checkins.audit.machines.machine_audit import Claim, best_attack
from checkins.audit.machines.machine_run import CANARY, Faults, MachineRun
from checkins.audit.machines.small_campaigns import PLENTY, plain
from checkins.campaign import Campaign
from checkins.errors import NotCovered
from checkins.ledger import Ledger, spending_of
from checkins.protocol.factories import sampler_of, server_of
from checkins.protocol.participant import Participant
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow
from checkins.protocol.server import Server
from checkins.randomizers import DeviceSampler, Gaussian

RESTARTS = Faults(repeated=1, crashes_after_report=8)
"""Repeated restarts of a device after it has sent its report."""
_MAX_EPSILON = 200.0


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAudit:
    """One device with one of two updates; it always takes part, in a campaign of one slot."""

    server: Server
    sampler: DeviceSampler
    updates: tuple[np.ndarray, np.ndarray]
    faults: Faults
    claim: Claim

    def scores(self, *, present: bool) -> AttackScores:
        """Return scores of all that the device sent; ``present`` selects the first update."""
        update = self.updates[not present]
        observed = MachineRun(
            self.server,
            self.sampler,
            {CANARY: Participant(1.0, FixedWindow((1,)))},
            lambda token: Report.from_device(self.sampler.privatize(update)),
            self.faults,
        ).run()
        distinct = list(dict.fromkeys(observed.sent))
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
        """Return the best attack's scores of ``runs`` participations with either update."""
        validate.count(runs=runs)
        halves: tuple[list[AttackScores], list[AttackScores]] = ([], [])
        for _ in range(runs):
            for present in (True, False):
                halves[not present].append(self.scores(present=present))
        return best_attack(halves, delta=self.claim.delta, canary="one device")


def prepare_device_audit(
    campaign: Campaign, *, delta: float, faults: Faults = RESTARTS, odd: bool = False
) -> DeviceAudit:
    """Prepare the audit of one device of a campaign with client noise.

    Its two updates exceed the clip, in opposite directions. With ``odd`` they fit the clip and are
    an odd number of grid steps apart, which no rounding of the noise can hide.
    """
    if campaign.noise_at is NoiseAt.SERVER:
        raise NotCovered("noise_at", "server", "a report without noise has no local guarantee")
    single = _single(campaign)
    sampler = sampler_of(single, dimension=1)
    updates = (update_of(EXCESS, sampler), update_of(-EXCESS, sampler))
    if odd:
        units, step = int(sampler.grid.clip_units(_clip(sampler))), sampler.grid.step
        near = units - 1 - units % 2
        updates = (np.array([(near + 0.5) * step]), np.array([-(near - 0.5) * step]))
    claim = Claim(local_epsilon(sampler, delta=delta), delta, "the local randomizer's guarantee")
    server = server_of(single, np.zeros(1), affordable=spending_of(Ledger(), single).affordable())
    return DeviceAudit(server, sampler, updates, faults, claim)


def local_epsilon(sampler: DeviceSampler, *, delta: float) -> float:
    """Return the epsilon of one report for any two updates at ``delta``, rounded up.

    Theorem:     [BW18, Thm 8] for Gaussian noise; the randomizer's own epsilon otherwise.
    """
    randomizer = sampler.randomizer
    if not isinstance(randomizer, Gaussian):
        return float(randomizer.privacy_spec.local_epsilon)
    return first_true(
        lambda epsilon: randomizer.delta(epsilon=epsilon) <= delta,
        false=0.0,
        true=_MAX_EPSILON,
        precision=1e-9,
    )


def _single(campaign: Campaign) -> Campaign:
    """Return the campaign with one slot, one report, and an unlimited budget."""
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
    """Return the number of trailing binary zeros; 32 for 0, more than any report has."""
    return 32 if number == 0 else (number & -number).bit_length() - 1
