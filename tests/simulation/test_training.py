"""A simulated campaign: one seed, one model, however it is cut, measured or padded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, norm

from checkins.accounting import NoiseAt, Protocol
from checkins.campaign import Campaign, Task
from checkins.errors import InvalidValue
from checkins.randomizers import Laplace, PrivUnit
from checkins.simulation.engine.outcome import training_of
from checkins.simulation.engine.training import Position, Scenario, Training
from checkins.simulation.population import Diurnal, Sampling, SlotCounts
from checkins.tasks.built_in_models import MLP
from checkins.tasks.loaded_task import LoadedTask
from tests.simulation.campaigns import (
    AT_SERVER,
    CLASSES,
    FEATURES,
    GAUSSIAN,
    LAPLACE,
    PRIVUNIT,
    campaign,
    loaded,
)
from tests.soak import SOAK
from tests.support.program import output_of

LESSON = loaded(clients=40, holdout=60)


def training(asked: Campaign | None = None, **given: Any) -> Training:
    return training_of(asked or campaign(), **{"loaded": LESSON, **given})


def last_model(ours: Training, start: Position | None = None) -> np.ndarray:
    for progress in ours.run_chunks(start):
        found = progress.position
    return np.array(ours.model(found))


def test_a_seed_gives_one_model_and_another_seed_another() -> None:
    one, again, other = (last_model(training(seed=seed)) for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)


def test_the_first_chunk_is_over_before_the_next_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its seconds are counted without its slots: on a GPU of five chunks, a fifth."""
    over: list[int] = []
    ours = training(evaluations=4)
    advance, started = ours._run_chunk, iter(range(100))

    @dataclass(frozen=True)
    class Token:
        number: int

        def block_until_ready(self) -> None:
            over.append(self.number)

    def advanced(*given: Any) -> tuple[Any, Token]:
        return advance(*given)[0], Token(next(started))

    monkeypatch.setitem(vars(ours), "_run_chunk", advanced)  # a cached property
    steps = ours.run_chunks()
    next(steps)
    assert over == [0]
    next(steps)
    next(steps)
    assert over == [0, 0, 1], "from then on one chunk is under way while the next is made ready"


@pytest.mark.parametrize(
    "asked",
    [
        campaign(repeats=2, momentum=0.6, minibatch=5),
        campaign(LAPLACE, protocol=Protocol.SLIDING, window=4, capacity=2, slots=20),
    ],
)
def test_a_run_that_is_cut_anywhere_and_resumed_is_the_same_bit_for_bit(asked: Campaign) -> None:
    ours = training(asked, evaluations=7)
    saved: list[Position] = []
    for progress in ours.run_chunks():
        saved.append(jax.tree.map(np.array, progress.position))
    whole = np.array(ours.model(progress.position))
    assert len(saved) >= 6
    for run, slots, state in saved[:-1]:
        kept = Position(int(run), int(slots), jax.tree.map(jnp.asarray, state))
        assert np.array_equal(last_model(ours, kept), whole)


SOAK_ONLY = pytest.mark.skipif(not SOAK, reason="PrivUnit takes seconds to compile: make soak")


@pytest.mark.parametrize("randomizer", [GAUSSIAN, LAPLACE, pytest.param(PRIVUNIT, marks=SOAK_ONLY)])
def test_measuring_changes_the_curve_and_not_the_model(randomizer: Any) -> None:
    """To the last digits of float32: a loop of another length may be compiled otherwise."""
    models, curves = [], []
    for evaluations in (0, 1, 50):
        ours = training(campaign(randomizer, repeats=2, slots=13), evaluations=evaluations)
        curve = [progress.metrics for progress in ours.run_chunks() if progress.metrics is not None]
        curves.append(len(curve))
        models.append(last_model(ours))
    assert curves == sorted(curves)
    assert (curves[0], curves[1], curves[-1]) == (1, 1, 26)
    for model in models[1:]:
        assert np.linalg.norm(model - models[0]) <= 1e-5 * np.linalg.norm(models[0])


def test_the_noise_of_an_accelerator_is_a_function_of_the_slot() -> None:
    """The stream that devices draw themselves, on whatever device there is."""
    from checkins.simulation.engine.training import _gaussian_rows

    words = np.array([1, 2], np.uint32)
    whole = np.asarray(_gaussian_rows(words, 0, (9, 5), "float32"))
    assert np.array_equal(np.asarray(_gaussian_rows(words, 4, (3, 5), "float32")), whole[4:7])
    assert len({row.tobytes() for row in whole}) == 9


@dataclass(frozen=True, eq=False)
class Wider(Training):
    """With places for people who never come."""

    def _width(self, slot_counts: SlotCounts) -> int:
        return super()._width(slot_counts) + 5


@pytest.mark.parametrize("taught", [LESSON, loaded(MLP(FEATURES, CLASSES, width=3), clients=40)])
def test_empty_places_do_not_change_the_model(taught: LoadedTask) -> None:
    ours = training(campaign(AT_SERVER, capacity=None, divide_by=4), loaded=taught)
    fields = {name: getattr(ours, name) for name in Training.__dataclass_fields__}
    assert np.allclose(last_model(ours), last_model(Wider(**fields)), rtol=1e-5, atol=1e-6)


def test_a_capacity_far_above_the_check_ins_is_dummies() -> None:
    ours = training(campaign(capacity=100_000, slots=6))
    for progress in ours.run_chunks():
        last = progress
    tally = ours.tally(last.position)
    assert (tally.check_ins, tally.reports, tally.dummies) == (40, 40, 600_000 - 40)
    noise = GAUSSIAN.clip * GAUSSIAN.noise_multiplier * np.sqrt(100_000)  # type: ignore[operator]
    moved = np.linalg.norm(ours.model(last.position)) / (0.5 / 100_000 * noise * np.sqrt(6))
    assert moved**2 < chi2.isf(1e-9, LESSON.model.dimension)
    assert moved**2 > chi2.ppf(1e-9, LESSON.model.dimension)


@pytest.mark.parametrize(
    ("protocol", "randomizer"),
    [
        (Protocol.FIXED, GAUSSIAN),
        (Protocol.FIXED, LAPLACE),
        pytest.param(Protocol.FIXED, PRIVUNIT, marks=pytest.mark.slow),
        (Protocol.AVERAGED, GAUSSIAN),
        (Protocol.AVERAGED, LAPLACE),
        pytest.param(Protocol.AVERAGED, PRIVUNIT, marks=SOAK_ONLY),
    ],
)
def test_updates_have_the_right_mean_and_spread(randomizer: Any, protocol: Protocol) -> None:
    """Steps too small to move the gradient: the model is a sum of all reports; 1e-9 each.

    The mean is that of the clipped gradients of those who were used; what is left is noise of the
    variance that the randomizer states, dummies included.
    """
    rate, slots, capacity = 1e-4, 400, 3
    ours = training(
        campaign(randomizer, protocol=protocol, slots=slots, capacity=capacity, rate=rate),
        scenario=Scenario(800),
        evaluations=0,
    )
    model, data = ours.loaded.model, ours.loaded.data
    zero, clip = np.zeros(model.dimension), ours.mechanism.clip
    slopes = np.stack(
        [model.gradient(zero, data.features[one : one + 1], data.labels[one : one + 1])
         for one in range(40)]
    )  # fmt: skip
    slopes = np.asarray(clip.clip_rows(jnp.asarray(slopes)))
    mechanism: Any = ours.mechanism.randomizer
    slot_counts, weight = ours.population.draw_run(1), np.zeros(40)
    variance = 0.0
    (spec,) = ours._chunk_specs(ours.start())
    seats = np.asarray(ours._inputs(spec).clients)[:slots]
    for row, used in zip(seats, slot_counts.reports, strict=True):
        if protocol is Protocol.AVERAGED and not used:
            continue
        divisor = used if protocol is Protocol.AVERAGED else capacity
        chosen = row[row >= 0]
        np.add.at(weight, chosen, 1.0 / divisor)
        for client in chosen:
            size = float(np.linalg.norm(slopes[client]))
            variance += mechanism.variance(dimension=model.dimension, norm=size) / divisor**2
        if protocol is not Protocol.AVERAGED:
            nobody = mechanism.variance(dimension=model.dimension) / divisor**2
            variance += (capacity - used) * nobody
    off = last_model(ours) / -rate - weight @ slopes
    each = np.sqrt(variance / model.dimension)
    if isinstance(mechanism, Laplace | PrivUnit) or protocol is Protocol.AVERAGED:
        assert weight.sum() > 100
    assert np.abs(off).max() < float(norm.isf(0.5e-9 / model.dimension)) * 1.1 * each
    spread = (off**2).sum() / each**2
    assert chi2.ppf(1e-10, model.dimension) < spread < chi2.isf(1e-10, model.dimension)


def test_it_learns() -> None:
    quiet = replace(GAUSSIAN, noise_multiplier=0.3)
    ours = training(
        campaign(quiet, slots=200, capacity=40, rate=2.0, momentum=0.5),
        scenario=Scenario(6000, Diurnal(10, 0.5), 0.1),
        evaluations=4,
    )
    curve = [progress.metrics for progress in ours.run_chunks() if progress.metrics is not None]
    assert len(curve) == 4
    assert curve[-1]["accuracy"] > 0.8
    assert curve[-1]["loss"] < 0.8 * np.log(CLASSES)


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.SHUFFLED])
def test_poisson_and_shuffled_sampling_train_a_model(sampling: Sampling) -> None:
    asked = campaign(AT_SERVER, capacity=None, divide_by=4, repeats=2)
    ours = training(asked)
    ours = replace(ours, mechanism=replace(ours.mechanism, sampling=sampling))
    for progress in ours.run_chunks():
        last = progress.position
    tally = ours.tally(last)
    assert tally.dummies == 0
    assert np.isfinite(ours.model(last)).all()
    if sampling is Sampling.SHUFFLED:
        assert tally.contributors == (40, 40)
        seats = [np.asarray(ours._inputs(spec).clients) for spec in ours._chunk_specs(ours.start())]
        people = np.concatenate([seat[seat >= 0] for seat in seats])
        assert np.array_equal(np.sort(people), np.repeat(np.arange(40), 2))


def test_a_tally_counts_up_to_the_position() -> None:
    ours = training(campaign(repeats=2, slots=10, capacity=2), evaluations=4)
    runs = [ours.population.draw_run(number) for number in (1, 2)]
    done = 0
    for progress in ours.run_chunks():
        done = progress.slots
        tally = ours.tally(progress.position)
        reports = np.concatenate([run.reports for run in runs])[:done]
        assert (tally.slots, tally.reports) == (done, reports.sum())
        assert tally.dummies == 2 * done - reports.sum()
        assert sum(tally.contributors) == tally.reports
    assert done == ours.slots == 20
    assert progress.metrics is not None


def test_fewer_clients_than_the_data_has_are_drawn_among_all_of_them() -> None:
    """12 of 40, each once; that 20 seeds never draw one of the last 20 clients: below 2^-80."""
    seen: set[int] = set()
    for seed in range(1, 21):
        # With one place in every slot, all seeds share a compiled program.
        ours = training(campaign(capacity=1), scenario=Scenario(12), seed=seed)
        used = [
            int(client)
            for spec in ours._chunk_specs(ours.start())
            for client in np.asarray(ours._inputs(spec).clients).ravel()
            if client >= 0
        ]
        assert 4 <= len(set(used)) == len(used) <= 12
        seen |= set(used)
    assert max(seen) >= 20


def test_reused_clients_hold_the_rows_of_one_client_of_the_data() -> None:
    """1,000 clients on 40 rows: client j is row j mod 40, each used exactly once in a run."""
    ours = training(campaign(AT_SERVER, capacity=None), scenario=Scenario(1000))
    seats = [np.asarray(ours._inputs(spec).clients) for spec in ours._chunk_specs(ours.start())]
    people = np.concatenate([seat[seat >= 0] for seat in seats])
    assert np.array_equal(np.bincount(people), np.full(40, 25))


OWN = """
import jax.numpy as jnp
from checkins.tasks import OwnModel

def nearest(shape, classes):
    def scores(own, x):
        return -jnp.sum((x - own["centres"]) ** 2, axis=1)

    def loss(own, x, label):
        return -jnp.log(jnp.exp(scores(own, x))[label] / jnp.exp(scores(own, x)).sum() + 1e-9)

    start = jnp.linspace(-1.0, 1.0, classes * shape[0]).reshape(classes, shape[0])
    return OwnModel({"centres": start}, loss, example_scores=scores)
"""


def test_an_own_model_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_centres.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    asked = campaign(
        replace(GAUSSIAN, noise_multiplier=0.05),
        model="my_centres:nearest",
        slots=60,
        capacity=40,
        rate=1.0,
    )
    assert isinstance(asked.task, Task)
    ours = training_of(asked, seed=1, evaluations=2)  # loads the campaign's own data too
    curve = [progress.metrics for progress in ours.run_chunks() if progress.metrics is not None]
    assert ours.loaded.model.dimension == 2 * 10
    assert curve[-1]["loss"] < ours.evaluate(ours.start())["loss"]


@pytest.mark.parametrize("rate", [1e38, 3e36])
@pytest.mark.parametrize("at", [NoiseAt.CLIENT, NoiseAt.SERVER])
def test_a_rate_that_diverges_is_named(rate: float, at: NoiseAt) -> None:
    randomizer = replace(GAUSSIAN, noise_at=at, noise_multiplier=9.0)
    ours = training(campaign(randomizer, rate=rate, slots=60, capacity=2), evaluations=3)
    with pytest.raises(InvalidValue, match="diverged: lower"):
        list(ours.run_chunks())


ROOT = Path(__file__).resolve().parents[2]
MEMORY = """
import resource
import numpy as np
from tests.simulation.campaigns import AT_SERVER, campaign, loaded
from checkins.simulation.engine.outcome import training_of
from checkins.simulation.engine.training import Scenario

def peak_after(clients, **given):
    ours = training_of(campaign(AT_SERVER, **given), loaded=loaded(), scenario=Scenario(clients))
    for progress in ours.run_chunks():
        pass
    assert np.isfinite(ours.model(progress.position)).all()
    tally = ours.tally(progress.position)
    return tally.reports, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

few = peak_after(10**5, slots=1000, capacity=None, divide_by=100, rate=0.001)
chosen = peak_after(10**8, slots=100_000, capacity=4, rate=0.001)
every = peak_after(
    10**8, slots=20_000, capacity=None, divide_by=5000, rate=0.001, participation=PARTICIPATION
)
print(chosen[0], every[0], max(chosen[1], every[1]) - few[1])
"""


@pytest.mark.slow
def test_a_hundred_million_clients_are_trained_on_in_bounded_memory() -> None:
    """1e5 slots of 4 of them, and 2e4 slots of a fiftieth of them (in the soak of all), in MB.

    The fiftieth is off by more than six standard deviations with probability below 1e-8.
    """
    share = 1.0 if SOAK else 0.1
    code = MEMORY.replace("PARTICIPATION", str(share))
    chosen, every, grown = output_of(code, cwd=ROOT, timeout=None).split()
    assert int(chosen) == 400_000
    assert abs(int(every) - share * 10**8) <= 6 * math.sqrt(1e8 * share * (1 - share))
    assert float(grown) < 300
