"""Small check-in protocols by plain enumeration: slow, obvious, and independent of the package.

A randomizer is a matrix: row x is the distribution of the report of datum x, and row ``DUMMY`` that
of the dummy. It is adaptive: every history of releases may have its own. Every random choice (who
participates, which slot, who is used, what is reported) is enumerated, so the three distributions
of all releases (client absent, client with datum ``DATUM``, with datum ``OTHER_DATUM``) are exact,
and with them every hockey-stick divergence.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

History = tuple[tuple[int, ...], ...]
Randomizer = Callable[[History], np.ndarray]
"""From the releases so far to the matrix used next."""

DUMMY, DATUM, OTHER_DATUM = 0, 1, 2
"""Rows of a randomizer; further rows are data that only other clients have."""


@dataclass(frozen=True)
class Releases:
    """The distribution of everything released, in three worlds, outcome by outcome."""

    absent: np.ndarray
    present: np.ndarray
    replaced: np.ndarray

    def remove(self, epsilon: float) -> float:
        return hockey_stick(self.present, self.absent, epsilon)

    def add(self, epsilon: float) -> float:
        return hockey_stick(self.absent, self.present, epsilon)

    def add_remove(self, epsilon: float) -> float:
        return max(self.remove(epsilon), self.add(epsilon))

    def replace(self, epsilon: float) -> float:
        return max(
            hockey_stick(self.present, self.replaced, epsilon),
            hockey_stick(self.replaced, self.present, epsilon),
        )


def hockey_stick(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


def subset_response(
    local_epsilon: float, outcomes: int, chosen: tuple[frozenset[int], ...]
) -> np.ndarray:
    """Row x reports each outcome of its set b times as likely as any other: b-DP to the hilt.

    All sets must be equally large. With sets of size one it is k-ary randomized response.
    """
    (size,) = {len(favoured) for favoured in chosen}
    b = math.exp(local_epsilon)
    total = size * b + (outcomes - size)
    return np.array(
        [[(b if o in favoured else 1.0) / total for o in range(outcomes)] for favoured in chosen]
    )


def random_randomizer(rng: np.random.Generator, local_epsilon: float, rows: int) -> np.ndarray:
    """Some randomizer that is local_epsilon-DP: half the time an extreme one, else any."""
    outcomes = int(rng.integers(2, 4))
    if rng.random() < 0.5:
        size = int(rng.integers(1, outcomes))
        sets = list(itertools.combinations(range(outcomes), size))
        chosen = tuple(frozenset(sets[int(rng.integers(len(sets)))]) for _ in range(rows))
        return subset_response(local_epsilon, outcomes, chosen)
    scores = rng.uniform(size=(rows, outcomes)) * (rng.random((rows, outcomes)) < 0.8)
    low, high = 0.0, local_epsilon / float(np.ptp(scores) + 1e-9) * 2
    for _ in range(60):
        middle = (low + high) / 2
        if _loss(_softmax(middle * scores)) <= local_epsilon:
            low = middle
        else:
            high = middle
    return _softmax(low * scores)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


def _loss(matrix: np.ndarray) -> float:
    return float(np.log(matrix.max(axis=0) / matrix.min(axis=0)).max())


def adaptive(seed: int, local_epsilon: float, rows: int) -> Randomizer:
    """A different random randomizer for every history."""

    @cache
    def matrix(history: History) -> np.ndarray:
        rng = np.random.default_rng([seed, *(1 + r for release in history for r in (-1, *release))])
        return random_randomizer(rng, local_epsilon, rows)

    return matrix


def always(matrix: np.ndarray) -> Randomizer:
    return lambda history: matrix


@dataclass(frozen=True)
class Client:
    """What one client holds, how likely it takes part, and the slots it draws from."""

    datum: int
    participation: float
    window: tuple[int, ...]

    def draws(self) -> list[tuple[int | None, float]]:
        share = self.participation / len(self.window)
        return [(None, 1.0 - self.participation), *((slot, share) for slot in self.window)]


@dataclass(frozen=True)
class Protocol:
    """``slots`` slots, each using up to ``capacity`` of its check-ins, the rest being dummies.

    ``capacity = None``: every check-in is used and there are no dummies (averaged updates; the
    load of every slot shows). Slots of a window from ``slots`` on are outside the active range.
    """

    slots: int
    capacity: int | None
    randomizer: Randomizer
    client: Client
    others: tuple[Client, ...] = ()
    curious: int = 0
    """How many of the others, the last ones, disclose their slot, whether they were used, and
    what they reported."""

    def releases(self) -> Releases:
        """Exact distributions of the multisets of reports, slot after slot."""
        everyone = (self.client, *self.others)
        draws = [client.draws() for client in everyone]
        places = list(itertools.product(*draws))
        probabilities = np.array(
            [math.prod(probability for _, probability in place) for place in places]
        )
        groups = np.array(
            [
                [
                    sum(1 << j for j, (slot, _) in enumerate(place) if slot == i)
                    for i in range(self.slots)
                ]
                for place in places
            ],
            dtype=int,
        ).reshape(len(places), self.slots)
        without = np.array(
            [
                math.prod(probability for _, probability in place[1:])
                if place[0][0] is None
                else 0.0
                for place in places
            ]
        )
        data = tuple(client.datum for client in everyone)
        swapped = (OTHER_DATUM, *data[1:])
        return Releases(
            self._law(data, without, groups),
            self._law(data, probabilities, groups),
            self._law(swapped, probabilities, groups),
        )

    def _law(
        self, data: tuple[int, ...], probabilities: np.ndarray, groups: np.ndarray
    ) -> np.ndarray:
        distributions: list[float] = []

        def walk(history: History, weights: np.ndarray) -> None:
            slot = len(history)
            if slot == self.slots:
                distributions.append(float(weights.sum()))
                return
            matrix = self.randomizer(history)
            seen = np.unique(groups[:, slot])
            table = {int(group): self._release(matrix, data, int(group)) for group in seen}
            outcomes = sorted(self._outcomes(matrix, len(data)))
            for outcome in outcomes:
                factor = np.zeros(1 << len(data))
                for group, distribution in table.items():
                    factor[group] = distribution.get(outcome, 0.0)
                walk((*history, outcome), weights * factor[groups[:, slot]])

        walk((), probabilities)
        return np.array(distributions)

    def _outcomes(self, matrix: np.ndarray, most: int) -> set[tuple[int, ...]]:
        if self.curious:
            disclosed = range(matrix.shape[1] + 2)
            views = list(itertools.product(disclosed, repeat=self.curious))
            silent = replace(self, curious=0)._outcomes(matrix, most)
            return {(*one, *view) for one in silent for view in views}
        sizes = range(most + 1) if self.capacity is None else (self.capacity,)
        reports = range(matrix.shape[1])
        return {
            multiset
            for size in sizes
            for multiset in itertools.combinations_with_replacement(reports, size)
        }

    def _release(
        self, matrix: np.ndarray, data: tuple[int, ...], group: int
    ) -> dict[tuple[int, ...], float]:
        """The distribution of one slot's release when the clients of ``group`` checked in."""
        members = [datum for j, datum in enumerate(data) if group >> j & 1]
        if self.curious:
            return self._seen_by_curious(matrix, data, group)
        if self.capacity is None:
            return multiset_law([matrix[datum] for datum in members])
        used = list(itertools.combinations(members, min(self.capacity, len(members))))
        total: Counter[tuple[int, ...]] = Counter()
        for chosen in used:
            filled = (*chosen, *[DUMMY] * (self.capacity - len(chosen)))
            for outcome, probability in multiset_law([matrix[datum] for datum in filled]).items():
                total[outcome] += probability / len(used)
        return dict(total)

    def _seen_by_curious(
        self, matrix: np.ndarray, data: tuple[int, ...], group: int
    ) -> dict[tuple[int, ...], float]:
        """The release with what each curious client saw: 0 absent, 1 sent home, 2 + its report."""
        assert self.capacity is not None
        here = [j for j in range(len(data)) if group >> j & 1]
        used = list(itertools.combinations(here, min(self.capacity, len(here))))
        first = len(data) - self.curious
        total: Counter[tuple[int, ...]] = Counter()
        for chosen in used:
            telling = [j for j in chosen if j >= first]
            silent = [matrix[data[j]] for j in chosen if j < first]
            silent += [matrix[DUMMY]] * (self.capacity - len(chosen))
            rest = multiset_law(silent)
            for told in itertools.product(range(matrix.shape[1]), repeat=len(telling)):
                reports = dict(zip(telling, told, strict=True))
                view = tuple(
                    2 + reports[j] if j in reports else int(j in here)
                    for j in range(first, len(data))
                )
                likely = math.prod(float(matrix[data[j]][report]) for j, report in reports.items())
                for others, probability in rest.items():
                    total[(*sorted((*others, *told)), *view)] += likely * probability / len(used)
        return dict(total)


def multiset_law(rows: list[np.ndarray]) -> dict[tuple[int, ...], float]:
    """The distribution of the reports of several independent rows, their order forgotten."""
    distribution: Counter[tuple[int, ...]] = Counter({(): 1.0})
    for row in rows:
        longer: Counter[tuple[int, ...]] = Counter()
        for multiset, probability in distribution.items():
            for report, likely in enumerate(row):
                longer[tuple(sorted((*multiset, report)))] += probability * float(likely)
        distribution = longer
    return dict(distribution)


def shuffled(randomizer: Randomizer, others: tuple[int, ...]) -> Releases:
    """The client's report and the others' in uniformly random order, each randomizer adaptive."""

    def distribution(datum: int) -> np.ndarray:
        orders = np.array(list(itertools.permutations((datum, *others))), dtype=int)
        distributions: list[float] = []

        def walk(history: History, weights: np.ndarray) -> None:
            if len(history) == orders.shape[1]:
                distributions.append(float(weights.sum()))
                return
            matrix = randomizer(history)
            for report in range(matrix.shape[1]):
                walk((*history, (report,)), weights * matrix[orders[:, len(history)], report])

        walk((), np.full(len(orders), 1.0 / len(orders)))
        return np.array(distributions)

    return Releases(distribution(DUMMY), distribution(DATUM), distribution(OTHER_DATUM))


def delta_of_independent_slots(
    slot_ratios: np.ndarray, slot_chances: np.ndarray, *, slots: int, epsilon: float
) -> tuple[float, float]:
    """(remove, add) where every slot has the same independent distribution of likelihood ratios.

    Sums over all multinomial counts: for the larger examples that cannot be walked outcome by
    outcome.
    """
    remove = add = 0.0
    e = math.exp(epsilon)
    for counts in compositions(slots, len(slot_ratios)):
        probability = math.exp(
            math.lgamma(slots + 1)
            + sum(
                c * math.log(q) - math.lgamma(c + 1)
                for c, q in zip(counts, slot_chances, strict=True)
            )
        )
        f = float(np.dot(counts, slot_ratios)) / slots
        remove += probability * max(f - e, 0.0)
        add += probability * max(1.0 - e * f, 0.0)
    return remove, add


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as an ordered sum of ``parts`` counts."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)
