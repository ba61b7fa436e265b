"""Columns hold exactly the law they were given, and words choose exactly by it."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chi2

from checkins.randomizers.exact_sampling import (
    COLUMNS,
    THRESHOLD_BITS,
    WHOLE,
    OperatingSystem,
    Thresholds,
    low_bits_of,
    words,
)
from tests.randomizers.sources import Scripted, Seeded, little

LAST_BITS = 108


@st.composite
def laws(draw: st.DrawFn) -> list[int]:
    """Any shares of WHOLE, most of them very unequal: below a column, around one, and above."""
    sizes = st.one_of(*(st.integers(0, most) for most in (WHOLE, 2**129, 2**128, 2**40)))
    cuts = draw(st.lists(sizes, max_size=40))
    edges = [0, *sorted(cuts), WHOLE]
    return [high - low for low, high in pairwise(edges)]


@given(laws())
def test_the_columns_give_back_the_law_to_the_last_digit(law: list[int]) -> None:
    found = Thresholds.of(law).weights()
    assert found[: len(law)] == law
    assert not any(found[len(law) :])


def test_a_full_table_is_laid_out_exactly() -> None:
    law = [(entry + 1) ** 5 for entry in range(COLUMNS)]
    law = [weight * (WHOLE // sum(law)) for weight in law]
    law[7] += WHOLE - sum(law)
    assert Thresholds.of(law).weights() == law


@pytest.mark.parametrize("law", [[WHOLE - 1], [WHOLE + 1, -1], [0] * COLUMNS + [WHOLE], []])
def test_weights_that_are_no_law_are_refused(law: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Thresholds.of(law)


@given(
    laws(),
    st.one_of(st.integers(0, 40), st.integers(0, COLUMNS - 1)),
    st.integers(0, 2**THRESHOLD_BITS - 1),
)
@example([2**128 - 1, WHOLE - 2**128 + 1], 0, 0)
def test_a_draw_is_one_comparison_of_128_digits(law: list[int], column: int, u: int) -> None:
    table = Thresholds.of(law)
    threshold, other = table.thresholds[column], int(table.others[column])
    for digits in {u, threshold, max(0, threshold - 1), min(threshold + 1, 2**128 - 1)}:
        word = column << 20 | digits >> LAST_BITS
        pieces = [little(word, 4)]
        if digits >> LAST_BITS == threshold >> LAST_BITS:
            pieces.append(little(digits & (1 << LAST_BITS) - 1, 14))
        source = Scripted(*pieces)
        assert table.draw(1, source).tolist() == [column if digits < threshold else other]
        assert source.pieces == []


def test_the_first_four_of_the_last_112_bits_are_not_used() -> None:
    table = Thresholds.of([5, WHOLE - 5])
    for junk in (0, 0xF):
        for last in (4, 5):
            source = Scripted(little(0, 4), little(junk << LAST_BITS | last, 14))
            assert table.draw(1, source).tolist() == [0 if last < 5 else 1]


def test_draws_follow_the_law() -> None:
    """Chi-square with a seed; a right sampler fails for one seed in 10^9."""
    law = [WHOLE // 2, WHOLE // 3, WHOLE // 700, WHOLE // 10]
    law.append(WHOLE - sum(law))
    count = 200_000
    seen = Counter(Thresholds.of(law).draw(count, Seeded(1)).tolist())
    expected = [count * weight / WHOLE for weight in law]
    statistic = sum((seen[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert sum(seen.values()) == count
    assert statistic < chi2.isf(1e-9, len(law) - 1)


def test_words_are_the_bytes_of_the_source() -> None:
    assert words(Scripted(bytes(range(8))), 2).tolist() == [0x03020100, 0x07060504]


@pytest.mark.parametrize(("bits", "size"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 4), (32, 4)])
def test_low_bits_are_the_first_bits_of_the_shortest_word(bits: int, size: int) -> None:
    drawn = low_bits_of(Scripted(little(2 ** (8 * size) - 1, size) + bytes(size)), 2, bits)
    assert drawn.dtype == np.uint32
    assert drawn.tolist() == [2**bits - 1, 0]


def test_the_operating_system_is_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\7" * count)
    assert OperatingSystem().bytes(3) == b"\7\7\7"
