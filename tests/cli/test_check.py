"""`check` says whether a file is a campaign, what it costs, and whether it keeps its budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkins.protocol.campaign.file import parse_campaign
from checkins.protocol.campaign.templates import Template, template_text

ROOT = Path(__file__).resolve().parents[2]
PATIENTS = ROOT / "examples" / "patients.toml"
SYNTHETIC = template_text(Template.SYNTHETIC)
KEYS = {
    "name",
    "seal",
    "within_budget",
    "affordable_slots",
    "slots",
    "budget",
    "certificate",
    "spending",
    "rounding",
    "missing",
}


def written(tmp_path: Path, text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def answer(outcome, code: int = 0) -> dict:
    assert outcome.code == code, outcome.err
    return json.loads(outcome.out, parse_constant=lambda word: 1 / 0)


@pytest.mark.slow
@pytest.mark.parametrize("template", Template)
def test_every_template_keeps_its_budget_as_it_stands(
    checkins, tmp_path: Path, template: Template
) -> None:
    path = written(tmp_path, template_text(template))
    outcome = checkins("check", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert " is kept." in " ".join(outcome.out.split())


@pytest.mark.slow
def test_the_example_is_shown_in_80_columns_with_its_seal_and_spending(
    checkins, monkeypatch
) -> None:
    monkeypatch.chdir(ROOT)
    outcome = checkins("check examples/patients.toml")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(len(line) for line in outcome.out.splitlines()) <= 80
    assert all(line == line.rstrip() for line in outcome.out.splitlines())
    assert f"Seal: {parse_campaign(PATIENTS.read_text()).campaign.seal}\n" in outcome.out
    words = " ".join(outcome.out.split())
    assert "A slot chooses up to 176 of its check-ins uniformly" in words
    assert "Spent along the way (delta = 1e-06, add-remove; epsilon rounded up):" in words
    assert "The budget, epsilon = 0.5 at delta = 1e-06 (add-remove), is kept." in words
    for slots in (1, 50, 100, 150, 200):
        assert any(line.split()[:1] == [str(slots)] for line in outcome.out.splitlines())


def test_json_has_the_certificate_and_what_is_spent(checkins, tmp_path: Path) -> None:
    found = answer(checkins("check", written(tmp_path, SYNTHETIC), "--json"))
    assert set(found) == KEYS
    assert found["name"] == "synthetic"
    assert found["seal"] == parse_campaign(SYNTHETIC).campaign.seal
    assert found["budget"] == {"epsilon": 0.5, "delta": 1e-6, "adjacency": "replace-one"}
    assert (found["within_budget"], found["affordable_slots"], found["slots"]) == (True, 1000, 1000)
    assert [point["slots"] for point in found["spending"]] == [1, 250, 500, 750, 1000]
    prices = [point["epsilon"] for point in found["spending"]]
    assert prices == sorted(prices)
    assert prices[-1] == found["certificate"]["epsilon"]
    assert found["missing"] == []


def test_account_names_the_same_price(checkins, tmp_path: Path) -> None:
    path = written(tmp_path, SYNTHETIC)
    checked = answer(checkins("check", path, "--json"))["certificate"]
    accounted = answer(checkins("account", path, "--json"))
    assert {**accounted, "seconds": 0} == {**checked, "seconds": 0}


def test_a_budget_that_is_exceeded_is_exit_1_and_says_where_it_would_stop(
    checkins, tmp_path: Path
) -> None:
    path = written(tmp_path, SYNTHETIC, ("epsilon = 0.5 ", "epsilon = 0.1 "))
    outcome = checkins("check", path)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"checkins: {path}:11: [budget] epsilon = 0.1: is exceeded: ")
    assert "costs 0.3971 (delta = 1e-06, replace-one) and would stop after" in outcome.err
    assert "of 1,000 slots; local_epsilon = " in outcome.err
    assert "is kept" not in outcome.out
    found = answer(checkins("check", path, "--json"), code=1)
    assert not found["within_budget"]
    assert 0 < found["affordable_slots"] < 1000
    assert f"stop after {found['affordable_slots']} of" in outcome.err
    hint = outcome.err.split("local_epsilon = ")[1].split()[0]
    mended = written(
        tmp_path,
        SYNTHETIC,
        ("epsilon = 0.5 ", "epsilon = 0.1 "),
        ("local_epsilon = 2.0", f"local_epsilon = {hint}"),
    )
    assert checkins("check", mended).code == 0


@pytest.mark.slow
def test_repeats_stop_in_the_middle_of_a_run(checkins, tmp_path: Path) -> None:
    path = written(tmp_path, SYNTHETIC, ("repeats = 1 ", "repeats = 3 "))
    found = answer(checkins("check", path, "--json"), code=1)
    assert found["slots"] == 3000
    assert 1000 < found["affordable_slots"] < 2000
    assert found["certificate"]["campaigns"] == 3


def test_what_is_missing_is_named(checkins, tmp_path: Path) -> None:
    text = SYNTHETIC[: SYNTHETIC.index("[task]")].replace("grid = 1e-5", "# grid = 1e-5")
    path = written(tmp_path, text)
    assert answer(checkins("check", path, "--json"))["missing"] == [
        "[randomizer] grid",
        "[task]",
        "[schedule]",
    ]
    outcome = checkins("check", path)
    assert outcome.code == 0
    shown = " ".join(outcome.out.split())
    assert "Missing before clients can join: - [randomizer] grid: on devices" in shown
    assert "can only be simulated" in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slots = 1000", "slots = 0", "[protocol] slots = 0: must be a whole number"),
        ("rate = 0.5", "rate = 0", "[task] optimizer.rate = 0: must be a finite number above 0"),
        ("00:00:00Z", "00:00:00", "[schedule] start = 2030-01-01T00:00:00: must say its offset"),
        ("grid = 1e-5", "grid = 1e-9", "[randomizer] grid = 1e-09: must be at least"),
        (
            '"laplace"',
            '"privunit"',
            '[randomizer] grid = 1e-05: does not go with kind = "privunit"',
        ),
    ],
)
def test_what_is_no_campaign_is_exit_2_with_its_line(
    checkins, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = written(tmp_path, SYNTHETIC, (old, new))
    outcome = checkins("check", path, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"checkins: {path}:")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_file_that_is_not_there_is_named(checkins, tmp_path: Path) -> None:
    outcome = checkins("check", str(tmp_path / "none.toml"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "none.toml: cannot be read: No such file or directory" in outcome.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((), "chooses one of its check-ins uniformly, takes its report (clipped to L1 norm 1"),
        ((("capacity = 1 ", "capacity = 5 "),), "chooses up to 5 of its check-ins uniformly"),
        (
            (('kind = "fixed"', 'kind = "sliding"\nwindow = 500'),),
            "draws one of its next 500 slots, of 1,000. A slot",
        ),
        ((("participation = 1.0", "participation = 0.5"),), "slots, with probability 0.5. A slot"),
        (
            (
                ('kind = "fixed"', 'kind = "averaged"'),
                ("capacity = 1 ", ""),
                ("[protocol]", "population = [5000, 9000]\n[protocol]"),
            ),
            "A slot averages all its reports (clipped to L1 norm 1, 2-DP by Laplace noise)",
        ),
    ],
)
def test_one_slot_is_told_in_words(checkins, tmp_path: Path, changes, words: str) -> None:
    outcome = checkins("check", written(tmp_path, SYNTHETIC, *changes))
    assert words in " ".join(outcome.out.split())
