"""Audit a campaign, or one device, by running the real state machines many times.

The best attack is chosen on the first runs, which are not counted afterwards.

A device audit is about everything that one device sends, which the server and anyone who intercepts
the traffic can see. It must satisfy the guarantee of the local randomizer: its local epsilon, or
the privacy profile of Gaussian noise. A report with new noise on a retry, too little noise, and
noise with holes all violate this guarantee.

Floating-point noise has holes [Mironov12]: numbers that are possible under one input and impossible
under another. If noise was rounded to fewer digits than the grid has, it ends in binary zeros. So
the difference of a report and the right input ends in zeros, and the adversary recognizes it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from checkins import validate
from checkins.accounting import Design, GaussianNoise, NoiseAt, Protocol
from checkins.accounting.solve import first_true
from checkins.audit.bounds import CHOOSING, Trials, lower_bounds
from checkins.audit.machines import adversary
from checkins.audit.machines.adversary import AttackScores, Scenario, Update, update_of, wake_of
from checkins.audit.machines.machine_run import CANARY, ORDINARY_FAULTS, Faults, MachineRun
from checkins.audit.machines.small_campaigns import (
    DELTA,
    DIMENSION,
    PLENTY,
    SmallCampaign,
    made_small,
    plain,
)
from checkins.audit.runner import Clock, OutOfTime
from checkins.campaign import Campaign
from checkins.errors import InvalidValue, NotCovered
from checkins.ledger import Ledger, spending_of
from checkins.protocol.participant import Participant, participant_of
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow, sampler_of
from checkins.protocol.server import Server, server_of
from checkins.randomizers import DeviceSampler, Gaussian

RUNS = 4000
"""Default number of runs with the canary, and of runs without it."""
MIN_RUNS = 32
"""Smallest number of runs with the canary, and without it, that can measure anything."""
TIMED_RUNS = 5
"""Number of runs with the canary, and without it, from which the time of a run is estimated."""
ENGINE = "machines"
MARGIN = 0.2
"""An attack replaces the best one so far only if its bound is larger by more than this."""
_CONFIDENCE = 0.99  # used only to choose an attack
Halves = tuple[Sequence[AttackScores], Sequence[AttackScores]]
"""Scores of the runs with the canary, and of the runs without it."""


class AdversaryView(StrEnum):
    """What the adversary observes of a campaign."""

    PUBLIC = "every release and the ledger"
    DISKS = "every release, the ledger, and the disks after the end"


@dataclass(frozen=True, slots=True)
class Claim:
    """The (epsilon, delta) that must hold. ``what`` says where it comes from."""

    epsilon: float
    delta: float
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class _Devices:
    """The devices of the runs with or without the canary.

    ``wakes`` are the slots at which devices wake.
    """

    devices: Mapping[str, Participant]
    updates: Mapping[str, Update]
    wakes: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class MachineAudit:
    """One audit: a campaign, its scenario, injected faults, the adversary's view and the claim.

    ``servers`` are the servers of consecutive campaigns on one population.
    """

    campaign: Campaign
    servers: tuple[Server, ...]
    sampler: DeviceSampler
    scenario: Scenario
    faults: Faults
    view: AdversaryView
    claim: Claim
    _devices: tuple[_Devices, _Devices] = field(init=False, repr=False)
    _adversary: adversary.Adversary = field(init=False, repr=False)

    def __post_init__(self) -> None:
        devices = tuple(
            self._devices_with(self.scenario.data(present=present)) for present in (True, False)
        )
        object.__setattr__(self, "_devices", devices)
        object.__setattr__(self, "_adversary", self._informed())

    def scores(self, *, present: bool) -> AttackScores:
        """Return the adversary's scores of one run, with the canary or without it."""
        found: AttackScores = {}
        for server in self.servers:
            for name, score in self._scores_of_one(server, present).items():
                found[name] = found.get(name, 0.0) + score
        return found

    def _scores_of_one(self, server: Server, present: bool) -> AttackScores:
        devices, make = self._devices[not present], self.sampler.privatize
        if self._noise_at_server:
            make = self.sampler.encode

        def report(token: str) -> Report:
            return Report.from_device(make(devices.updates[token]))

        node = (server, self.sampler, devices.devices, report, self.faults, devices.wakes)
        observed = MachineRun(*node).run()
        found = self._adversary.releases(observed) | self._adversary.ledger(observed)
        disks = self.view is AdversaryView.DISKS
        return found | self._adversary.disks(observed) if disks else found

    def _devices_with(self, data: float | None) -> _Devices:
        everyone = adversary.neighbours(self.scenario, self.campaign)
        if data is not None:  # put the canary first, so that it has the first receipt
            everyone = {CANARY: (participant_of(self.campaign), data)} | everyone
        wake = wake_of(self.campaign)
        return _Devices(
            {token: device for token, (device, _) in everyone.items()},
            {token: update_of(clips, self.sampler) for token, (_, clips) in everyone.items()},
            dict.fromkeys(everyone, wake) if wake > 1 else {},
        )

    @property
    def _noise_at_server(self) -> bool:
        noise = self.campaign.design.randomizer
        return isinstance(noise, GaussianNoise) and noise.at is NoiseAt.SERVER

    def _informed(self) -> adversary.Adversary:
        design, wake = self.campaign.design, wake_of(self.campaign)
        reports = 1 if self._noise_at_server else (design.capacity or 1)
        window = range(wake, wake + design.window) if design.window else range(1, design.slots + 1)
        noise = adversary.SlotNoise(self.sampler.randomizer, reports)
        return adversary.Adversary(self.campaign, self.scenario, window, noise)

    def trials(self, runs: int = RUNS) -> Trials:
        """Return the best attack's scores of ``runs`` runs with the canary and ``runs`` without."""
        return best_attack(
            _both_halves(self, runs), delta=self.claim.delta, canary=self.scenario.name
        )


def _both_halves(audit: MachineAudit | DeviceAudit, runs: int) -> Halves:
    validate.count(runs=runs)
    pairs = ((audit.scores(present=True), audit.scores(present=False)) for _ in range(runs))
    with_canary, without = zip(*pairs, strict=True)
    return with_canary, without


def best_attack(halves: Halves, *, delta: float, canary: str) -> Trials:
    """Return the trials of the attack with the largest bound on the first runs.

    Each score and its negative is an attack. The choice does not reduce the confidence, because
    ``lower_bounds`` uses the first runs only to choose its events.
    """
    best, most = None, 0.0
    for name in halves[0][0]:
        present, missing = (np.array([found[name] for found in half]) for half in halves)
        for sign, words in ((1.0, name), (-1.0, f"{name}, negated")):
            trials = Trials(sign * present, sign * missing, canary, words, ENGINE)
            first, _ = trials.split(CHOOSING)
            bound = lower_bounds(first, deltas=[delta], confidence=_CONFIDENCE)[0].epsilon
            if best is None or bound > most + MARGIN:
                best, most = trials, bound
    if best is None:
        raise InvalidValue("runs", len(halves[0]), "leaves no attack to choose")
    return best


def prepare_audit(
    small: SmallCampaign,
    *,
    scenario: Scenario | None = None,
    faults: Faults = ORDINARY_FAULTS,
    view: AdversaryView = AdversaryView.PUBLIC,
) -> MachineAudit:
    """Prepare the audit of a small campaign.

    If ``scenario`` is None, the first one of ``scenarios_for`` is used.
    """
    campaign, certificate = small.campaign, small.certificate
    claim = Claim(certificate.epsilon, certificate.delta, "the campaign's certificate")
    affordable = spending_of(Ledger(), campaign).affordable()
    server = server_of(campaign, np.zeros(DIMENSION), affordable=affordable)
    sampler = sampler_of(campaign, dimension=DIMENSION)
    scenario = scenario or adversary.scenarios_for(campaign)[0]
    return MachineAudit(campaign, (server,), sampler, scenario, faults, view, claim)


def run_trials(
    campaign: Campaign,
    *,
    runs: int = RUNS,
    delta: float = DELTA,
    faults: Faults = ORDINARY_FAULTS,
    seconds: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[Trials, ...]:
    """Shrink a campaign with ``made_small``, and run the trials of every scenario that fits.

    If ``runs`` runs would take longer than ``seconds``, fewer runs are made. Raises OutOfTime if
    there is no time for ``MIN_RUNS`` runs. If ``seconds`` is None, the time is not limited.
    """
    began = clock()
    small = made_small(campaign, delta=delta)
    audits = [
        prepare_audit(small, scenario=scenario, faults=faults)
        for scenario in adversary.scenarios_for(small.campaign)
    ]
    if seconds is not None:
        validate.non_negative(seconds=seconds)
        runs = min(runs, _affordable(audits, seconds - (clock() - began), clock))
        if runs < MIN_RUNS:
            raise OutOfTime(f"{seconds:.2g} s were left for it, and {MIN_RUNS} runs take longer")
    return tuple(audit.trials(runs) for audit in audits)


def _affordable(audits: Sequence[MachineAudit], seconds: float, clock: Clock) -> int:
    """Return how many runs with the canary, and as many without it, fit into ``seconds``."""
    began = clock()
    for audit in audits:
        for present in (True, False) * TIMED_RUNS:
            audit.scores(present=present)
    took = clock() - began
    return max(0, int(TIMED_RUNS * (seconds - took) / max(took, 1e-9)))


RESTARTS = Faults(repeated=1, crashes_after_report=8)
"""A device restarts several times after it has sent its report."""
_MAX_EPSILON = 200.0


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAudit:
    """The audit of one device that has one of two updates.

    The campaign has one slot, and the device always takes part.
    """

    server: Server
    sampler: DeviceSampler
    updates: tuple[np.ndarray, np.ndarray]
    faults: Faults
    claim: Claim

    def scores(self, *, present: bool) -> AttackScores:
        """Return scores of everything that the device sent in one run.

        The device has the first update if ``present``, else the second one.
        """
        update = self.updates[not present]

        def report(token: str) -> Report:
            return Report.from_device(self.sampler.privatize(update))

        devices = {CANARY: Participant(1.0, FixedWindow((1,)))}
        observed = MachineRun(self.server, self.sampler, devices, report, self.faults).run()
        distinct = list(dict.fromkeys(observed.sent))
        ends = [int(report.values[-1]) for report in distinct]
        mine, other = (int(self.sampler.encode(one).units[-1]) for one in self.updates)
        last = ends[-1]
        return {
            adversary.LIKELIHOOD: float(sum(ends)),
            "last report": float(last),
            "holes in the noise": float(_zeros(last - mine) - _zeros(last - other)),
            "round reports": float(_zeros(last)),
            "reports sent": float(len(distinct)),
        }

    def trials(self, runs: int) -> Trials:
        """Return the best attack's scores of ``runs`` runs with each of the two updates."""
        return best_attack(_both_halves(self, runs), delta=self.claim.delta, canary="one device")


def prepare_device_audit(
    campaign: Campaign, *, delta: float, faults: Faults = RESTARTS, odd: bool = False
) -> DeviceAudit:
    """Prepare the audit of one device of a campaign whose devices add the noise.

    Its two updates have opposite directions and are longer than the clip. If ``odd`` is True, they
    are shorter than the clip and differ by an odd number of grid steps, so that rounded noise shows
    which update was sent.
    """
    if campaign.noise_at is NoiseAt.SERVER:
        raise NotCovered("noise_at", "server", "a report without noise has no local guarantee")
    single = _single(campaign)
    sampler = sampler_of(single, dimension=1)
    updates = (update_of(adversary.EXCESS, sampler), update_of(-adversary.EXCESS, sampler))
    if odd:
        units, step = int(sampler.grid.clip_units(_clip(sampler))), sampler.grid.step
        near = units - 1 - units % 2
        updates = (np.array([(near + 0.5) * step]), np.array([-(near - 0.5) * step]))
    claim = Claim(local_epsilon(sampler, delta=delta), delta, "the local randomizer's guarantee")
    server = server_of(single, np.zeros(1), affordable=spending_of(Ledger(), single).affordable())
    return DeviceAudit(server, sampler, updates, faults, claim)


def local_epsilon(sampler: DeviceSampler, *, delta: float) -> float:
    """Return the epsilon of one report at ``delta``, for any two updates, rounded up.

    Theorem:     [BW18, Thm 8] for Gaussian noise; the randomizer's own epsilon otherwise.
    """
    randomizer = sampler.randomizer
    if not isinstance(randomizer, Gaussian):
        return float(randomizer.privacy_spec.local_epsilon)

    def is_true(epsilon: float) -> bool:
        return randomizer.delta(epsilon=epsilon) <= delta

    return first_true(is_true, false=0.0, true=_MAX_EPSILON, precision=1e-9)


def _single(campaign: Campaign) -> Campaign:
    """Return the campaign with one slot, one report, and an unlimited budget."""
    noise = campaign.design.randomizer
    design = Design(Protocol.FIXED, slots=1, participation=1.0, capacity=1, randomizer=noise)
    budget = replace(campaign.budget, epsilon=PLENTY)
    return replace(campaign, design=design, repeats=1, budget=budget, task=plain(campaign.task))


def _clip(sampler: DeviceSampler) -> float:
    return float(sampler.randomizer.clip)  # type: ignore[union-attr]


def _zeros(number: int) -> int:
    """Return the number of trailing binary zeros. For 0 it is 32, more than any report has."""
    return 32 if number == 0 else (number & -number).bit_length() - 1
