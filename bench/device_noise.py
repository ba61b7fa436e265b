"""Compare the speed of exact noise on devices with OpenDP, in coordinates per second."""

from __future__ import annotations

import math

import numpy as np
import opendp.prelude as dp

from bench.measure import Section, timed
from checkins.randomizers.device import DeviceSampler
from checkins.randomizers.grid import Grid
from checkins.randomizers.randomizer import Gaussian, Laplace

DIMENSION, THEIR_DIMENSION = 10**6, 20_000
LEAST = 10e6
CASES = (
    (Gaussian(clip=1.0, noise_multiplier=0.1), 2.0**-6),
    (Gaussian(clip=1.0, noise_multiplier=0.1), 1e-3),
    (Gaussian(clip=1.0, noise_multiplier=0.1), 1e-6),
    (Gaussian(clip=1.0, noise_multiplier=10.0), 1e-7),
    (Laplace(clip=1.0, local_epsilon=1.0), 0.1),
    (Laplace(clip=1.0, local_epsilon=1.0), 1e-5),
)


def their_speed(randomizer: Gaussian | Laplace, scale: float) -> float:
    """Return the speed of OpenDP's discrete Gaussian or Laplace on a vector of integers."""
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i32"), size=THEIR_DIMENSION)
    if isinstance(randomizer, Gaussian):
        release = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)
    else:
        release = dp.m.make_laplace(domain, dp.l1_distance(T="i32"), scale=scale)
    zeros = [0] * THEIR_DIMENSION
    return THEIR_DIMENSION / timed(lambda: release(zeros))[1]


def device_noise() -> Section:
    rows, holds = [], True
    update = np.random.default_rng(1).normal(size=DIMENSION)
    for randomizer, step in CASES:
        size = randomizer.std if isinstance(randomizer, Gaussian) else randomizer.scale
        scale = size / step
        sampler = DeviceSampler(randomizer, Grid(step), DIMENSION)
        noise = DIMENSION / timed(sampler.dummy, repeats=5)[1]
        report = DIMENSION / timed(lambda: sampler.privatize(update), repeats=5)[1]  # noqa: B023
        theirs = their_speed(randomizer, scale)
        holds = holds and min(noise, report) >= LEAST
        rows.append(
            [
                type(randomizer).__name__,
                f"{scale:,.3g}",
                f"{noise / 1e6:.1f} million",
                f"{report / 1e6:.1f} million",
                f"{theirs / 1e6:.3f} million",
                f"{math.floor(noise / theirs)} times",
            ]
        )
    return Section(
        "Exact noise on a device, coordinates a second on one core",
        "Reports of a million coordinates are clipped and privatized at 10 million coordinates per"
        " second or more.",
        holds,
        ("noise", "scale in steps", "noise alone", "clipped and noised", "OpenDP, noise", "faster"),
        rows,
    )
