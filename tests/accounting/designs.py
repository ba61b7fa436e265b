"""Designs of the fixed protocol for the tests of the accountant; ``more`` changes any field."""

from __future__ import annotations

from typing import Any

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def local(epsilon: float, slots: int = 1, participation: float = 1.0, **more: Any) -> Design:
    """Reports that are ``epsilon``-DP."""
    shape = {"slots": slots, "participation": participation, **more}
    return Design(**{"protocol": Protocol.FIXED, "randomizer": LocalRandomizer(epsilon), **shape})


def at_server(noise: float, slots: int = 1, participation: float = 1.0, **more: Any) -> Design:
    """Gaussian noise that the server adds to each slot."""
    noisy = GaussianNoise(noise, NoiseAt.SERVER)
    return local(1.0, slots, participation, randomizer=noisy, **more)


def at_client(noise: float, slots: int = 1, participation: float = 1.0, **more: Any) -> Design:
    """Gaussian noise that each client adds to its report."""
    noisy = GaussianNoise(noise, NoiseAt.CLIENT)
    return local(1.0, slots, participation, randomizer=noisy, **more)


def roomy(noise: float, slots: int, capacity: int, most: int) -> Design:
    """Noise at the clients, and so few clients that a slot hardly ever overflows."""
    return at_client(noise, slots, capacity=capacity, population=Population(most // 2, most))
