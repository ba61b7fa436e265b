"""Compare our calibration of noise with dp_accounting's calibration of Poisson sampling."""

from __future__ import annotations

import dp_accounting
from dp_accounting.pld import PLDAccountant

from bench.measure import Section, timed
from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    NoiseAt,
    Parameter,
    Protocol,
    calibrate,
)

DELTA = 1e-6


def ours(slots: int, epsilon: float) -> float:
    noise = GaussianNoise(1.0, NoiseAt.SERVER)
    design = Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=noise)
    return calibrate(
        design,
        parameter=Parameter.NOISE_MULTIPLIER,
        epsilon=epsilon,
        delta=DELTA,
        adjacency=Adjacency.ADD_REMOVE,
    ).value


def poisson(slots: int, epsilon: float) -> float:
    def event(noise: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(1 / slots, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(step, slots)

    return float(dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, DELTA))


def calibration() -> Section:
    rows, holds = [], True
    for slots, epsilon in ((10, 3.0), (100, 1.0), (1000, 1.0), (1000, 0.5)):
        value, seconds = timed(lambda: ours(slots, epsilon), repeats=2)  # noqa: B023
        other, theirs = timed(lambda: poisson(slots, epsilon), repeats=1)  # noqa: B023
        holds = holds and theirs >= 5 * seconds
        rows.append(
            [
                f"{slots:,}",
                f"{epsilon:g}",
                f"{value:.4f} in {seconds:.2f} s",
                f"{other:.4f} in {theirs:.2f} s",
                f"{theirs / seconds:.1f} times",
            ]
        )
    return Section(
        "Calibrating noise for (epsilon, 1e-6), add/remove",
        "At least 5 times faster than dp_accounting's calibration of Poisson sampling at 1/m.",
        holds,
        ("slots", "epsilon", "noise, checkins", "noise, Poisson by dp_accounting", "faster"),
        rows,
    )
