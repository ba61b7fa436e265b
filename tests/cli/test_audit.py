"""`audit` attacks a campaign: what it prints, and what it ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import checkins.audit as audit_module

TEXT = """
schema = 1
name = "small"
[budget]
epsilon = 5.0
delta = 1e-3
adjacency = "add-remove"
[protocol]
kind = "fixed"
slots = 5
participation = 1.0
capacity = 1
repeats = 1
[randomizer]
kind = "laplace"
local_epsilon = 2.0
clip = 1.0
grid = 1e-3
"""
KEYS = {
    "epsilon_certified",
    "epsilon_lower",
    "epsilon_lower_of",
    "epsilon_exact",
    "epsilon_measured_lower",
    "confidence",
    "verdict",
    "delta",
    "adjacency",
    "method",
    "certificate_method",
    "rounding",
    "trials",
    "trials_needed",
    "trials_needed_for",
    "canary",
    "statistic",
    "deltas",
    "views",
    "machines",
    "notes",
    "seed",
    "simulated",
    "name",
    "seal",
    "seconds",
}


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "c.toml"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def answer(outcome, code: int = 0) -> dict:
    assert outcome.code == code, outcome.err
    return json.loads(outcome.out, parse_constant=lambda word: 1 / 0)


def test_the_answer_holds_what_is_promised(checkins, small: str) -> None:
    found = answer(checkins("audit", small, "--trials", "20000", "--json"))
    assert set(found) == KEYS
    assert found["verdict"] == "consistent"
    assert 0.5 < found["epsilon_measured_lower"] <= found["epsilon_certified"]
    assert [row["delta"] for row in found["deltas"]] == [1e-3, 1e-2]
    assert [view["canary"] for view in found["views"]] == ["own laplace", "own displacing"]
    assert all(view["trials"] == 20_000 for view in found["views"])


def test_the_text_has_a_verdict_and_tables(checkins, small: str) -> None:
    outcome = checkins("audit", small, "--trials", "20000")
    assert outcome.code == 0
    assert "Consistent: epsilon is at least" in outcome.out
    assert "own laplace" in outcome.out
    assert "of the proved lower bound" in outcome.out
    assert "confidence 0.9999" in outcome.out


def test_the_same_seed_prints_the_same(checkins, small: str) -> None:
    first, second, other = (
        answer(checkins("audit", small, "--trials", "5000", "--seed", seed, "--json"))["views"]
        for seed in ("3", "3", "4")
    )
    for views in (first, second, other):
        for view in views:
            del view["seconds"]
    assert first == second != other


def test_deltas_and_confidence_are_taken(checkins, small: str) -> None:
    found = answer(
        checkins(
            *("audit", small, "--trials", "3000", "--json", "--confidence", "0.99"),
            *("--delta", "0.05", "--delta", "1e-4", "--canary", "worst-case"),
        )
    )
    assert found["confidence"] == 0.99
    assert found["delta"] == 0.05
    assert [row["delta"] for row in found["deltas"]] == [0.05, 1e-4]


def test_a_picture_and_the_answer_are_saved(checkins, small: str, tmp_path: Path) -> None:
    out = tmp_path / "out" / "deep"
    outcome = checkins("audit", small, "--trials", "2000", "--out", str(out))
    assert outcome.code == 0
    assert str(out) in outcome.out
    assert (out / "trade-off.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "audit.json").read_text())["name"] == "small"


def test_one_run_is_asked_for_by_name(checkins, small: str) -> None:
    found = answer(checkins("audit", small, "--one-run", "--json"))
    assert found["trials"] == 1
    assert "SNJ23" in found["method"]
    assert found["views"][0]["best"]["canaries"] >= 10
    said = " ".join(checkins("audit", small, "--one-run").out.split())
    assert "are right" in said
    assert "Without --one-run" in said


def test_a_contradicted_certificate_is_exit_1(
    checkins, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the accountant were wrong by a factor of four."""
    from dataclasses import replace

    honest = audit_module.certificate_at.__wrapped__

    def boastful(campaign, delta):
        certificate = honest(campaign, delta)
        return replace(certificate, epsilon=certificate.epsilon / 4, epsilon_lower=0.0)

    monkeypatch.setattr(audit_module, "certificate_at", boastful)
    found = checkins("audit", small, "--trials", "20000", "--json")
    assert answer(found, 1)["verdict"] == "contradicted"
    assert "but at least" in found.err
    assert "Traceback" not in found.err
    people = checkins("audit", small, "--trials", "20000")
    assert people.code == 1
    assert "Contradicted" in people.out


@pytest.mark.slow
def test_the_machines_play_the_campaign_made_small(checkins, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    task = (
        '[task]\ndata = "synthetic"\nmodel = "logistic"\noptimizer = { kind = "sgd", rate = 1 }\n'
    )
    path.write_text(TEXT + task, encoding="utf-8")
    words = ("audit", str(path), "--canary", "worst-case", "--trials", "100", "--json")
    both = answer(checkins(*words, "--engine", "both"))
    assert both["machines"]["verdict"] == "consistent"
    assert len(both["views"]) == 2
    alone = answer(checkins(*words, "--engine", "machines"))
    assert alone["views"] == []
    assert alone["machines"]["views"][0]["engine"] == "machines"


def test_a_campaign_that_no_machine_runs_says_so(checkins, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    text = TEXT.replace('kind = "laplace"', 'kind = "privunit"').replace("grid = 1e-3\n", "")
    path.write_text(text, encoding="utf-8")
    outcome = checkins("audit", str(path), "--engine", "machines", "--trials", "10")
    assert outcome.code == 2
    assert "cannot run on a device" in outcome.err
    found = answer(checkins("audit", str(path), "--engine", "both", "--trials", "100", "--json"))
    assert found["machines"] is None
    assert "machines are skipped" in found["notes"][0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--trials", "0"], "--trials 0: must be an integer"),
        (["--trials", "2.5"], "--trials 2.5"),
        (["--seconds", "-1"], "--seconds -1"),
        (["--confidence", "1"], "--confidence 1"),
        (["--delta", "0"], "--delta 0"),
        (["--canary", "bird"], "--canary bird: must be worst-case, data or all"),
        (["--engine", "steam"], "--engine steam: must be compiled, machines or both"),
        (["--seed", "x"], "--seed x"),
        (["--one-run", "--trials", "5"], "cannot be combined with --one-run"),
        (["--one-run", "--canary", "all"], "cannot be combined with --one-run"),
        (["--canary", "data"], "task"),
        (["--seed", "1", "--seed", "2"], "more than once"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_refused_by_name(checkins, small: str, words: list[str], told: str) -> None:
    outcome = checkins("audit", small, *words)
    assert outcome.code == 2
    assert told in outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


def test_a_file_that_is_no_campaign_is_refused(checkins, tmp_path: Path) -> None:
    assert checkins("audit", str(tmp_path / "none.toml")).code == 2


def test_a_place_that_cannot_be_written_is_refused_first(
    checkins, small: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    outcome = checkins("audit", small, "--out", str(tmp_path / "file" / "x"))
    assert outcome.code == 2
    assert "cannot be written" in outcome.err


def test_a_folder_is_made_only_when_there_is_something_to_write(
    checkins, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "deep" / "out"
    assert checkins("audit", str(tmp_path / "none.toml"), "--out", str(out)).code == 2
    assert checkins("audit", small, "--canary", "data", "--out", str(out)).code == 2

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("checkins.audit.audit_campaign", interrupted)
    assert checkins("audit", small, "--out", str(out)).code == 130
    assert sorted(tmp_path.iterdir()) == [Path(small)]


@pytest.mark.slow
def test_the_example_is_audited(checkins) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "patients.toml"
    words = ("--canary", "worst-case", "--trials", "2000", "--json")
    found = answer(checkins("audit", str(example), *words))
    assert found["verdict"] == "consistent"
    assert found["trials_needed"] > 10**5
