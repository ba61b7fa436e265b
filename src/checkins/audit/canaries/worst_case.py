"""The worst canaries of a campaign: the laws that attain, or nearly attain, its exact price.

Theorem:     docs/theory/pure.md: two outcomes attain add/remove, and the extreme laws of
             replace-one are real randomizers. docs/theory/gaussian.md: a client alone among
             dummies, one that displaces its opposite with w = K/(K+1), and two opposite updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from checkins.accounting import Adjacency, GaussianNoise, Protocol
from checkins.accounting.exact.pure import attained
from checkins.audit.canaries.canary import AveragedCanary, Canary, ResponseCanary, SumCanary
from checkins.audit.canaries.noise import GaussianSum, LaplaceSum
from checkins.audit.canaries.releases import Response
from checkins.audit.canaries.world import World
from checkins.campaign import Campaign, RandomizerKind
from checkins.randomizers import Laplace, PrivUnit, RandomizedResponse


def worst_case(
    campaign: Campaign, *, counts_on_population: bool, dimension: int | None = None
) -> tuple[Canary, ...]:
    """Every canary that fits the campaign.

    Where its certificate ``counts_on_population``, the others may be no more than that and draw
    their slots as the protocol says. ``dimension`` is the model's, where it is known.
    """
    world = World.of(campaign.design, repeats=campaign.repeats)
    if isinstance(campaign.design.randomizer, GaussianNoise):
        noise = campaign.design.randomizer
        if world.averaged:
            return (_averaged(world, noise),)
        return tuple(_gaussian(campaign, world, noise, counts_on_population))
    promised = campaign.design.randomizer.local_epsilon
    replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    canaries: list[Canary] = [
        ResponseCanary(f"{name} response", explained, response, world)
        for name, explained, response in _responses(promised, replace_one)
    ]
    own = _own(campaign, world, dimension)
    return (*canaries, own) if own is not None else tuple(canaries)


def _responses(promised: float, replace_one: bool) -> Iterator[tuple[str, str, Response]]:
    b = math.exp(promised)
    r = 1.0 / (1.0 + b)
    base = (r, 1.0 - r)
    words = "the worst randomizer with this local epsilon: {}, where everyone else reports {}"
    yield (
        "binary",
        words.format("one of two outcomes", "the other"),
        Response(first=(1.0 - r, r), other=base, base=base),
    )
    if not replace_one:
        return
    for name, point in zip(("ternary", "mirrored ternary"), attained(promised), strict=False):
        middle = 1.0 - 2.0 * point.probability
        base3 = (point.probability, middle, point.probability)
        laws = [
            tuple(chance * ratio[side] for chance, ratio in zip(base3, ratios, strict=True))
            for side in (0, 1)
            for ratios in [(point.up, point.middle, point.down)]
        ]
        explained = words.format("one of three outcomes", "the third")
        yield name, explained, Response(first=laws[0], other=laws[1], base=base3)


def _gaussian(
    campaign: Campaign, world: World, noise: GaussianNoise, counts_on_population: bool
) -> Iterator[Canary]:
    law = GaussianSum(campaign.design.slot_noise(noise))
    other = -1.0 if campaign.budget.adjacency is Adjacency.REPLACE_ONE else None
    against = "nobody" if other is None else "the opposite update"
    yield SumCanary(
        "alone",
        f"an update as long as the clip, among dummies or in empty slots, against {against}",
        world,
        law,
        other=other,
    )
    if world.capacity is None:
        return
    population = campaign.design.population
    if not counts_on_population or population is None:
        yield SumCanary(
            "displacing",
            f"an update as long as the clip, in slots full of its opposites, against {against}",
            world,
            law,
            other=other,
            others=world.capacity,
            level=-1.0,
        )
    elif campaign.design.protocol is Protocol.FIXED and population.most > 1:
        yield SumCanary(
            "in a crowd",
            f"an update as long as the clip, among {population.most - 1:,} opposites, the most that"
            f" are declared, against {against}",
            world,
            law,
            other=other,
            level=-1.0,
            crowd=population.most - 1,
        )


def _averaged(world: World, noise: GaussianNoise) -> Canary:
    return AveragedCanary(
        "averaged",
        "an update as long as the clip, among clients that send noise, against its opposite",
        world,
        noise.noise_multiplier,
    )


def _own(campaign: Campaign, world: World, dimension: int | None) -> Canary | None:
    """The worst data for the campaign's own randomizer; None where it is not known well enough."""
    kind, clip = campaign.randomizer.kind, campaign.randomizer.clip
    described = kind is RandomizerKind.RANDOMIZED_RESPONSE or clip is not None
    if not described or (kind is RandomizerKind.PRIVUNIT and dimension is None):
        return None
    replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    match campaign.mechanism(dimension or 1):
        case RandomizedResponse() as response:
            law = _own_response(response, replace_one=replace_one, averaged=world.averaged)
            return ResponseCanary("own response", "one category among uniform dummies", law, world)
        case Laplace() as laplace if not world.averaged:
            return SumCanary(
                "own laplace",
                "an update as long as the clip in one coordinate, among dummies",
                world,
                LaplaceSum(laplace.scale / laplace.clip, world.capacity or 1),
                other=-1.0 if replace_one else None,
            )
        case PrivUnit() as unit if not world.averaged:
            explained = "an update as long as the clip, by the caps that reports lie in"
            return ResponseCanary("own cap", explained, _cap(unit, replace_one=replace_one), world)
    return None


def _own_response(law: RandomizedResponse, *, replace_one: bool, averaged: bool) -> Response:
    k, keep, lie = law.categories, law.keep, law.lie / (law.categories - 1)
    if not replace_one:
        base = (1.0 / k, 1.0 - 1.0 / k)
        return Response(first=(keep, 1.0 - keep), other=base, base=base)
    if k == 2:
        base = (lie, keep) if averaged else (0.5, 0.5)  # the others hold the second category
        return Response(first=(keep, lie), other=(lie, keep), base=base)
    rest = 1.0 - keep - lie
    base3 = (lie, lie, 1.0 - 2 * lie) if averaged else (1.0 / k, 1.0 / k, 1.0 - 2.0 / k)
    return Response(first=(keep, lie, rest), other=(lie, keep, rest), base=base3)


def _cap(unit: PrivUnit, *, replace_one: bool) -> Response:
    """Whether a report lies in the cap around the update, or in the one opposite."""
    cap = unit.cap
    base = (cap.mass, 1.0 - cap.mass)
    if not replace_one or cap.threshold <= 0.0:
        other = (cap.outside, cap.inside) if replace_one else base  # the caps are half spheres
        return Response(first=(cap.inside, cap.outside), other=other, base=base)
    opposite = cap.outside * cap.mass / (1.0 - cap.mass)
    rest = cap.outside - opposite
    return Response(
        first=(cap.inside, opposite, rest),
        other=(opposite, cap.inside, rest),
        base=(cap.mass, cap.mass, 1.0 - 2.0 * cap.mass),
    )
