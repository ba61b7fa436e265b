"""The candidates of a search.

Every parameter that the user did not fix takes several values. Numbers of slots, for example, grow
by a factor of about 1.5. Only dominated candidates are left out. A minibatch above 1 has the same
epsilon, time and load as a minibatch of 1, but fewer steps. With noise at the server, a capacity
needs more noise and uses fewer clients. Noise at the clients has the same epsilon as noise at the
server, but needs a declared population.
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
REPEATS = (1, 2, 3, 5, 10, 20, 50, 100)
PARTICIPATIONS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
MOST_SEARCHED_SLOTS = 100_000
MOST_SEARCHED_STEPS = 200_000
FEWEST_REPORTS = 0.2
"""Smallest expected number of check-ins per slot of a candidate."""
OVERFLOW_SHARE = 1e-3
"""Share of delta that the probability of an overflowing slot may use."""


def candidates(question: Question) -> list[DesignCandidate]:
    """Return every candidate that fits the duration and the server's rate.

    Raise ``InvalidValue`` if there is none.
    """
    found = [
        candidate for candidate in _all_candidates(question) if _fits_in_time(candidate, question)
    ]
    if found:
        return found
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
    before = question.clients * candidate.participation / candidate.slots
    return replace(changed, capacity=max(1, round(candidate.capacity / before * load)))  # type: ignore[operator]  # not None here


def capacity_without_overflow(candidate: DesignCandidate, question: Question) -> int:
    """Return a capacity that overflows with probability at most a thousandth of delta.

    It follows from Bernstein's inequality for the largest population.
    """
    load = question.population.most * candidate.participation / candidate.drawable_slots
    spare = OVERFLOW_SHARE * question.delta
    rare = math.log(2.0 * candidate.drawable_slots * candidate.repeats) - math.log(spare)
    return max(1, math.ceil(load + rare / 3.0 + math.sqrt(rare * rare / 9.0 + 2.0 * load * rare)))


def _all_candidates(question: Question) -> Iterator[DesignCandidate]:
    for randomizer, noise_at in _randomizers(question):
        gaussian = randomizer is RandomizerKind.GAUSSIAN
        for protocol in _protocols(question):
            if protocol is Protocol.AVERAGED:
                asked = question.fixed.protocol is Protocol.AVERAGED
                if noise_at is NoiseAt.CLIENT and (asked or not gaussian):
                    yield from _averaged(question, randomizer)
                continue
            few, batch = not gaussian or protocol is Protocol.SLIDING, question.fixed.minibatch or 1
            for slots in _slots(question):
                for repeats, share in product(
                    _repeats(question, slots, few=few), _participations(question, few=few)
                ):
                    shape = protocol, slots, share, None, None, batch, repeats
                    yield from _with_windows_and_capacities(
                        question, DesignCandidate(*shape, randomizer, noise_at)
                    )


def _with_windows_and_capacities(
    question: Question, bare: DesignCandidate
) -> Iterator[DesignCandidate]:
    """Yield the candidate with every allowed window and capacity."""
    if bare.minibatch > bare.slots:
        return
    for window in _windows(question, bare):
        candidate = replace(bare, window=window)
        fixed = question.fixed.capacity
        if candidate.noise_at is NoiseAt.SERVER:
            yield replace(candidate, capacity=None if fixed in (None, ALL) else int(fixed or 0))
        elif fixed == ALL:
            continue
        elif candidate.is_gaussian:
            capacity = int(fixed or capacity_without_overflow(candidate, question))
            yield replace(candidate, capacity=capacity, population=question.population)
        else:
            load = question.clients * candidate.participation / candidate.slots
            wanted = {max(1, round(load * part)) for part in (0.7, 1.0, 1.4)}
            for capacity in sorted(wanted) if fixed is None else [int(fixed)]:
                yield replace(candidate, capacity=capacity)


def _averaged(question: Question, randomizer: RandomizerKind) -> Iterator[DesignCandidate]:
    for slots in _slots(question):
        for repeats in _repeats(question, slots, few=True):
            candidate = DesignCandidate(
                Protocol.AVERAGED, slots, 1.0, None, None, 1, repeats, randomizer, NoiseAt.CLIENT
            )
            yield _with_contributors(candidate, question)


def _with_contributors(candidate: DesignCandidate, question: Question) -> DesignCandidate:
    """Return the candidate with a declared population whose lower limit is ``contributors``."""
    surely = contributors(candidate, question)
    return replace(candidate, population=Population(surely, question.population.most))


def contributors(candidate: DesignCandidate, question: Question) -> int:
    """Return a number of clients that almost surely contribute at the smallest population.

    It is the expected number minus six standard deviations, at least 1.
    """
    run_s = candidate.slots * shortest_slot_s(candidate, question)
    available = min(1.0, question.availability_s / run_s) * (1.0 - question.devices.dropout)
    mean = question.population.fewest * available
    return max(1, math.floor(mean - 6.0 * math.sqrt(mean * (1.0 - available))))


def _randomizers(question: Question) -> Iterator[tuple[RandomizerKind, NoiseAt]]:
    fixed = question.fixed
    kinds = [RandomizerKind.GAUSSIAN, RandomizerKind.LAPLACE, RandomizerKind.PRIVUNIT]
    for kind in kinds if fixed.randomizer is None else [fixed.randomizer]:
        for place in NoiseAt:
            gaussian, server = kind is RandomizerKind.GAUSSIAN, place is NoiseAt.SERVER
            if fixed.noise_at not in (None, place) or (server and not gaussian):
                continue
            free = fixed.noise_at is None and fixed.capacity in (None, ALL)
            averaged = fixed.protocol is Protocol.AVERAGED
            if gaussian and not server and free and not averaged:
                continue  # dominated by noise at the server, as the module's docstring says
            yield kind, place


def _protocols(question: Question) -> list[Protocol]:
    fixed = question.fixed
    if fixed.protocol is not None:
        return [fixed.protocol]
    if fixed.window is not None:
        return [Protocol.SLIDING]
    found = [Protocol.FIXED]
    if question.availability_s < question.server.duration_s:
        found.append(Protocol.SLIDING)
    alone = fixed.capacity is None and fixed.participation in (None, 1.0)
    if question.adjacency is Adjacency.REPLACE_ONE and alone and fixed.minibatch in (None, 1):
        found.append(Protocol.AVERAGED)
    return found


def _slots(question: Question) -> list[int]:
    if question.fixed.slots is not None:
        return [question.fixed.slots]
    most = min(MOST_SEARCHED_SLOTS, question.population.most * 2, question.server.duration_s)
    found = {
        round(step * 10**place)
        for place in range(6)
        for step in SLOT_SERIES
        if step * 10**place <= most
    }
    least = max(question.fixed.window or 1, question.fixed.minibatch or 1)
    return sorted({*(slots for slots in found if slots >= least), least, 1} - set(range(1, least)))


def _repeats(question: Question, slots: int, *, few: bool) -> list[int]:
    if question.fixed.repeats is not None:
        return [question.fixed.repeats]
    if few:
        return [1]
    return [count for count in REPEATS if count == 1 or count * slots <= MOST_SEARCHED_STEPS]


def _participations(question: Question, *, few: bool) -> list[float]:
    if question.fixed.participation is not None:
        return [question.fixed.participation]
    seconds = question.server.duration_s * 0.6
    reach = seconds * question.server.updates_per_s / question.population.most
    found = [p for p in PARTICIPATIONS if p * question.clients >= 10.0 or p == 1.0]
    fits = [p for p in found if p <= reach] or found[-1:]
    return fits[:1] if few else fits[:5]


def _windows(question: Question, candidate: DesignCandidate) -> Sequence[int | None]:
    if candidate.protocol is not Protocol.SLIDING:
        return [None]
    if question.fixed.window is not None:
        return [question.fixed.window] if question.fixed.window <= candidate.slots else []
    if candidate.slots < 2:
        return []
    slot_s = shortest_slot_s(candidate, question)
    reach = max(1, math.floor(question.availability_s / slot_s))
    shares = (0.05, 0.1, 0.2, 0.35, 0.5)
    return sorted({min(reach, max(1, round(candidate.slots * share))) for share in shares})


def _fits_in_time(candidate: DesignCandidate, question: Question) -> bool:
    slot_s = shortest_slot_s(candidate, question)
    if candidate.slots * candidate.repeats * slot_s > question.server.duration_s * (1.0 + 1e-9):
        return False
    load = question.clients * candidate.participation / candidate.slots
    return load >= FEWEST_REPORTS or question.fixed.slots is not None
