"""A certificate: (epsilon, delta) with its method, its assumptions and its neighbour relation.

Every command that prints a certificate with ``--json`` prints ``Certificate.as_dict()``.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version

from checkins import formatting
from checkins.accounting import total_variation
from checkins.accounting.adversaries import AgainstServer
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    NoiseAt,
    Protocol,
    WakeTimes,
)

PRIVACY_UNIT = "one client's whole contribution"
ROUNDING_NOTE = "epsilon is rounded up, epsilon_lower down"
OF_DESIGN = "this design"
OF_ANY_OTHERS = "this design, if any number of other clients may check in to any slots"
OF_SOME_RANDOMIZER = "some randomizer with this local epsilon"
OF_SOME_RANDOMIZER_AMONG_OTHERS = (
    f"{OF_SOME_RANDOMIZER}, if any number of other clients may check in to any slots"
)
"""Values of ``epsilon_lower_of``: the mechanism for which no epsilon below ``epsilon_lower`` holds.

A specific randomizer, such as randomized response, may satisfy a smaller epsilon, because its dummy
reports are closer to every report than the local epsilon requires. Lower bounds among other clients
assume that these check in to the worst slots. If they draw their slots at random, a smaller epsilon
may hold."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The epsilon of one method for the design.

    ``proves`` is False if the method is about another protocol and listed only for comparison.
    """

    method: str
    epsilon: float
    note: str
    proves: bool

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "epsilon": formatting.finite_or_none(self.epsilon)}


@dataclass(frozen=True, slots=True)
class Certificate:
    """An upper and a lower bound on epsilon, and how they were proved.

    ``epsilon`` is the smallest epsilon that was proved. No epsilon below ``epsilon_lower`` holds
    for the mechanism that ``epsilon_lower_of`` names.
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
    """The guarantee if the server is not trusted, or None if it was not computed."""
    curious: int = 0
    """The largest number of clients that may disclose what they see."""
    variation: float = 0.0
    """Upper bound on the total variation distance between the real releases and a function, such as
    rounding, of the design's releases. It is charged to delta, but not to ``epsilon_lower``."""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON. An infinite epsilon, which means no bound, becomes None."""
        return {
            "epsilon": formatting.finite_or_none(self.epsilon),
            "epsilon_lower": formatting.finite_or_none(self.epsilon_lower),
            "epsilon_lower_of": self.epsilon_lower_of,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "unit": PRIVACY_UNIT,
            "method": self.method,
            "rounding": ROUNDING_NOTE,
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
"""The keys of a certificate's JSON object."""


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that computed a number."""
    by_package = {"python": platform.python_version()}
    for package in packages:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package


KIND_INDEPENDENT_OF_DATA = (
    "the kind of a client (its window and participation) does not depend on its data"
)


def assumptions(
    design: Design,
    *,
    adjacency: Adjacency,
    uses_population: bool,
    campaigns: int = 1,
    curious: int = 0,
) -> tuple[str, ...]:
    """Return the assumptions of the guarantee for one design.

    ``uses_population`` adds the assumption that the number of clients is as declared.
    """
    return (
        *_general_assumptions(design, campaigns, curious),
        *_noise_assumptions(design, curious),
        *_choice_assumptions(design, adjacency, curious),
        *_population_assumptions(design, uses_population),
    )


def charge_assumptions(
    *, variation: float, epsilon: float, exposure: float = 0.0
) -> tuple[str, ...]:
    """Return the assumptions behind the charges to delta, one for each charge above 0.

    ``exposure`` bounds the probability that a client displaces a curious client.
    """
    lines = []
    if variation > 0.0:
        charge = total_variation.charge(epsilon=epsilon, variation=variation)
        lines.append(
            "all releases of the implementation together are within total variation distance"
            f" {formatting.up(variation, 2)} of this design's releases, rounded to the grid; this"
            f" distance adds {formatting.up(charge, 2)} to delta"
        )
    if exposure > 0.0:
        charge = total_variation.charge(epsilon=epsilon, variation=0.0, exposure=exposure)
        lines.append(
            f"with probability at most {formatting.up(exposure, 2)}, a client displaces a curious"
            " client, or a slot sums the reports of too many curious clients, which adds"
            f" {formatting.up(charge, 2)} to delta"
        )
    return tuple(lines)


def _all_digits(value: float) -> str:
    """Return all digits of a number, because a rounded number may state a weaker assumption."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _general_assumptions(design: Design, runs: int, curious: int) -> Iterator[str]:
    # A client may learn about others, unless the server adds noise to the sum of all reports.
    clients_learn_of_others = design.protocol is Protocol.AVERAGED or design.displaces_clients
    yield (
        "the server is trusted, clients follow the protocol, and nobody observes the connections"
        " between clients and server; the adversary sees every release"
        + (" and is not one of the clients" if not curious and clients_learn_of_others else "")
    )
    if curious:
        yield (
            f"curious clients: at most {curious:,}; they follow the protocol but disclose whether"
            " they were chosen, their reports and their noise"
        )
    yield (
        f"each client takes part with probability at most {_all_digits(design.participation)} and"
        f" draws its slot uniformly from {design.drawable_slots:,} slots, independently of data and"
        " of other clients"
    )
    if runs > 1:
        fixed = "parameters fixed beforehand"
        yield f"there are {runs:,} campaigns, each with fresh randomness and {fixed}"


def _noise_assumptions(design: Design, curious: int) -> Iterator[str]:
    randomizer = design.randomizer
    averaged = design.protocol is Protocol.AVERAGED
    others = "all other clients" if curious else "clients"
    if isinstance(randomizer, GaussianNoise):
        yield "updates are clipped, and the Gaussian noise is drawn exactly on the declared grid"
        if randomizer.at is NoiseAt.SERVER:
            yield (
                "the server adds noise to the sum of every slot, even of an empty slot, and divides"
                " the sum by a public number"
                # With a capacity, the bound covers a client that takes the place of another one.
                + ("; it refuses no client because others came" if design.capacity is None else "")
            )
            if randomizer.strategy is not None:
                yield (
                    "noise is correlated across slots: a total contains the sums of at most"
                    f" {randomizer.strategy.bands - 1:,} slots before it in the same campaign, with"
                    " public coefficients whose squares sum to at most 1; the server draws new"
                    " noise in every slot of every campaign, and keeps the noise and the sums"
                    " without noise secret"
                )
            return
        if not averaged:
            yield f"every slot sums exactly {design.capacity:,} reports, dummies included"
        if design.least_reports is not None:
            yield (
                f"the server skips every slot with fewer than {design.least_reports:,} reports: it"
                " does not use them, and the model does not change"
            )
            yield (
                "how many clients contribute to each slot is public, and does not depend on data"
            )
        yield f"{others} keep the noise of their reports secret"
        return
    yield f"every report is {_all_digits(randomizer.local_epsilon)}-DP" + (
        ""
        if randomizer.is_pure
        else f", except for a delta of {_all_digits(randomizer.local_delta)}"
    )
    if averaged:
        yield f"{others} keep their reports secret"
        return
    reports = "the same public number of reports"
    if design.capacity is not None:
        reports = f"{design.capacity:,} report{'s' if design.capacity > 1 else ''}"
    yield f"every slot uses exactly {reports}, dummies included, and releases no count of check-ins"
    yield "all clients use the same randomizer, and draw their reports independently"
    if design.capacity is not None and design.capacity > 1:
        yield "a slot releases the sum of its reports only, not their order"
        yield f"{others} keep their reports secret"
    named = design.named_randomizer
    if named is None:
        limit = "local epsilon" if randomizer.is_pure else "local epsilon and delta"
        yield f"a dummy and the report of any client are indistinguishable up to the {limit}"
    else:
        yield f"every client randomizes its report by {named.describe()}"
        yield (
            f"the server draws a fresh dummy ({named.describe_dummy()}) for every report that is"
            " missing in a slot, even if a chosen client does not report"
        )


def _choice_assumptions(design: Design, adjacency: Adjacency, curious: int) -> Iterator[str]:
    if design.displaces_clients:
        yield (
            "if more clients check in to a slot than it uses, the server chooses among them"
            " uniformly at random"
        )
        nobody_discloses = "no other client discloses" if curious else "no client discloses"
        yield f"{nobody_discloses} whether it was chosen"
    wake_time_matters = design.window is not None and adjacency is Adjacency.REPLACE_ONE
    is_assumed = design.wake_times is WakeTimes.INDEPENDENT
    if wake_time_matters and is_assumed and design.displaces_clients:
        yield "the time at which a client wakes does not depend on its data"


def _population_assumptions(design: Design, uses_population: bool) -> Iterator[str]:
    if design.protocol is Protocol.AVERAGED:
        if design.population and (design.least_reports is None or uses_population):
            yield (
                f"at least {design.population.fewest:,} clients contribute, and whether a client"
                " contributes is independent of data"
            )
    elif uses_population and design.most_clients is not None:
        clients = f"at most {design.most_clients:,} clients"
        number = f"{clients} exist"
        if design.window is not None and design.most_clients == design.arrivals:
            number = f"{clients} wake in any {design.window:,} consecutive slots"
        yield (
            f"{number}, and each checks in to any given"
            " slot with probability at most"
            f" {_all_digits(design.participation)}/{design.drawable_slots:,}"
        )
