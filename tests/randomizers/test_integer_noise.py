"""Whole-number noise: exact laws against 700-bit arithmetic, and draws that follow them."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from checkins.randomizers.exact_sampling import COLUMNS, TOTAL_WEIGHT
from checkins.randomizers.integer_noise import (
    GAUSSIAN_CUT_DEVIATIONS,
    LAPLACE_CUT_SCALES,
    MAX_CELLS,
    DigitwiseSizes,
    RoundedResponse,
    Staircase,
    SymmetricNoise,
    divide_into_cells,
    rounded_gaussian,
    rounded_laplace,
    rounded_response,
    uniform_below,
)
from tests.randomizers.sources import Scripted, Seeded, little
from tests.randomizers.test_exact_masses import exact_sizes

SMALL_GAUSSIANS = [Fraction(3), Fraction(10, 3), Fraction(3.3), Fraction(40)]
LARGEST_TABLE = pytest.param(Fraction(303), marks=pytest.mark.slow)
SMALL_LAPLACES = [Fraction(1, 100), Fraction(1), Fraction(3.3), Fraction(45)]
WIDE_LAPLACES = [Fraction(46), Fraction(2) / Fraction(1e-5), Fraction(2.3e7)]


def number(value: Fraction) -> mp.mpf:
    return mp.mpf(value.numerator) / value.denominator


def laplace_mass(scale: Fraction, size: int) -> mp.mpf:
    """P(|round(Laplace)| = size)."""
    if size == 0:
        return -mp.expm1(-1 / (2 * number(scale)))
    return mp.exp(-(size - mp.mpf(0.5)) / number(scale)) * -mp.expm1(-1 / number(scale))


def digits(noise: SymmetricNoise) -> DigitwiseSizes:
    assert isinstance(noise.sizes, DigitwiseSizes)
    return noise.sizes


def law_of_sizes(sizes: DigitwiseSizes) -> list[int]:
    """Weights of the sizes 0, 1, ... where there is one digit."""
    assert sizes.later_digits == ()
    weights = sizes.first_digit.weights()
    assert not any(weights[sizes.first_digit_values + 1 :])
    return [weights[sizes.first_digit_values], *weights[: sizes.first_digit_values]]


# Exact laws


@pytest.mark.parametrize("scale", [*SMALL_GAUSSIANS, LARGEST_TABLE], ids=float)
def test_one_threshold_for_each_size_of_gaussian_noise(scale: Fraction) -> None:
    noise = rounded_gaussian(scale)
    weights = law_of_sizes(digits(noise))
    with mp.workprec(400):
        *masses, distance = exact_sizes(scale, noise.largest_size)
        for weight, mass in zip(weights, masses, strict=True):
            distance += abs(mp.mpf(weight) / TOTAL_WEIGHT - mass)
        assert distance / 2 <= number(noise.variation)
    assert noise.variation < Fraction(1, 2**126)


@pytest.mark.parametrize("scale", SMALL_LAPLACES, ids=float)
def test_one_threshold_for_each_size_of_laplace_noise(scale: Fraction) -> None:
    noise = rounded_laplace(scale)
    weights = law_of_sizes(digits(noise))
    with mp.workprec(400):
        distance = mp.exp(-(noise.largest_size + mp.mpf(0.5)) / number(scale))
        for size, weight in enumerate(weights):
            distance += abs(mp.mpf(weight) / TOTAL_WEIGHT - laplace_mass(scale, size))
        assert distance / 2 <= number(noise.variation)
    assert noise.variation < Fraction(1, 2**126)


@pytest.mark.parametrize("scale", WIDE_LAPLACES, ids=float)
def test_each_digit_of_laplace_noise_is_geometric(scale: Fraction) -> None:
    noise = rounded_laplace(scale)
    sizes = digits(noise)
    place = noise.largest_size // sizes.first_digit_values
    with mp.workprec(400):
        loss, nonzero = 1 / number(scale), mp.exp(-1 / (2 * number(scale)))
        distance = nonzero * mp.exp(-loss * noise.largest_size)  # beyond the first digit
        weights = sizes.first_digit.weights()
        distance += abs(mp.mpf(weights[sizes.first_digit_values]) / TOTAL_WEIGHT - (1 - nonzero))
        for digit in range(sizes.first_digit_values):
            due = nonzero * mp.exp(-loss * place * digit) * -mp.expm1(-loss * place)
            distance += abs(mp.mpf(weights[digit]) / TOTAL_WEIGHT - due)
        for bits, table in sizes.later_digits:
            place >>= bits
            ways = -mp.expm1(-loss * place) / -mp.expm1(-loss * (place << bits))
            weights = table.weights()
            assert not any(weights[1 << bits :])
            for digit in range(1 << bits):
                due = mp.exp(-loss * place * digit) * ways
                distance += abs(mp.mpf(weights[digit]) / TOTAL_WEIGHT - due)
        assert place == 1
        assert distance / 2 <= number(noise.variation)
    assert noise.variation < Fraction(1, 2**125)


@given(reach=st.integers(1, 2**31), most=st.sampled_from([MAX_CELLS, COLUMNS - 1]))
def test_cells_are_as_few_as_allowed_and_reach_hardly_further(reach: int, most: int) -> None:
    offset_bits, cells = divide_into_cells(reach, max_cells=most)
    assert 1 <= cells <= most
    assert reach <= cells << offset_bits <= reach * Fraction(513, 512) + 2
    assert offset_bits == 0 or -(-reach >> (offset_bits - 1)) > most


@pytest.mark.parametrize("scale", [3.0, 303.5, 1e5])
def test_noise_reaches_its_cut(scale: float) -> None:
    gaussian, laplace = rounded_gaussian(Fraction(scale)), rounded_laplace(Fraction(scale))
    assert (
        ceil(GAUSSIAN_CUT_DEVIATIONS * Fraction(scale)) <= gaussian.largest_size <= 13.6 * scale + 1
    )
    assert ceil(LAPLACE_CUT_SCALES * Fraction(scale)) <= laplace.largest_size <= 91.1 * scale + 1


@pytest.mark.parametrize("scale", [3.0, 303.0, 304.0, 1e5, 1.5e8])
def test_the_stated_variation_is_below_2_to_the_minus_100(scale: float) -> None:
    assert rounded_gaussian(Fraction(scale)).variation < Fraction(1, 2**100)
    assert rounded_laplace(Fraction(min(scale, 2.3e7))).variation < Fraction(1, 2**100)


def test_wide_gaussian_noise_is_a_staircase() -> None:
    assert isinstance(rounded_gaussian(Fraction(303)).sizes, DigitwiseSizes)
    assert isinstance(rounded_gaussian(Fraction(304)).sizes, Staircase)


# Draws


def test_a_sign_bit_turns_a_size_around() -> None:
    noise = rounded_gaussian(Fraction(3))
    sizes = law_of_sizes(digits(noise))
    assert sizes[1] > 0
    column = 0  # entry 0 is size 1, which fills its column
    assert int(digits(noise).first_digit.other_entries[column]) == 0
    word = little(column << 20 | 1, 4)
    assert noise.draw(8, Scripted(word * 8, b"\x81")).tolist() == [-1, 1, 1, 1, 1, 1, 1, -1]


def test_noise_is_added_to_what_is_there() -> None:
    noise = rounded_laplace(Fraction(1000))
    units = np.arange(100_000, dtype=np.int32)
    noise.add_to(units, Seeded(3))
    assert np.array_equal(units - np.arange(100_000), noise.draw(100_000, Seeded(3)))


@pytest.mark.parametrize("count", [0, 1, 7, 32_767, 32_768, 32_769])
def test_as_many_draws_as_asked_for(count: int) -> None:
    assert rounded_gaussian(Fraction(400)).draw(count, Seeded(4)).shape == (count,)


def edges_of(law: SymmetricNoise, scale: float, reach: float) -> list[int]:
    edges = sorted({int(x) for x in np.linspace(-reach * scale, reach * scale, 60)})
    assert edges[-1] < law.largest_size
    return edges


@pytest.mark.parametrize("scale", [3.0, 20.5, 303.0, 1000.0, 1e5], ids=float)
def test_gaussian_draws_follow_the_law(scale: float) -> None:
    """Chi-square with a seed; a right sampler fails for one seed in 10^9."""
    noise = rounded_gaussian(Fraction(scale))
    edges = edges_of(noise, scale, 3.5)
    below = [float(mp.ncdf((edge + 0.5) / scale)) for edge in edges]
    check_law(noise, edges, below, Seeded(21))


@pytest.mark.parametrize("scale", [0.7, 3.0, 44.0, 300.0, 1e5, 2e7], ids=float)
def test_laplace_draws_follow_the_law(scale: float) -> None:
    """Chi-square with a seed; a right sampler fails for one seed in 10^9."""
    noise = rounded_laplace(Fraction(scale))
    edges = edges_of(noise, scale, 6.0)
    tails = [0.5 * np.exp(-abs(edge + 0.5) / scale) for edge in edges]
    below = [t if edge < 0 else 1 - t for edge, t in zip(edges, tails, strict=True)]
    check_law(noise, edges, below, Seeded(22))


def check_law(noise: SymmetricNoise, edges: list[int], below: list[float], source: Seeded) -> None:
    count = 200_000
    drawn = np.sort(noise.draw(count, source))
    assert np.abs(drawn).max() <= noise.largest_size
    seen = np.diff([0, *np.searchsorted(drawn, edges, side="right"), count])
    expected = count * np.diff([0.0, *below, 1.0])
    assert float(np.sum((seen - expected) ** 2 / expected)) < chi2.isf(1e-9, len(edges))


# Randomized response


@given(st.integers(2, 2**31 - 1), st.floats(1e-6, 100.0))
def test_the_odds_of_a_response_are_at_most_those_promised(categories: int, epsilon: float) -> None:
    kept = rounded_response(categories, epsilon).threshold
    with mp.workprec(600):
        promised = mp.exp(mp.mpf(epsilon))
        odds = mp.mpf(kept) * (categories - 1) / (2**128 - kept)
        assert odds <= promised
        assert kept + 1 > 2**128 / (1 + (categories - 1) / promised) - 1
        assert odds >= 1  # so a uniform category is between the two


def test_a_response_is_kept_below_its_threshold() -> None:
    response = RoundedResponse(categories=4, threshold=2**127)
    assert response.draw(2, Scripted(little(2**127 - 1, 16))) == 2
    others = [response.draw(2, Scripted(little(2**127, 16), little(x, 1))) for x in range(3)]
    assert others == [0, 1, 3]


def test_responses_follow_the_law() -> None:
    """Chi-square with a seed; a right sampler fails for one seed in 10^9."""
    response, source = rounded_response(5, 1.0), Seeded(31)
    seen = np.bincount([response.draw(3, source) for _ in range(20_000)], minlength=5)
    kept = np.e / (np.e + 4)
    expected = 20_000 * np.array([(1 - kept) / 4] * 3 + [kept] + [(1 - kept) / 4])
    assert float(np.sum((seen - expected) ** 2 / expected)) < chi2.isf(1e-9, 4)


def test_a_uniform_number_refuses_what_is_above() -> None:
    assert uniform_below(5, Scripted(b"\x05", b"\x07", b"\x0c")) == 4  # 12 is 4 in three bits
    assert uniform_below(1, Scripted(b"")) == 0
    assert uniform_below(256, Scripted(b"\xff")) == 255
    assert uniform_below(257, Scripted(b"\x01\x01", b"\x00\xfd")) == 256
