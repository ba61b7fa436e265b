"""Code that leaks is contradicted by the audit, each with a figure; honest code is not.

``make liars`` and ``make soak`` run all of them; here a handful.
"""

from __future__ import annotations

import json
import os

import pytest

from checkins.audit.machines.battery import BATTERY, judge
from tools import liars
from tools.liar_list import FROM_MUTANTS, LIARS, LIVE, NO_LEAK, Liar
from tools.mutant_list import MUTANTS

SOAK = os.environ.get("CHECKINS_SOAK") == "1"
QUICK = ("dummy-without-noise", "noise-redrawn-on-retry", "closed-slot-remembers", "clip-left-out")
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
}


def by_name(name: str) -> Liar:
    return next(liar for liar in LIARS if liar.name == name)


def test_every_planted_bug_of_the_tests_leaks_or_says_why_not() -> None:
    assert FROM_MUTANTS.keys() | NO_LEAK.keys() == {mutant.name for mutant in MUTANTS}
    assert not FROM_MUTANTS.keys() & NO_LEAK.keys()


def test_the_list_has_the_ways_to_lie_that_matter() -> None:
    assert {liar.name for liar in LIARS} >= ASKED
    assert len({liar.name for liar in (*LIARS, *LIVE)}) == len(LIARS) + len(LIVE)


def test_every_drill_finds_some_liar() -> None:
    assert {drill for liar in LIARS for drill in liar.drills} == BATTERY.keys()


def test_the_table_tells_of_every_liar_and_every_one_was_contradicted() -> None:
    saved = json.loads(liars.SAVED.read_text(encoding="utf-8"))
    rows = [liars.Row(**row) for row in saved["rows"]]
    told = {(row.liar, row.drill) for row in rows if row.liar != liars.HONEST}
    assert told == {(liar.name, drill) for liar in (*LIARS, *LIVE) for drill in liar.drills}
    assert {row.drill for row in rows if row.liar == liars.HONEST} == {row.drill for row in rows}
    assert all(row.as_it_should_be for row in rows)
    assert saved["no_leak"] == NO_LEAK
    assert "coin-skipped" in liars.table(saved)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_liar_is_contradicted(name: str) -> None:
    """Each of these separates the two halves nearly, so that missing it is beyond any chance."""
    drill = by_name(name).drills[0]
    (row,) = liars.audited(by_name(name), drills=[drill], runs=600)
    assert row.contradicted, row.line()


@pytest.mark.slow
@pytest.mark.parametrize("drill", sorted({by_name(name).drills[0] for name in QUICK}))
def test_honest_code_is_not_contradicted(drill: str) -> None:
    """A false alarm has a chance of at most 1e-10. Honest code is what this process imported."""
    found = judge(drill, runs=600, confidence=SURE)
    assert not found.contradicted, found


@pytest.mark.slow
def test_honest_code_is_not_contradicted_in_a_process_of_its_own() -> None:
    """As ``make liars`` does it, through a copy of the code without a bug."""
    (row,) = liars.audited(None, drills=["device"], runs=600, confidence=SURE)
    assert (row.liar, row.contradicted) == (liars.HONEST, False), row.line()


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="minutes: make soak, or make liars")
@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.name)
def test_every_liar_is_contradicted(liar: Liar) -> None:
    for row in liars.audited(liar):
        assert row.contradicted, row.line()
