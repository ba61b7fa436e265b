"""One audit by the real machines: who takes part, what is seen, which attack tells most."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from checkins import validate
from checkins.accounting import GaussianNoise, NoiseAt
from checkins.audit.batching import Clock, OutOfTime
from checkins.audit.bounds import CHOOSING, lower_bounds
from checkins.audit.machines.adversity import ORDINARY, Adversity
from checkins.audit.machines.attacks import Adversary, Found, Noise
from checkins.audit.machines.scene import Scene, Update, neighbours, scenes_for, update_of, wake_of
from checkins.audit.machines.small import DELTA, DIMENSION, SmallCampaign, made_small
from checkins.audit.machines.world import CANARY, World
from checkins.audit.trials import Trials
from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.ledger import Ledger, spending_of
from checkins.protocol.factories import participant_of, sampler_of, server_of
from checkins.protocol.participant import Participant
from checkins.protocol.report import Report
from checkins.protocol.server import Server
from checkins.randomizers import DeviceSampler

RUNS = 4000
"""Of each half, where nothing else is asked."""
LEAST_RUNS = 32
"""With fewer than these nothing could be found."""
TRIED = 5
"""Runs of each half that tell how long one takes."""
ENGINE = "machines"
MARGIN = 0.2
"""By how much another attack must look better than the likelihood ratio."""
_CONFIDENCE = 0.99  # only to choose among attacks


class View(StrEnum):
    """What the adversary sees of a campaign."""

    PUBLIC = "every release and the ledger"
    REMAINS = "every release, the ledger, and the disks after the end"


@dataclass(frozen=True, slots=True)
class Claim:
    """What must hold of a view."""

    epsilon: float
    delta: float
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class _Cast:
    """Everyone in one half of the runs: what they are, what they have, when they wake."""

    devices: Mapping[str, Participant]
    updates: Mapping[str, Update]
    wakes: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One audit: who is in the campaign, what goes wrong, what is seen, and what was promised.

    ``servers`` are the runs on one population, one after another.
    """

    campaign: Campaign
    servers: tuple[Server, ...]
    sampler: DeviceSampler
    scene: Scene
    adversity: Adversity
    view: View
    claim: Claim
    _cast: tuple[_Cast, _Cast] = field(init=False, repr=False)
    _adversary: Adversary = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cast = tuple(self._cast_with(self.scene.data(present=present)) for present in (True, False))
        object.__setattr__(self, "_cast", cast)
        object.__setattr__(self, "_adversary", self._informed())

    def scores(self, *, present: bool) -> Found:
        """What the adversary makes of one run, with the canary or without it."""
        found: Found = {}
        for server in self.servers:
            for name, score in self._scores_of_one(server, present).items():
                found[name] = found.get(name, 0.0) + score
        return found

    def _scores_of_one(self, server: Server, present: bool) -> Found:
        cast, make = self._cast[not present], self.sampler.privatize
        if self._noise_at_server:
            make = self.sampler.encode
        seen = World(
            server,
            self.sampler,
            cast.devices,
            lambda token: Report.from_device(make(cast.updates[token])),
            self.adversity,
            cast.wakes,
        ).run()
        found = self._adversary.releases(seen) | self._adversary.ledger(seen)
        return found | self._adversary.remains(seen) if self.view is View.REMAINS else found

    def _cast_with(self, data: float | None) -> _Cast:
        everyone = neighbours(self.scene, self.campaign)
        if data is not None:  # it comes first, so that it has the first receipt
            everyone = {CANARY: (participant_of(self.campaign), data)} | everyone
        wake = wake_of(self.campaign)
        return _Cast(
            {token: device for token, (device, _) in everyone.items()},
            {token: update_of(clips, self.sampler) for token, (_, clips) in everyone.items()},
            dict.fromkeys(everyone, wake) if wake > 1 else {},
        )

    @property
    def _noise_at_server(self) -> bool:
        noise = self.campaign.design.randomizer
        return isinstance(noise, GaussianNoise) and noise.at is NoiseAt.SERVER

    def _informed(self) -> Adversary:
        design, wake = self.campaign.design, wake_of(self.campaign)
        reports = 1 if self._noise_at_server else (design.capacity or 1)
        window = range(wake, wake + design.window) if design.window else range(1, design.slots + 1)
        noise = Noise(self.sampler.randomizer, reports)
        return Adversary(self.campaign, self.scene, window, noise)

    def trials(self, runs: int = RUNS, *, told: Callable[[int], None] | None = None) -> Trials:
        """Scores of ``runs`` campaigns with the canary and as many without, by the best attack.

        The attack is chosen on the runs that ``lower_bounds`` chooses its events on, and that
        count for nothing else: the choice costs no confidence.
        """
        validate.count(runs=runs)
        halves: tuple[list[Found], list[Found]] = ([], [])
        for done in range(runs):
            for present in (True, False):
                halves[not present].append(self.scores(present=present))
            if told is not None:
                told(done + 1)
        return best_attack(halves, delta=self.claim.delta, canary=self.scene.name)


def best_attack(
    halves: tuple[Sequence[Found], Sequence[Found]], *, delta: float, canary: str
) -> Trials:
    """The trials of the attack, and of its sign, that promises most on the first runs."""
    best, most = None, 0.0
    for name in halves[0][0]:
        having, lacking = (np.array([found[name] for found in half]) for half in halves)
        for sign, words in ((1.0, name), (-1.0, f"{name}, the less the more")):
            trials = Trials(sign * having, sign * lacking, canary, words, ENGINE)
            first, _ = trials.split(CHOOSING)
            bound = lower_bounds(first, deltas=[delta], confidence=_CONFIDENCE)[0].epsilon
            if best is None or bound > most + MARGIN:
                best, most = trials, bound
    if best is None:
        raise InvalidValue("runs", len(halves[0]), "left nothing to choose an attack from")
    return best


def stage_of(
    campaign: Campaign,
    *,
    scene: Scene | None = None,
    adversity: Adversity = ORDINARY,
    view: View = View.PUBLIC,
    delta: float = DELTA,
) -> Stage:
    """The audit of a campaign's releases, made small; ``scene`` is the first that fits it."""
    small = made_small(campaign, delta=delta)
    return small_stage(small, scene=scene, adversity=adversity, view=view)


def small_stage(
    small: SmallCampaign,
    *,
    scene: Scene | None = None,
    adversity: Adversity = ORDINARY,
    view: View = View.PUBLIC,
) -> Stage:
    """The same for a campaign that is small already."""
    campaign, certificate = small.campaign, small.certificate
    claim = Claim(certificate.epsilon, certificate.delta, "the campaign's certificate")
    return Stage(
        campaign,
        (
            server_of(
                campaign,
                np.zeros(DIMENSION),
                affordable=spending_of(Ledger(), campaign).affordable(),
            ),
        ),
        sampler_of(campaign, dimension=DIMENSION),
        scene or scenes_for(campaign)[0],
        adversity,
        view,
        claim,
    )


def run_trials(
    campaign: Campaign,
    *,
    runs: int = RUNS,
    delta: float = DELTA,
    adversity: Adversity = ORDINARY,
    seconds: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[Trials, ...]:
    """Trials of every scene that fits a campaign; their promise is ``made_small``'s certificate.

    ``seconds`` is about how long it may take: fewer runs then, and OutOfTime if too few.
    """
    began = clock()
    small = made_small(campaign, delta=delta)
    stages = [
        small_stage(small, scene=scene, adversity=adversity) for scene in scenes_for(small.campaign)
    ]
    if seconds is not None:
        validate.non_negative(seconds=seconds)
        runs = min(runs, _affordable(stages, seconds - (clock() - began), clock))
        if runs < LEAST_RUNS:
            raise OutOfTime(f"{seconds:.2g} s were left for it, and {LEAST_RUNS} runs take longer")
    return tuple(stage.trials(runs) for stage in stages)


def _affordable(stages: Sequence[Stage], seconds: float, clock: Clock) -> int:
    """How many runs of each half and every stage fit in the time that remains."""
    began = clock()
    for stage in stages:
        for present in (True, False) * TRIED:
            stage.scores(present=present)
    took = clock() - began
    return max(0, int(TRIED * (seconds - took) / max(took, 1e-9)))
