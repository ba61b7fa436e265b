"""What a certificate rests on, in words a reader can check against the running system."""

from __future__ import annotations

from collections.abc import Iterator

from checkins import formatting
from checkins.accounting import total_variation
from checkins.accounting.curious_clients import chooses
from checkins.accounting.design import Adjacency, Design, GaussianNoise, NoiseAt, Protocol

OF_KINDS = "which window and participation a client has does not depend on its data"


def assumptions(
    design: Design,
    *,
    adjacency: Adjacency,
    uses_population: bool,
    campaigns: int = 1,
    designs: int = 1,
    curious: int = 0,
) -> tuple[str, ...]:
    """The assumptions of every method for the design, and those a particular one adds."""
    return (
        *_common(design, campaigns * designs, curious),
        *_noise(design, curious),
        *_slots(design, adjacency, curious),
        *_population(design, uses_population),
    )


def paid_in_delta(*, variation: float, epsilon: float, exposure: float = 0.0) -> tuple[str, ...]:
    """What a certificate says of the parts of delta that are charged."""
    lines = []
    if variation > 0.0:
        charge = total_variation.charge(epsilon=epsilon, variation=variation)
        lines.append(
            f"what runs is within total variation {formatting.up(variation, 2)} of this design"
            f" rounded onto its grid, all releases together;"
            f" {formatting.up(charge, 2)} of delta is charged for it"
        )
    if exposure > 0.0:
        charge = total_variation.charge(epsilon=epsilon, variation=0.0, exposure=exposure)
        lines.append(
            f"a client displaces a curious one (or, with noise at the clients, too many of them"
            f" meet in a slot) with probability at most {formatting.up(exposure, 2)};"
            f" {formatting.up(charge, 2)} of delta is charged for it"
        )
    return tuple(lines)


def _exactly(value: float) -> str:
    """In as many digits as it takes: what must hold is not said weaker than it was used."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _common(design: Design, runs: int, curious: int) -> Iterator[str]:
    yield (
        "the server is trusted, clients follow the protocol, channels are hidden; the adversary"
        " sees every release"
        + (" and is none of the clients" if not curious and _others_matter(design) else "")
    )
    if curious:
        yield (
            f"curious clients: at most {curious:,}; they follow the protocol and disclose what they"
            " see: whether they were chosen, their reports and their noise"
        )
    often = _exactly(design.participation)
    yield (
        f"each client takes part with probability at most {often} and draws its slot uniformly from"
        f" {design.choices:,}, independently of all else"
    )
    if runs > 1:
        yield f"{runs:,} campaigns: fresh coins in each, parameters fixed beforehand"


def _others_matter(design: Design) -> bool:
    """Whether a client could learn of another one; not where all are summed under server noise."""
    return design.protocol is Protocol.AVERAGED or chooses(design)


def _noise(design: Design, curious: int) -> Iterator[str]:
    randomizer = design.randomizer
    averaged = design.protocol is Protocol.AVERAGED
    others = "all other clients" if curious else "clients"
    if isinstance(randomizer, GaussianNoise):
        yield "updates are clipped; noise is Gaussian, exact on the device's grid"
        if randomizer.at is NoiseAt.SERVER:
            yield "a slot's sum gets its noise even when empty; it is divided by a public count"
            return
        if not averaged:
            yield f"every slot sums exactly {design.capacity:,} reports, dummies included"
        yield f"{others} keep the noise of their reports secret"
        return
    yield f"every report is {_exactly(randomizer.local_epsilon)}-DP" + (
        "" if randomizer.is_pure else f" but for delta {_exactly(randomizer.local_delta)}"
    )
    if averaged:
        yield f"{others} keep their reports secret"
        return
    held = "the same public number of reports"
    if design.capacity is not None:
        held = f"{design.capacity:,} report{'s' if design.capacity > 1 else ''}"
    yield f"every slot uses exactly {held}, dummies included, and releases no count of check-ins"
    yield "a dummy is as hard to tell from any report as two reports are from each other"


def _slots(design: Design, adjacency: Adjacency, curious: int) -> Iterator[str]:
    if chooses(design):
        yield "where more clients check in to a slot than it uses, it chooses uniformly at random"
        silent = "no other client discloses" if curious else "no client discloses"
        yield f"{silent} whether it was chosen"
    woken = design.window is not None and adjacency is Adjacency.REPLACE_ONE
    if woken and chooses(design):
        yield "when a client wakes does not depend on its data"


def _population(design: Design, uses_population: bool) -> Iterator[str]:
    if design.population is None:
        return
    if design.protocol is Protocol.AVERAGED:
        yield (
            f"at least {design.population.fewest:,} clients contribute, and whether one does"
            " is independent of data"
        )
    if uses_population:
        yield (
            f"at most {design.population.most:,} clients exist, each of which checks in to any one"
            f" slot with probability at most {_exactly(design.participation)}/{design.choices:,}"
        )
