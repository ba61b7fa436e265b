"""Finite distributions and wide rounded noise are sampled exactly."""

from __future__ import annotations

import os
import random
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chi2

from checkins.randomizers.exact_sampling import (
    COLUMNS,
    FRACTION_BITS,
    MASS_ERROR,
    THRESHOLD_BITS,
    TOTAL_WEIGHT,
    WEIGHT_BITS,
    AliasTable,
    OperatingSystemBytes,
    RoundedNormal,
    random_bits,
    random_words,
)
from checkins.randomizers.integer_noise import Staircase, rounded_gaussian
from tests.randomizers.sources import Scripted, Seeded, little
from tests.randomizers.test_exact_masses import exact, exact_sizes

LAST_BITS = 108


@st.composite
def laws(draw: st.DrawFn) -> list[int]:
    """Any shares of TOTAL_WEIGHT, mostly unequal: below a column, around one, and above."""
    sizes = st.one_of(*(st.integers(0, most) for most in (TOTAL_WEIGHT, 2**129, 2**128, 2**40)))
    cuts = draw(st.lists(sizes, max_size=40))
    edges = [0, *sorted(cuts), TOTAL_WEIGHT]
    return [high - low for low, high in pairwise(edges)]


@given(laws())
def test_the_columns_give_back_the_law_to_the_last_digit(law: list[int]) -> None:
    found = AliasTable.of(law).weights()
    assert found[: len(law)] == law
    assert not any(found[len(law) :])


def test_a_full_table_is_laid_out_exactly() -> None:
    law = [(entry + 1) ** 5 for entry in range(COLUMNS)]
    law = [weight * (TOTAL_WEIGHT // sum(law)) for weight in law]
    law[7] += TOTAL_WEIGHT - sum(law)
    assert AliasTable.of(law).weights() == law


@pytest.mark.parametrize(
    "law", [[TOTAL_WEIGHT - 1], [TOTAL_WEIGHT + 1, -1], [0] * COLUMNS + [TOTAL_WEIGHT], []]
)
def test_weights_that_are_no_law_are_refused(law: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        AliasTable.of(law)


@given(
    laws(),
    st.one_of(st.integers(0, 40), st.integers(0, COLUMNS - 1)),
    st.integers(0, 2**THRESHOLD_BITS - 1),
)
@example([2**128 - 1, TOTAL_WEIGHT - 2**128 + 1], 0, 0)
def test_a_draw_is_one_comparison_of_128_digits(law: list[int], column: int, u: int) -> None:
    table = AliasTable.of(law)
    threshold, other = table.thresholds[column], int(table.other_entries[column])
    for digits in {u, threshold, max(0, threshold - 1), min(threshold + 1, 2**128 - 1)}:
        word = column << 20 | digits >> LAST_BITS
        pieces = [little(word, 4)]
        if digits >> LAST_BITS == threshold >> LAST_BITS:
            pieces.append(little(digits & (1 << LAST_BITS) - 1, 14))
        source = Scripted(*pieces)
        assert table.draw(1, source).tolist() == [column if digits < threshold else other]
        assert source.pieces == []


def test_the_first_four_of_the_last_112_bits_are_not_used() -> None:
    table = AliasTable.of([5, TOTAL_WEIGHT - 5])
    for junk in (0, 0xF):
        for last in (4, 5):
            source = Scripted(little(0, 4), little(junk << LAST_BITS | last, 14))
            assert table.draw(1, source).tolist() == [0 if last < 5 else 1]


def test_draws_follow_the_law() -> None:
    """Chi-square with a seed; a right sampler fails for one seed in 10^9."""
    law = [TOTAL_WEIGHT // 2, TOTAL_WEIGHT // 3, TOTAL_WEIGHT // 700, TOTAL_WEIGHT // 10]
    law.append(TOTAL_WEIGHT - sum(law))
    count = 200_000
    seen = Counter(AliasTable.of(law).draw(count, Seeded(1)).tolist())
    expected = [count * weight / TOTAL_WEIGHT for weight in law]
    statistic = sum((seen[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert sum(seen.values()) == count
    assert statistic < chi2.isf(1e-9, len(law) - 1)


def test_words_are_the_bytes_of_the_source() -> None:
    assert random_words(Scripted(bytes(range(8))), 2).tolist() == [0x03020100, 0x07060504]


@pytest.mark.parametrize(("bits", "size"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 4), (32, 4)])
def test_low_bits_are_the_first_bits_of_the_shortest_word(bits: int, size: int) -> None:
    drawn = random_bits(Scripted(little(2 ** (8 * size) - 1, size) + bytes(size)), 2, bits)
    assert drawn.dtype == np.uint32
    assert drawn.tolist() == [2**bits - 1, 0]


def test_the_operating_system_is_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\7" * count)
    assert OperatingSystemBytes().bytes(3) == b"\7\7\7"


SCALES = [Fraction(304), Fraction(12345.678), Fraction(0.1) / Fraction(1e-6), Fraction(10**8)]
SHIFT = FRACTION_BITS - WEIGHT_BITS + 32  # of a mass, in shares of 2**-32, to a weight


@lru_cache
def staircase(scale: Fraction) -> Staircase:
    sizes = rounded_gaussian(scale).sizes
    assert isinstance(sizes, Staircase)
    return sizes


def weight(stairs: Staircase, size: int) -> mp.mpf:
    """What a size, with both signs, should weigh."""
    share = mp.mpf(stairs.weight_scale) / 2**32
    return 2 * exact(stairs.normal.scale, size) * share * TOTAL_WEIGHT


def threshold(stairs: Staircase, cell: int, offset: int) -> int:
    """How many of the 2^128 values of U keep this size of a wedge."""
    size = (cell << stairs.offset_bits) + offset + 1
    due = 2 * (stairs.normal.mass(size) - MASS_ERROR) * stairs.weight_scale - (
        stairs.floors[cell] << SHIFT
    )
    return max(0, -((-due << 128) // (stairs.rises[cell] << SHIFT)))


def some_sizes(stairs: Staircase, count: int) -> list[tuple[int, int]]:
    """Cells and offsets: the ends of the staircase, the ends of cells, and any."""
    drawn = random.Random(5)
    last = (1 << stairs.offset_bits) - 1
    ends = [(cell, o) for cell in (0, 1, 160, stairs.cells - 1) for o in (0, last)]
    return ends + [(drawn.randrange(stairs.cells), drawn.randrange(last + 1)) for _ in range(count)]


@pytest.mark.parametrize("scale", SCALES, ids=float)
def test_floors_and_rises_hold_for_every_size_of_a_cell(scale: Fraction) -> None:
    stairs = staircase(scale)
    with mp.workprec(700):
        for cell, offset in some_sizes(stairs, 100):
            due = weight(stairs, (cell << stairs.offset_bits) + offset + 1) - stairs.floors[cell]
            assert 0 <= due <= stairs.rises[cell]


@pytest.mark.parametrize("scale", SCALES, ids=float)
def test_the_table_holds_flats_wedges_zero_and_hardly_ever_draws_again(scale: Fraction) -> None:
    stairs, width = staircase(scale), 1 << staircase(scale).offset_bits
    weights = stairs.table.weights()
    assert weights[: stairs.cells] == [width * floor for floor in stairs.floors]
    assert weights[stairs.cells : 2 * stairs.cells] == [width * rise for rise in stairs.rises]
    with mp.workprec(700):
        zero = weight(stairs, 0) / 2
        assert zero - 2 < weights[2 * stairs.cells] <= zero
    assert sum(weights[: 2 * stairs.cells + 2]) == TOTAL_WEIGHT
    assert weights[2 * stairs.cells + 1] < TOTAL_WEIGHT >> 31
    assert sum(stairs.rises) * width < TOTAL_WEIGHT // 70


@pytest.mark.parametrize("scale", SCALES, ids=float)
def test_the_straight_bounds_never_contradict_the_mass(scale: Fraction) -> None:
    """Whatever the last 96 digits of U, a wedge decided by the first 32 is decided rightly."""
    stairs, width = staircase(scale), 1 << staircase(scale).offset_bits
    pairs = some_sizes(stairs, 300)
    undecided = 0
    for cell, offset in pairs:
        margin, line = int(stairs.margins[cell]), width - 1 - offset << 32
        limit = threshold(stairs, cell, offset)
        kept = line // width - margin - 1  # the last first word that is kept at once
        refused = -(-line // width) + margin  # the first one that is refused at once
        assert kept < 0 or (kept + 1) << 96 <= limit
        assert refused >= 2**32 or refused << 96 >= limit
        undecided += min(refused, 2**32 - 1) - max(kept, 0)
    assert undecided / len(pairs) < 0.6 * 2**32  # most of it in the far tail, which is never met


@pytest.mark.parametrize("scale", SCALES, ids=float)
def test_a_wedge_is_kept_below_its_threshold_to_the_128th_digit(scale: Fraction) -> None:
    stairs = staircase(scale)
    for cell, offset in some_sizes(stairs, 40):
        limit = threshold(stairs, cell, offset)
        for u in (limit - 2, limit - 1, limit, limit + 1):
            if 0 <= u < 2**128:
                last = Scripted(little(u & 2**96 - 1, 12))
                assert stairs.accepts_exactly(cell, offset, u >> 96, last) is (u < limit)


@pytest.mark.slow
def test_the_whole_law_is_right_to_the_stated_total_variation() -> None:
    """Every size of the narrowest staircase: flat, wedge and the 128-digit threshold of each."""
    scale = Fraction(304)
    noise, stairs = rounded_gaussian(scale), staircase(scale)
    width = 1 << stairs.offset_bits
    weights = {0: Fraction(stairs.table.weights()[2 * stairs.cells])}
    for cell in range(stairs.cells):
        for offset in range(width):
            kept = Fraction(threshold(stairs, cell, offset), 2**128)
            weights[cell * width + offset + 1] = stairs.floors[cell] + stairs.rises[cell] * kept
    total = sum(weights.values())
    with mp.workprec(400):
        *masses, distance = exact_sizes(scale, noise.largest_size)
        for size, mass in enumerate(masses):
            share = weights[size] / total
            distance += abs(mp.mpf(share.numerator) / share.denominator - mass)
        assert distance / 2 <= mp.mpf(noise.variation.numerator) / noise.variation.denominator
    assert noise.variation < Fraction(1, 2**130)


def test_zero_a_redraw_and_wedges_are_settled() -> None:
    stairs = staircase(SCALES[1])
    zero, again, wedge = 2 * stairs.cells, 2 * stairs.cells + 1, stairs.cells + 150
    alone = int(
        np.flatnonzero(stairs.table.other_entries == np.arange(4096))[0]
    )  # fills its column
    assert alone < stairs.cells
    redrawn = (alone << stairs.offset_bits) + 1
    settled = stairs._draw_not_flat(
        np.array([zero, again, wedge, wedge], dtype=np.uint32),
        np.zeros(4, dtype=np.uint32),
        Scripted(little(0, 4) + little(2**32 - 1, 4), little(alone << 20 | 1, 4) * 2, bytes(2)),
    )
    assert settled.tolist() == [0, redrawn, (150 << stairs.offset_bits) + 1, redrawn]


def test_a_draw_settles_what_is_no_flat() -> None:
    stairs = staircase(SCALES[1])
    columns = np.flatnonzero(stairs.table.other_entries < stairs.cells)
    wedge = int(columns[columns >= stairs.cells][0])  # its own entry is a wedge
    word = stairs.table.thresholds[wedge] - 1 >> 108 | wedge << 20
    source = Scripted(little(word - 1, 4), bytes(1), little(0, 4))
    size = (wedge - stairs.cells << stairs.offset_bits) + 1
    assert stairs.draw(1, source).tolist() == [size]


def test_an_unclear_wedge_asks_for_96_more_digits() -> None:
    stairs = staircase(SCALES[2])
    cell, offset = 150, 300
    limit = threshold(stairs, cell, offset)
    cells, offsets = np.array([cell], dtype=np.uint32), np.array([offset], dtype=np.uint32)
    for u in (limit - 1, limit):
        source = Scripted(little(u >> 96, 4), little(u & 2**96 - 1, 12))
        assert stairs._accepts(cells, offsets, source).tolist() == [u < limit]
        assert source.pieces == []


@pytest.mark.parametrize("scale", SCALES, ids=float)
def test_sizes_follow_the_law(scale: Fraction) -> None:
    """Chi-square of 64 equal cells with a seed; a right sampler fails for one seed in 10^9."""
    stairs, count = staircase(scale), 200_000
    drawn = stairs.draw(count, Seeded(11))
    assert int(drawn.max()) <= stairs.largest_size
    edges = [int(float(scale) * x) for x in np.linspace(0.0, 4.0, 65)[1:]]
    seen = np.diff(np.searchsorted(np.sort(drawn), [0, *edges], side="right"))
    s = float(scale) * 2**0.5
    tails = [float(mp.erfc((edge + 0.5) / s)) for edge in [-0.5, *edges]]
    expected = -count * np.diff(tails)
    seen[0] += int((drawn == 0).sum())
    statistic = float(np.sum((seen - expected) ** 2 / expected))
    assert statistic < chi2.isf(1e-9, len(edges))


def test_low_digits_are_uniform_within_the_law() -> None:
    """The last 3 bits of sizes of a wide law; a right sampler fails for one seed in 10^9."""
    drawn = staircase(SCALES[3]).draw(200_000, Seeded(12))
    seen = np.bincount(drawn & 7, minlength=8)
    assert float(np.sum((seen - 25_000) ** 2 / 25_000)) < chi2.isf(1e-9, 7)


def test_the_law_is_that_of_the_scale_given() -> None:
    assert staircase(SCALES[0]).normal == RoundedNormal(Fraction(304))
