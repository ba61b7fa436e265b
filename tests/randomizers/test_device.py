"""Reports of real campaigns: on their grid, from the operating system's randomness only."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse, device
from checkins.randomizers.device import DeviceReport, DeviceSampler
from checkins.randomizers.grid import MAX_UNITS, Grid, NoDeviceSampler
from tests.randomizers.sources import Seeded
from tests.support.program import output_of

GAUSSIAN = Gaussian(clip=1.0, noise_multiplier=0.1)
LAPLACE = Laplace(clip=1.0, local_epsilon=1.0)
RESPONSE = RandomizedResponse(categories=4, local_epsilon=1.0)
SAMPLERS = [
    DeviceSampler(GAUSSIAN, Grid(1e-6), 3),
    DeviceSampler(Gaussian(clip=1.0, noise_multiplier=1.0), Grid(1 / 3), 3),
    DeviceSampler(LAPLACE, Grid(1e-4), 3),
    DeviceSampler(Laplace(clip=2.0, local_epsilon=8.0), Grid(1.0), 3),
]


def str_of(sampler: DeviceSampler) -> str:
    return f"{type(sampler.randomizer).__name__}-{sampler.grid.step:g}"


any_floats = st.lists(st.floats(), min_size=3, max_size=3)


# What comes out


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str_of)
def test_a_million_draws_are_whole_numbers_in_range(sampler: DeviceSampler) -> None:
    large = dataclasses.replace(sampler, dimension=10**6)
    update = np.random.default_rng(1).normal(size=10**6)
    for report in (large.privatize(update), large.dummy()):
        assert report.units.dtype == np.int32
        assert report.units.shape == (10**6,)
        assert int(np.abs(report.units.astype(np.int64)).max()) <= large.most_units <= MAX_UNITS
        assert report.grid == sampler.grid


@given(update=any_floats, sampler=st.sampled_from(SAMPLERS))
def test_any_floats_make_a_report_in_range(update: list[float], sampler: DeviceSampler) -> None:
    for report in (sampler.privatize(np.array(update)), sampler.encode(np.array(update))):
        assert int(np.abs(report.units.astype(np.int64)).max()) <= sampler.most_units


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str_of)
def test_a_report_is_the_clipped_update_plus_the_noise(
    sampler: DeviceSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = np.array([0.5, -3.0, 0.1])
    monkeypatch.setattr(device, "_RANDOMNESS", Seeded(2))
    report = sampler.privatize(update)
    monkeypatch.setattr(device, "_RANDOMNESS", Seeded(2))
    noise = sampler.noise()
    assert noise.dtype == np.int64
    assert np.array_equal(report.units, sampler.encode(update).units + noise)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str_of)
def test_a_dummy_is_the_report_of_zero(
    sampler: DeviceSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for make in (sampler.dummy, sampler.noise, lambda: sampler.privatize(np.zeros(3))):
        monkeypatch.setattr(device, "_RANDOMNESS", Seeded(3))
        made = make()
        drawn.append(made.units.tolist() if isinstance(made, DeviceReport) else made.tolist())
    assert drawn[0] == drawn[1] == drawn[2]


def test_the_encoding_adds_no_noise() -> None:
    sampler = DeviceSampler(GAUSSIAN, Grid(2.0**-20), 2)
    report = sampler.encode(np.array([0.5, -0.25]))
    assert report.units.tolist() == [2**19, -(2**18)]
    assert report == sampler.encode([0.5, -0.25])


def test_laplace_reports_are_clipped_in_l1() -> None:
    sampler = DeviceSampler(LAPLACE, Grid(2.0**-10), 2)
    assert sampler.encode(np.array([3.0, -1.0])).units.tolist() == [768, -256]


@pytest.mark.parametrize(("sampler", "std"), [(SAMPLERS[0], 1e5), (SAMPLERS[1], 3.0)])
def test_noise_has_the_standard_deviation_described(
    sampler: DeviceSampler, std: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sum of squares with a seed; a right sampler fails for one seed in 10^9."""
    monkeypatch.setattr(device, "_RANDOMNESS", Seeded(4))
    count = 300_000
    noise = dataclasses.replace(sampler, dimension=count).noise()
    variance = std**2 + 1 / 12  # of a rounded normal, to 10^-30
    spread = norm.isf(5e-10) * (2 / count) ** 0.5
    assert abs(float(np.mean(noise.astype(np.float64) ** 2)) / variance - 1) < spread
    assert abs(float(np.mean(noise))) < norm.isf(5e-10) * (variance / count) ** 0.5


def test_laplace_noise_has_the_scale_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean size with a seed; a right sampler fails for one seed in 10^9."""
    monkeypatch.setattr(device, "_RANDOMNESS", Seeded(5))
    count = 300_000
    noise = DeviceSampler(LAPLACE, Grid(1e-4), count).noise()
    spread = norm.isf(5e-10) / count**0.5  # sizes are exponential
    assert abs(float(np.mean(np.abs(noise))) / 20_000 - 1) < spread


def test_the_largest_unit_is_the_clip_and_the_largest_noise() -> None:
    sampler = DeviceSampler(Gaussian(clip=12.0, noise_multiplier=0.25), Grid(1.0), 1)
    assert sampler.most_units == 12 + 41
    assert DeviceSampler(RESPONSE, Grid(1.0), 4).most_units == 1


# Randomness


def test_the_operating_system_is_asked_for_every_random_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    real = os.urandom

    def urandom(count: int) -> bytes:
        asked.append(count)
        return real(count)

    monkeypatch.setattr(os, "urandom", urandom)
    DeviceSampler(GAUSSIAN, Grid(1e-6), 1000).dummy()
    assert sum(asked) >= 1000 * 6


def test_no_seed_of_python_or_numpy_repeats_a_report() -> None:
    seen = set()
    for _ in range(4):
        random.seed(0)
        np.random.seed(0)
        seen.add(SAMPLERS[0].dummy())
    assert len(seen) == 4


def test_a_sampler_takes_and_keeps_no_seed() -> None:
    parameters = ["randomizer", "grid", "dimension", "noise_grid"]
    assert list(inspect.signature(DeviceSampler).parameters) == parameters
    for make in (DeviceSampler.privatize, DeviceSampler.dummy, DeviceSampler.noise):
        assert set(inspect.signature(make).parameters) <= {"self", "update"}
    assert b"seed" not in pickle.dumps(SAMPLERS[0])


def _dummy(_: int) -> bytes:
    return SAMPLERS[0].dummy().units.tobytes()


FORKING = """
import os
from checkins.randomizers import DeviceSampler, Gaussian, Grid

sampler = DeviceSampler(Gaussian(clip=1.0, noise_multiplier=1.0), Grid(1e-6), dimension=3)
for _ in range(2):
    if os.fork() == 0:
        print(sampler.dummy().units.tobytes().hex(), flush=True)
        os._exit(0)
    os.wait()
print(sampler.dummy().units.tobytes().hex())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_draw_apart() -> None:
    """In a process of its own: other tests have threads, which a fork would lose."""
    assert len(set(output_of(FORKING).split())) == 3


def test_threads_share_a_sampler() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(_dummy, range(64)))
    assert len(set(drawn)) == 64


# Randomized response


@pytest.mark.parametrize(
    ("update", "category"),
    [
        ([0, 0, 1, 0], 2),
        ([0.5, 0.7, 0.1, 0.7], 1),
        ([np.nan, -np.inf, -5.0, np.nan], 2),
        ([np.nan] * 4, 0),
        ([1.0, np.inf, 2.0, 3.0], 1),
    ],
)
def test_the_category_of_an_update_is_where_it_is_largest(
    update: npt.ArrayLike, category: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Truthful:
        def bytes(self, count: int) -> bytes:
            return bytes(count)

    monkeypatch.setattr(device, "_RANDOMNESS", Truthful())
    report = DeviceSampler(RESPONSE, Grid(1.0), 4).privatize(update)
    assert report.units.tolist() == [int(i == category) for i in range(4)]


def test_a_dummy_response_is_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square with a seed; a right sampler fails for one seed in 10^9."""
    monkeypatch.setattr(device, "_RANDOMNESS", Seeded(6))
    sampler = DeviceSampler(RESPONSE, Grid(1.0), 4)
    seen = sum(sampler.dummy().units for _ in range(8000))
    assert seen.sum() == 8000
    assert float(np.sum((seen - 2000) ** 2 / 2000)) < chi2.isf(1e-9, 3)


def test_randomized_response_has_no_noise_for_a_server() -> None:
    sampler = DeviceSampler(RESPONSE, Grid(1.0), 4)
    for refused in (sampler.noise, lambda: sampler.encode(np.zeros(4))):
        with pytest.raises(InvalidValue, match="has no noise"):
            refused()


# Refusals


def test_what_has_no_exact_sampler_is_refused_with_a_remedy() -> None:
    with pytest.raises(NoDeviceSampler, match=r"PrivUnit.*use Gaussian or Laplace"):
        DeviceSampler(PrivUnit(clip=1.0, local_epsilon=1.0, dimension=8), Grid(1e-3), 8)
    assert issubclass(NoDeviceSampler, InvalidValue)


@pytest.mark.parametrize("update", [np.zeros(2), np.zeros(4), np.zeros((3, 1)), 0.0, []])
@pytest.mark.parametrize("sampler", SAMPLERS[:1])
def test_an_update_of_another_shape_is_refused(
    sampler: DeviceSampler, update: npt.ArrayLike
) -> None:
    for make in (sampler.privatize, sampler.encode):
        with pytest.raises(InvalidValue, match="update"):
            make(update)


@pytest.mark.parametrize("dimension", [0, -1, 1.5, True, 10**10])
def test_a_dimension_is_a_count(dimension: int) -> None:
    with pytest.raises(InvalidValue, match="dimension"):
        DeviceSampler(GAUSSIAN, Grid(1e-6), dimension)


def test_a_response_has_its_own_grid_and_dimension() -> None:
    with pytest.raises(InvalidValue, match="grid"):
        DeviceSampler(RESPONSE, Grid(0.5), 4)
    with pytest.raises(InvalidValue, match="dimension"):
        DeviceSampler(RESPONSE, Grid(1.0), 5)


def test_a_grid_that_does_not_suit_the_noise_is_refused() -> None:
    with pytest.raises(InvalidValue, match="too coarse"):
        DeviceSampler(GAUSSIAN, Grid(0.05), 3)
    with pytest.raises(InvalidValue, match="too fine"):
        DeviceSampler(GAUSSIAN, Grid(1e-12), 3)


@pytest.mark.parametrize("other", [None, 1e-6, "grid"])
def test_a_grid_is_a_grid(other: object) -> None:
    with pytest.raises(InvalidValue, match="grid"):
        DeviceSampler(GAUSSIAN, other, 3)  # type: ignore[arg-type]  # refused


def test_a_randomizer_is_a_description() -> None:
    with pytest.raises(InvalidValue, match="randomizer"):
        DeviceSampler("gaussian", Grid(1e-6), 3)  # type: ignore[arg-type]  # refused


# Reports as values


def test_reports_are_equal_and_hashed_by_value() -> None:
    units = np.array([1, -2, 3], dtype=np.int32)
    report = DeviceReport(units, Grid(0.5))
    assert report == DeviceReport(units.copy(), Grid(0.5))
    assert hash(report) == hash(DeviceReport(units.copy(), Grid(0.5)))
    assert report != DeviceReport(units, Grid(0.25))
    assert report != DeviceReport(np.array([1, -2, 4], dtype=np.int32), Grid(0.5))
    assert report != "report"


def test_a_report_never_changes() -> None:
    units = np.array([1, -2, 3], dtype=np.int32)
    report, view = DeviceReport(units, Grid(0.5)), units.view()
    view.flags.writeable = False
    seen = DeviceReport(view, Grid(0.5))
    units[0] = 7
    assert report.units.tolist() == seen.units.tolist() == [1, -2, 3]
    for made in (report, SAMPLERS[0].dummy(), pickle.loads(pickle.dumps(report))):
        with pytest.raises(ValueError, match="read-only"):
            made.units[0] = 5


@pytest.mark.parametrize(
    "units", [np.zeros(2), np.zeros((1, 2), dtype=np.int32), [1, 2], np.zeros(2, dtype=np.int64)]
)
def test_a_report_is_a_vector_of_32_bit_integers(units: object) -> None:
    with pytest.raises(InvalidValue, match="int32"):
        DeviceReport(units, Grid(1.0))  # type: ignore[arg-type]  # refused


# A report is what it was, and numbers of any type mean the same


def test_a_report_cannot_be_changed_by_whoever_holds_its_array() -> None:
    given = np.zeros(3, dtype=np.int32)
    given.flags.writeable = False
    report = DeviceReport(given, Grid(1.0))
    given.flags.writeable = True
    given[0] = 7
    assert report.units.tolist() == [0, 0, 0]
    for held in (report, SAMPLERS[0].dummy()):
        with pytest.raises(ValueError, match="WRITEABLE"):
            held.units.flags.writeable = True
    masked = np.ma.array([1, 2], mask=[0, 1], dtype=np.int32)
    with pytest.raises(InvalidValue, match="vector of type int32"):
        DeviceReport(masked, Grid(1.0))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.longdouble, np.float64])
def test_descriptions_take_numbers_of_any_type_for_what_they_are(kind: type) -> None:
    mechanism = Gaussian(kind(1.0), kind(0.5))
    sampler = DeviceSampler(mechanism, Grid(kind(2.0**-10)), dimension=2)
    assert sampler.encode(np.array([0.5, -0.25])).units.tolist() == [512, -256]
    assert mechanism == Gaussian(1.0, 0.5)


def test_a_clip_of_a_narrow_integer_type_does_not_wrap() -> None:
    long = np.full(4, 1e9)
    assert Grid(2.0**-8).clip(long, np.int32(279268), order=2).any()
