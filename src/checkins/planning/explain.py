"""Explain a design by reasons, and by its sensitivity to the number of clients.

The sensitivity shows the same campaign file with half and with twice as many clients. Epsilon is
computed again for that number of clients. For most designs it does not change, because it does not
depend on the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from checkins import formatting
from checkins.accounting import NoiseAt, Population, Protocol
from checkins.accounting.precision import Method, Precision, epsilon_at
from checkins.campaign import RandomizerKind
from checkins.errors import CheckinsError
from checkins.planning.cost_model import CalibratedDesign, design_metrics
from checkins.planning.search import WORTH
from checkins.planning.search_space import capacity_without_overflow, contributors

FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """The same campaign with another number of clients.

    ``epsilon`` is infinite if no bound is proved.
    """

    population: int
    factor: float
    proxy: float
    noise_per_step: float
    dummies_share: float
    server_updates_per_s: float
    epsilon: float
    sentence: str

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


def sensitivity(design: CalibratedDesign) -> list[SensitivityRow]:
    """Return rows for half, for the same and for twice the planned number of clients."""
    return [_row(design, factor) for factor in FACTORS]


def depends_on_population(design: CalibratedDesign) -> bool:
    """Return True if epsilon depends on the number of clients."""
    candidate = design.candidate
    shuffled = candidate.protocol is Protocol.AVERAGED and not candidate.is_gaussian
    return shuffled or candidate.method(design.target) is Method.EXACT_POPULATION


def _row(design: CalibratedDesign, factor: float) -> SensitivityRow:
    question, candidate = design.question, design.candidate
    clients = max(1, round(question.clients * factor))
    slot_s = design.metrics.slot_load.slot_s
    metrics = design_metrics(candidate, design.level, question, clients=clients, slot_s=slot_s)
    load, epsilon = metrics.slot_load, _epsilon(design, factor)
    noise = f"{metrics.noise_per_step:.3g} clips"
    if factor != 1.0:
        ratio = metrics.noise_per_step / design.metrics.noise_per_step
        noise = f"{ratio:.2f} times as large"
    sentence = (
        f"{_words(design, factor, clients, epsilon)}. The noise per step is {noise}, and the share"
        f" of dummies is {load.dummies_share:.1%}."
    )
    if load.server_updates_per_s > question.server.updates_per_s * (1.0 + 1e-9):
        late = "are lost" if candidate.capacity is None else "are replaced by dummies"
        sentence += (
            f" {load.server_updates_per_s:,.0f} reports arrive per second, more than the server"
            f" takes, so late reports {late}."
        )
    return SensitivityRow(
        factor=factor,
        population=clients,
        proxy=metrics.proxy,
        noise_per_step=metrics.noise_per_step,
        dummies_share=load.dummies_share,
        server_updates_per_s=load.server_updates_per_s,
        epsilon=epsilon,
        sentence=sentence,
    )


def _words(design: CalibratedDesign, factor: float, clients: int, epsilon: float) -> str:
    how = {0.5: "half as many clients", 1.0: "the planned clients", 2.0: "twice as many clients"}
    start = f"With {how[factor]} ({clients:,})"
    if not math.isfinite(epsilon):
        return f"{start}, no epsilon is proved, so the campaign must not run"
    if not depends_on_population(design):
        return f"{start}, epsilon is the same, because the certificate needs no population"
    if epsilon <= design.epsilon * (1.0 + 1e-9):
        return f"{start}, epsilon still holds, because the declared population covers them"
    why = "slots overflow, and one client may displace another"
    if design.candidate.protocol is Protocol.AVERAGED:
        why = "averaged updates hide a client among the clients that contribute"
    return f"{start}, epsilon is {formatting.up(epsilon, 3)}, because {why}"


def _epsilon(design: CalibratedDesign, factor: float) -> float:
    """Return a proven epsilon if both limits of the population are multiplied by ``factor``."""
    candidate, target = design.candidate, design.target
    declared, population = candidate.population, _scaled(design, factor)
    if not depends_on_population(design) or declared is None or population is None:
        return design.epsilon
    averaged = candidate.protocol is Protocol.AVERAGED
    covered = factor >= 1.0 if averaged else population.most <= declared.most
    if factor == 1.0 or covered:
        return design.epsilon
    try:
        other = replace(candidate, population=population).design(design.level)
    except CheckinsError:
        return math.inf
    proven = epsilon_at(
        other,
        delta=target.delta,
        adjacency=target.adjacency,
        precision=Precision.FINE,
        campaigns=candidate.repeats,
        guess=2.0 * target.epsilon,
    )
    return max(design.epsilon, proven)


def _scaled(design: CalibratedDesign, factor: float) -> Population | None:
    """Return the population to declare if there are ``factor`` times as many clients.

    Return None if the candidate declares no population.
    """
    candidate, asked = design.candidate, design.question
    if candidate.population is None:
        return None
    low, high = asked.population.fewest, asked.population.most
    there = Population(max(1, math.floor(low * factor)), max(1, math.ceil(high * factor)))
    if candidate.protocol is not Protocol.AVERAGED:
        return there
    surely = contributors(candidate, replace(asked, population=there))
    return Population(min(surely, there.most), there.most)


RATIO = "docs/theory/one-likelihood-ratio.md"
GAUSSIAN = "docs/theory/gaussian.md"
PURE = "docs/theory/pure.md"
WINDOWS = "docs/theory/windows-and-capacity.md"
SHUFFLED = "docs/theory/pure.md, Shuffling; Theorem 4.1"
PROXY = "Theorem 4.2 (smooth), docs/planning.md, The proxy"
DUMMIES = "Proposition 3.4"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for the recommended design, and the theorem or section that supports it."""

    sentence: str
    theorem: str


def reasons(
    design: CalibratedDesign, front: Sequence[CalibratedDesign], curve: Sequence[CalibratedDesign]
) -> list[Reason]:
    """Return the reasons for a design, from its protocol to its place among other designs."""
    return [
        _protocol(design),
        *_noise(design),
        _slots(design, curve),
        *_participation(design),
        _repeats(design),
        _clock(design),
        _choice(design, [*front, *curve]),
    ]


def _protocol(design: CalibratedDesign) -> Reason:
    candidate = design.candidate
    if candidate.protocol is Protocol.AVERAGED and candidate.is_gaussian:
        return Reason(
            "Averaged updates use every report. They are proved only for neighbours that replace"
            " one client's data.",
            "Theorem 4.1",
        )
    if candidate.protocol is Protocol.AVERAGED:
        return Reason(
            "Averaged updates use every report and hide each client among all clients that"
            " contribute. They are proved only for neighbours that replace one client's data, and"
            " need a declared number of contributing clients.",
            SHUFFLED,
        )
    if candidate.window is not None:
        return Reason(
            f"Devices stay reachable for {duration_text(design.question.availability_s)}, so each"
            f" draws one of the {candidate.window:,} slots after it wakes and is hidden among these"
            f" slots only. The first {candidate.window - 1:,} slots release nothing.",
            f"{WINDOWS}; Theorem 4.3",
        )
    return Reason(
        f"Each client draws one of {candidate.slots:,} slots by itself, so the server need not"
        " sample clients. One likelihood ratio bounds the privacy loss of all releases, whatever"
        " the other clients do.",
        f"{RATIO}; Theorem 3.2",
    )


def _noise(design: CalibratedDesign) -> Iterator[Reason]:
    candidate, level = design.candidate, f"{design.level:g} clips"
    most = f"{design.question.population.most:,} clients"
    if not candidate.is_gaussian:
        simulated = candidate.randomizer is RandomizerKind.PRIVUNIT
        yield Reason(
            f"Each report is {design.level:g}-DP by itself, even against the server. The random"
            f" slots bring epsilon down to {formatting.up(design.epsilon, 3)} for all releases."
            + (
                " PrivUnit has no exact sampler for devices and can only be simulated."
                if simulated
                else ""
            ),
            PURE,
        )
    elif candidate.noise_at is NoiseAt.SERVER and candidate.capacity is None:
        yield Reason(
            f"The server adds noise of {level} once to the sum of a slot. So there are no dummies,"
            " no client is dismissed or displaced, and the certificate needs no population.",
            f"{WINDOWS}, Noise at the server",
        )
        places = capacity_without_overflow(candidate, design.question)
        yield Reason(
            f"If the reports carried the same noise, a slot would need {places:,} places, filled up"
            f" with dummies, and the assumption that at most {most} exist. The server would still"
            " have to be trusted.",
            f"{WINDOWS}, Capacity",
        )
    elif candidate.noise_at is NoiseAt.SERVER:
        yield Reason(
            f"The server adds noise of {level} once to the sum of a slot. With a capacity of"
            f" {candidate.capacity:,}, one client may displace another, so more noise is needed"
            " than without a capacity.",
            GAUSSIAN,
        )
    elif candidate.protocol is Protocol.AVERAGED:
        yield Reason(
            "No theorem amplifies the privacy of averaged Gaussian reports here. So each report is"
            f" private by itself, with noise of {level}.",
            WINDOWS,
        )
    else:
        full = "In a full slot one client may displace another, which is accounted for."
        if candidate.method(design.target) is Method.EXACT_POPULATION:
            full = f"With at most {most}, a slot hardly ever overflows."
        yield Reason(
            f"A slot sums {candidate.capacity:,} reports, dummies included, each with noise of"
            f" {level}. So every sum has the same noise. {full}",
            f"{GAUSSIAN}; {DUMMIES}",
        )


def _slots(design: CalibratedDesign, curve: Sequence[CalibratedDesign]) -> Reason:
    candidate, proxy = design.candidate, design.metrics.proxy
    fewer = [one for one in curve if one.candidate.slots <= 0.55 * candidate.slots]
    more = [one for one in curve if one.candidate.slots >= 1.9 * candidate.slots]
    words = f"{candidate.slots:,} slots balance steps against noise: the proxy is {proxy:.3g}"
    if design.question.fixed.slots is not None:
        words = f"The {candidate.slots:,} slots were asked for, and the proxy is {proxy:.3g}"
    if fewer:
        one = max(fewer, key=lambda one: one.candidate.slots)
        words += f"; with {one.candidate.slots:,} slots it is {one.metrics.proxy:.3g}"
        words += " (fewer steps)" if one.metrics.proxy > proxy else ""
    if more:
        one = min(more, key=lambda one: one.candidate.slots)
        words += f"; with {one.candidate.slots:,} slots it is {one.metrics.proxy:.3g}"
        words += " (more noise in total)" if one.metrics.proxy > proxy else ""
    theory = GAUSSIAN if candidate.is_gaussian else PURE
    return Reason(f"{words}. A smaller proxy is better.", f"{theory}; {PROXY}")


def _participation(design: CalibratedDesign) -> Iterator[Reason]:
    participation = design.candidate.participation
    if participation == 1.0:
        return
    asked = design.question.fixed.participation is not None
    why = "was asked for" if asked else "keeps the server's and the devices' load down"
    yield Reason(
        f"A participation of {participation:g} {why}. It also amplifies privacy, because clients"
        " that do not take part reveal nothing.",
        f"{RATIO}; Theorem 3.2",
    )


def _repeats(design: CalibratedDesign) -> Reason:
    repeats = design.candidate.repeats
    if repeats == 1:
        return Reason(
            "There is one run, so a client uploads at most once. More runs would give more steps"
            " with about the same total noise, but proportionally more uploads.",
            f"{WINDOWS}, Several campaigns; docs/planning.md, The proxy",
        )
    return Reason(
        f"{repeats:,} runs with independent randomness are composed as privacy loss distributions"
        f" instead of adding epsilons. Their {design.metrics.steps:,} steps have less total noise"
        f" than one run with as many slots, but each client checks in {repeats:,} times.",
        f"{WINDOWS}, Several campaigns; Corollary 3.3",
    )


def _clock(design: CalibratedDesign) -> Reason:
    load = design.metrics.slot_load
    return Reason(
        f"A slot of {load.slot_s:g} s is long enough to upload a report of {load.upload_bytes:,}"
        f" bytes, at {load.server_updates_per_s:,.3g} reports per second. All runs together take"
        f" {duration_text(load.duration_s)}. The schedule does not affect epsilon.",
        "docs/planning.md, Time and load",
    )


def _choice(design: CalibratedDesign, front: Sequence[CalibratedDesign]) -> Reason:
    rivals = [one for one in front if one.epsilon >= design.epsilon * 0.9 and one is not design]
    better = [one for one in rivals if one.metrics.proxy < design.metrics.proxy]
    if not better:
        return Reason("No design that was tried has a better proxy at this budget.", PROXY)
    best = min(better, key=lambda one: one.metrics.proxy)
    gain = 1.0 - best.metrics.proxy / design.metrics.proxy
    needs = []
    if best.load > 1.01 * design.load:
        needs.append(f"{best.load / design.load:.1f} times the uploads")
    if best.metrics.duration_s > 1.01 * design.metrics.duration_s:
        needs.append(f"{best.metrics.duration_s / design.metrics.duration_s:.1f} times the time")
    extra = " and ".join(needs) or "about the same load"
    return Reason(
        f"The best proxy found is {gain:.0%} smaller ({best.label}), with {extra}. A design with"
        f" twice the uploads is recommended only if its proxy is better by {2**WORTH - 1:.1%}.",
        PROXY,
    )


def duration_text(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> duration_text(90), duration_text(7200), duration_text(200000)
    ('90 s', '2 h', '2.3 days')
    """
    if seconds < 600:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds / 86400:.2g} days"
