"""A certificate: (epsilon, delta) with its method, its assumptions and its neighbours.

The object ``Certificate.as_dict()`` is what every command prints with ``--json``.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version

from checkins import formatting
from checkins.accounting import total_variation
from checkins.accounting.adversaries import AgainstServer, chooses
from checkins.accounting.design import Adjacency, Design, GaussianNoise, NoiseAt, Protocol

UNIT = "one client's whole contribution"
ROUNDING = "epsilon is rounded up, epsilon_lower down"
OF_DESIGN = "this design"
OF_SOME_RANDOMIZER = "some randomizer with this local epsilon"
"""Values of ``epsilon_lower_of``: the mechanism for which no epsilon below ``epsilon_lower`` holds.
The dummies of named randomizers are closer to every report than local epsilon requires: a smaller
epsilon may hold for them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The epsilon of another method for the same design.

    ``proves`` is False for methods that are about another protocol, listed for comparison.
    """

    method: str
    epsilon: float
    note: str
    proves: bool

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "epsilon": formatting.finite(self.epsilon)}


@dataclass(frozen=True, slots=True)
class Certificate:
    """The smallest epsilon proved, the largest epsilon proved too small, and how.

    ``epsilon_lower_of`` names the mechanism for which no epsilon below ``epsilon_lower`` holds.
    """

    epsilon: float
    epsilon_lower: float
    delta: float
    adjacency: Adjacency
    method: str
    assumptions: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    campaigns: int = 1
    epsilon_lower_of: str = OF_DESIGN
    against_server: AgainstServer | None = None
    """The guarantee if the server is not trusted; None if it was not computed."""
    curious: int = 0
    """The largest number of clients that may disclose what they see."""
    variation: float = 0.0
    """Total variation between what runs and a function of the design's releases, charged to delta.
    The lower end of the interval is about the design."""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON; an epsilon that could not be bounded is null."""
        return {
            "epsilon": formatting.finite(self.epsilon),
            "epsilon_lower": formatting.finite(self.epsilon_lower),
            "epsilon_lower_of": self.epsilon_lower_of,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "unit": UNIT,
            "method": self.method,
            "rounding": ROUNDING,
            "campaigns": self.campaigns,
            "curious": self.curious,
            "variation": self.variation,
            "against_server": self.against_server and self.against_server.as_dict(),
            "assumptions": list(self.assumptions),
            "alternatives": [alternative.as_dict() for alternative in self.alternatives],
            "seconds": round(self.seconds, 3),
            "versions": dict(self.versions),
        }


CERTIFICATE_FIELDS = frozenset(
    Certificate(0.0, 0.0, 0.5, Adjacency.REPLACE_ONE, "", (), ()).as_dict()
)
"""The keys of a certificate in JSON."""


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that computed a number."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


OF_KINDS = "which window and participation a client has does not depend on its data"


def assumptions(
    design: Design,
    *,
    adjacency: Adjacency,
    uses_population: bool,
    campaigns: int = 1,
    curious: int = 0,
) -> tuple[str, ...]:
    """Return the assumptions of every method for the design, and those that its population adds."""
    return (
        *_common(design, campaigns, curious),
        *_noise(design, curious),
        *_slots(design, adjacency, curious),
        *_population(design, uses_population),
    )


def charged_to_delta(*, variation: float, epsilon: float, exposure: float = 0.0) -> tuple[str, ...]:
    """Return a line for each part of delta that is charged."""
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
    """Write a number in full: an assumption is stated as strong as it was used."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _common(design: Design, runs: int, curious: int) -> Iterator[str]:
    # A client learns of another, unless all reports are summed under the noise of the server.
    others_matter = design.protocol is Protocol.AVERAGED or chooses(design)
    yield (
        "the server is trusted, clients follow the protocol, channels are hidden; the adversary"
        " sees every release"
        + (" and is none of the clients" if not curious and others_matter else "")
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
        yield f"{runs:,} campaigns: fresh randomness in each, parameters fixed beforehand"


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
    yield "a dummy is as close to any report as local epsilon makes two reports to each other"


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
