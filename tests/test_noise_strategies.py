"""Coefficients of correlated noise: exact, deterministic, and better than independent noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins import strategies
from checkins.accounting import NoiseStrategy
from checkins.campaign import Campaign, campaign_from_canonical, campaign_text, parse_campaign
from checkins.campaign.file import Template, template_text
from checkins.campaign.partial_runs import PartialRun
from checkins.errors import InvalidValue
from checkins.strategies import StrategyName, Workload, optimised, square_root
from tests.soak import examples
from tests.strategies import noise_strategies

WORKLOADS = (
    Workload(60),
    Workload(60, momentum=0.9),
    Workload(60, momentum=0.8, nesterov=True),
    Workload(60, minibatch=4, tail=0.3),
    Workload(60, tail=1e-9),
)
momenta = st.none() | st.floats(0.0, 0.99)


def simulated_error(workload: Workload, coefficients: np.ndarray) -> float:
    """The error of noise, by running the optimizer on the noise of every single slot."""
    slots = workload.slots
    matrix = np.zeros((slots, slots))
    for band, coefficient in enumerate(coefficients[:slots]):
        matrix += np.diag(np.full(slots - band, coefficient), -band)
    noise = np.linalg.inv(matrix)  # row t is the noise of slot t, as a sum of Z_1, Z_2, ...
    model = velocity = np.zeros(slots)
    models = []
    for slot in range(slots):
        velocity = noise[slot] + (workload.momentum or 0.0) * velocity
        direction = velocity
        if workload.nesterov:
            direction = noise[slot] + (workload.momentum or 0.0) * velocity
        model = model + direction
        models.append(model)
    if workload.tail is None:
        return float(np.mean([model @ model for model in models]))
    last = np.mean(models[-max(1, round(workload.tail * slots)) :], axis=0)
    return float(last @ last)


@pytest.mark.parametrize("workload", [one for one in WORKLOADS if one.minibatch == 1])
def test_the_error_of_a_workload_is_that_of_its_optimizer(workload: Workload) -> None:
    for strategy in (square_root(7), NoiseStrategy((3, 2, 2), 3)):
        coefficients = np.array(strategy.coefficients)
        scaled = coefficients / np.linalg.norm(coefficients)
        expected = simulated_error(workload, scaled)
        assert workload.error(coefficients) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("workload", WORKLOADS, ids=repr)
def test_the_optimised_strategy_is_better_than_the_square_root_and_than_independent_noise(
    workload: Workload,
) -> None:
    for bands in (2, 8):
        best = workload.error(optimised(bands, workload).coefficients)
        assert best <= workload.error(square_root(bands).coefficients) * (1 + 1e-3)
        assert best < workload.error([1.0])


@given(st.integers(1, 12), st.integers(2, 40), momenta, st.none() | st.floats(0.01, 1.0))
@examples(6, soak=200)
def test_no_small_change_improves_the_optimised_strategy(
    bands: int, slots: int, momentum: float | None, tail: float | None
) -> None:
    workload = Workload(slots, momentum=momentum, tail=tail)
    found = optimised(bands, workload, bits=20)
    coefficients, least = np.array(found.coefficients), workload.error(found.coefficients)
    assert found.bands == min(bands, slots)
    for band in range(found.bands):
        for factor in (0.99, 1.01):
            changed = coefficients.copy()
            changed[band] *= factor
            if (np.diff(changed) <= 0.0).all():  # otherwise it is no strategy
                assert workload.error(changed) >= least * (1 - 1e-4)


@given(st.integers(1, 300), st.integers(6, 20))
def test_every_square_root_strategy_is_accepted_and_nearly_of_norm_one(
    bands: int, bits: int
) -> None:
    strategy = square_root(bands, bits=bits)
    assert strategy.bands == bands
    assert sum(one * one for one in strategy.numerators) <= 4**bits
    if bits >= 14:
        assert sum(one * one for one in strategy.numerators) >= 4**bits * 0.97


def test_the_square_root_series_times_itself_is_the_sum_of_all_slots() -> None:
    coefficients = np.array(square_root(40, bits=24).coefficients)
    square = np.convolve(coefficients, coefficients)[:40] / coefficients[0] ** 2
    assert square == pytest.approx(np.ones(40), rel=1e-4)


def test_the_same_workload_gives_the_same_coefficients() -> None:
    assert optimised(16, Workload(100)) == optimised(16, Workload(100))
    assert strategies.named(StrategyName.OPTIMISED, 16, Workload(100)) == optimised(
        16, Workload(100)
    )
    assert strategies.named(StrategyName.SQUARE_ROOT, 16, Workload(100)) == square_root(16)


@given(noise_strategies())
def test_the_recursion_of_every_strategy_is_stable(strategy: NoiseStrategy) -> None:
    """No root inside the unit circle, by the theorem of Enestroem and Kakeya."""
    roots = np.roots(strategy.coefficients[::-1])
    assert (np.abs(roots) >= 1.0 - 1e-3).all()


# Files


@given(strategy=noise_strategies())
def test_a_file_of_coefficients_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, strategy: NoiseStrategy
) -> None:
    path = tmp_path_factory.getbasetemp() / "strategy.json"
    values = {"bits": strategy.bits, "numerators": list(strategy.numerators)}
    path.write_text(json.dumps(values), encoding="utf-8")
    assert strategies.read_strategy(path) == strategy


@pytest.mark.parametrize("text", ["", "[3]", '{"bits": 2}', '{"bits": 2, "numerators": [9]}'])
def test_a_file_without_coefficients_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValue):
        strategies.read_strategy(path)
    with pytest.raises(InvalidValue, match="square-root, optimised or a file"):
        strategies.read_strategy(tmp_path / "missing.json")


SERVER = (
    template_text(Template.FASHION_MNIST)
    .replace("[task]", 'noise = { bands = 8, strategy = "square-root" }\n[task]', 1)
    .replace("grid = 1e-6", "grid = 1e-4")
)


OPTIMISED_8 = '{ bands = 8, strategy = "optimised" }'


def campaign(noise: str) -> Campaign:
    return parse_campaign(SERVER.replace('{ bands = 8, strategy = "square-root" }', noise)).campaign


def test_a_campaign_seals_coefficients_and_not_the_name_of_a_strategy() -> None:
    named = campaign('{ bands = 8, strategy = "square-root" }')
    exact = square_root(8)
    stated = campaign(f"{{ bits = {exact.bits}, numerators = {list(exact.numerators)} }}")
    assert named.strategy == exact
    assert named.seal == stated.seal
    assert "square-root" not in named.canonical()
    assert campaign_from_canonical(named.canonical()) == named
    assert parse_campaign(campaign_text(named)).campaign == named
    assert named.seal != campaign('{ bands = 9, strategy = "square-root" }').seal
    independent = SERVER.replace('noise = { bands = 8, strategy = "square-root" }\n', "")
    assert (
        parse_campaign(independent).campaign.seal
        == campaign('{ bands = 1, strategy = "square-root" }').seal
    )


def test_the_optimised_strategy_of_a_file_is_for_its_optimizer() -> None:
    named = campaign(OPTIMISED_8)
    assert named.task is not None
    optimizer = named.task.optimizer
    workload = Workload(
        named.design.slots, optimizer.momentum, optimizer.nesterov, optimizer.minibatch
    )
    assert named.strategy == optimised(8, workload)
    averaged = SERVER.replace('{ bands = 8, strategy = "square-root" }', OPTIMISED_8)
    averaged = averaged.replace("[task]\n", "[task]\naverage = 0.25\n")
    assert parse_campaign(averaged).campaign.task != named.task
    assert parse_campaign(averaged).campaign.strategy == named.strategy


def test_a_canonical_form_that_names_a_strategy_is_refused_before_it_is_optimised() -> None:
    values = json.loads(campaign('{ bands = 8, strategy = "square-root" }').canonical())
    values["randomizer"]["noise"] = {"bands": 1024, "strategy": "optimised"}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    with pytest.raises(InvalidValue, match="canonical form"):
        campaign_from_canonical(text)


@pytest.mark.parametrize(
    ("noise", "problem"),
    [
        ("{ bands = 8 }", "strategy: is missing"),
        ('{ strategy = "optimised" }', "bands: is missing"),
        ('{ bands = 8, strategy = "best" }', "must be square-root or optimised"),
        ('{ bands = 0, strategy = "optimised" }', "must be an integer from 1 to 1,024"),
        ("{ bits = 4, numerators = [15, 9] }", "must sum to at most 1"),
        ("{ bits = 4, numerators = [8, 9] }", "must not increase"),
        ("{ bits = 4, numerators = [8.0] }", "must be an integer"),
        ("{ bits = 4, numerators = 8 }", "must be a list of integers"),
        ('{ bits = 4, numerators = [8], strategy = "optimised" }', "is not a known key"),
        ("[8, 9]", "must be a table"),
        ("{ bits = 24, numerators = [8388608, 8388608] }", "too fine"),
    ],
)
def test_wrong_noise_is_refused_with_its_key(noise: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        campaign(noise)
    assert problem in str(caught.value)
    assert "[randomizer]" in str(caught.value)


def test_noise_of_devices_cannot_be_correlated_in_a_file() -> None:
    text = SERVER.replace('noise_at = "server"', 'noise_at = "client"').replace(
        'capacity = "all"', "capacity = 100"
    )
    with pytest.raises(InvalidValue, match="only at the server"):
        parse_campaign(text)


def test_the_noise_lies_on_a_grid_that_is_finer_and_its_distance_is_charged() -> None:
    correlated = campaign('{ bands = 8, strategy = "square-root" }')
    assert correlated.randomizer.grid is not None
    assert correlated.release_grid == correlated.randomizer.grid / 1024
    plain = campaign('{ bands = 1, strategy = "square-root" }')
    assert plain.release_grid == plain.randomizer.grid
    assert 0.0 < PartialRun.whole(correlated).variation < 1e-20
