"""`check` says whether a file is a campaign, what it costs, and whether it keeps its budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkins.accounting import Adjacency
from checkins.campaign import campaign_text, parse_campaign
from checkins.campaign.file import Template, template_text
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import certify_runs
from checkins.cli.commands import check as check_command
from tests.ledger.ledgers import Book, campaign

ROOT = Path(__file__).resolve().parents[2]
PATIENTS = ROOT / "examples" / "patients.toml"
SYNTHETIC = template_text(Template.SYNTHETIC).replace("capacity = 10 ", "capacity = 1  ")
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


NEXT = campaign(slots=200, local_epsilon=0.5, epsilon=1.4, name="next")


def kept(tmp_path: Path, book: Book) -> str:
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(book.lines))
    return str(tmp_path)


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
    assert "is within its budget" in " ".join(outcome.out.split())


@pytest.mark.slow
def test_the_example_is_shown_in_80_columns_with_its_seal_and_spending(
    checkins, monkeypatch
) -> None:
    monkeypatch.chdir(ROOT)
    outcome = checkins("check examples/patients.toml")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(len(line) for line in outcome.out.splitlines()) <= 80
    assert all(line == line.rstrip() for line in outcome.out.splitlines())
    assert (
        f"Seal (hash of the parameters):\n{parse_campaign(PATIENTS.read_text()).campaign.seal}\n"
        in outcome.out
    )
    words = " ".join(outcome.out.split())
    assert "In each slot, the server chooses up to 176 check-ins uniformly at random" in words
    assert "Epsilon by number of completed slots (delta = 1e-06, add-remove; rounded up):" in words
    assert (
        "The campaign is within its budget, epsilon = 0.5 at delta = 1e-06 (add-remove)." in words
    )
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
    epsilons = [point["epsilon"] for point in found["spending"]]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == found["certificate"]["epsilon"]
    assert found["missing"] == []


def test_account_computes_the_same_certificate(checkins, tmp_path: Path) -> None:
    path = written(tmp_path, SYNTHETIC)
    checked = answer(checkins("check", path, "--json"))["certificate"]
    accounted = answer(checkins("account", path, "--json"))
    assert {**accounted, "seconds": 0} == {**checked, "seconds": 0}


def test_a_budget_that_is_exceeded_is_exit_1_and_says_where_it_would_stop(
    checkins, tmp_path: Path
) -> None:
    path = written(tmp_path, SYNTHETIC, ("epsilon = 0.5 ", "epsilon = 0.05 "))
    outcome = checkins("check", path)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"checkins: {path}:11: [budget] epsilon = 0.05: is exceeded: ")
    assert (
        "epsilon <= 0.2063 (delta = 1e-06, replace-one); the campaign would stop after"
        in outcome.err
    )
    assert "of 1,000 slots; with local_epsilon = " in outcome.err
    assert "is within its budget" not in outcome.out
    found = answer(checkins("check", path, "--json"), code=1)
    assert not found["within_budget"]
    assert 0 < found["affordable_slots"] < 1000
    assert f"stop after {found['affordable_slots']} of" in outcome.err
    hint = outcome.err.split("local_epsilon = ")[1].split()[0]
    mended = written(
        tmp_path,
        SYNTHETIC,
        ("epsilon = 0.5 ", "epsilon = 0.05 "),
        ("local_epsilon = 2.0", f"local_epsilon = {hint}"),
    )
    assert checkins("check", mended).code == 0


def test_a_slow_curve_has_only_its_last_point(
    checkins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SYNTHETIC)
    whole = answer(checkins("check", path, "--json"))
    monkeypatch.setattr(check_command, "CURVE_SECONDS", -1.0)
    found = answer(checkins("check", path, "--json"))
    assert found["spending"] == whole["spending"][-1:]
    assert found["affordable_slots"] == 1000
    assert "is within its budget" in " ".join(checkins("check", path).out.split())


def test_a_value_that_the_grid_does_not_allow_is_not_advised(checkins, tmp_path: Path) -> None:
    over_budget = (("epsilon = 0.5 ", "epsilon = 0.005 "),)
    path = written(tmp_path, SYNTHETIC, *over_budget, ("grid = 1e-5", "grid = 1e-7"))
    outcome = checkins("check", path)
    assert outcome.code == 1
    assert outcome.err.endswith("slots; add noise, or run fewer slots\n")
    outcome = checkins("check", written(tmp_path, SYNTHETIC, *over_budget))
    assert " the campaign would be within its budget" in outcome.err


@pytest.mark.slow
def test_a_budget_that_is_exceeded_beyond_every_bound_is_exit_1(checkins, tmp_path: Path) -> None:
    text = PATIENTS.read_text(encoding="utf-8")
    # Runs of one slot: how many slots the budget allows is then found by certifying a single one.
    path = written(
        tmp_path, text, ("slots = 200 ", "slots = 1 "), ("repeats = 1 ", "repeats = 2000 ")
    )
    outcome = checkins("check", path, "--json")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(
        f"checkins: {path}:12: [budget] epsilon = 0.5: is exceeded by far: no epsilon below 500"
        " is proved (delta = 1e-06, add-remove)"
    )
    found = answer(outcome, code=1)
    assert set(found) == KEYS
    assert (found["within_budget"], found["certificate"]) == (False, None)
    assert found["spending"] == [{"slots": 2000, "epsilon": None}]


def test_a_model_that_cannot_step_by_categories_is_named(checkins, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SYNTHETIC,
        ('"laplace"', '"randomized-response"'),
        ("clip = 1.0", "categories = 3"),
        ("grid = 1e-5", "# grid = 1e-5"),
    )
    outcome = checkins("check", path)
    assert outcome.code == 0
    shown = " ".join(outcome.out.split())
    assert "kind = gaussian, laplace or privunit: randomized response cannot train a model" in shown


PRIVUNIT = (('"laplace"', '"privunit"'), ("grid = 1e-5", "# grid = 1e-5"))


def test_the_dimension_of_privunit_lowers_its_epsilon(checkins, tmp_path: Path) -> None:
    stated = ("clip = 1.0", "clip = 1.0\ndimension = 11")
    without = answer(checkins("check", written(tmp_path, SYNTHETIC, *PRIVUNIT), "--json"))
    found = answer(checkins("check", written(tmp_path, SYNTHETIC, *PRIVUNIT, stated), "--json"))
    assert found["certificate"]["epsilon"] < 0.75 * without["certificate"]["epsilon"]
    assumptions = " ".join(found["certificate"]["assumptions"])
    assert "PrivUnit in dimension 11" in assumptions
    assert "a uniform point of the sphere" in assumptions
    assert "PrivUnit in dimension" not in " ".join(without["certificate"]["assumptions"])


def test_a_dimension_that_is_not_the_models_is_exit_2_with_its_line(
    checkins, tmp_path: Path
) -> None:
    stated = ("clip = 1.0", "clip = 1.0\ndimension = 12")
    outcome = checkins("check", written(tmp_path, SYNTHETIC, *PRIVUNIT, stated))
    assert (outcome.code, outcome.out) == (2, "")
    assert "[randomizer] dimension = 12: must be 11, the number of parameters" in outcome.err
    own_model = ('model = "logistic"', 'model = "nowhere:model"')
    path = written(tmp_path, SYNTHETIC, *PRIVUNIT, stated, own_model)
    assert checkins("check", path).code == 0  # a user's code is not imported


@pytest.mark.slow
def test_repeats_stop_in_the_middle_of_a_run(checkins, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SYNTHETIC,
        ("repeats = 1 ", "repeats = 3 "),
        ("epsilon = 0.5 ", "epsilon = 0.15 "),
        ('adjacency = "replace-one" ', 'adjacency = "add-remove" '),
    )
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
    assert "Keys to add before clients can join: - [randomizer] grid: the distance between" in shown
    assert "only a simulation needs no schedule" in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slots = 1000", "slots = 0", "[protocol] slots = 0: must be an integer"),
        ("rate = 5.0", "rate = 0", "[task] optimizer.rate = 0: must be a finite number above 0"),
        (
            "00:00:00Z",
            "00:00:00",
            "[schedule] start = 2030-01-01T00:00:00: must state its UTC offset",
        ),
        ("grid = 1e-5", "grid = 1e-9", "[randomizer] grid = 1e-9: is too fine"),
        (
            '"laplace"',
            '"privunit"',
            '[randomizer] grid = 1e-5: is not used with kind = "privunit"',
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
        ((), "chooses one check-in uniformly at random, takes its report (clipped to L1 norm 1"),
        ((("capacity = 1 ", "capacity = 5 "),), "chooses up to 5 check-ins uniformly"),
        (
            (('kind = "fixed"', 'kind = "sliding"\nwindow = 500'),),
            "draws one of its next 500 slots (time steps), of 1,000. After a warm-up of 499 slots"
            " that releases nothing, in each slot the server chooses one",
        ),
        (
            (('kind = "fixed"', 'kind = "sliding"\nwindow = 1'),),
            "draws one of its next 1 slots (time steps), of 1,000. In each slot, the server chooses"
            " one",
        ),
        (
            (
                ("capacity = 1 ", 'capacity = "all" '),
                ("local_epsilon = 2.0", 'noise_at = "server"\nnoise_multiplier = 2.0'),
                ('"laplace"', '"gaussian"'),
                ('"replace-one"', '"add-remove"'),
            ),
            "In each slot, the server takes all check-ins, sums their updates (clipped to norm 1),"
            " adds Gaussian noise of standard deviation 2 to the sum and releases a model.",
        ),
        (
            (("participation = 1.0", "participation = 0.5"),),
            "(time steps), with probability 0.5. In each slot",
        ),
        (
            (
                ('kind = "fixed"', 'kind = "averaged"'),
                ("capacity = 1 ", ""),
                ("[protocol]", "population = [5000, 9000]\n[protocol]"),
            ),
            "the server averages all reports (clipped to L1 norm 1, made 2-DP by Laplace noise)",
        ),
    ],
)
def test_one_slot_is_told_in_words(checkins, tmp_path: Path, changes, words: str) -> None:
    outcome = checkins("check", written(tmp_path, SYNTHETIC, *changes))
    assert words in " ".join(outcome.out.split())


def test_a_campaign_is_composed_with_its_ledger(checkins, tmp_path: Path) -> None:
    first = campaign()
    place = kept(tmp_path, book := Book().run(first).close())
    path = written(tmp_path, campaign_text(NEXT))
    alone = answer(checkins("check", path, "--json"))
    found = answer(checkins("check", path, "--ledger", place, "--json"))
    assert set(found) == KEYS | {"ledger"}
    runs = [PartialRun.whole(first), PartialRun.whole(NEXT)]
    together = certify_runs(runs, privacy_filter=book.ledger.filter).epsilon
    assert together > certify_runs(runs).epsilon  # as fixed beforehand, which nobody promised
    assert found["certificate"]["epsilon"] == together > alone["certificate"]["epsilon"]
    before = certify_runs([PartialRun.whole(first)]).epsilon
    assert found["ledger"] == {"head": book.ledger.head, "runs": 1, "epsilon": before}
    assert found["seal"] == alone["seal"]
    assert all(point["epsilon"] > before for point in found["spending"])
    outcome = checkins("check", path, "--ledger", f"{place}/ledger.jsonl")
    shown = " ".join(outcome.out.split())
    assert "The ledger already has 1 run: epsilon <= 1 (delta = 1e-06, replace-one)." in shown
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_a_ledger_can_leave_too_small_a_budget(checkins, tmp_path: Path) -> None:
    place = kept(tmp_path, Book().run(campaign()).close())
    over_budget = replace(NEXT, budget=replace(NEXT.budget, epsilon=1.01))
    path = written(tmp_path, campaign_text(over_budget))
    assert checkins("check", path).code == 0
    outcome = checkins("check", path, "--ledger", place)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert (
        "is exceeded: the ledger has epsilon <= 1, and together with the campaign epsilon <= "
        in outcome.err
    )
    assert " of 200 slots; add noise, or run fewer slots" in outcome.err


def test_runs_that_the_ledger_holds_are_not_run_again(checkins, tmp_path: Path) -> None:
    twice = campaign(repeats=2)
    place = kept(tmp_path, book := Book().run(twice).close())
    path = written(tmp_path, campaign_text(twice))
    found = answer(checkins("check", path, "--ledger", place, "--json"))
    assert found["slots"] == 4
    alone = answer(checkins("check", path, "--json"))
    assert found["certificate"]["epsilon"] == alone["certificate"]["epsilon"]
    assert found["seal"] == alone["seal"] == twice.seal
    outcome = checkins("check", path, "--ledger", kept(tmp_path, book.run(twice).close()))
    assert (outcome.code, outcome.out) == (2, "")
    assert "this campaign already ran 2 times" in outcome.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"population_id": "others"}, "population_id is 'others', but the ledger is for 'clinic'"),
        ({"delta": 1e-5}, "delta is 1e-05, but the ledger is for 1e-06"),
        ({"adjacency": Adjacency.ADD_REMOVE}, "adjacency is add-remove, but the ledger is for"),
        ({"grid": None}, "a campaign without [randomizer] grid can be certified, not run"),
    ],
)
def test_a_campaign_that_does_not_go_with_the_ledger_is_exit_2(
    checkins, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    place = kept(tmp_path, Book().run(campaign()).close())
    path = written(tmp_path, campaign_text(campaign(name="other", **changes)))
    outcome = checkins("check", path, "--ledger", place, "--json")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert says in outcome.err


def test_a_ledger_that_cannot_be_continued_is_refused(checkins, tmp_path: Path) -> None:
    path = written(tmp_path, campaign_text(NEXT))
    outcome = checkins("check", path, "--ledger", str(tmp_path / "none"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "no such file or folder" in outcome.err
    outcome = checkins("check", path, "--ledger", kept(tmp_path, Book().run(campaign(), 2)))
    assert (outcome.code, outcome.out) == (2, "")
    assert "previous campaign is still open" in outcome.err
    whole = Book().run(campaign()).close()
    whole.lines[2] = whole.lines[2].replace(b'"slot":2', b'"slot":3')
    outcome = checkins("check", path, "--ledger", kept(tmp_path, whole))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "ledger.jsonl:3: its hash" in outcome.err
