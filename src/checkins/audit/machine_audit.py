"""Audit the real state machines of a coordinator and its devices, over thousands of runs.

An audit runs a campaign many times with one client, the canary, and many times without it. The
compiled engine (``runner``) simulates enough runs to measure an epsilon close to the certified one.
The engine in this module is slower, and finds bugs in the implementation. Every run uses the state
machines of ``checkins.protocol``, the device sampler and the coordinator's source of randomness,
and injects faults such as crashes and repeated messages. ``shrunk_campaign`` returns a smaller
campaign with the same protocol, which runs in about a millisecond and has its own certificate.

The best attack is chosen on the first runs. Its bound is measured on the other runs.

``DeviceAudit`` audits one device: everything that it sends, which the server and its network can
see. The sent reports must satisfy the guarantee of the local randomizer: its local epsilon, or the
privacy profile of Gaussian noise. New noise on a retry, too little noise, noise with holes, and a
category that is reported truthfully too often all violate this guarantee.

Floating-point noise has holes [Mironov12]: numbers that are possible under one input and impossible
under another. If noise was rounded to fewer binary digits than the grid has, its last digits are
zeros. Then the report minus the true input ends in zeros too, so the adversary recognizes the true
input.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol as Interface

import numpy as np

from checkins import validate
from checkins.accounting import Design, GaussianNoise, NoiseAt, Population, Protocol
from checkins.accounting.solve import first_true
from checkins.audit import adversary
from checkins.audit.adversary import (
    LIKELIHOOD_RATIO,
    UNCLIPPED_NORM,
    AttackScores,
    Scenario,
    Update,
    last_axis_update,
    wake_slot_of,
)
from checkins.audit.bounds import SELECTION_SHARE, Trials, lower_bounds
from checkins.audit.machine_run import CANARY, ORDINARY_FAULTS, Faults, MachineRun
from checkins.audit.report import certificate_at
from checkins.audit.runner import Clock, OutOfTime
from checkins.campaign import Budget, Campaign, Optimizer
from checkins.campaign.task import DataSet, Model, Task
from checkins.errors import InvalidValue, NotCovered
from checkins.ledger import Ledger, spending_of
from checkins.protocol.participant import Participant, participant_of
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow, rules_of, sampler_of
from checkins.protocol.server import Server
from checkins.randomizers import DeviceSampler, Gaussian, RandomizedResponse

MAX_SLOTS, MAX_WINDOW, MAX_CAPACITY, MAX_CONTRIBUTORS = 5, 3, 2, 6
"""Largest values of a small campaign. With a sliding window, it has 2 * window − 1 slots."""
DEFAULT_DELTA = 1e-3
"""Default delta, large enough that a few thousand runs can measure a bound."""
DIMENSION = 2
"""Dimension of the model of a small campaign, except for randomized response."""
UNLIMITED_EPSILON = 1e6
"""Epsilon of a budget that is never exhausted."""


def shrunk_campaign(campaign: Campaign, *, delta: float = DEFAULT_DELTA) -> Campaign:
    """Return a campaign with the same protocol and participation, but fewer slots.

    The noise of a slot's sum stays the same, so each report has more noise if a slot has fewer
    reports. Raises NotCovered if the campaign has no clip norm or no grid, or uses randomized
    response, because devices cannot run such a campaign.
    """
    validate.open_unit(delta=delta)
    randomizer = campaign.randomizer
    if randomizer.categories is not None or randomizer.clip is None or randomizer.grid is None:
        problem = (
            "cannot run on a device, so the state machines cannot run it. They need gaussian or"
            " laplace noise with a clip and a grid. Audit it with the compiled engine"
        )
        raise NotCovered("randomizer", str(randomizer.kind), problem)
    return replace(
        campaign,
        population_id=None,
        budget=Budget(
            UNLIMITED_EPSILON, max(delta, campaign.budget.delta), campaign.budget.adjacency
        ),
        design=_small_design(campaign.design),
        repeats=1,
        task=with_plain_sgd(campaign.task),
    )


def _small_design(design: Design) -> Design:
    averaged = design.protocol is Protocol.AVERAGED
    window = None if design.window is None else min(design.window, MAX_WINDOW)
    capacity = None if design.capacity is None else min(design.capacity, MAX_CAPACITY)
    contributors = MAX_CONTRIBUTORS
    if design.population is not None:
        contributors = min(design.population.fewest, MAX_CONTRIBUTORS)
    noise = design.randomizer
    if isinstance(noise, GaussianNoise) and noise.at is not NoiseAt.SERVER and capacity is not None:
        noise = GaussianNoise(design.slot_noise(noise) / math.sqrt(capacity), noise.at)
    return replace(
        design,
        slots=min(design.slots, MAX_SLOTS) if window is None else 2 * window - 1,
        window=window,
        capacity=capacity,
        population=Population(contributors, contributors) if averaged else None,
        least_reports=design.least_reports and min(design.least_reports, contributors),
        randomizer=noise,
    )


def with_plain_sgd(task: Task | None) -> Task:
    """Return the task with plain SGD steps, or a synthetic task if ``task`` is None.

    With plain SGD, the sum of every slot can be computed from the released models.
    """
    optimizer = Optimizer(1.0)
    if task is None:
        return Task(DataSet.SYNTHETIC, Model.LOGISTIC, optimizer)
    return replace(task, optimizer=optimizer)


DEFAULT_RUNS = 4000
"""Default number of runs with the canary, and of runs without it."""
MIN_RUNS = 32
"""Smallest number of runs with the canary, and without it, that can measure a bound."""
TIMED_RUNS = 5
"""Number of runs with the canary, and without it, from which the time of a run is estimated."""
ENGINE = "machines"
"""Name of this engine in reports."""
MIN_BOUND_GAIN = 0.2
"""An attack replaces the best attack so far only if its bound on epsilon is larger by this much."""
_CHOOSING_CONFIDENCE = 0.99  # used only to choose an attack
ScoresOfBothHalves = tuple[Sequence[AttackScores], Sequence[AttackScores]]
"""Scores of the runs with the canary, and of the runs without it."""


class AdversaryView(StrEnum):
    """What the adversary observes of a campaign."""

    PUBLIC = "every release and the ledger"
    DISKS = "every release, the ledger, and the disks after the end"


@dataclass(frozen=True, slots=True)
class Claim:
    """The (epsilon, delta) guarantee that the audit tries to contradict."""

    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False)
class MachineAudit:
    """One audit: a campaign, its scenario, injected faults, the adversary's view and the claim.

    ``servers`` has one server for each of the consecutive campaigns on one population. The scores
    of these campaigns are added.
    """

    campaign: Campaign
    servers: tuple[Server, ...]
    sampler: DeviceSampler
    scenario: Scenario
    faults: Faults
    view: AdversaryView
    claim: Claim

    def scores(self, *, present: bool) -> AttackScores:
        """Return the adversary's scores of one run, with the canary or without it."""
        totals: AttackScores = {}
        for server in self.servers:
            for name, score in self._scores_of_campaign(server, present).items():
                totals[name] = totals.get(name, 0.0) + score
        return totals

    def trials(self, runs: int = DEFAULT_RUNS) -> Trials:
        """Return the best attack's scores of ``runs`` runs with the canary and ``runs`` without."""
        return trials_of_best_attack(self, runs, canary=self.scenario.name)

    def _scores_of_campaign(self, server: Server, present: bool) -> AttackScores:
        devices, updates = self._devices_and_updates[not present]
        randomize = self.sampler.encode if self._noise_at_server else self.sampler.privatize

        def make_report(token: str) -> Report:
            return Report.from_device(randomize(updates[token]))

        wake_slot = wake_slot_of(self.campaign)
        run = MachineRun(server, self.sampler, devices, make_report, self.faults, wake_slot)
        observed = run.run()
        scores = self._adversary.release_scores(observed) | self._adversary.ledger_scores(observed)
        if self.view is AdversaryView.DISKS:
            return scores | self._adversary.disk_scores(observed)
        return scores

    @cached_property
    def _devices_and_updates(self) -> tuple[tuple[dict[str, Participant], dict[str, Update]], ...]:
        """The devices and their updates by token, with the canary and without it."""
        halves = []
        for update in (self.scenario.update_with, self.scenario.update_without):
            everyone = adversary.other_devices(self.scenario, self.campaign)
            if update is not None:  # put the canary first, so that it has the first receipt
                everyone = {CANARY: (participant_of(self.campaign), update)} | everyone
            devices = {token: device for token, (device, _) in everyone.items()}
            updates = {
                token: last_axis_update(length, self.sampler)
                for token, (_, length) in everyone.items()
            }
            halves.append((devices, updates))
        return tuple(halves)

    @property
    def _noise_at_server(self) -> bool:
        noise = self.campaign.design.randomizer
        return isinstance(noise, GaussianNoise) and noise.at is NoiseAt.SERVER

    @cached_property
    def _adversary(self) -> adversary.Adversary:
        design, first = self.campaign.design, wake_slot_of(self.campaign)
        reports = 1 if self._noise_at_server else design.reports_per_slot
        window = (
            range(first, first + design.window) if design.window else range(1, design.slots + 1)
        )
        randomizer = self.sampler.randomizer
        return adversary.Adversary(self.campaign, self.scenario, window, randomizer, reports)


class RunScorer(Interface):
    """An audit that scores one run at a time and tries to contradict ``claim``."""

    @property
    def claim(self) -> Claim: ...
    def scores(self, *, present: bool) -> AttackScores: ...


def trials_of_best_attack(audit: RunScorer, runs: int, *, canary: str) -> Trials:
    """Make ``runs`` runs with the canary and ``runs`` without. Return the best attack's trials."""
    validate.count(runs=runs)
    pairs = ((audit.scores(present=True), audit.scores(present=False)) for _ in range(runs))
    with_canary, without_canary = zip(*pairs, strict=True)
    return choose_attack((with_canary, without_canary), delta=audit.claim.delta, canary=canary)


def choose_attack(halves: ScoresOfBothHalves, *, delta: float, canary: str) -> Trials:
    """Return the trials of the attack with the largest bound on the first runs.

    Every named score is an attack, and so is its negative. The choice does not reduce the
    confidence of a bound, because ``lower_bounds`` does not count the events of these first runs.
    """
    best, best_bound = None, 0.0
    for name in halves[0][0]:
        present, missing = (np.array([scores[name] for scores in half]) for half in halves)
        for sign, statistic in ((1.0, name), (-1.0, f"{name}, negated")):
            trials = Trials(sign * present, sign * missing, canary, statistic, ENGINE)
            first, _ = trials.split(SELECTION_SHARE)
            bound = lower_bounds(first, deltas=[delta], confidence=_CHOOSING_CONFIDENCE)[0].epsilon
            if best is None or bound > best_bound + MIN_BOUND_GAIN:
                best, best_bound = trials, bound
    if best is None:
        raise InvalidValue("runs", len(halves[0]), "must leave at least one attack to choose from")
    return best


def prepare_audit(
    campaign: Campaign,
    *,
    scenario: Scenario | None = None,
    faults: Faults = ORDINARY_FAULTS,
    view: AdversaryView = AdversaryView.PUBLIC,
) -> MachineAudit:
    """Prepare the audit of a small campaign. The claim is its certificate.

    If ``scenario`` is None, the first scenario of ``scenarios_for`` is used.
    """
    delta = campaign.budget.delta
    claim = Claim(certificate_at(campaign, delta).epsilon, delta)
    dimension = campaign.randomizer.categories or DIMENSION
    server, sampler = new_server(campaign, dimension), sampler_of(campaign, dimension=dimension)
    scenario = scenario or adversary.scenarios_for(campaign)[0]
    return MachineAudit(campaign, (server,), sampler, scenario, faults, view, claim)


def new_server(campaign: Campaign, dimension: int = DIMENSION) -> Server:
    """Return a server before its first slot, with an empty ledger and a model of zeros.

    With randomized response, the model is the number of reports of each category.
    """
    affordable = spending_of(Ledger(), campaign).affordable_slots_in_run()
    update = adversary.model_update_of(campaign)
    rules = rules_of(campaign, dimension=dimension, affordable=affordable, update=update)
    return Server.start(rules, np.zeros(dimension))


def run_trials(
    small: Campaign,
    *,
    runs: int = DEFAULT_RUNS,
    seconds: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[Trials, ...]:
    """Run the trials of every scenario that fits a small campaign, with ordinary faults.

    If ``runs`` runs would take longer than ``seconds``, fewer runs are made. Raises OutOfTime if
    there is no time for ``MIN_RUNS`` runs. If ``seconds`` is None, the time is not limited.
    """
    started = clock()
    scenarios = adversary.scenarios_for(small)
    audits = [prepare_audit(small, scenario=scenario) for scenario in scenarios]
    if seconds is not None:
        validate.non_negative(seconds=seconds)
        runs = min(runs, _runs_within(seconds - (clock() - started), audits, clock))
        if runs < MIN_RUNS:
            raise OutOfTime(f"{seconds:.2g} s were left for it, and {MIN_RUNS} runs take longer")
    return tuple(audit.trials(runs) for audit in audits)


def _runs_within(seconds: float, audits: Sequence[MachineAudit], clock: Clock) -> int:
    """Return how many runs with the canary, and as many without it, fit into ``seconds``."""
    started = clock()
    for audit in audits:
        for present in (True, False) * TIMED_RUNS:
            audit.scores(present=present)
    elapsed_s = clock() - started
    return max(0, int(TIMED_RUNS * (seconds - elapsed_s) / max(elapsed_s, 1e-9)))


RESTARTS_AFTER_REPORT = Faults(repeated_messages=1, crashes_after_report=8)
"""A device restarts several times after it has sent its report, and messages arrive twice."""
_MAX_LOCAL_EPSILON = 200.0  # the local epsilon is searched below this


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

    return first_true(meets_delta, false=0.0, true=_MAX_LOCAL_EPSILON, precision=1e-9)


def _trailing_zero_bits(number: int) -> int:
    """Return the number of trailing zero bits. For 0 it is 32, because reports have 32 bits."""
    return 32 if number == 0 else (number & -number).bit_length() - 1
