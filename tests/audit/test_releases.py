"""The array code is held to the real machines: the same draws give the same releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from checkins.accounting import NoiseAt, Population
from checkins.audit.canaries import (
    AveragedCanary,
    Canary,
    ResponseCanary,
    SumCanary,
    worst_case_canaries,
)
from checkins.audit.releases import (
    CanaryDraws,
    GaussianSum,
    Response,
    ResponseDraws,
    RunParameters,
    SlotLoads,
    SumDraws,
    response_releases,
    response_scores,
    sum_log_ratio,
    sum_releases,
)
from checkins.campaign import Campaign
from checkins.protocol.model_update import Model, ModelUpdate
from checkins.protocol.participant import COIN_RANGE, Participant
from checkins.protocol.rehearsal import Rehearsal, rehearse
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import FixedWindow, Rules, window_of
from checkins.protocol.server import Server
from tests.audit.campaigns import BANDS, REPLACE_ONE, gaussian, pure

RUNS = 40
CANARY = "z"  # its receipt is the last of its slot


@dataclass(frozen=True)
class Given:
    """Dice that have fallen: the canary's arrival, its place in the order, what else is drawn."""

    checks_in: bool
    place: int
    order: int
    dummy: Callable[[int, int], float | np.ndarray]
    noises: Callable[[int], float]

    def coin(self, token: str) -> int:
        return 0 if token != CANARY or self.checks_in else COIN_RANGE - 1

    def pick(self, token: str, below: int) -> int:
        return self.place if token == CANARY else 0

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        """The others in their order, and the canary when it is its turn."""
        return tuple(most - 1 if step == self.order else 0 for step, most in enumerate(ranges))

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        return tuple(report(self.dummy(slot, k)) for k in range(count))

    def noise(self, slot: int) -> Report:
        return report(self.noises(slot))


def report(values: object) -> Report:
    return Report.from_simulation(np.atleast_1d(np.asarray(values, dtype=np.float64)))


def rehearsed(
    campaign: Campaign,
    dice: Given,
    train: Callable[[str, Model], Report],
    others: Mapping[str, Participant],
    *,
    canary: bool,
    dimension: int = 1,
) -> Rehearsal:
    design = campaign.design
    rules = Rules.of(
        design,
        affordable=design.slots,
        report_checks=ReportChecks(dimension, None, simulated=True),
        update=ModelUpdate(0.1, strategy=campaign.strategy),
    )
    everyone = dict(others)
    wakes = None if design.window is None else {CANARY: design.window}
    if canary:
        everyone[CANARY] = Participant(design.participation, window_of(design))
    server = Server.start(rules, np.zeros(dimension))
    return rehearse(server, everyone, randomness=dice, train=train, wake_slots=wakes)


def totals(rehearsal: Rehearsal, campaign: Campaign, parameters: RunParameters) -> np.ndarray:
    """Slot sums in the canary's window: (slots, dimension)."""
    first = (campaign.design.window or 1) - 1
    seen = [
        np.asarray(closing.total) for closing in rehearsal.closings if closing.total is not None
    ]
    assert len(rehearsal.closings) == campaign.design.slots
    warm = 0 if campaign.design.window is None else campaign.design.window - 1
    return np.stack(seen)[first - warm : first - warm + parameters.slots]


SUMS = {
    "noise at the server": gaussian(1.0, slots=4),
    "half of the time": gaussian(1.0, slots=4, participation=0.5),
    "capacity at the server": gaussian(1.0, slots=3, capacity=2),
    "noise at the client": gaussian(1.0, slots=4, capacity=1, at=NoiseAt.CLIENT),
    "capacity at the client": gaussian(1.0, slots=3, capacity=3, at=NoiseAt.CLIENT),
    "other data": gaussian(
        1.0, slots=3, capacity=2, at=NoiseAt.CLIENT, adjacency=REPLACE_ONE, participation=0.7
    ),
    "sliding": gaussian(1.0, slots=9, window=4, capacity=2),
    "sliding near the end": gaussian(1.0, slots=5, window=4),
    "correlated": gaussian(1.0, slots=6, strategy=BANDS),
    "correlated, other data": gaussian(
        1.0, slots=3, strategy=BANDS, adjacency=REPLACE_ONE, participation=0.7
    ),
    "correlated, with a capacity": gaussian(1.0, slots=4, capacity=2, strategy=BANDS),
    "correlated, sliding": gaussian(1.0, slots=9, window=4, strategy=BANDS),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_the_same_draws_are_the_machines_sums(name: str) -> None:
    campaign = SUMS[name]
    for canary in worst_case_canaries(campaign, uses_population=False):
        assert isinstance(canary, SumCanary)
        draws = canary.draw(RUNS, np.random.default_rng(3))
        seen = sum_releases(
            draws,
            update=canary.update,
            other_update=canary.other_update,
            capacity=canary.run.capacity,
            coefficients=canary.run.coefficients,
        )
        for run in range(RUNS):
            for half, data in zip(seen, (canary.update, canary.other_update), strict=True):
                found = machine_sums(campaign, canary, draws, run, data)
                assert found == pytest.approx(half[run], abs=1e-12)


def machine_sums(
    campaign: Campaign, canary: SumCanary, draws: SumDraws, run: int, data: float | None
) -> np.ndarray:
    """The sums that the machines release from the draws of one run."""
    parameters = canary.run
    warm = 0 if campaign.design.window is None else campaign.design.window - 1
    at_server = campaign.noise_at is NoiseAt.SERVER
    report_count = 1 if at_server else parameters.capacity or 1
    units = 1 if campaign.strategy is None else 2**campaign.strategy.bits  # of the release grid

    def noise(slot: int) -> float:
        inside = 0 <= slot - 1 - warm < parameters.slots
        return units * float(draws.noise[run, slot - 1 - warm]) / report_count if inside else 0.0

    checks_in = bool(draws.canary_draws.checks_in[run])
    place = int(draws.canary_draws.slot[run])
    pick = (
        place if checks_in else parameters.drawable_slots - 1
    )  # beyond the end, or the coin says no
    dice = Given(checks_in, pick, int(draws.rank[run]), lambda slot, k: noise(slot), noise)
    others = {
        f"o{slot}-{k}": Participant(1.0, FixedWindow((slot,)))
        for slot in range(warm + 1, warm + 1 + parameters.slots)
        for k in range(canary.others_per_slot)
    }

    def train(token: str, model: Model) -> Report:
        slot = place + 1 + warm if token == CANARY else int(token[1:].partition("-")[0])
        update = data if token == CANARY else canary.others_update
        return report((update or 0.0) + (0.0 if at_server else noise(slot)))

    rehearsal = rehearsed(campaign, dice, train, others, canary=data is not None)
    return totals(rehearsal, campaign, parameters)[:, 0] / units


RESPONSES = {
    "one place": pure(2.0, slots=4),
    "three places": pure(1.0, slots=3, capacity=3),
    "other data": pure(2.0, slots=4, adjacency=REPLACE_ONE, participation=0.6),
    "sliding": pure(2.0, slots=7, window=3, capacity=2),
    "averaged": pure(2.0, slots=3, contributors=5, adjacency=REPLACE_ONE),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_outcomes_of_the_same_draws_are_the_machines_outcomes(name: str) -> None:
    """A report is the one-hot vector of its outcome, so a slot's sum counts them."""
    campaign = RESPONSES[name]
    generator = np.random.default_rng(4)
    for canary in worst_case_canaries(campaign, uses_population=False):
        assert isinstance(canary, ResponseCanary)
        for _ in range(RUNS // 4):
            check_outcomes(campaign, canary, generator)


def check_outcomes(
    campaign: Campaign, canary: ResponseCanary, generator: np.random.Generator
) -> None:
    """Every report is drawn by itself; the array code sees only how many there are of each."""
    parameters, response, kinds = canary.run, canary.response, len(canary.response.base)
    canary_draws = CanaryDraws.draw(parameters, 1, generator)
    checks_in, place = bool(canary_draws.checks_in[0]), int(canary_draws.slot[0])
    warm = 0 if campaign.design.window is None else campaign.design.window - 1
    one_hot = np.eye(kinds)
    reports = canary.reports
    usual = generator.choice(kinds, p=response.base, size=reports)
    # Where the canary is, it stands in for the report with this number.
    stands_for = 0 if parameters.averaged else place * (parameters.capacity or 1)
    absent = response.other == response.base and not parameters.averaged
    own = [int(generator.choice(kinds, p=law)) for law in (response.first, response.other)]
    if absent:
        own[1] = int(usual[stands_for])
    tokens = {f"o{j}": j for j in range(1, reports)} if parameters.averaged else {}
    slots_of = generator.integers(1, parameters.slots + 1, reports)
    others = {
        token: Participant(1.0, FixedWindow((int(slots_of[j]),))) for token, j in tokens.items()
    }
    seen = []
    for outcome, present in zip(own, (True, not absent), strict=True):

        def train(token: str, model: Model, outcome: int = outcome) -> Report:
            return report(one_hot[outcome if token == CANARY else usual[tokens[token]]])

        def dummy(slot: int, k: int, present: bool = present) -> np.ndarray:
            taken = (
                present and checks_in and slot == place + 1 + warm
            )  # the first place is the canary's
            at = (slot - 1 - warm) * (parameters.capacity or 1) + k + taken
            return one_hot[usual[at]] if 0 <= at < reports else one_hot[0]

        pick = place if checks_in else parameters.drawable_slots - 1
        dice = Given(checks_in, pick, 0, dummy, lambda slot: 0.0)
        rehearsal = rehearsed(campaign, dice, train, others, canary=present, dimension=kinds)
        seen.append(totals_of_all(rehearsal, campaign, parameters).sum(axis=0))
    rest = np.bincount(np.delete(usual, stands_for), minlength=kinds)[:, np.newaxis]
    draws = ResponseDraws(
        canary_draws.checks_in,
        rest,
        np.array([usual[stands_for]]),
        np.array([own[0]]),
        np.array([own[1]]),
    )
    for counts, machines in zip(response_releases(draws), seen, strict=True):
        assert counts[:, 0].tolist() == machines.tolist()


def totals_of_all(
    rehearsal: Rehearsal, campaign: Campaign, parameters: RunParameters
) -> np.ndarray:
    if parameters.averaged:
        return np.stack([c.total for c in rehearsal.closings if c.total is not None])
    return totals(rehearsal, campaign, parameters)


# ---- the statistic ---------------------------------------------------------------------------


def every_canary() -> list[tuple[str, Canary]]:
    campaigns = {
        **SUMS,
        **RESPONSES,
        "own": pure(2.0, slots=3, categories=3),
        "privunit": pure(2.0, slots=3, dimension=4),
        "privunit, other data": pure(2.0, slots=3, dimension=4, adjacency=REPLACE_ONE),
        "twice": pure(1.0, slots=3, repeats=2),
        "sums twice": gaussian(1.5, slots=3, capacity=1, repeats=2),
        "declared": gaussian(1.0, slots=3, capacity=3, population=Population(5, 9)),
    }
    campaigns["averaged noise"] = gaussian(
        1.0,
        slots=3,
        at=NoiseAt.CLIENT,
        averaged=True,
        adjacency=REPLACE_ONE,
        population=Population(6, 6),
    )
    campaigns["enough averaged noise"] = gaussian(
        1.0,
        slots=3,
        at=NoiseAt.CLIENT,
        averaged=True,
        adjacency=REPLACE_ONE,
        population=Population(6, 6),
        least_reports=3,
    )
    return [
        (f"{name}: {canary.name}", canary)
        for name, campaign in campaigns.items()
        for canary in worst_case_canaries(campaign, uses_population=name == "declared")
    ]


EVERY = dict(every_canary())


@pytest.mark.parametrize("name", EVERY)
def test_a_score_is_the_likelihood_ratio(name: str) -> None:
    """E_Q[1{score in A} e^score] = P(A): the with-half, reweighted from the without-half.

    Over the middle half of the scores; both sides within 7 deviations, probability below 1e-9.
    """
    canary = EVERY[name]
    trials = canary.trials(60_000, np.random.default_rng(7))
    low, high = np.quantile(trials.scores_without, [0.25, 0.75])
    inside = (trials.scores_without >= low) & (trials.scores_without <= high)
    weighted = np.where(inside, np.exp(np.where(inside, trials.scores_without, 0.0)), 0.0)
    told = (trials.scores_with >= low) & (trials.scores_with <= high)
    runs = trials.fewest_runs
    spread = np.sqrt((weighted.var() + told.var() + 2e-9) / runs)
    assert abs(weighted.mean() - told.mean()) < 7 * spread


@pytest.mark.parametrize("c", [(1.0,), (0.75, 0.5), (0.7, 0.5, 0.3, 0.2)])
def test_the_ratio_of_sums_is_that_of_the_densities(c: tuple[float, ...]) -> None:
    """Against the densities of all totals, mixed over coin, slot and choice, written out."""
    from scipy.linalg import toeplitz
    from scipy.stats import norm

    parameters = RunParameters(
        slots=3, drawable_slots=3, participation=0.6, capacity=2, repeats=1, coefficients=c
    )
    loads, deviation = SlotLoads(np.array([[2, 1, 0]]), -1.0), 0.8
    sums = np.random.default_rng(1).normal(size=(5, 3))
    matrix = toeplitz([*c, 0.0, 0.0][:3], np.zeros(3))
    base = matrix @ [-2.0, -1.0, 0.0]
    shift, chance = np.array([2.0, 1.0, 1.0]), np.array([2 / 3, 1.0, 1.0])
    missing = norm.pdf(sums, base, deviation).prod(axis=1)
    present = 0.4 * missing
    for slot in range(3):
        moved = base.copy()
        moved += matrix[:, slot] * shift[slot]
        there = norm.pdf(sums, moved, deviation).prod(axis=1)
        present += 0.6 / 3 * (chance[slot] * there + (1 - chance[slot]) * missing)
    found = sum_log_ratio(sums, loads, GaussianSum(deviation), 1.0, parameters)
    assert found == pytest.approx(np.log(present / missing))


def test_the_ratio_of_outcomes_is_that_of_their_probabilities() -> None:
    """All outcomes of three slots of two places each, one by one."""
    import itertools

    first, base, check_in_probability = (0.7, 0.2, 0.1), (0.2, 0.3, 0.5), 0.8
    response = Response(first, base, base)
    for reports in itertools.product(range(3), repeat=6):
        missing = np.prod([base[one] for one in reports])
        slots = [reports[:2], reports[2:4], reports[4:]]
        ratios = [np.mean([first[one] / base[one] for one in slot]) for slot in slots]
        present = missing * (1 - check_in_probability + check_in_probability * np.mean(ratios))
        counts = np.bincount(reports, minlength=3)[:, np.newaxis]
        assert response_scores(counts, response, check_in_probability) == pytest.approx(
            np.log(present / missing)
        )


def test_two_threads_and_one_see_the_same_runs() -> None:
    from checkins.audit.runner import RunBudget, run_attack

    [canary] = worst_case_canaries(gaussian(1.0, slots=4), uses_population=False)
    found = [
        run_attack(
            canary,
            deltas=[1e-3],
            failure=1e-4,
            budget=RunBudget(seconds=1.0, runs=300_000, seed=(1, 0), threads=threads),
        ).bounds
        for threads in (1, 3)
    ]
    assert found[0] == found[1]


def test_averaged_sums_keep_their_loads() -> None:
    canary = EVERY["averaged noise: averaged"]
    assert isinstance(canary, AveragedCanary)
    assert canary.run.contributors == 6


def test_a_skipped_slot_shows_nothing_of_a_canary() -> None:
    canary = EVERY["enough averaged noise: averaged"]
    assert isinstance(canary, AveragedCanary)
    loads = SlotLoads(np.array([[4, 2, 0], [2, 2, 2]]), 0.0)
    sums = np.array([[0.3, 9.0, 0.0], [9.0, 9.0, 9.0]])
    noise = GaussianSum(np.sqrt(np.maximum(loads.counts, 1)))
    found = sum_log_ratio(sums, loads, noise, 1.0, canary.run)
    seen = math.exp((0.3 - 0.5) / 4.0)
    assert found == pytest.approx([math.log((4 * seen + 2) / 6), 0.0])
