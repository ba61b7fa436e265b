"""Noise that is correlated across slots: y is x + C⁻¹Z, and no exact sum is lost silently."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from checkins.accounting import NoiseStrategy
from checkins.errors import InvalidValue, OutOfOrder
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.machine import Event
from checkins.protocol.model_update import ModelUpdate, noisy_sum, published_total
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import MAX_ENROLLED, Filling, Rules, sampler_of
from checkins.protocol.server import SERVER_MACHINE, RecordClosing, Server
from tests.support.campaigns import CORRELATED, SERVER_NOISE, campaign

STRATEGY = NoiseStrategy((12, 6, 5, 4), bits=4)
RULES = Rules(
    slots=6,
    capacity=None,
    filling=Filling.NOISE,
    warm_up=0,
    affordable=6,
    report_checks=ReportChecks(2, most_units=10**6, simulated=True),
    update=ModelUpdate(rate=1.0, strategy=STRATEGY),
)

vectors = st.tuples(*[st.integers(-(10**9), 10**9)] * 2).map(lambda pair: np.array(pair, np.int64))
slot_values = st.lists(st.tuples(vectors, vectors), min_size=1, max_size=9)


@st.composite
def strategies(draw: st.DrawFn) -> NoiseStrategy:
    """Coefficients that do not increase, whose squares sum to at most 1."""
    bits = draw(st.integers(0, 12))
    numerators, left = list[int](), 4**bits
    for _ in range(draw(st.integers(1, 6))):
        largest = min(int(left**0.5), numerators[-1] if numerators else 2**bits)
        while largest**2 > left:
            largest -= 1
        if largest == 0:
            break
        numerators.append(draw(st.integers(1, largest)))
        left -= numerators[-1] ** 2
    return NoiseStrategy(tuple(numerators), bits)


def totals_of(
    strategy: NoiseStrategy, values: list[tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """The published totals of slots with these exact sums and this noise."""
    sums = [exact for exact, _ in values]
    return [
        published_total(strategy, sums[slot::-1][: strategy.bands], noise)
        for slot, (_, noise) in enumerate(values)
    ]


def solved(strategy: NoiseStrategy, right: list[int]) -> list[Fraction]:
    """C⁻¹ of a vector, in units of reports: forward substitution with fractions."""
    found = list[Fraction]()
    for row, value in enumerate(right):
        rest = Fraction(value)
        for column in range(row):
            if row - column < strategy.bands:
                rest -= strategy.numerators[row - column] * found[column]
        found.append(rest / strategy.numerators[0])
    return found


@given(strategy=strategies(), values=slot_values)
def test_the_totals_are_those_of_the_sums_plus_the_noise_divided_by_the_matrix(
    strategy: NoiseStrategy, values: list[tuple[np.ndarray, np.ndarray]]
) -> None:
    """C⁻¹v = x + C⁻¹Z, without any rounding."""
    totals = totals_of(strategy, values)
    for entry in range(2):
        noise = solved(strategy, [int(noise[entry]) for _, noise in values])
        expected = [int(x[entry]) + n for (x, _), n in zip(values, noise, strict=True)]
        assert solved(strategy, [int(total[entry]) for total in totals]) == expected


@given(strategy=strategies(), values=slot_values)
def test_a_noisy_sum_is_exact_up_to_the_rounding_of_floats(
    strategy: NoiseStrategy, values: list[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Entries of C⁻¹ are at most 1/c_0, so an error of one slot is never magnified."""
    totals, noisy = totals_of(strategy, values), list[np.ndarray]()
    for total in totals:
        noisy.insert(0, noisy_sum(strategy, total, noisy[: strategy.bands - 1]))
    largest = 1 + max(abs(int(entry)) for total in totals for entry in total)
    largest_noisy = len(totals) * largest / strategy.numerators[0]
    terms = largest + sum(strategy.numerators) * largest_noisy
    error_of_a_slot = (strategy.bands + 2) * 2.0**-53 * terms / strategy.numerators[0]
    for entry in range(2):
        exact = solved(strategy, [int(total[entry]) for total in totals])
        for found, y in zip(reversed(noisy), exact, strict=True):
            assert abs(float(found[entry]) - float(y)) <= len(totals) * error_of_a_slot


@given(strategy=strategies(), values=slot_values)
def test_every_platform_computes_the_same_bits(
    strategy: NoiseStrategy, values: list[tuple[np.ndarray, np.ndarray]]
) -> None:
    """The stated order of operations, one float at a time."""
    totals, noisy, by_hand = totals_of(strategy, values), list[np.ndarray](), list[float]()
    for total in totals:
        noisy.insert(0, noisy_sum(strategy, total, noisy[: strategy.bands - 1]))
        rest = float(int(total[0]))
        for age in range(1, min(strategy.bands, len(by_hand) + 1)):
            rest = rest - float(strategy.numerators[age]) * by_hand[-age]
        by_hand.append(rest / float(strategy.numerators[0]))
        assert float(noisy[0][0]).hex() == by_hand[-1].hex()


# ---- the server ----------------------------------------------------------------------------------


def report(*units: int) -> Report:
    return Report.from_simulation(np.array(units, dtype=np.int64))


def events_of(slot: int, clients: int) -> list[Event]:
    """A slot in which so many clients report (1, slot). Its noise is (1000 slot, slot)."""
    receipts = [f"{slot}-{client}" for client in range(clients)]
    return [
        servers.SlotBegan(slot),
        *(slots.CheckedIn(slot, receipt, receipt, False) for receipt in receipts),
        slots.Choose(slot, ()),
        slots.ChoiceRecorded(slot),
        *(slots.ReportArrived(slot, receipt, report(1, slot)) for receipt in receipts),
        slots.Expired(slot, noise=report(1000 * slot, slot)),
        servers.ClosingRecorded(slot),
    ]


def test_an_empty_slot_gets_noise_and_the_last_slot_leaves_no_sum() -> None:
    clients = {1: 2, 2: 0, 3: 1, 4: 0, 5: 3, 6: 1}
    server, totals = Server.start(RULES, np.zeros(2)), dict[int, np.ndarray]()
    for slot, count in clients.items():
        for event in events_of(slot, count):
            server, effects = servers.step(server, event)
            for effect in effects:
                if isinstance(effect, RecordClosing):
                    totals[slot] = effect.total
        assert len(server.exact_sums) == (0 if slot == 6 else min(slot, 3))
    exact = {slot: np.array([count, slot * count]) for slot, count in clients.items()}
    for slot, total in totals.items():
        numerators = STRATEGY.numerators
        past = [numerators[age] * exact[slot - age] for age in range(4) if slot > age]
        assert total.tolist() == (sum(past) + np.array([1000 * slot, slot])).tolist()


def test_a_replay_from_any_saved_state_is_the_same_run() -> None:
    events = [event for slot in range(1, 7) for event in events_of(slot, slot % 3)]
    states = [Server.start(RULES, np.zeros(2))]
    for event in events:
        states.append(servers.step(states[-1], event)[0])
    for number, state in enumerate(states):
        end = SERVER_MACHINE.replay(state, events[number:])
        assert end.learner.model.tobytes() == states[-1].learner.model.tobytes()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_server_that_forgot_a_sum_does_not_close_a_slot(lost: int) -> None:
    events = [event for slot in range(1, 5) for event in events_of(slot, 1)]
    server = SERVER_MACHINE.replay(Server.start(RULES, np.zeros(2)), events)
    forgetful = replace(server, exact_sums=server.exact_sums[:lost])
    *before, expired, _ = events_of(5, 1)
    forgetful = SERVER_MACHINE.replay(forgetful, before)
    with pytest.raises(OutOfOrder, match=f"exact sums of the 3 slots before it, not {lost}"):
        servers.step(forgetful, expired)


def test_a_learner_that_lost_a_noisy_sum_computes_no_model() -> None:
    learner = RULES.update.start(np.zeros(2))
    for _ in range(5):
        learner = RULES.update.apply(learner, np.array([1, 2]))
    assert len(learner.noisy_sums) == 3
    with pytest.raises(InvalidValue, match="the last 3 noisy sums"):
        RULES.update.apply(replace(learner, noisy_sums=learner.noisy_sums[1:]), np.array([1, 2]))


def test_the_state_of_a_closing_slot_holds_no_sum_but_those_that_are_needed() -> None:
    *before, _ = events_of(1, 2)
    closing = SERVER_MACHINE.replay(Server.start(RULES, np.zeros(2)), before)
    assert closing.slot is not None
    assert closing.slot.exact_sum is None
    assert [kept.tolist() for kept in closing.exact_sums] == [[2, 2]]


def test_the_noise_of_a_campaign_has_its_deviation_on_the_release_grid() -> None:
    """The mean square of a right sampler is outside with probability 1e-12."""
    sampler = sampler_of(campaign(**CORRELATED), dimension=20_000)
    noise = sampler.noise().astype(np.float64) * 1e-6 * 2.0**-4
    lowest, highest = (chi2.ppf(p, 20_000) / 20_000 for p in (5e-13, 1 - 5e-13))
    assert 4.0**2 * lowest < float(np.mean(noise**2)) < 4.0**2 * highest
    assert (sampler.encode(np.full(20_000, 1e-3)).units == 1000).all()


def test_a_strategy_needs_noise_of_the_server() -> None:
    with pytest.raises(InvalidValue, match="noise that the server adds"):
        replace(RULES, filling=Filling.DUMMIES, capacity=1)


def test_totals_that_may_exceed_64_bits_are_refused_when_a_campaign_is_read() -> None:
    """The noise would fit its 32 bits on both grids."""
    noise = SERVER_NOISE.replace("4.0", "0.2")
    randomizer = f"{noise}\nnoise = {{ bits = 10, numerators = {[128] * 64} }}"
    accepted = campaign(**{**CORRELATED, "randomizer": randomizer, "grid": 1.91e-6})
    clip_units = int(1.0 / 1.91e-6)
    sums = [np.array([MAX_ENROLLED * clip_units])] * 64
    assert accepted.strategy is not None
    largest = published_total(accepted.strategy, sums, np.array([2**31]))
    assert largest.tolist() == [128 * 64 * MAX_ENROLLED * clip_units + 2**31]
    with pytest.raises(InvalidValue, match="64 bits"):
        campaign(**{**CORRELATED, "randomizer": randomizer, "grid": 1.9e-6})
