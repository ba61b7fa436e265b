"""Every planted bug makes the tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import mutants
from tools.mutant_list import MUTANTS
from tools.mutants import Change, Mutant, Stale, caught, plant

pytestmark = pytest.mark.slow


def test_the_list_is_long_and_every_name_is_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_noticed(mutant: Mutant) -> None:
    assert caught(mutant), f"{mutant.name} survived: {mutant.what}"


def test_the_same_tests_pass_without_a_bug(tmp_path: Path) -> None:
    every = sorted({test for mutant in MUTANTS for test in mutant.tests})
    done = mutants.run_tests(every, mutants.ROOT / "src")
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_bug_whose_place_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "slot.py").write_text("nothing\n")
    gone = Mutant("gone", "", (Change("slot.py", "something", "else"),), ())
    with pytest.raises(Stale, match=r"stands 0 times in slot\.py"):
        plant(gone, tmp_path)
