"""`paper` prints the paper's results, draws them, and gives the numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkins.simulation import utility_sweep

PNG = b"\x89PNG\r\n\x1a\n"
SHORT = ("--slots", "256", "--seeds", "10")


@pytest.mark.parametrize("what", ["table1", "figure2", "theorems"])
def test_a_picture_is_saved_where_it_says(checkins, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "new" / "folder"
    outcome = checkins("paper", what, "--out", str(folder))
    assert outcome.code == 0, outcome.err
    picture = folder / f"{what}.png"
    assert outcome.out.splitlines()[-1] == f"Plot: {picture}"
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


def test_utility_is_measured_printed_and_plotted(checkins, tmp_path: Path) -> None:
    outcome = checkins("paper", "utility", *SHORT, "--out", str(tmp_path))
    assert (outcome.code, outcome.err) == (0, "")
    *told, picture = outcome.out.splitlines()
    assert picture == f"Plot: {tmp_path / 'utility.png'}"
    assert all(len(line) <= 80 for line in told)
    assert "measured risks are below their bounds" in outcome.out
    for word in ("absolute", "squared", "logistic", "fixed", "averaged", "smooth", "epsilon"):
        assert word in outcome.out
    content = (tmp_path / "utility.png").read_bytes()
    assert content.startswith(PNG)
    assert content.endswith(b"IEND\xaeB`\x82")
    assert len(content) > 50_000


def test_the_numbers_of_utility_are_one_object(checkins) -> None:
    found = json.loads(checkins("paper", "utility", *SHORT, "--json").out)
    assert found["setting"] == {"slots": 256, "seeds": 10}
    assert found["holds"] is True
    assert found["picture"] is None
    for row in found["measured"]:
        assert 0.0 < row["risk"] < row["upper"] <= row["bound"] <= row["paper_bound"]
        assert row["share"] == pytest.approx(row["upper"] / row["bound"])
    assert found["largest_share_of_bound"] == max(row["share"] for row in found["measured"])
    telling = [row for row in found["measured"] if row["bound"] < row["worst_model_risk"]]
    assert found["bounds_below_worst_model"] == len(telling)
    assert {row["protocol"] for row in found["slopes"]} == {"fixed", "averaged", "averaged-smooth"}
    for pair in found["comparisons"]:
        assert pair["ratio"] == pytest.approx(pair["averaged"]["risk"] / pair["fixed"]["risk"])


def test_a_measurement_above_its_bound_fails_the_command(checkins, monkeypatch) -> None:
    def spoiled(**asked):
        honest = sweep(**asked)
        why, one = honest.variations[0]
        worse = replace(one, risk=2.0 * one.trial.bound)
        return replace(honest, variations=((why, worse), *honest.variations[1:]))

    sweep = utility_sweep.sweep
    monkeypatch.setattr(utility_sweep, "sweep", spoiled)
    outcome = checkins("paper", "utility", *SHORT)
    assert outcome.code == 1
    assert "1 of 127 measured risks are NOT below their bounds" in outcome.out
    outcome = checkins("paper", "utility", *SHORT, "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["holds"] is False


@pytest.mark.parametrize("wrong", ["--seeds 9", "--seeds 1e9", "--slots 255", "--slots x"])
def test_utility_refuses_what_it_cannot_measure(checkins, wrong: str) -> None:
    outcome = checkins(f"paper utility {wrong}")
    assert outcome.code == 2
    assert outcome.err.startswith(f"checkins: {wrong}: must be an integer from")
    assert outcome.err.count("\n") == 1
