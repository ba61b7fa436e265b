"""The library as a privacy engineer would use it; checked by mypy, never run."""

from __future__ import annotations

from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism

from checkins.accounting import (
    Adjacency,
    Calibration,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Parameter,
    Population,
    Protocol,
    RandomAllocation,
    StepDraw,
    calibrate,
    certify,
    certify_random_allocation,
    loss_distribution,
)
from checkins.accounting.interop import CheckInsAccountant, epsilon_with, to_dp_event


def certified() -> float:
    design = Design(Protocol.FIXED, slots=1000, participation=0.5, randomizer=LocalRandomizer(2.0))
    certificate: Certificate = certify(design, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    return certificate.epsilon


def solve() -> float:
    design = Design(
        Protocol.SLIDING,
        slots=10_000,
        window=500,
        participation=1.0,
        randomizer=GaussianNoise(1.0, NoiseAt.CLIENT),
        capacity=64,
        population=Population(10_000, 20_000),
    )
    found: Calibration = calibrate(
        design,
        parameter=Parameter.NOISE_MULTIPLIER,
        epsilon=1.0,
        delta=1e-6,
        adjacency=Adjacency.ADD_REMOVE,
    )
    return found.value


def hand_over() -> float:
    design = Design(
        Protocol.FIXED, slots=100, participation=1.0, randomizer=GaussianNoise(1.0, NoiseAt.SERVER)
    )
    ours = loss_distribution(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE, interval=1e-4)
    theirs = from_laplace_mechanism(10.0)
    return float(ours.compose(theirs).get_epsilon_for_delta(1e-6))


def train_with_another_library() -> float:
    training = RandomAllocation(
        steps=1000, participations=10, noise_multiplier=1.0, draw=StepDraw.EACH_EPOCH
    )
    certificate: Certificate = certify_random_allocation(
        training, delta=1e-5, adjacency=Adjacency.ADD_REMOVE
    )
    accountant = CheckInsAccountant(adjacency=Adjacency.ADD_REMOVE, smallest_delta=1e-5)
    accountant.compose(to_dp_event(training, campaigns=2))
    theirs = from_laplace_mechanism(10.0)
    together: float = epsilon_with(training, theirs, delta=1e-5, adjacency=Adjacency.ADD_REMOVE)
    return certificate.epsilon + together
