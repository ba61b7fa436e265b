"""Audit the real state machines of a coordinator and its devices, over thousands of runs.

The compiled engine is fast enough to measure an epsilon close to the certified one. This engine is
slower, and finds bugs in the implementation. Every run uses the state machines of
``checkins.protocol``, the device sampler and the coordinator's source of randomness, and injects
faults such as crashes and repeated messages. ``made_small`` returns a smaller campaign with the
same protocol, which runs in about a millisecond and has its own certificate.

The best attack is chosen on the first runs, which are not counted afterwards.
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
from checkins.audit import adversary
from checkins.audit.adversary import AttackScores, Scenario, Update, update_of, wake_of
from checkins.audit.bounds import CHOOSING, Trials, lower_bounds
from checkins.audit.machine_run import CANARY, ORDINARY_FAULTS, Faults, MachineRun
from checkins.audit.report import certificate_at
from checkins.audit.runner import Clock, OutOfTime
from checkins.campaign import Budget, Campaign, Optimizer
from checkins.campaign.task import DataSet, Model, Task
from checkins.errors import InvalidValue, NotCovered
from checkins.ledger import Ledger, spending_of
from checkins.protocol.participant import Participant, participant_of
from checkins.protocol.report import Report
from checkins.protocol.rules import sampler_of
from checkins.protocol.server import Server, server_of
from checkins.randomizers import DeviceSampler

SLOTS, WINDOW, CAPACITY, CONTRIBUTORS = 5, 3, 2, 6
"""Largest values of a small campaign. With sliding windows it has 2 ``WINDOW`` − 1 slots."""
DELTA = 1e-3
"""Default delta. At this delta, a few thousand runs can measure bounds."""
DIMENSION = 2
"""Dimension of the model of a small campaign."""
UNLIMITED = 1e6
"""Epsilon of a budget that is never exhausted."""


def made_small(campaign: Campaign, *, delta: float = DELTA) -> Campaign:
    """Return a campaign with the same protocol and participation, but fewer slots.

    The noise of a slot's sum stays the same. If a slot has fewer reports, each report therefore has
    more noise. Raises NotCovered if the campaign has no clip or no grid, or uses randomized
    response, because no device can run it.
    """
    validate.open_unit(delta=delta)
    randomizer = campaign.randomizer
    if randomizer.categories is not None or randomizer.clip is None or randomizer.grid is None:
        why = (
            "cannot run on a device, so the state machines cannot run it. They need gaussian or"
            " laplace noise with a clip and a grid. Audit it with the compiled engine"
        )
        raise NotCovered("randomizer", str(randomizer.kind), why)
    return replace(
        campaign,
        population_id=None,
        budget=Budget(UNLIMITED, max(delta, campaign.budget.delta), campaign.budget.adjacency),
        design=_small_design(campaign.design),
        repeats=1,
        task=with_plain_sgd(campaign.task),
    )


def _small_design(design: Design) -> Design:
    averaged = design.protocol is Protocol.AVERAGED
    window = None if design.window is None else min(design.window, WINDOW)
    capacity = None if design.capacity is None else min(design.capacity, CAPACITY)
    contributors = CONTRIBUTORS
    if design.population is not None:
        contributors = min(design.population.fewest, CONTRIBUTORS)
    noise = design.randomizer
    if isinstance(noise, GaussianNoise) and noise.at is not NoiseAt.SERVER and capacity is not None:
        noise = GaussianNoise(design.slot_noise(noise) / math.sqrt(capacity), noise.at)
    return replace(
        design,
        slots=min(design.slots, SLOTS) if window is None else 2 * window - 1,
        window=window,
        capacity=capacity,
        population=Population(contributors, contributors) if averaged else None,
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
    """The (epsilon, delta) that must hold."""

    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False)
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

    def scores(self, *, present: bool) -> AttackScores:
        """Return the adversary's scores of one run, with the canary or without it."""
        found: AttackScores = {}
        for server in self.servers:
            for name, score in self._scores_of_one(server, present).items():
                found[name] = found.get(name, 0.0) + score
        return found

    def trials(self, runs: int = RUNS) -> Trials:
        """Return the best attack's scores of ``runs`` runs with the canary and ``runs`` without."""
        return best_attack(self, runs, canary=self.scenario.name)

    def _scores_of_one(self, server: Server, present: bool) -> AttackScores:
        devices, updates = self._halves[not present]
        make = self.sampler.encode if self._noise_at_server else self.sampler.privatize

        def report(token: str) -> Report:
            return Report.from_device(make(updates[token]))

        wake = wake_of(self.campaign)
        observed = MachineRun(server, self.sampler, devices, report, self.faults, wake).run()
        found = self._adversary.releases(observed) | self._adversary.ledger(observed)
        disks = self.view is AdversaryView.DISKS
        return found | self._adversary.disks(observed) if disks else found

    @cached_property
    def _halves(self) -> tuple[tuple[dict[str, Participant], dict[str, Update]], ...]:
        """The devices and their updates, with the canary and without it."""
        halves = []
        for data in (self.scenario.with_, self.scenario.without):
            everyone = adversary.neighbours(self.scenario, self.campaign)
            if data is not None:  # put the canary first, so that it has the first receipt
                everyone = {CANARY: (participant_of(self.campaign), data)} | everyone
            devices = {token: device for token, (device, _) in everyone.items()}
            updates = {
                token: update_of(clips, self.sampler) for token, (_, clips) in everyone.items()
            }
            halves.append((devices, updates))
        return tuple(halves)

    @property
    def _noise_at_server(self) -> bool:
        noise = self.campaign.design.randomizer
        return isinstance(noise, GaussianNoise) and noise.at is NoiseAt.SERVER

    @cached_property
    def _adversary(self) -> adversary.Adversary:
        design, wake = self.campaign.design, wake_of(self.campaign)
        reports = 1 if self._noise_at_server else (design.capacity or 1)
        window = range(wake, wake + design.window) if design.window else range(1, design.slots + 1)
        randomizer = self.sampler.randomizer
        return adversary.Adversary(self.campaign, self.scenario, window, randomizer, reports)


class Scored(Interface):
    """An audit that scores one run at a time. ``claim`` must hold."""

    @property
    def claim(self) -> Claim: ...
    def scores(self, *, present: bool) -> AttackScores: ...


def best_attack(audit: Scored, runs: int, *, canary: str) -> Trials:
    """Make ``runs`` runs with and ``runs`` without the canary. Return the best attack's trials."""
    validate.count(runs=runs)
    pairs = ((audit.scores(present=True), audit.scores(present=False)) for _ in range(runs))
    with_canary, without = zip(*pairs, strict=True)
    return chosen_attack((with_canary, without), delta=audit.claim.delta, canary=canary)


def chosen_attack(halves: Halves, *, delta: float, canary: str) -> Trials:
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
    campaign: Campaign,
    *,
    scenario: Scenario | None = None,
    faults: Faults = ORDINARY_FAULTS,
    view: AdversaryView = AdversaryView.PUBLIC,
) -> MachineAudit:
    """Prepare the audit of a small campaign against its certificate.

    If ``scenario`` is None, the first one of ``scenarios_for`` is used.
    """
    delta = campaign.budget.delta
    claim = Claim(certificate_at(campaign, delta).epsilon, delta)
    server, sampler = fresh_server(campaign), sampler_of(campaign, dimension=DIMENSION)
    scenario = scenario or adversary.scenarios_for(campaign)[0]
    return MachineAudit(campaign, (server,), sampler, scenario, faults, view, claim)


def fresh_server(campaign: Campaign, dimension: int = DIMENSION) -> Server:
    """Return a server that has not begun, with a new ledger and a model of zeros."""
    affordable = spending_of(Ledger(), campaign).affordable()
    return server_of(campaign, np.zeros(dimension), affordable=affordable)


def run_trials(
    small: Campaign,
    *,
    runs: int = RUNS,
    seconds: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[Trials, ...]:
    """Run the trials of every scenario that fits a small campaign, with ordinary faults.

    If ``runs`` runs would take longer than ``seconds``, fewer runs are made. Raises OutOfTime if
    there is no time for ``MIN_RUNS`` runs. If ``seconds`` is None, the time is not limited.
    """
    began = clock()
    scenarios = adversary.scenarios_for(small)
    audits = [prepare_audit(small, scenario=scenario) for scenario in scenarios]
    if seconds is not None:
        validate.non_negative(seconds=seconds)
        runs = min(runs, _runs_within(seconds - (clock() - began), audits, clock))
        if runs < MIN_RUNS:
            raise OutOfTime(f"{seconds:.2g} s were left for it, and {MIN_RUNS} runs take longer")
    return tuple(audit.trials(runs) for audit in audits)


def _runs_within(seconds: float, audits: Sequence[MachineAudit], clock: Clock) -> int:
    """Return how many runs with the canary, and as many without it, fit into ``seconds``."""
    began = clock()
    for audit in audits:
        for present in (True, False) * TIMED_RUNS:
            audit.scores(present=present)
    took = clock() - began
    return max(0, int(TIMED_RUNS * (seconds - took) / max(took, 1e-9)))
