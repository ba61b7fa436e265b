"""Epsilon under other ways of sampling clients, for comparison only.

Each number is about another protocol and proves nothing about the design. It needs an assumption
that random check-ins avoid: that a server samples clients independently in every step (Poisson), or
that all reports pass through a trusted shuffler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checkins import validate
from checkins.accounting.certificate import Alternative
from checkins.accounting.composition import worse_direction
from checkins.accounting.design import Adjacency, Design, LocalRandomizer
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.accounting.exact.pure import PureCampaign, PureReplaceOne
from checkins.accounting.paper.statements import shuffling, shuffling_earlier
from checkins.accounting.solve import crossing

_CELLS = 1024
"""Number of grid cells for the privacy loss of Poisson sampling."""


def comparisons(
    design: Design, adjacency: Adjacency, *, campaigns: int, delta: float
) -> Iterator[Alternative]:
    """Yield the epsilon of each other protocol with the same neighbour relation and randomizer."""
    local_randomizer = design.randomizer if isinstance(design.randomizer, LocalRandomizer) else None
    if local_randomizer is not None and not local_randomizer.is_pure:
        return
    if design.has_correlated_noise:
        return  # with the same amount of noise, its models are not comparable
    if adjacency is Adjacency.ADD_REMOVE:
        yield poisson(design, campaigns=campaigns, delta=delta)
    elif local_randomizer is not None and campaigns == 1:
        yield from _shuffling_bounds(design, local_randomizer, delta=delta)


def poisson(design: Design, *, campaigns: int, delta: float) -> Alternative:
    """Return epsilon if a server samples each client with probability p0/m in each of m steps.

    p0 is the participation, and m is the number of slots from which a client draws its slot.

    Theorem:     docs/theory/windows-and-capacity.md; equal to dp_accounting's Poisson accountant.
    Neighbours:  add/remove.
    Rounding:    up.

    >>> from checkins.accounting.design import GaussianNoise, NoiseAt, Protocol
    >>> noise = GaussianNoise(1.0, NoiseAt.SERVER)
    >>> design = Design(Protocol.FIXED, slots=10, participation=1.0, randomizer=noise)
    >>> round(poisson(design, campaigns=1, delta=1e-6).epsilon, 2)
    3.47
    """
    rate = design.participation / design.drawable_slots
    one_step = replace(
        campaign_divergence.uncapped(design), slots=1, window=None, participation=rate
    )
    steps = design.drawable_slots * campaigns
    rounding = Rounding.near(delta, side=Side.UP, cells=_CELLS, runs=steps)
    all_steps = campaign_divergence.pair(
        one_step, Adjacency.ADD_REMOVE, rounding, delta=delta
    ).repeat(steps, rounding)
    epsilon = crossing(worse_direction(all_steps), delta, guess=1.0, precision=1e-9).upper
    note = f"a server samples each client with probability {rate:.3g} in each of {steps:,} steps"
    return Alternative("poisson", epsilon, note, proves=False)


def _shuffling_bounds(
    design: Design, randomizer: LocalRandomizer, *, delta: float
) -> Iterator[Alternative]:
    """Yield bounds for shuffling one report from each of n clients.

    n is the smallest declared population. If none is declared, it is the number of reports in all
    slots from which a client draws. Yield nothing if n is larger than the accountant covers.
    """
    clients = design.drawable_slots * design.reports_per_slot
    if design.population is not None:
        clients = design.population.fewest
    if clients > validate.MAX_SLOTS:
        return
    exact_epsilon = shuffling_epsilon(randomizer.local_epsilon, clients=clients, delta=delta)
    note = f"a trusted shuffler mixes one report from each of {clients:,} clients"
    yield Alternative("shuffling-best", exact_epsilon, note, proves=False)
    privacy = {"local_epsilon": randomizer.local_epsilon, "delta": delta}
    earlier_bounds = {
        "shuffling-paper": (shuffling(clients=clients).epsilon(**privacy), "the paper's bound"),
        "shuffling-efmrtt19": (
            shuffling_earlier(clients=clients, **privacy),
            "the bound of [EFMRTT19], which the paper improves",
        ),
    }
    for method, (epsilon, source) in earlier_bounds.items():
        yield Alternative(method, epsilon, f"{note}; {source}", proves=False)


def shuffling_epsilon(local_epsilon: float, *, clients: int, delta: float) -> float:
    """Return the epsilon of shuffling one report from each of ``clients``.

    Theorem:     docs/theory/pure.md, "Shuffling".
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(shuffling_epsilon(1.0, clients=10_000, delta=1e-6), 4)
    0.0432
    """
    return PureReplaceOne(PureCampaign(local_epsilon, clients, 1.0), delta=delta).upper_epsilon(
        delta
    )
