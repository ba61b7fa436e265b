"""The tutorial shows the output of its commands; a changed command is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import only_in_soak
from tools import tutorial

TEXT = tutorial.PAGE.read_text(encoding="utf-8")


def test_every_command_of_the_tutorial_has_the_output_of_a_run() -> None:
    assert len(list(tutorial.STEP.finditer(TEXT))) == TEXT.count("<!-- kept")
    assert tutorial.changed(TEXT) == []


def test_a_changed_command_is_noticed() -> None:
    assert tutorial.changed(TEXT.replace("--seeds 1 --out", "--seeds 2 --out", 1)) == [
        "checkins simulate campaign.toml --clients 2000 --seeds 2 --out simulated"
    ]


def test_a_missing_picture_is_noticed() -> None:
    lost = TEXT.replace("(take-part.png)", "(lost.png)")
    assert tutorial.changed(lost) == ["http://127.0.0.1:8470/take-part"]


def test_the_page_contains_no_token_and_no_folder_of_the_story() -> None:
    assert "service stops: ..." in TEXT
    assert "/tmp/" not in TEXT


@only_in_soak
def test_the_story_can_be_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(tutorial, "PAGE", tmp_path / "docs" / "tutorial.md")  # where pictures go
    told = tutorial.tell(TEXT, tmp_path)
    assert tutorial.changed(told) == []
    assert "Consistent: epsilon is at least" in told
    assert "The ledger is intact: 22 entries." in told
