"""Explain a design by reasons, and by its sensitivity to the number of clients.

The sensitivity shows the same campaign with half and with twice as many clients. Epsilon is
computed again for that number of clients. Most designs have the same epsilon for any number of
clients.
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
from checkins.planning.candidate import CHECK_IN_SHARE
from checkins.planning.cost_model import CalibratedDesign, design_metrics
from checkins.planning.search import LOAD_EXPONENT
from checkins.planning.search_space import capacity_without_overflow, contributors

CLIENT_FACTORS = (0.5, 1.0, 2.0)
"""The sensitivity shows the planned number of clients times each of these factors."""
RATIO_TEXTS = {0.5: "half of", 2.0: "twice"}
"""How a sentence names the factors other than 1."""


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
    return [_sensitivity_row(design, factor) for factor in CLIENT_FACTORS]


def depends_on_population(design: CalibratedDesign) -> bool:
    """Return True if epsilon depends on the number of clients."""
    candidate = design.candidate
    is_shuffling = candidate.protocol is Protocol.AVERAGED and not candidate.is_gaussian
    return is_shuffling or candidate.method(design.target) is Method.EXACT_POPULATION


def _sensitivity_row(design: CalibratedDesign, factor: float) -> SensitivityRow:
    question, candidate = design.question, design.candidate
    clients = max(1, round(question.clients * factor))
    slot_s = design.metrics.slot_load.slot_s
    metrics = design_metrics(candidate, design.level, question, clients=clients, slot_s=slot_s)
    load, epsilon = metrics.slot_load, _scaled_epsilon(design, factor)
    noise = f"{metrics.noise_per_step:.3g} times the clip norm"
    if factor != 1.0:
        ratio = metrics.noise_per_step / design.metrics.noise_per_step
        noise = f"{ratio:.2f} times as large"
    unused_places = "dummies" if candidate.has_dummies else "empty slots"
    sentence = (
        f"{_epsilon_text(design, factor, clients, epsilon)}. The noise per step is {noise}, and the"
        f" share of {unused_places} is {load.dummies_share:.1%}."
    )
    if load.server_updates_per_s > question.server.updates_per_s * (1.0 + 1e-9):
        fate_of_late_reports = "are replaced by dummies" if candidate.has_dummies else "are lost"
        sentence += (
            f" {load.server_updates_per_s:,.0f} reports arrive per second, which is more than the"
            f" server can process, so late reports {fate_of_late_reports}."
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


def _epsilon_text(design: CalibratedDesign, factor: float, clients: int, epsilon: float) -> str:
    planned = f"{design.question.clients:,} planned clients"
    start = f"With the {planned}"
    if factor != 1.0:
        start = f"With {clients:,} clients ({RATIO_TEXTS[factor]} the {planned})"
    if not math.isfinite(epsilon):
        return f"{start}, no epsilon is proved, so the campaign must not run"
    if not depends_on_population(design):
        return f"{start}, epsilon is the same, because it does not depend on the number of clients"
    if epsilon <= design.epsilon * (1.0 + 1e-9):
        return f"{start}, epsilon is the same, because it covers this number of clients"
    reason = "more clients check in than a slot uses, and one client may displace another"
    if design.candidate.protocol is Protocol.AVERAGED:
        reason = "averaged updates hide a client only among the clients that contribute"
    return f"{start}, epsilon is {formatting.up(epsilon, 3)}, because {reason}"


def _scaled_epsilon(design: CalibratedDesign, factor: float) -> float:
    """Return a proven upper bound on epsilon if there are ``factor`` times as many clients.

    Return infinity if no bound is proved.
    """
    candidate, target = design.candidate, design.target
    declared, population = candidate.population, _scaled_population(design, factor)
    if not depends_on_population(design) or declared is None or population is None:
        return design.epsilon
    is_averaged = candidate.protocol is Protocol.AVERAGED
    is_covered = factor >= 1.0 if is_averaged else population.most <= declared.most
    if factor == 1.0 or is_covered:
        return design.epsilon
    try:
        scaled_design = replace(candidate, population=population).design(design.level)
    except CheckinsError:
        return math.inf
    epsilon = epsilon_at(
        scaled_design,
        delta=target.delta,
        adjacency=target.adjacency,
        precision=Precision.FINE,
        campaigns=candidate.repeats,
        guess=2.0 * target.epsilon,
    )
    return max(design.epsilon, epsilon)


def _scaled_population(design: CalibratedDesign, factor: float) -> Population | None:
    """Return the population that would be declared with ``factor`` times as many clients.

    Return None if the candidate declares no population.
    """
    candidate, question = design.candidate, design.question
    if candidate.population is None:
        return None
    low, high = question.population.fewest, question.population.most
    scaled = Population(max(1, math.floor(low * factor)), max(1, math.ceil(high * factor)))
    if candidate.protocol is not Protocol.AVERAGED:
        return scaled
    least_contributors = contributors(candidate, replace(question, population=scaled))
    return Population(min(least_contributors, scaled.most), scaled.most)


ONE_RATIO_PAGE = "docs/theory/one-likelihood-ratio.md"
GAUSSIAN_PAGE = "docs/theory/gaussian.md"
CORRELATED_NOISE_PAGE = "docs/theory/correlated-noise.md"
PURE_PAGE = "docs/theory/pure.md"
WINDOWS_PAGE = "docs/theory/windows-and-capacity.md"
SHUFFLING_PAGE = "docs/theory/pure.md, Shuffling; BKMTT20, Theorem 4.1"
ERROR_PAGE = "docs/planning.md, Estimated error; BKMTT20, Theorem 4.2 (smooth)"
DUMMIES_STATEMENT = "BKMTT20, Proposition 3.4"
"""Pages of the documentation and statements of the paper that the reasons cite."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for the recommended design, and the theorem or section that supports it."""

    sentence: str
    theorem: str


def reasons(
    design: CalibratedDesign, front: Sequence[CalibratedDesign], curve: Sequence[CalibratedDesign]
) -> list[Reason]:
    """Return the reasons for a design.

    ``front`` has the other designs of the Pareto front. ``curve`` has the same design with other
    numbers of slots.
    """
    return [
        _protocol_reason(design),
        *_noise_reasons(design),
        _slots_reason(design, curve),
        *_participation_reasons(design),
        _repeats_reason(design),
        _schedule_reason(design),
        _comparison_reason(design, [*front, *curve]),
    ]


def _protocol_reason(design: CalibratedDesign) -> Reason:
    candidate = design.candidate
    if candidate.protocol is Protocol.AVERAGED and candidate.is_gaussian:
        return Reason(
            "Averaged updates use every report. Their epsilon is proved only for neighbours that"
            " replace one client's data.",
            "BKMTT20, Theorem 4.1",
        )
    if candidate.protocol is Protocol.AVERAGED:
        return Reason(
            "Averaged updates use every report and hide each client among all clients that"
            " contribute. Their epsilon is proved only for neighbours that replace one client's"
            " data, and only for a declared minimum number of contributing clients.",
            SHUFFLING_PAGE,
        )
    if candidate.window is not None:
        return Reason(
            f"A device stays available for {duration_text(design.question.availability_s)}, so it"
            f" draws one of the {_slots_text(candidate.window)} after it has joined. An observer"
            f" knows these slots, and not which of them it drew. The first"
            f" {_slots_text(candidate.window - 1)} of the campaign release nothing.",
            f"{WINDOWS_PAGE}; BKMTT20, Theorem 4.3",
        )
    return Reason(
        f"Each client draws one of {_slots_text(candidate.slots)} by itself, so the server does not"
        " sample clients. The bound on epsilon covers all releases together, and holds for any"
        " data that the other clients report.",
        f"{ONE_RATIO_PAGE}; BKMTT20, Theorem 3.2",
    )


def _noise_reasons(design: CalibratedDesign) -> Iterator[Reason]:
    candidate, level = design.candidate, f"standard deviation {design.level:g} times the clip norm"
    most = f"{design.question.population.most:,} clients"
    if not candidate.is_gaussian:
        is_privunit = candidate.randomizer is RandomizerKind.PRIVUNIT
        yield Reason(
            f"Each report is {design.level:g}-DP by itself, even against the server. With the"
            f" random slots, all releases together have epsilon <="
            f" {formatting.up(design.epsilon, 3)}."
            + (
                " PrivUnit has no exact sampler for devices and can only be simulated."
                if is_privunit
                else ""
            ),
            PURE_PAGE,
        )
    elif candidate.noise_at is NoiseAt.SERVER and candidate.capacity is None:
        yield Reason(
            f"The server adds Gaussian noise ({level}) once to the sum of each slot. So it needs no"
            " dummy reports and no limit on the check-ins of a slot, and epsilon does not depend on"
            " the number of clients.",
            f"{WINDOWS_PAGE}, Noise at the server",
        )
        if candidate.bands > 1:
            yield Reason(
                f"The noise of a slot is correlated with that of the {candidate.bands - 1:,} slots"
                " before it. Each slot has more noise than with independent noise, but the noise"
                " in the released models is smaller, because most of it cancels.",
                f"{CORRELATED_NOISE_PAGE}; {ERROR_PAGE}",
            )
            return
        capacity = capacity_without_overflow(candidate, design.question)
        yield Reason(
            f"If the devices added noise instead, each slot would sum exactly {capacity:,} reports."
            " The server would draw a dummy report for each missing report, and the certificate"
            f" would assume at most {most}. The server would still have to be trusted.",
            f"{WINDOWS_PAGE}, Capacity",
        )
    elif candidate.noise_at is NoiseAt.SERVER:
        yield Reason(
            f"The server adds Gaussian noise ({level}) once to the sum of a slot. With a capacity"
            f" of {candidate.capacity:,}, one client may displace another, so more noise is needed"
            " than without a capacity.",
            GAUSSIAN_PAGE,
        )
    elif candidate.protocol is Protocol.AVERAGED:
        yield Reason(
            "A slot may average a single Gaussian report, because no least number of reports is"
            f" declared. So the noise of each report ({level}) gives the whole guarantee.",
            WINDOWS_PAGE,
        )
    else:
        overflow_text = "Epsilon covers the case that one client displaces another in a full slot."
        if candidate.method(design.target) is Method.EXACT_POPULATION:
            overflow_text = (
                f"With at most {most}, a slot almost never has more check-ins than this."
            )
        yield Reason(
            f"A slot sums exactly {candidate.capacity:,} reports, each with Gaussian noise"
            f" ({level}). The server draws a dummy report for each missing report, so every sum"
            f" has the same noise. {overflow_text}",
            f"{GAUSSIAN_PAGE}; {DUMMIES_STATEMENT}",
        )


def _slots_reason(design: CalibratedDesign, curve: Sequence[CalibratedDesign]) -> Reason:
    candidate, error = design.candidate, design.metrics.proxy
    fewer = [other for other in curve if other.candidate.slots <= 0.55 * candidate.slots]
    more = [other for other in curve if other.candidate.slots >= 1.9 * candidate.slots]
    sentence = f"The estimated error is {error:.3g} with {_slots_text(candidate.slots)}"
    sentence += " (as requested)" if design.question.fixed.slots is not None else ""
    if fewer:
        other = max(fewer, key=lambda other: other.candidate.slots)
        sentence += f", {other.metrics.proxy:.3g} with {_slots_text(other.candidate.slots)}"
        sentence += " (fewer steps)" if other.metrics.proxy > error else ""
    if more:
        other = min(more, key=lambda other: other.candidate.slots)
        sentence += f", {other.metrics.proxy:.3g} with {_slots_text(other.candidate.slots)}"
        sentence += " (more noise in total)" if other.metrics.proxy > error else ""
    theory = GAUSSIAN_PAGE if candidate.is_gaussian else PURE_PAGE
    return Reason(f"{sentence}.", f"{theory}; {ERROR_PAGE}")


def _participation_reasons(design: CalibratedDesign) -> Iterator[Reason]:
    participation = design.candidate.participation
    if participation == 1.0:
        return
    is_fixed = design.question.fixed.participation is not None
    reason = "was requested" if is_fixed else "reduces the load of server and devices"
    yield Reason(
        f"A participation of {participation:g} {reason}. It also amplifies privacy, because clients"
        " that do not take part reveal nothing.",
        f"{ONE_RATIO_PAGE}; BKMTT20, Theorem 3.2",
    )


def _repeats_reason(design: CalibratedDesign) -> Reason:
    repeats = design.candidate.repeats
    if repeats == 1:
        return Reason(
            "There is one run, so a client uploads at most once. More runs would give more steps"
            " with about the same noise in total, but also more uploads.",
            f"{WINDOWS_PAGE}, Several campaigns; docs/planning.md, Estimated error",
        )
    one_run = ""
    if design.candidate.protocol is Protocol.FIXED:
        slots = repeats * design.candidate.slots
        one_run = (
            f" A single run with {slots:,} slots and the same epsilon would make as many steps, and"
            " the mean of all its updates would have more noise than the mean over these runs."
        )
    return Reason(
        f"The {repeats:,} runs have independent randomness, so their privacy loss distributions are"
        f" composed, which gives a smaller epsilon than adding epsilons.{one_run} A client checks"
        f" in up to {repeats:,} times, at most once in each run.",
        f"{WINDOWS_PAGE}, Several campaigns; BKMTT20, Corollary 3.3",
    )


def _schedule_reason(design: CalibratedDesign) -> Reason:
    load = design.metrics.slot_load
    return Reason(
        f"A slot of {load.slot_s:g} s is long enough to upload a report of {load.upload_bytes:,}"
        f" bytes. Reports arrive only after the check-ins, in the last {1.0 - CHECK_IN_SHARE:.0%}"
        f" of a slot. During this time, the server receives about {load.server_updates_per_s:,.3g}"
        f" reports per second. All runs together take {duration_text(load.duration_s)}."
        " The schedule does not affect epsilon.",
        "docs/planning.md, Time and load",
    )


def _comparison_reason(design: CalibratedDesign, front: Sequence[CalibratedDesign]) -> Reason:
    similar = [
        other for other in front if other.epsilon >= design.epsilon * 0.9 and other is not design
    ]
    more_accurate = [other for other in similar if other.metrics.proxy < design.metrics.proxy]
    if not more_accurate:
        return Reason(
            "No design that the planner tried has a smaller estimated error at this budget.",
            ERROR_PAGE,
        )
    best = min(more_accurate, key=lambda other: other.metrics.proxy)
    gain = 1.0 - best.metrics.proxy / design.metrics.proxy
    costs = []
    if best.load > 1.01 * design.load:
        costs.append(f"{best.load / design.load:.3g} times the uploads")
    if best.metrics.duration_s > 1.01 * design.metrics.duration_s:
        costs.append(f"{best.metrics.duration_s / design.metrics.duration_s:.3g} times the time")
    cost = " and ".join(costs) or "about the same load"
    return Reason(
        f"Another design ({best.label}) has the smallest estimated error, {gain:.1%} below that of"
        f" this design, but needs {cost}.{_upload_rule(best.load, design.load)}",
        ERROR_PAGE,
    )


def _upload_rule(load: float, recommended_load: float) -> str:
    """Return how much smaller the error must be if the uploads are ``load``.

    Return an empty string if these uploads are not larger than those of the recommended design.
    """
    if load <= 1.01 * recommended_load:
        return ""
    ratio = load / recommended_load
    return (
        f" The planner accepts {ratio:.3g} times the uploads only if they reduce the estimated"
        f" error by at least {1 - ratio**-LOAD_EXPONENT:.1%} ({1 - 2**-LOAD_EXPONENT:.1%} for each"
        f" doubling, and this is {math.log2(ratio):.2g} doublings)."
    )


def _slots_text(count: int) -> str:
    return "1 slot" if count == 1 else f"{count:,} slots"


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
