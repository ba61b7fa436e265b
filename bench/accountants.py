"""Compare the accountant with those of DP-SGD libraries, for training by random allocation.

python -m bench accountants      # measure, and write the table to bench/RESULTS.md
python -m bench.accountants      # print the table of the last measurement
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path

import numpy as np
from scipy.special import log_ndtr

from bench.environments import environment
from bench.measure import Section
from checkins.accounting import Adjacency, RandomAllocation, StepDraw, certify_random_allocation

HERE = Path(__file__).parent
DELTA = 1e-5
RUNS = ((1.0, 100, 10), (1.0, 1000, 1), (3.0, 50, 100))
"""Noise multiplier, steps of an epoch, and epochs."""
LEAST = 10
"""Least ratio of PLD-accounting's time and of its interval to those of this accountant."""
TITLE = f"Random allocation: other accountants of DP-SGD (delta {DELTA:g})"
HEADER = ("training", "accountant", "how examples draw steps", "epsilon", "processor time")
DRAWS = {
    StepDraw.EACH_EPOCH: "one per epoch",
    StepDraw.FIRST_EPOCH: "one, kept in all epochs",
    StepDraw.WHOLE_RUN: "any, as many as epochs",
}


def by_others() -> list[tuple[str, float | None, float, float]]:
    """Return name, lower bound or None, epsilon and seconds of every accountant for every run."""
    runs = json.dumps([(*run, DELTA) for run in RUNS])
    script = [str(environment("dpsgd")), str(HERE / "peers" / "dpsgd.py"), runs]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [tuple(one) for one in json.loads(done.stdout.splitlines()[-1])]


def by_checkins(
    run: tuple[float, int, int], draw: StepDraw, adjacency: Adjacency
) -> tuple[float, float, float]:
    """Return the lower bound, epsilon and seconds of one certificate."""
    noise, steps, epochs = run
    allocation = RandomAllocation(
        steps=steps * epochs, participations=epochs, noise_multiplier=noise, draw=draw
    )
    started = time.process_time()
    found = certify_random_allocation(allocation, delta=DELTA, adjacency=adjacency, compare=False)
    return found.epsilon_lower, found.epsilon, time.process_time() - started


def shuffled_lower_bound(noise: float, steps: int, delta: float) -> float:
    """Return a lower bound on epsilon of one epoch of shuffled batches of a fixed size.

    Theorem:     docs/theory/random-allocation.md.
    Neighbours:  the gradient of one example is replaced by zero.
    Rounding:    down, because only some thresholds are tried.

    >>> round(shuffled_lower_bound(1.0, 100, 1e-5), 2)
    4.06
    """
    t = np.linspace(0.0, 30.0, 3001)
    data, zero = (
        -np.expm1((steps - 1) * log_ndtr(t) + log_ndtr(t - shift / noise)) for shift in (2.0, 1.0)
    )
    enough = data > delta
    return max(0.0, float(np.max(np.log((data[enough] - delta) / zero[enough]))))


def _row(
    run: tuple[float, int, int],
    name: str,
    draw: str,
    bounds: tuple[float | None, float],
    seconds: float,
) -> list[str]:
    noise, steps, epochs = run
    lower, upper = bounds
    shown = f"{math.ceil(1e4 * upper) / 1e4:.4f}"
    if lower:
        shown = f"{math.floor(1e4 * lower) / 1e4:.4f} to {shown}"
    training = f"sigma {noise:g}, {epochs} x {steps:,} steps"
    return [training, name, draw, shown, f"{seconds:.2f} s"]


def accountants() -> Section:
    rows, holds = [], True
    others = iter(by_others())
    for run in RUNS:
        for name, lower, upper, seconds in (next(others) for _ in range(5)):
            draw = "Poisson" if lower is None else DRAWS[StepDraw.EACH_EPOCH]
            rows.append(_row(run, name, draw, (lower, upper), seconds))
        # the last of the others is PLD-accounting, which has a lower bound
        least, most, theirs = lower or math.inf, upper, seconds
        for draw, words in DRAWS.items():
            if run[2] == 1 and draw is not StepDraw.EACH_EPOCH:
                continue  # in one epoch, all draws are the same
            for adjacency in Adjacency:
                if draw is StepDraw.WHOLE_RUN and adjacency is Adjacency.REPLACE_ONE:
                    continue  # equal to one step per epoch
                lower, upper, seconds = by_checkins(run, draw, adjacency)
                name = f"checkins, {adjacency}"
                rows.append(_row(run, name, words, (lower, upper), seconds))
                if draw is StepDraw.EACH_EPOCH and adjacency is Adjacency.ADD_REMOVE:
                    holds = holds and least <= lower and upper <= most
                    holds = holds and most - least >= LEAST * (upper - lower)
                    holds = holds and theirs >= LEAST * seconds
        shuffled = math.floor(1e4 * shuffled_lower_bound(*run[:2], DELTA)) / 1e4
        training = rows[-1][0]
        rows.append([training, "any", "shuffled, fixed sizes", f"at least {shuffled:.4f}", "-"])
    return Section(
        TITLE,
        "An epsilon without a lower bound is an upper bound. Upper bounds are rounded up, and lower"
        " bounds down. All are for add/remove, unless another"
        " relation is named. The last row of a training is a lower bound for one epoch, if the"
        " gradient of one example is replaced by zero. dp_accounting has no accountant of random"
        " allocation in this version. With one step per epoch, this accountant's interval lies"
        f" inside PLD-accounting's, is at least {LEAST} times narrower, and takes at most"
        f" 1/{LEAST} of the time.",
        holds,
        HEADER,
        rows,
    )


def last_table() -> str:
    """Return the table of the last measurement."""
    text = (HERE / "RESULTS.md").read_text(encoding="utf-8")
    section = text.split(f"## {TITLE}\n", 1)[1].split("\n## ", 1)[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("|"))


if __name__ == "__main__":
    print(last_table())
