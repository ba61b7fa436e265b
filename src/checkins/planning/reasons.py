"""Why this design: plain sentences, each with what proves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkins import formatting
from checkins.accounting import Protocol
from checkins.campaign import RandomizerKind
from checkins.planning.priced import PricedDesign, at_server
from checkins.planning.search import WORTH
from checkins.planning.space import roomy_capacity
from checkins.planning.target import Method

RATIO = "docs/theory/one-likelihood-ratio.md"
GAUSSIAN = "docs/theory/gaussian.md"
PURE = "docs/theory/pure.md"
WINDOWS = "docs/theory/windows-and-capacity.md"
SHUFFLED = "docs/theory/pure.md, Shuffling; thm:ampl_avg"
PROXY = "thm:util_new2 (smooth), docs/planning.md, The proxy"
DUMMIES = "prop:dummy_dist+"


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence about the recommended design, and the theorem or section behind it."""

    sentence: str
    theorem: str

    def as_dict(self) -> dict[str, str]:
        return {"sentence": self.sentence, "theorem": self.theorem}


def reasons(
    design: PricedDesign,
    front: Sequence[PricedDesign],
    curve: Sequence[PricedDesign],
) -> list[Reason]:
    """What speaks for the design, from its protocol to its clock."""
    return [
        *_protocol(design),
        *_noise(design),
        *_slots(design, curve),
        *_participation(design),
        *_repeats(design),
        *_clock(design),
        *_choice(design, [*front, *curve]),
    ]


def _protocol(design: PricedDesign) -> Iterator[Reason]:
    shape = design.shape
    if shape.protocol is Protocol.AVERAGED and shape.is_gaussian:
        yield Reason(
            "Averaged updates waste no report; they are proved for neighbours that replace one"
            " client's data.",
            "thm:ampl_avg",
        )
    elif shape.protocol is Protocol.AVERAGED:
        yield Reason(
            "Averaged updates waste no report, and hide each client among all who contribute; they"
            " are proved for neighbours that replace one client's data, and need to know how many"
            " contribute.",
            SHUFFLED,
        )
    elif shape.protocol is Protocol.SLIDING:
        reach = told_time(design.question.availability_s)
        yield Reason(
            f"Devices stay reachable for {reach}: each draws one of"
            f" the {shape.window:,} slots after it wakes, and is hidden among those only; the"
            f" first {(shape.window or 1) - 1:,} slots warm up and release nothing.",
            f"{WINDOWS}; thm:ampl_dist",
        )
    else:
        yield Reason(
            f"Each client draws one of {shape.slots:,} slots by itself, so nobody is called, and"
            " what all releases give away is bounded by one likelihood ratio whatever the others"
            " do.",
            f"{RATIO}; thm:ampl_dist+",
        )


def _noise(design: PricedDesign) -> Iterator[Reason]:
    shape, asked = design.shape, design.question
    if at_server(shape):
        level = f"{design.level:g} clips"
        if shape.capacity is None:
            yield Reason(
                f"The server adds noise of {level} once to the sum of a slot: no dummies, nobody is"
                " dismissed or displaced, and the certificate needs no population.",
                f"{WINDOWS}, Noise at the server",
            )
            room = roomy_capacity(shape, asked)
            yield Reason(
                f"The same noise carried by the reports themselves would take {room:,} places a"
                " slot, filled with dummies, and a promise that no more than"
                f" {asked.population.most:,} clients exist, for the same trust in the server.",
                f"{WINDOWS}, Capacity",
            )
        else:
            yield Reason(
                f"The server adds noise of {level} once to the sum of a slot. A capacity of"
                f" {shape.capacity:,} lets one client displace another, which costs noise; without"
                " one it would be less.",
                GAUSSIAN,
            )
    elif shape.is_gaussian and shape.protocol is not Protocol.AVERAGED:
        roomy = design.target.method(shape) is Method.EXACT_POPULATION
        yield Reason(
            f"Each of {shape.capacity:,} places a slot carries noise of {design.level:g} clips,"
            " dummies included, so a sum has the same noise whoever comes"
            + (
                f"; with at most {asked.population.most:,} clients a slot hardly ever overflows."
                if roomy
                else "; a full slot lets one client displace another, which is paid for."
            ),
            f"{GAUSSIAN}; {DUMMIES}",
        )
    elif shape.is_gaussian:
        yield Reason(
            "The theorem for an average of Gaussian reports proves nothing smaller here: each"
            f" report is private by itself, with noise of {design.level:g} clips.",
            WINDOWS,
        )
    else:
        simulated = shape.randomizer is RandomizerKind.PRIVUNIT
        yield Reason(
            f"Each report is {design.level:g}-DP by itself, even against the server; the random"
            f" slots bring that down to {formatting.up(design.epsilon, 3)} for everything released."
            + (" PrivUnit has no exact sampler for devices: simulate only." if simulated else ""),
            PURE,
        )


def _slots(design: PricedDesign, curve: Sequence[PricedDesign]) -> Iterator[Reason]:
    shape, worth = design.shape, design.figures
    fewer = [one for one in curve if one.shape.slots <= 0.55 * shape.slots]
    more = [one for one in curve if one.shape.slots >= 1.9 * shape.slots]
    if design.question.fixed.slots is not None:
        start = f"The {shape.slots:,} slots were asked for"
    else:
        start = f"{shape.slots:,} slots balance steps against noise"
    words = f"{start}: the proxy is {worth.proxy:.3g}"
    if fewer:
        one = max(fewer, key=lambda one: one.shape.slots)
        words += f", with {one.shape.slots:,} it is {one.figures.proxy:.3g}"
        words += " (fewer steps)" if one.figures.proxy > worth.proxy else ""
    if more:
        one = min(more, key=lambda one: one.shape.slots)
        words += f", with {one.shape.slots:,} {one.figures.proxy:.3g}"
        words += " (more noise in all)" if one.figures.proxy > worth.proxy else ""
    yield Reason(
        f"{words}; smaller is better.", f"{GAUSSIAN if shape.is_gaussian else PURE}; {PROXY}"
    )


def _participation(design: PricedDesign) -> Iterator[Reason]:
    shape, asked = design.shape, design.question
    if shape.participation == 1.0:
        return
    if asked.fixed.participation is not None:
        why = "was asked for"
    else:
        why = "keeps the server's and the devices' load down"
    yield Reason(
        f"A participation of {shape.participation:g} {why}, and is priced: whoever sits out gives"
        " nothing away.",
        f"{RATIO}; thm:ampl_dist+",
    )


def _repeats(design: PricedDesign) -> Iterator[Reason]:
    shape = design.shape
    if shape.repeats == 1:
        yield Reason(
            "One run: a client is used once at most; more runs would give more steps at about the"
            " same noise in all, for as many more uploads.",
            f"{WINDOWS}, Several campaigns; docs/planning.md, The proxy",
        )
        return
    yield Reason(
        f"{shape.repeats:,} runs with fresh coins are composed as privacy losses, never by adding"
        f" epsilons: {design.figures.steps:,} steps with less noise in all than one run of so many"
        f" slots, for {shape.repeats:,} check-ins of each client.",
        f"{WINDOWS}, Several campaigns; cor:res",
    )


def _clock(design: PricedDesign) -> Iterator[Reason]:
    seen = design.figures.turnout
    yield Reason(
        f"A slot of {seen.slot_s:g} s leaves time for a report of {seen.upload_bytes:,} bytes and"
        f" for {seen.server_updates_per_s:,.3g} reports a second; all of it takes"
        f" {told_time(seen.duration_s)}. The clock does not enter the price.",
        "docs/planning.md, Time and load",
    )


def _choice(design: PricedDesign, front: Sequence[PricedDesign]) -> Iterator[Reason]:
    rivals = [one for one in front if one.epsilon >= design.epsilon * 0.9 and one is not design]
    better = [one for one in rivals if one.figures.proxy < design.figures.proxy]
    if not better:
        yield Reason("No design that was looked at has a better proxy at this budget.", PROXY)
        return
    best = min(better, key=lambda one: one.figures.proxy)
    gain = 1.0 - best.figures.proxy / design.figures.proxy
    costs = []
    if best.load > 1.01 * design.load:
        costs.append(f"{best.load / design.load:.1f} times the uploads")
    if best.figures.duration_s > 1.01 * design.figures.duration_s:
        costs.append(f"{best.figures.duration_s / design.figures.duration_s:.1f} times the time")
    price = " and ".join(costs) or "about the same load"
    yield Reason(
        f"The best proxy found is {gain:.0%} smaller ({best.label}), for {price}; twice the uploads"
        f" must better the proxy by {2**WORTH - 1:.1%} to be worth asking for.",
        PROXY,
    )


def told_time(seconds: float) -> str:
    """A duration for people.

    >>> told_time(90), told_time(7200), told_time(200000)
    ('90 s', '2 h', '2.3 days')
    """
    if seconds < 600:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds / 86400:.2g} days"
