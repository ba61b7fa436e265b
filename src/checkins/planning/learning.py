"""What is known of the learning problem beforehand: public constants that set a rate and a proxy.

Lengths of updates are in clips, so that one number compares designs whatever is learned. The
constants of a named task were chosen by simulating it, its public holdout included; no certificate
covers that. Those of an unknown task are a guess. None of them touches the price of a campaign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins import validate
from checkins.campaign import Features, Task
from checkins.campaign.task import DataSet, Model

RAMP_STEPS = 10
MOST_MEMORY = 10.0
"""Momentum remembers a tenth of all steps, and ten at most."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How far the model must go, how long its steps may be, and how updates compare with the clip.

    ``radius``: from the first model to a good one. ``steepest``: the largest stable step, as a
    distance that an update of one clip moves the model. ``spread``: mean square of an update in
    clips, once some of the way is gone: what sampling people costs.
    """

    name: str | None = None
    clip: float = 1.0
    radius: float = 3.0
    steepest: float = 4.0
    spread: float = 0.3
    task: Task | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            validate.text(name=self.name)
        validate.positive(clip=self.clip, radius=self.radius, steepest=self.steepest)
        validate.positive(spread=self.spread)
        validate.one_of((Task, type(None)), task=self.task)

    @classmethod
    def of(cls, task: Task, *, name: str | None = None) -> Learning:
        """What is known of a task: our own ones by their names, others by the defaults."""
        known = _KNOWN.get((str(task.data), task.model, task.features), {})
        return cls(name=name, task=task, **known)

    def memory(self, steps: float) -> float:
        """1/(1 − momentum) that so many steps leave room for."""
        return min(MOST_MEMORY, max(1.0, steps / RAMP_STEPS))

    def bias(self, steps: float) -> float:
        """What is left of the way after these steps, in clips times the radius.

        With steps of the largest size η that is stable, and momentum to lengthen them, R²/(2ηT)
        over R; thm:util_new2 has it as βR²/(2m), β = 1/η.
        """
        return self.radius / (2.0 * self.steepest * self.memory(steps) * steps)

    def step(self, *, steps: int, variance: float) -> float:
        """The step size that balances way and noise, R/(T√V), as far as it is stable.

        In distance moved for an update of one clip; V is the variance of the mean of all steps.
        """
        balanced = self.radius / (steps * math.sqrt(variance))
        return min(balanced, self.steepest * self.memory(steps))

    def momentum(self, *, steps: int, step: float) -> float:
        """As little as makes the step stable, in hundredths; mostly none."""
        if step <= self.steepest:
            return 0.0
        return math.ceil(100.0 * (1.0 - self.steepest / step)) / 100.0


_KNOWN: dict[tuple[str, str, Features | None], dict[str, float]] = {
    (DataSet.PATIENTS, Model.LOGISTIC, None): {
        "clip": 1.0,
        "radius": 3.3,
        "steepest": 20.0,
        "spread": 0.1,
    },
    (DataSet.FASHION_MNIST, Model.SOFTMAX, Features.SCATTERING): {
        "clip": 0.1,
        "radius": 16.0,
        "steepest": 6.0,
        "spread": 0.4,
    },
    (DataSet.SYNTHETIC, Model.LOGISTIC, None): {
        "clip": 1.0,
        "radius": 1.7,
        "steepest": 40.0,
        "spread": 0.5,
    },
}
