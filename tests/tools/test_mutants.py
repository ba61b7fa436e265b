"""Every planted bug makes the tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import only_in_soak
from tools import mutants
from tools.mutant_list import MUTANTS
from tools.mutants import Change, Mutant, Stale, caught, plant

SLOTS = "tests/protocol/test_slot.py"


def test_the_list_is_long_and_every_name_is_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_noticed(mutant: Mutant) -> None:
    needs_flower = any(test.startswith(mutants.FLOWER_TESTS) for test in mutant.tests)
    if needs_flower and not mutants.FLOWER_PYTHON.exists():
        pytest.skip("there is no .venv-flower: run make flower")
    assert caught(mutant), f"{mutant.name} survived: {mutant.what}"


@pytest.mark.slow
@only_in_soak  # without a bug the suite itself runs them
def test_the_same_tests_pass_without_a_bug() -> None:
    every = sorted({test for mutant in MUTANTS for test in mutant.tests})
    done = mutants.run_tests(every, mutants.ROOT / "src")
    assert done.code == 0, done.output[-2000:]


@pytest.mark.slow
def test_a_bug_that_no_test_notices_survives() -> None:
    harmless = Change(
        "protocol/rules.py", "return first_open_slot + pick", "return pick + first_open_slot"
    )
    target = "tests/protocol/test_participant.py::test_a_client_keeps_to_its_own_window"
    assert caught(Mutant("harmless", "", (harmless,), (target,))) is None


@pytest.mark.slow
def test_a_test_that_is_gone_is_told() -> None:
    with pytest.raises(Stale, match=r"pytest ended with 4(.|\n)*test_that_is_gone"):
        caught(Mutant("aimless", "", (), (f"{SLOTS}::test_that_is_gone",)))


def test_planting_a_bug_changes_nothing_in_src(tmp_path: Path) -> None:
    """Files without a bug are links into src/; what is written beside a planted one stays away."""
    folder, text = mutants.ROOT / "src/checkins/protocol", "return first_open_slot + pick"
    names = {path.name for path in folder.glob("__pycache__/rules.*")}
    source = mutants.link_source(tmp_path, ["protocol/rules.py"])
    plant(Mutant("", "", (Change("protocol/rules.py", text, "BUG"),), ()), source / "checkins")
    planted = source / "checkins" / "protocol"
    (planted / "__pycache__").mkdir(exist_ok=True)
    (planted / "__pycache__" / "rules.bug.pyc").touch()
    assert "BUG" in (planted / "rules.py").read_text(encoding="utf-8")
    assert text in (folder / "rules.py").read_text(encoding="utf-8")
    assert names <= {path.name for path in folder.glob("__pycache__/rules.*")} - {"rules.bug.pyc"}
    assert (planted / "slot.py").samefile(folder / "slot.py")


def test_a_bug_whose_place_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "slot.py").write_text("nothing\n")
    gone = Mutant("gone", "", (Change("slot.py", "something", "else"),), ())
    with pytest.raises(Stale, match=r"stands 0 times in slot\.py"):
        plant(gone, tmp_path)
