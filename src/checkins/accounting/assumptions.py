"""What a certificate rests on, in words a reader can check against the running system."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Context, Decimal

from checkins.accounting import variation as total_variation
from checkins.accounting.design import Design, GaussianNoise, NoiseAt, Protocol


def assumptions(
    design: Design, *, uses_population: bool, campaigns: int = 1, designs: int = 1
) -> tuple[str, ...]:
    """The assumptions of every method for the design, and those a particular one adds."""
    return tuple(_common(design, campaigns * designs)) + tuple(_own(design, uses_population))


def paid_in_delta(*, variation: float, epsilon: float) -> tuple[str, ...]:
    """What a certificate says of the difference between what runs and what is priced."""
    if variation == 0.0:
        return ()
    charge = total_variation.charge(epsilon=epsilon, variation=variation)
    return (
        f"what runs is within total variation {_rounded_up(variation)} of this design rounded onto"
        f" its grid, all releases together; {_rounded_up(charge)} of delta pays for it",
    )


def _rounded_up(value: float) -> str:
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(Decimal(value))):.2g}"


def _common(design: Design, runs: int) -> Iterator[str]:
    yield "the server is trusted, clients are honest, their channels hidden; every release is seen"
    yield (
        f"each client takes part with probability at most {design.participation:g} and draws its"
        f" slot uniformly from {design.choices:,}, independently of all else"
    )
    if runs > 1:
        yield f"{runs:,} campaigns: fresh coins in each, parameters fixed beforehand"


def _own(design: Design, uses_population: bool) -> Iterator[str]:
    if design.protocol is Protocol.AVERAGED and design.population is not None:
        yield (
            f"at least {design.population.fewest:,} clients contribute, and whether one does"
            " is independent of data"
        )
    yield from _noise(design)
    if _chooses(design):
        yield "clients do not disclose whether they were chosen"
    if uses_population and design.population is not None:
        yield (
            f"at most {design.population.most:,} clients exist, none likelier than"
            f" {design.participation / design.choices:.3g} to check in to any one slot"
        )


def _noise(design: Design) -> Iterator[str]:
    randomizer = design.randomizer
    if isinstance(randomizer, GaussianNoise):
        yield "updates are clipped; noise is Gaussian, exact on the device's grid"
        if randomizer.at is NoiseAt.SERVER:
            yield "a slot's sum gets its noise even when empty; it is divided by a public count"
        elif design.protocol is not Protocol.AVERAGED:
            yield f"every slot sums exactly {design.capacity:,} reports, dummies included"
        return
    yield f"every report is {randomizer.local_epsilon:g}-DP" + (
        "" if randomizer.is_pure else f" but for delta {randomizer.local_delta:g}"
    )
    if design.protocol is not Protocol.AVERAGED:
        yield "a dummy's law is as close to every report's as theirs to each other"


def _chooses(design: Design) -> bool:
    if design.protocol is Protocol.AVERAGED:
        return False
    uncapped = isinstance(design.randomizer, GaussianNoise) and design.capacity is None
    return not uncapped
