"""What happens if the population is half or twice what was thought: the file as it is written.

Noise, slots and the public count stay; who comes changes. The epsilon of each row is proven anew
for that population: for most designs it does not move, since nothing in it depends on how many
clients there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from checkins import formatting
from checkins.accounting import Population, Protocol
from checkins.accounting.precision import epsilon_at
from checkins.errors import CheckinsError
from checkins.planning.candidate import DesignCandidate
from checkins.planning.metrics import figures
from checkins.planning.priced import PricedDesign
from checkins.planning.space import contributors
from checkins.planning.target import FINE, Method

FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Row:
    """The same campaign with another number of clients; ``epsilon`` is infinite if none holds."""

    factor: float
    population: int
    proxy: float
    noise_per_step: float
    dummies_share: float
    server_updates_per_s: float
    epsilon: float
    sentence: str

    def as_dict(self) -> dict[str, object]:
        return {
            "population": self.population,
            "factor": self.factor,
            "proxy": self.proxy,
            "noise_per_step": self.noise_per_step,
            "dummies_share": self.dummies_share,
            "server_updates_per_s": self.server_updates_per_s,
            "epsilon": formatting.finite(self.epsilon),
            "sentence": self.sentence,
        }


def sensitivity(design: PricedDesign) -> list[Row]:
    """Rows for half, the same and twice the clients that were reckoned with."""
    return [_row(design, factor) for factor in FACTORS]


def depends_on_population(design: PricedDesign) -> bool:
    """Whether the price rests on a number of clients."""
    shape = design.shape
    shuffled = shape.protocol is Protocol.AVERAGED and not shape.is_gaussian
    return shuffled or design.target.method(shape) is Method.EXACT_POPULATION


def _row(design: PricedDesign, factor: float) -> Row:
    question, shape = design.question, design.shape
    clients = max(1, round(question.clients * factor))
    slot_s = design.figures.turnout.slot_s
    worth = figures(shape, design.level, question, clients=clients, slot_s=slot_s)
    epsilon = _epsilon(design, factor)
    seen = worth.turnout
    words = _words(design, factor, clients, epsilon)
    noise = worth.noise_per_step / design.figures.noise_per_step
    told = f"noise per step {noise:.2f} times as large, dummies {seen.dummies_share:.1%}"
    if factor == 1.0:
        told = f"noise per step {worth.noise_per_step:.3g} clips, dummies {seen.dummies_share:.1%}"
    late = seen.server_updates_per_s > question.server.updates_per_s * (1.0 + 1e-9)
    busy = (
        f" Reports come at {seen.server_updates_per_s:,.0f} a second, more than the server takes:"
        f" those that are late {'are lost' if shape.capacity is None else 'become dummies'}."
        if late
        else ""
    )
    return Row(
        factor=factor,
        population=clients,
        proxy=worth.proxy,
        noise_per_step=worth.noise_per_step,
        dummies_share=seen.dummies_share,
        server_updates_per_s=seen.server_updates_per_s,
        epsilon=epsilon,
        sentence=f"{words}; {told}.{busy}",
    )


def _words(design: PricedDesign, factor: float, clients: int, epsilon: float) -> str:
    how = {0.5: "half as many clients", 1.0: "the clients thought of", 2.0: "twice as many clients"}
    start = f"With {how[factor]} ({clients:,})"
    moved = epsilon > design.epsilon * (1.0 + 1e-9)
    if not math.isfinite(epsilon):
        return f"{start} no epsilon is proved: the campaign must not run"
    if not depends_on_population(design):
        return f"{start} epsilon is the same: the certificate needs no population"
    if not moved:
        return f"{start} epsilon still holds: the declared population covers them"
    why = (
        "averaged updates hide a client among those who contribute"
        if design.shape.protocol is Protocol.AVERAGED
        else "slots overflow, and one client may displace another"
    )
    return f"{start} epsilon becomes {formatting.up(epsilon, 3)}: {why}"


def _epsilon(design: PricedDesign, factor: float) -> float:
    """A proven epsilon with this many times the clients at both ends of the range."""
    if factor == 1.0 or not depends_on_population(design):
        return design.epsilon
    shape = design.shape
    other = replace(shape, population=_scaled(design, factor))
    if other.population is None or shape.population is None:
        return design.epsilon
    if shape.protocol is not Protocol.AVERAGED and other.population.most <= shape.population.most:
        return design.epsilon
    if shape.protocol is Protocol.AVERAGED and factor >= 1.0:
        return design.epsilon
    return max(design.epsilon, _proven(other, design))


def _proven(shape: DesignCandidate, design: PricedDesign) -> float:
    """Return the smallest epsilon that is proved at the planner's precision."""
    target = design.target
    try:
        other = shape.design(design.level)
    except CheckinsError:
        return math.inf
    return epsilon_at(
        other,
        delta=target.delta,
        adjacency=target.adjacency,
        precision=FINE,
        campaigns=shape.repeats,
        guess=2.0 * target.epsilon,
    )


def _scaled(design: PricedDesign, factor: float) -> Population | None:
    """What would be declared of so many times the clients."""
    shape, asked = design.shape, design.question
    if shape.population is None:
        return None
    low, high = asked.population.fewest, asked.population.most
    there = Population(max(1, math.floor(low * factor)), max(1, math.ceil(high * factor)))
    if shape.protocol is not Protocol.AVERAGED:
        return there
    surely = contributors(shape, replace(asked, population=there))
    return Population(min(surely, there.most), there.most)
