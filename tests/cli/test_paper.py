"""`paper` prints the paper's results, draws them, and gives the numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("what", ["table1", "figure2", "theorems"])
def test_a_picture_is_saved_where_it_says(checkins, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "new" / "folder"
    outcome = checkins("paper", what, "--out", str(folder))
    assert outcome.code == 0, outcome.err
    picture = folder / f"{what}.png"
    assert outcome.out.splitlines()[-1] == f"Picture: {picture}"
    content = picture.read_bytes()
    assert content.startswith(PNG)
    assert content.endswith(b"IEND\xaeB`\x82")
    assert len(content) > 10_000


def test_table_1_has_the_five_sources(checkins) -> None:
    outcome = checkins("paper table1 --json")
    found = json.loads(outcome.out)
    assert [row["source"] for row in found["rows"]] == [
        "none",
        "uniform subsampling",
        "shuffling, earlier",
        "shuffling, this paper",
        "random check-ins, fixed window",
    ]
    assert found["rows"][0]["epsilon"] == found["setting"]["local_epsilon"] == 2.0
    assert found["picture"] is None


def test_figure_2_has_four_populations(checkins) -> None:
    found = json.loads(checkins("paper figure2 --json").out)
    assert [curve["clients"] for curve in found["curves"]] == [10**3, 10**4, 10**5, 10**6]
    for curve in found["curves"]:
        assert len(curve["local_epsilon"]) == len(curve["this_paper"]) == len(curve["earlier"])


def test_the_sheet_has_every_statement(checkins) -> None:
    found = json.loads(checkins("paper theorems --json").out)
    assert {row["id"] for row in found["rows"]} == {f"A{number}" for number in range(1, 12)}
    shown = checkins("paper theorems").out
    for row in found["rows"]:
        assert row["statement"] in shown
        assert (row["value"] is None) == (row["refusal"] is not None)


def test_a_setting_can_be_changed(checkins) -> None:
    found = json.loads(checkins("paper theorems --clients 5e3 --participation 0 --json").out)
    assert found["setting"]["clients"] == 5000
    assert found["setting"]["participation"] == 0.0
