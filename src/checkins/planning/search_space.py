"""The candidates of a search: designs whose level of noise is not chosen yet.

Every parameter that the user did not fix takes several values. Numbers of slots, for example, grow
by a factor of about 1.5. Some values are left out, because another value is at least as good in
every respect. A minibatch (the number of slots per model step) above 1 has the same epsilon, time
and load as a minibatch of 1, but fewer steps. With noise at the server, a capacity needs more noise
and uses fewer clients. Noise at the clients has the same epsilon as noise at the server, but needs
a declared population.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
from checkins.campaign import RandomizerKind
from checkins.errors import InvalidValue
from checkins.planning.candidate import DesignCandidate, shortest_slot_s
from checkins.planning.question import ALL, Question

SLOT_SERIES = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
"""The numbers of slots to try are these numbers times powers of 10."""
REPEATS = (1, 2, 3, 5, 10, 20, 50, 100)
BANDS = (8, 16, 32, 64)
MAX_RUNS_WITH_BANDS = 2
"""Largest number of runs for which correlated noise is searched. With five or more runs, it is no
better than independent noise in simulations (docs/experiments.md), whatever the estimate says."""
MIN_SLOTS_PER_BAND = 4
"""Least number of slots, as a multiple of the bands, for which correlated noise is searched."""
PARTICIPATIONS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
MAX_SEARCHED_SLOTS = 100_000
MAX_SEARCHED_STEPS = 200_000
MIN_CHECK_INS = 0.2
"""Smallest expected number of check-ins per slot of a candidate."""
OVERFLOW_SHARE = 1e-3
"""Largest probability that any slot overflows (more check-ins than capacity), relative to delta."""


def candidates(question: Question) -> list[DesignCandidate]:
    """Return every candidate whose runs fit in the server's duration.

    Raise ``InvalidValue`` if there is no such candidate.
    """
    allowed = [
        candidate for candidate in _all_candidates(question) if _fits_in_time(candidate, question)
    ]
    if allowed:
        return allowed
    raise InvalidValue(
        "duration_s",
        question.server.duration_s,
        "is too short for every allowed design; allow more time, a faster uplink or server, or"
        " longer availability, or fix fewer parameters",
    )


def with_slots(candidate: DesignCandidate, slots: int, question: Question) -> DesignCandidate:
    """Return the candidate with another number of slots, and adapt its window and capacity."""
    fixed = question.fixed
    window = candidate.window
    if window is not None:
        window = fixed.window or max(1, round(window * slots / candidate.slots))
    changed = replace(candidate, slots=slots, window=window and min(window, slots))
    if changed.protocol is Protocol.AVERAGED:
        return _with_contributors(changed, question)
    if changed.capacity is None or fixed.capacity is not None:
        return changed
    if changed.is_gaussian:
        return replace(changed, capacity=capacity_without_overflow(changed, question))
    load = question.clients * candidate.participation / slots
    load_before = question.clients * candidate.participation / candidate.slots
    return replace(changed, capacity=max(1, round(candidate.capacity / load_before * load)))  # type: ignore[operator]  # not None here


def capacity_without_overflow(candidate: DesignCandidate, question: Question) -> int:
    """Return a capacity with which any slot overflows with probability at most delta / 1,000.

    The capacity follows from Bernstein's inequality for the largest population.
    """
    load = question.population.most * candidate.participation / candidate.drawable_slots
    probability = OVERFLOW_SHARE * question.delta
    rarity = math.log(2.0 * candidate.drawable_slots * candidate.repeats) - math.log(probability)
    return max(
        1,
        math.ceil(load + rarity / 3.0 + math.sqrt(rarity * rarity / 9.0 + 2.0 * load * rarity)),
    )


def _all_candidates(question: Question) -> Iterator[DesignCandidate]:
    for randomizer, noise_at in _randomizers(question):
        is_gaussian = randomizer is RandomizerKind.GAUSSIAN
        for protocol in _protocols(question):
            if protocol is Protocol.AVERAGED:
                is_requested = question.fixed.protocol is Protocol.AVERAGED
                if noise_at is NoiseAt.CLIENT and (is_requested or not is_gaussian):
                    yield from _averaged_candidates(question, randomizer)
                continue
            few_values = not is_gaussian or protocol is Protocol.SLIDING
            minibatch = question.fixed.minibatch or 1
            for slots in _slot_counts(question):
                for repeats, participation in product(
                    _repeat_counts(question, slots, few_values=few_values),
                    _participations(question, few_values=few_values),
                ):
                    parameters = protocol, slots, participation, None, None, minibatch, repeats
                    candidate = DesignCandidate(*parameters, randomizer, noise_at)
                    yield from _with_windows_and_capacities(
                        question, _with_dimension(candidate, question)
                    )


def _with_windows_and_capacities(
    question: Question, template: DesignCandidate
) -> Iterator[DesignCandidate]:
    """Yield copies of the ``template`` with every allowed window and capacity."""
    if template.minibatch > template.slots:
        return
    for window in _windows(question, template):
        candidate = replace(template, window=window)
        fixed = question.fixed.capacity
        if candidate.noise_at is NoiseAt.SERVER:
            capacity = None if fixed in (None, ALL) else int(fixed or 0)
            for bands in _band_counts(question, candidate, capacity):
                yield replace(candidate, capacity=capacity, bands=bands)
        elif fixed == ALL:
            continue
        elif candidate.is_gaussian:
            capacity = int(fixed or capacity_without_overflow(candidate, question))
            yield replace(candidate, capacity=capacity, population=question.population)
        else:
            check_ins = question.clients * candidate.participation / candidate.slots
            capacities = {max(1, round(check_ins * factor)) for factor in (0.7, 1.0, 1.4)}
            for capacity in sorted(capacities) if fixed is None else [int(fixed)]:
                yield replace(candidate, capacity=capacity)


def _averaged_candidates(
    question: Question, randomizer: RandomizerKind
) -> Iterator[DesignCandidate]:
    for slots in _slot_counts(question):
        for repeats in _repeat_counts(question, slots, few_values=True):
            candidate = DesignCandidate(
                Protocol.AVERAGED, slots, 1.0, None, None, 1, repeats, randomizer, NoiseAt.CLIENT
            )
            yield _with_contributors(_with_dimension(candidate, question), question)


def _with_dimension(candidate: DesignCandidate, question: Question) -> DesignCandidate:
    """Return the candidate with the dimension of a report, if it is randomized by PrivUnit."""
    if candidate.randomizer is not RandomizerKind.PRIVUNIT:
        return candidate
    return replace(candidate, dimension=question.dimension)


def _with_contributors(candidate: DesignCandidate, question: Question) -> DesignCandidate:
    """Return the candidate with a declared population whose lower limit is ``contributors``."""
    least_clients = contributors(candidate, question)
    return replace(candidate, population=Population(least_clients, question.population.most))


def contributors(candidate: DesignCandidate, question: Question) -> int:
    """Return a number of clients. At least so many contribute, with probability almost 1.

    It is the expected number at the smallest population, minus six standard deviations, or 1.
    """
    run_s = candidate.slots * shortest_slot_s(candidate, question)
    probability = min(1.0, question.availability_s / run_s) * (1.0 - question.devices.dropout)
    expected = question.population.fewest * probability
    return max(1, math.floor(expected - 6.0 * math.sqrt(expected * (1.0 - probability))))


def _randomizers(question: Question) -> Iterator[tuple[RandomizerKind, NoiseAt]]:
    fixed = question.fixed
    kinds = [RandomizerKind.GAUSSIAN, RandomizerKind.LAPLACE, RandomizerKind.PRIVUNIT]
    for kind in kinds if fixed.randomizer is None else [fixed.randomizer]:
        for noise_at in NoiseAt:
            is_gaussian, is_at_server = kind is RandomizerKind.GAUSSIAN, noise_at is NoiseAt.SERVER
            if fixed.bands not in (None, 1) and not is_at_server:
                continue
            if fixed.noise_at not in (None, noise_at) or (is_at_server and not is_gaussian):
                continue
            may_be_at_server = fixed.noise_at is None and fixed.capacity in (None, ALL)
            is_averaged = fixed.protocol is Protocol.AVERAGED
            if is_gaussian and not is_at_server and may_be_at_server and not is_averaged:
                continue  # dominated by noise at the server, as the module's docstring says
            yield kind, noise_at


def _protocols(question: Question) -> list[Protocol]:
    fixed = question.fixed
    if fixed.protocol is not None:
        return [fixed.protocol]
    if fixed.window is not None:
        return [Protocol.SLIDING]
    protocols = [Protocol.FIXED]
    if question.availability_s < question.server.duration_s:
        protocols.append(Protocol.SLIDING)
    averages = fixed.capacity is None and fixed.participation in (None, 1.0)
    if question.adjacency is Adjacency.REPLACE_ONE and averages and fixed.minibatch in (None, 1):
        protocols.append(Protocol.AVERAGED)
    return protocols


def _slot_counts(question: Question) -> list[int]:
    if question.fixed.slots is not None:
        return [question.fixed.slots]
    most_slots = min(MAX_SEARCHED_SLOTS, question.population.most * 2, question.server.duration_s)
    counts = {
        round(factor * 10**exponent)
        for exponent in range(6)
        for factor in SLOT_SERIES
        if factor * 10**exponent <= most_slots
    }
    least = max(question.fixed.window or 1, question.fixed.minibatch or 1)
    return sorted({*(slots for slots in counts if slots >= least), least, 1} - set(range(1, least)))


def _repeat_counts(question: Question, slots: int, *, few_values: bool) -> list[int]:
    """Return the numbers of runs to try, or only 1 if ``few_values``, to save time."""
    if question.fixed.repeats is not None:
        return [question.fixed.repeats]
    if few_values:
        return [1]
    return [count for count in REPEATS if count == 1 or count * slots <= MAX_SEARCHED_STEPS]


def _participations(question: Question, *, few_values: bool) -> list[float]:
    """Return the participations to try: the largest that the server's rate allows, and smaller."""
    if question.fixed.participation is not None:
        return [question.fixed.participation]
    usable_s = question.server.duration_s * 0.6
    most_participation = usable_s * question.server.updates_per_s / question.population.most
    large_enough = [p for p in PARTICIPATIONS if p * question.clients >= 10.0 or p == 1.0]
    affordable = [p for p in large_enough if p <= most_participation] or large_enough[-1:]
    return affordable[:1] if few_values else affordable[:5]


def _band_counts(
    question: Question, candidate: DesignCandidate, capacity: int | None
) -> Sequence[int]:
    """Return the numbers of bands to try; 1 means independent noise."""
    if question.fixed.bands is not None:
        return [question.fixed.bands] if question.fixed.bands <= candidate.slots else []
    is_single = candidate.protocol is Protocol.FIXED and candidate.repeats <= MAX_RUNS_WITH_BANDS
    if not is_single or capacity is not None or question.adjacency is not Adjacency.ADD_REMOVE:
        return [1]
    return [1, *(bands for bands in BANDS if bands * MIN_SLOTS_PER_BAND <= candidate.slots)]


def _windows(question: Question, candidate: DesignCandidate) -> Sequence[int | None]:
    if candidate.protocol is not Protocol.SLIDING:
        return [None]
    if question.fixed.window is not None:
        return [question.fixed.window] if question.fixed.window <= candidate.slots else []
    if candidate.slots < 2:
        return []
    slot_s = shortest_slot_s(candidate, question)
    most_slots = max(1, math.floor(question.availability_s / slot_s))
    shares = (0.05, 0.1, 0.2, 0.35, 0.5)
    return sorted({min(most_slots, max(1, round(candidate.slots * share))) for share in shares})


def _fits_in_time(candidate: DesignCandidate, question: Question) -> bool:
    slot_s = shortest_slot_s(candidate, question)
    if candidate.slots * candidate.repeats * slot_s > question.server.duration_s * (1.0 + 1e-9):
        return False
    check_ins = question.clients * candidate.participation / candidate.slots
    return check_ins >= MIN_CHECK_INS or question.fixed.slots is not None
