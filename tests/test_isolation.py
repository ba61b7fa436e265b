"""Tests share no working directory, and do not depend on how whoever started them takes Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES: list[Path] = []


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_begins_in_an_empty_folder_of_its_own(turn: int) -> None:
    here = Path.cwd()
    assert os.listdir(here) == []
    assert not here.is_relative_to(ROOT)
    assert here not in PLACES
    PLACES.append(here)
    Path("campaign.toml").write_text("left behind", encoding="utf-8")


@pytest.fixture(scope="module")
def place_of_a_module_fixture() -> Path:
    return Path.cwd()


def test_what_a_module_shares_is_made_elsewhere_too(place_of_a_module_fixture: Path) -> None:
    assert not place_of_a_module_fixture.is_relative_to(ROOT)


def test_the_files_that_are_run_first_or_split_exist(pytestconfig: pytest.Config) -> None:
    plugins = pytestconfig.pluginmanager.get_plugins()
    [conftest] = [plugin for plugin in plugins if hasattr(plugin, "WAITING")]
    for file in (*conftest.WAITING, *conftest.SPLIT):
        assert (ROOT / file).is_file(), file
