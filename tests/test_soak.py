"""Every case that is left to ``make soak`` belongs to a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.soak import LEFT_TO_SOAK, ONE_IN_THREE

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("file", ONE_IN_THREE)
def test_every_test_of_which_one_case_in_three_runs_exists(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    for name in ONE_IN_THREE[file]:
        assert f"def {name}(" in text, name


@pytest.mark.parametrize("file", LEFT_TO_SOAK)
def test_every_case_that_is_left_to_the_soak_belongs_to_a_test(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    for end in LEFT_TO_SOAK[file]:
        name = end.partition("[")[0]
        assert re.search(rf"def test_\w*{name}\(|def {name}\(", text), end
