"""What the machines make of fair dice: who is chosen, when clients come, how many dummies, loads.

Facts about all dice come first, by counting every possible draw. Then fair dice are rolled, from a
fixed seed, and the counts are held against their exact laws: each test that rolls dice would fail
with probability at most 1e-9 if the seed were drawn anew (``ALPHA``, shared among its counts).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from checkins.accounting.paper import occupancy
from checkins.protocol import participant as clients
from checkins.protocol import slot as slots
from checkins.protocol.model_update import Model, ModelUpdate
from checkins.protocol.participant import COIN_RANGE, Draw, Outcome, Participant, coin_threshold
from checkins.protocol.rehearsal import Rehearsal, rehearse
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, FixedWindow, Rules, SlidingWindow, Window
from checkins.protocol.server import Server
from checkins.protocol.slot import CheckedIn, Choose, ReportArrived, Slot
from tests.protocol.laws import (
    binomial,
    dummies,
    dummies_sliding,
    is_likely,
    mean,
    meetings,
    summed,
)

ALPHA = 1e-9
ZERO = Report.from_simulation(np.zeros(1))


@dataclass(slots=True)
class Rolled:
    """Fair dice: ``randrange`` draws bits until they are in range, as ``secrets`` does."""

    dice: random.Random
    dummies_asked: int = field(default=0)

    def coin(self, token: str) -> int:
        return self.dice.getrandbits(64)

    def pick(self, token: str, below: int) -> int:
        return self.dice.randrange(below)

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.dice.randrange(most) for most in ranges)

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        self.dummies_asked += count
        return (ZERO,) * count

    def noise(self, slot: int) -> Report:
        return ZERO


def train(token: str, model: Model) -> Report:
    return ZERO


def rules_of(slots: int, *, capacity: int | None = 1, warm_up: int = 0) -> Rules:
    return Rules(
        slots=slots,
        capacity=capacity,
        filling=Filling.NOTHING if capacity is None else Filling.DUMMIES,
        warm_up=warm_up,
        affordable=slots,
        report_checks=ReportChecks(1, None, simulated=True),
        update=ModelUpdate(1.0),
    )


def rehearsals(
    times: int,
    rules: Rules,
    everyone: Mapping[str, Participant],
    *,
    seed: int,
    wakes: Mapping[str, int] | None = None,
) -> Iterator[tuple[Rehearsal, Rolled]]:
    """Independent campaigns."""
    source, start = random.Random(seed), Server.start(rules, np.zeros(1))
    for _ in range(times):
        dice = Rolled(source)
        yield rehearse(start, everyone, randomness=dice, train=train, wake_slots=wakes), dice


def people(n: int, participation: float, window: Window) -> dict[str, Participant]:
    return {f"{j:03}": Participant(participation, window) for j in range(1, n + 1)}


# ---- the chosen client ---------------------------------------------------------------------


def slot_with(n: int, capacity: int, order: Iterable[int] | None = None) -> Slot:
    slot = Slot(1, rules_of(1, capacity=capacity))
    for j in range(n) if order is None else order:
        slot, _ = slots.step(
            slot, CheckedIn(1, f"token {j}", f"receipt {j}", has_participated=False)
        )
    return slot


def chosen(slot: Slot, draws: tuple[int, ...]) -> tuple[str, ...]:
    return slots.step(slot, Choose(1, draws))[0].chosen_receipts


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("capacity", range(1, 6))
def test_every_set_of_clients_is_chosen_by_equally_many_draws(n: int, capacity: int) -> None:
    """Counting all draws: every one of the (n choose K) sets, and every order of it, alike."""
    slot = slot_with(n, capacity)
    every = [chosen(slot, d) for d in itertools.product(*map(range, slot.ranges))]
    used = min(n, capacity)
    if n <= capacity:
        assert every == [tuple(sorted(slot.receipts_by_token.values()))]
        return
    assert Counter(every) == Counter(itertools.permutations(slot.receipts_by_token.values(), used))
    sets = Counter(map(frozenset, every))
    assert len(sets) == math.comb(n, used)
    assert set(sets.values()) == {math.factorial(used)}


@given(order=st.permutations(range(5)), draws=st.tuples(st.integers(0, 4), st.integers(0, 3)))
def test_the_choice_does_not_depend_on_who_came_first(
    order: list[int], draws: tuple[int, int]
) -> None:
    assert chosen(slot_with(5, 2, order), draws) == chosen(slot_with(5, 2), draws)


def test_dice_choose_every_pair_of_five_equally_often() -> None:
    """ALPHA is shared by the 10 pairs: each count is binomial."""
    slot, dice, rolls = slot_with(5, 2), Rolled(random.Random(1)), 20_000
    pairs = Counter(frozenset(chosen(slot, dice.choose(1, slot.ranges))) for _ in range(rolls))
    law = binomial(rolls, 1 / 10)
    assert len(pairs) == 10
    assert all(is_likely(count, law, ALPHA / 10) for count in pairs.values())


def test_every_client_of_a_campaign_is_used_equally_often() -> None:
    """With probability (m − E[dummies])/n each, for K = 1. ALPHA is shared by the clients."""
    n, m, times = 24, 8, 400
    used: Counter[str] = Counter()
    for ran, _ in rehearsals(times, rules_of(m), people(n, 1.0, FixedWindow.whole(m)), seed=2):
        used.update(j for j, p in ran.participants.items() if p.outcome is Outcome.REPORTED)
    law = binomial(times, (m - mean(dummies(n, m, 1.0))) / n)
    assert len(used) == n
    assert all(is_likely(count, law, ALPHA / n) for count in used.values())


# ---- the coin and the slot -----------------------------------------------------------------


def slot_drawn(participant: Participant, coin: int, pick: int, now: int = 1) -> int | None:
    return clients.step(participant, Draw(coin, pick, now))[0].slot


@given(participation=st.floats(0.0, 1.0))
def test_a_coin_says_yes_never_more_often_than_it_should_and_hardly_less(
    participation: float,
) -> None:
    chance = Fraction(coin_threshold(participation), COIN_RANGE)
    assert chance <= Fraction(participation) < chance + Fraction(1, COIN_RANGE)


@given(participation=st.floats(0.0, 1.0), pick=st.integers(0, 6))
def test_exactly_the_coins_below_heads_say_yes(participation: float, pick: int) -> None:
    client, edge = Participant(participation, FixedWindow.whole(7)), coin_threshold(participation)
    for coin in {0, edge // 2, edge - 1, edge, (edge + COIN_RANGE) // 2, COIN_RANGE - 1}:
        if 0 <= coin < COIN_RANGE:
            assert slot_drawn(client, coin, pick) == (pick + 1 if coin < edge else None)


@pytest.mark.parametrize(
    ("window", "now", "expected"),
    [
        (FixedWindow.whole(6), 1, range(1, 7)),
        (FixedWindow.whole(6), 4, range(1, 7)),  # those who wake late draw from all slots
        (FixedWindow((2, 3, 7, 11)), 1, (2, 3, 7, 11)),
        (SlidingWindow(5), 1, range(1, 6)),
        (SlidingWindow(5), 9, range(9, 14)),
        (SlidingWindow(1), 9, (9,)),
    ],
    ids=str,
)
def test_every_slot_of_a_window_is_drawn_by_exactly_one_pick(
    window: Window, now: int, expected: Sequence[int]
) -> None:
    client = Participant(1.0, window)
    assert [slot_drawn(client, 0, k, now) for k in range(len(window))] == list(expected)


@pytest.mark.parametrize(
    ("window", "now"),
    [(FixedWindow.whole(8), 1), (FixedWindow((2, 3, 7, 11)), 1), (SlidingWindow(8), 5)],
    ids=["fixed", "of its own", "sliding"],
)
@pytest.mark.parametrize("participation", [1.0, 0.375])
def test_dice_draw_every_slot_equally_often_and_abstain_as_they_should(
    window: Window, now: int, participation: float
) -> None:
    """ALPHA is shared by the slots and by those who abstain: each count is binomial."""
    client, dice, rolls = Participant(participation, window), Rolled(random.Random(3)), 8_000
    size = len(window)
    drawn = Counter(
        slot_drawn(client, dice.coin(""), dice.pick("", size), now) for _ in range(rolls)
    )
    share = ALPHA / (size + 1)
    assert is_likely(drawn.pop(None, 0), binomial(rolls, 1.0 - participation), share)
    assert set(drawn) == {window.slot(k, first_open_slot=now) for k in range(size)}
    law = binomial(rolls, participation / size)
    assert all(is_likely(count, law, share) for count in drawn.values())


# ---- dummies (A9) --------------------------------------------------------------------------


@given(n=st.integers(1, 60), m=st.integers(1, 30), participation=st.floats(0.0, 1.0))
def test_the_expected_dummies_of_the_paper_are_the_mean_of_the_exact_law(
    n: int, m: int, participation: float
) -> None:
    """m(1 − p₀/m)^n, at most m/e^c with c = n p₀/m."""
    exact = occupancy.dummies_fixed(clients=n, slots=m, participation=participation)
    assert mean(dummies(n, m, participation)) == pytest.approx(exact, rel=1e-9, abs=1e-12)
    most = occupancy.dummies_fixed_bound(clients=n, slots=m, participation=participation)
    assert exact <= most * (1 + 1e-12)


@pytest.mark.parametrize(
    ("n", "m", "participation"),
    [(10, 10, 1.0), (40, 10, 0.25), (20, 10, 1.0), (10, 20, 0.5)],
    ids=["c=1", "c=1, with a coin", "c=2", "c=1/4"],
)
def test_a_fixed_window_needs_as_many_dummies_as_the_paper_says(
    n: int, m: int, participation: float
) -> None:
    """The total over independent campaigns has an exact law, whose mean is theirs times A9."""
    times = 150
    everyone = people(n, participation, FixedWindow.whole(m))
    total = sum(dice.dummies_asked for _, dice in rehearsals(times, rules_of(m), everyone, seed=4))
    law = summed(dummies(n, m, participation), times)
    expected = occupancy.dummies_fixed(clients=n, slots=m, participation=participation)
    assert mean(law) == pytest.approx(times * expected, rel=1e-9)
    assert is_likely(total, law, ALPHA)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (6, 1), (9, 3), (20, 6), (12, 7)])
def test_the_papers_expected_dummies_of_a_sliding_window_are_the_mean_of_the_exact_law(
    n: int, m: int
) -> None:
    """(n − m + 1)(1 − 1/m)^m, at most (n − m + 1)/e."""
    law = dummies_sliding(n, m)
    exact = occupancy.dummies_sliding(clients=n, window=m)
    assert law.sum() == pytest.approx(1.0, rel=1e-12)
    assert mean(law) == pytest.approx(exact, rel=1e-9, abs=1e-15)
    assert mean(law) <= occupancy.dummies_sliding_bound(clients=n, window=m)


@pytest.mark.parametrize(("n", "m"), [(24, 4), (16, 8)])
def test_a_sliding_window_needs_as_many_dummies_as_the_paper_says(n: int, m: int) -> None:
    """One client wakes in every slot, as in the paper; the total has an exact law."""
    times, everyone = 150, people(n, 1.0, SlidingWindow(m))
    wakes = {token: int(token) for token in everyone}
    rules = rules_of(n, warm_up=m - 1)
    total = sum(
        dice.dummies_asked for _, dice in rehearsals(times, rules, everyone, seed=5, wakes=wakes)
    )
    law = summed(dummies_sliding(n, m), times)
    assert mean(law) == pytest.approx(
        times * occupancy.dummies_sliding(clients=n, window=m), rel=1e-9
    )
    assert is_likely(total, law, ALPHA)


def test_a_slot_of_capacity_k_is_filled_up_to_it() -> None:
    """The total has an exact law here too; reports and dummies together always fill the slots."""
    n, m, capacity, times = 20, 10, 3, 150
    rules, everyone = rules_of(m, capacity=capacity), people(n, 0.5, FixedWindow.whole(m))
    total = 0
    for ran, dice in rehearsals(times, rules, everyone, seed=6):
        reports = sum(isinstance(event, ReportArrived) for event in ran.events)
        assert dice.dummies_asked + reports == m * capacity
        total += dice.dummies_asked
    assert is_likely(total, summed(dummies(n, m, 0.5, capacity=capacity), times), ALPHA)


# ---- loads (A10) ---------------------------------------------------------------------------


def loads(ran: Rehearsal, m: int) -> list[int]:
    here = Counter(event.slot for event in ran.events if isinstance(event, CheckedIn))
    return [here[i] for i in range(1, m + 1)]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (12, 6), (20, 4), (8, 30)])
def test_the_exact_law_of_the_loads_obeys_the_papers_bound_for_every_delta(n: int, m: int) -> None:
    """With probability at least 1 − δ, ‖L‖₂ ≤ √(n + n²/m) + √(n log(1/δ))."""
    law = meetings(n, m)
    norms = np.sqrt(n + 2 * np.arange(len(law)))
    assert law.sum() == pytest.approx(1.0, rel=1e-12)
    assert mean(law) == pytest.approx(math.comb(n, 2) / m, rel=1e-12)
    for delta in (0.9, 0.5, 0.1, 1e-2, 1e-4, 1e-9):
        assert law[norms > occupancy.load_norm(clients=n, slots=m, delta=delta)].sum() <= delta


def test_loads_are_those_of_clients_who_pick_their_slots_alone_and_at_random() -> None:
    """Averaged updates. ALPHA is shared by the m loads, by all meetings (exact laws), and by the
    campaigns beyond the paper's bound, for each δ: they are at most binomial with that δ."""
    n, m, times, deltas = 16, 8, 300, (0.9, 0.5, 0.1, 1e-3)
    share = ALPHA / (m + 1 + len(deltas))
    rules, everyone = rules_of(m, capacity=None), people(n, 1.0, FixedWindow.whole(m))
    seen = np.array([loads(ran, m) for ran, _ in rehearsals(times, rules, everyone, seed=7)])
    assert (seen.sum(axis=1) == n).all()

    law = binomial(times * n, 1 / m)
    assert all(is_likely(int(total), law, share) for total in seen.sum(axis=0))

    met = (seen * (seen - 1)).sum(axis=1) // 2
    assert is_likely(int(met.sum()), summed(meetings(n, m), times), share)

    norms = np.sqrt((seen * seen).sum(axis=1))
    for delta in deltas:
        most = occupancy.load_norm(clients=n, slots=m, delta=delta)
        assert binom.sf(int((norms > most).sum()) - 1, times, delta) > share
