"""Code that leaks is contradicted by the audit, each with a figure; correct code is not.

``make leaks`` and ``make soak`` run all of them; here a handful.
"""

from __future__ import annotations

import json

import pytest

from checkins.audit.leak_tests import LEAK_TESTS, run_leak_test
from tests.soak import SOAK
from tools import leak_mutants
from tools.leak_mutant_list import FROM_MUTANTS, LEAKS, LIVE, NO_LEAK, LeakMutant
from tools.mutant_list import MUTANTS

QUICK = (
    "dummy-without-noise",
    "noise-redrawn-on-retry",
    "closed-slot-remembers",
    "clip-left-out",
    "capacity-ignored",
    "dummies-of-one-category",
)
SURE = 1 - 1e-10
ASKED = {
    "leaked-slot",
    "noise-redrawn-on-retry",
    "dummy-without-noise",
    "coin-skipped",
    "replayed-slots",
    "clip-left-out",
    "half-the-noise",
    "float32-noise",
    "true-category-kept",
    "dummies-of-one-category",
    "capacity-ignored",
    "too-few-reports",
}


def by_name(name: str) -> LeakMutant:
    return next(leak for leak in LEAKS if leak.name == name)


def test_every_planted_bug_leaks_or_has_a_reason_why_not() -> None:
    assert FROM_MUTANTS.keys() | NO_LEAK.keys() == {mutant.name for mutant in MUTANTS}
    assert not FROM_MUTANTS.keys() & NO_LEAK.keys()


def test_the_list_has_the_leaks_that_matter() -> None:
    assert {leak.name for leak in LEAKS} >= ASKED
    assert len({leak.name for leak in (*LEAKS, *LIVE)}) == len(LEAKS) + len(LIVE)


def test_every_leak_test_finds_some_leak() -> None:
    assert {leak_test for leak in LEAKS for leak_test in leak.leak_tests} == LEAK_TESTS.keys()


def test_the_table_has_every_leak_and_each_was_contradicted() -> None:
    saved = json.loads(leak_mutants.SAVED.read_text(encoding="utf-8"))
    rows = [leak_mutants.Row(**row) for row in saved["rows"]]
    tested = {(row.leak, row.leak_test) for row in rows if row.leak != leak_mutants.CORRECT}
    assert tested == {
        (leak.name, leak_test) for leak in (*LEAKS, *LIVE) for leak_test in leak.leak_tests
    }
    assert {row.leak_test for row in rows if row.leak == leak_mutants.CORRECT} == {
        row.leak_test for row in rows
    }
    assert all(row.as_expected for row in rows)
    assert saved["no_leak"] == NO_LEAK
    assert "coin-skipped" in leak_mutants.table(saved)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_leaky_implementation_is_contradicted(name: str) -> None:
    """Each of these nearly separates the two halves: missing it is practically impossible."""
    leak_test = by_name(name).leak_tests[0]
    (row,) = leak_mutants.audited(by_name(name), leak_tests=[leak_test], runs=600)
    assert row.contradicted, row.line()


@pytest.mark.slow
@pytest.mark.parametrize("leak_test", sorted({by_name(name).leak_tests[0] for name in QUICK}))
def test_correct_code_is_not_contradicted(leak_test: str) -> None:
    """A false positive has probability at most 1e-10. Runs the imported code."""
    found = run_leak_test(leak_test, runs=400, confidence=SURE)
    assert not found.contradicted, found


@pytest.mark.slow
def test_correct_code_is_not_contradicted_in_a_process_of_its_own() -> None:
    """As ``make leaks`` does it, through a copy of the code without a bug."""
    (row,) = leak_mutants.audited(None, leak_tests=["device"], runs=200, confidence=SURE)
    assert (row.leak, row.contradicted) == (leak_mutants.CORRECT, False), row.line()


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="minutes: make soak, or make leaks")
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_every_leaky_implementation_is_contradicted(leak: LeakMutant) -> None:
    for row in leak_mutants.audited(leak):
        assert row.contradicted, row.line()
