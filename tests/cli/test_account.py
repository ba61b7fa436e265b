"""`account` and `calibrate` say what the library says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from checkins.accounting import Adjacency, Design, LocalRandomizer, Protocol, certify

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PATIENTS = ROOT / "examples" / "patients.toml"
PURE = "--protocol fixed --slots 1000 --participation 1 --local-epsilon 1 --delta 1e-6"
SERVER = "--protocol fixed --slots 100 --participation 1 --noise-multiplier 1 --noise-at server"
KEYS = {
    "epsilon",
    "epsilon_lower",
    "delta",
    "adjacency",
    "unit",
    "method",
    "rounding",
    "campaigns",
    "assumptions",
    "alternatives",
    "seconds",
    "versions",
}


def answer(outcome) -> dict:
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    found = json.loads(outcome.out, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_json_is_the_certificate_of_the_library(checkins) -> None:
    found = answer(checkins(f"account {PURE} --adjacency add-remove --json"))
    design = Design(Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0))
    expected = certify(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE).as_dict()
    assert set(found) >= KEYS
    assert {**found, "seconds": 0} == {**json.loads(json.dumps(expected)), "seconds": 0}


@pytest.mark.parametrize(
    "options",
    [
        f"{PURE} --adjacency replace-one",
        f"{PURE} --adjacency add-remove --campaigns 3",
        f"{PURE} --adjacency replace-one --local-delta 1e-9",
        f"{PURE} --adjacency add-remove --capacity 5 --population 1e3..2e3",
        f"{SERVER} --delta 1e-6 --adjacency add-remove",
        f"{SERVER} --delta 1e-6 --adjacency add-remove --capacity all",
        f"{SERVER} --delta 1e-6 --adjacency replace-one --capacity 10",
        f"{SERVER} --delta 1e-6 --adjacency add-remove --bands 8 --strategy optimised",
        f"{SERVER.replace('server', 'client')} --delta 1e-6 --adjacency add-remove --capacity 1",
        f"{PURE.replace('fixed', 'sliding')} --window 50 --adjacency add-remove",
        f"{PURE.replace('fixed', 'sliding')} --window 50 --adjacency replace-one --wake-times any",
        f"{PURE.replace('fixed', 'averaged')} --population 5000..6000 --adjacency replace-one",
        "--protocol averaged --slots 9 --participation 1 --population 50 --noise-multiplier 2"
        " --noise-at client --least-reports 5 --delta 1e-6 --adjacency replace-one",
    ],
)
def test_every_kind_of_design_is_certified(checkins, options: str) -> None:
    found = answer(checkins(f"account {options} --json"))
    assert 0.0 <= found["epsilon_lower"] <= found["epsilon"] < math.inf
    assert found["method"]
    for other in found["alternatives"]:
        assert set(other) >= {"method", "epsilon", "note"}


def test_participation_0_has_epsilon_0(checkins) -> None:
    text = PURE.replace("--participation 1", "--participation 0")
    assert answer(checkins(f"account {text} --adjacency add-remove --json"))["epsilon"] == 0.0


def test_a_whole_number_may_be_written_as_1e3(checkins) -> None:
    one, other = (
        answer(checkins(f"account {text} --adjacency add-remove --json"))["epsilon"]
        for text in (PURE, PURE.replace("1000", "1e3"))
    )
    assert one == other


def test_the_guarantee_is_printed_first(checkins) -> None:
    outcome = checkins(f"account {PURE} --adjacency add-remove")
    first = outcome.out.splitlines()[0]
    assert first.startswith("epsilon <= 0.1267 at delta = 1e-06 (add-remove), proved by")
    for word in ("paper", "poisson", "another protocol", "Assumptions:", "Rounding:"):
        assert word in outcome.out


@pytest.mark.parametrize(
    "words",
    [
        f"account {PURE} --adjacency add-remove",
        f"account {SERVER} --delta 1e-6 --adjacency replace-one --campaigns 2",
        f"calibrate {PURE.replace('--slots 1000', '')} --adjacency add-remove"
        " --epsilon 0.1 --solve slots",
        "paper table1",
        "paper figure2",
        "paper theorems",
        "--help",
        "account --help",
        "paper theorems --help",
    ],
)
def test_output_fits_80_columns(checkins, words: str) -> None:
    outcome = checkins(words)
    assert outcome.code == 0, outcome.err
    assert max(len(line) for line in outcome.out.splitlines()) <= 80
    assert all(line == line.rstrip() for line in outcome.out.splitlines())
    assert "\x1b" not in outcome.out


def test_the_example_keeps_its_budget(checkins) -> None:
    found = answer(checkins("account", str(PATIENTS), "--json"))
    assert found["epsilon"] <= 0.5
    shown = " ".join(checkins("account", str(PATIENTS)).out.split())
    assert "The campaign is within the budget of" in shown


def test_a_file_and_the_same_options_cost_the_same(checkins) -> None:
    by_file = answer(checkins("account", str(PATIENTS), "--json"))
    by_options = answer(
        checkins(
            "account --protocol fixed --slots 200 --participation 1 --capacity 176"
            " --population 15000..20000 --noise-multiplier 0.1 --noise-at client"
            " --delta 1e-6 --adjacency add-remove --json"
        )
    )
    # the file names a grid, and its charge takes the last bit of delta
    assert by_file["epsilon"] == pytest.approx(by_options["epsilon"], rel=1e-12)


def written(tmp_path: Path, name: str, **changes: str) -> str:
    """A small pure campaign file, with some values changed."""
    values = {
        "delta": "1e-6",
        "adjacency": '"add-remove"',
        "slots": "100",
        "repeats": "1",
    } | changes
    path = tmp_path / name
    path.write_text(
        "schema = 1\n"
        f"[budget]\nepsilon = 1\ndelta = {values['delta']}\nadjacency = {values['adjacency']}\n"
        f'[protocol]\nkind = "{values.get("kind", "fixed")}"\nslots = {values["slots"]}\n'
        f"participation = 1\nrepeats = {values['repeats']}\n"
        '[randomizer]\nkind = "laplace"\nlocal_epsilon = 1.0\n'
    )
    return str(path)


def test_several_files_are_composed(checkins, tmp_path: Path) -> None:
    a, b = written(tmp_path, "a.toml"), written(tmp_path, "b.toml", slots="400")
    alone = [answer(checkins("account", path, "--json"))["epsilon"] for path in (a, b)]
    both = answer(checkins("account", a, b, "--json"))["epsilon"]
    assert max(alone) < both < sum(alone)


def test_repeats_are_campaigns(checkins, tmp_path: Path) -> None:
    thrice = written(tmp_path, "thrice.toml", repeats="3")
    found = answer(checkins("account", thrice, "--json"))
    assert found["campaigns"] == 3
    once = written(tmp_path, "once.toml")
    listed = answer(checkins("account", once, once, once, "--json"))
    assert found["epsilon"] == pytest.approx(listed["epsilon"], rel=1e-3)


def test_a_list_must_agree_on_its_terms(checkins, tmp_path: Path) -> None:
    a = written(tmp_path, "a.toml")
    for changes in ({"delta": "1e-5"}, {"adjacency": '"replace-one"'}):
        outcome = checkins("account", a, written(tmp_path, "b.toml", **changes))
        assert outcome.code == 2
        assert "b.toml:" in outcome.err
        assert "so that one epsilon covers both" in outcome.err


def test_a_list_that_is_too_long_is_refused(checkins, tmp_path: Path) -> None:
    a = written(tmp_path, "a.toml", repeats="3")
    b = written(tmp_path, "b.toml", repeats="100000", slots="400")
    outcome = checkins("account", a, b)
    assert outcome.code == 2
    assert "[protocol] repeats = 100000: makes a list of 100,003 campaigns" in outcome.err


def test_a_file_does_not_go_with_options(checkins, tmp_path: Path) -> None:
    outcome = checkins("account", written(tmp_path, "a.toml"), "--slots", "5")
    assert outcome.code == 2
    assert outcome.err.startswith("checkins: --slots 5: cannot be combined with ")


def test_what_the_accountant_refuses_is_told_by_its_line(checkins, tmp_path: Path) -> None:
    path = written(tmp_path, "a.toml", kind="averaged")
    outcome = checkins("account", path)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert f"{path}:2: [budget] population: " in outcome.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--bands 8", "--bands 8: needs --strategy, which is missing"),
        ("--strategy optimised", "--strategy optimised: needs --bands, which is missing"),
        ("--bands 8 --strategy best", "--strategy best: must be square-root, optimised or a file"),
        ("--bands 0 --strategy optimised", "--bands 0: must be an integer from 1 to 1,024"),
        ("--bands 3 --strategy FILE", "--bands 3: must be 2, as in "),
    ],
)
def test_correlated_noise_has_no_default(
    checkins, tmp_path: Path, options: str, problem: str
) -> None:
    path = tmp_path / "strategy.json"
    path.write_text('{"bits": 2, "numerators": [3, 2]}', encoding="utf-8")
    same = f"account {SERVER} --delta 1e-6 --adjacency add-remove"
    outcome = checkins(*f"{same} {options}".replace("FILE", str(path)).split())
    assert outcome.code == 2
    assert problem in outcome.err
    found = answer(checkins(*f"{same} --bands 2 --strategy {path} --json".split()))
    assert any("correlated" in line for line in found["assumptions"])
    client = f"{same.replace('server', 'client')} --capacity 1 --bands 2 --strategy {path}"
    assert "needs --noise-at server" in checkins(*client.split()).err


def test_the_optimised_strategy_is_not_known_while_slots_are_solved_for(checkins) -> None:
    options = "--protocol fixed --participation 1 --noise-multiplier 1 --noise-at server"
    guarantee = "--delta 1e-6 --adjacency add-remove --epsilon 0.5 --solve slots"
    outcome = checkins(f"calibrate {options} {guarantee} --bands 4 --strategy optimised")
    assert outcome.code == 2
    assert "depends on the number of slots" in outcome.err
    found = answer(
        checkins(f"calibrate {options} {guarantee} --bands 4 --strategy square-root --json")
    )
    assert found["epsilon"] <= 0.5


@pytest.mark.parametrize(
    ("options", "solve"),
    [
        ("--slots 1000 --participation 1", "local-epsilon"),
        ("--participation 1 --local-epsilon 1", "slots"),
        ("--slots 1000 --local-epsilon 1", "participation"),
        ("--slots 1000 --participation 1 --noise-at server", "noise-multiplier"),
        ("--slots 1000 --participation 1 --noise-at client --capacity 4", "noise-multiplier"),
        ("--slots 1000 --participation 1 --noise-at client --noise-multiplier 1", "capacity"),
    ],
)
def test_what_is_solved_for_meets_the_target(checkins, options: str, solve: str) -> None:
    same = f"--protocol fixed {options} --delta 1e-6 --adjacency add-remove --json"
    found = answer(checkins(f"calibrate {same} --epsilon 0.05 --solve {solve}"))
    assert found["parameter"] == solve
    assert found["epsilon"] <= 0.05
    again = answer(checkins(f"account {same} --{solve} {found['value']!r}"))
    assert again["epsilon"] <= 0.05
