"""`plan` answers people with tables, programs with one JSON object, and mistakes with one line."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkins.campaign.file import parse_campaign, read_campaign
from checkins.cli.commands import plan as command
from checkins.cli.params import seconds
from checkins.errors import InvalidValue

ROOT = Path(__file__).resolve().parents[2]
BUDGET = ["--epsilon", "1", "--delta", "1e-6", "--adjacency", "add-remove"]
ASKED = ["--population", "9000..11000", *BUDGET, "--dimension", "14"]
CAPACITY = "must be an integer from 1 to 1,000,000,000,000, or all"
CLIENTS = "must be an integer or LO..HI, from 1 to 10,000,000,000"
QUICK = ["--slots", "50", "--campaigns", "1", "--participation", "1"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Somebody at a terminal who gives these answers, one after the other."""

    def sits(*answers: str) -> list[str]:
        left, asked = iter(answers), []

        def answer(prompt: str = "") -> str:
            asked.append(prompt)
            return next(left)

        monkeypatch.setattr(command, "stdout_is_terminal", lambda: True)
        monkeypatch.setattr(command, "stdin_is_terminal", lambda: True)
        monkeypatch.setattr(builtins, "input", answer)
        return asked

    return sits


def test_without_a_terminal_the_answer_is_text_and_nothing_is_written(
    checkins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = checkins("plan", *ASKED, *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Recommended: fixed protocol, 50 slots, server noise")
    assert "No file was written" in outcome.out
    assert list(tmp_path.iterdir()) == []


def test_with_json_the_answer_is_one_json_object(checkins, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = checkins("plan", *ASKED, *QUICK, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert found["question"]["population"] == [9000, 11000]
    assert found["question"]["fixed"] == {"slots": 50, "repeats": 1, "participation": 1.0}
    assert found["recommended"]["slots"] == 50
    assert found["recommended"]["epsilon"] <= 1.0
    assert found["certificate"]["adjacency"] == "add-remove"
    assert list(tmp_path.iterdir()) == []


def test_a_known_task_makes_a_campaign_that_check_accepts(checkins, tmp_path: Path) -> None:
    path = tmp_path / "planned.toml"
    words = ["--task", "patients", "--population", "15329", *BUDGET, "--out", str(path)]
    outcome = checkins("plan", *words, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert path.read_text() == found["campaign"]
    campaign = read_campaign(path).campaign
    assert campaign.missing == ()
    assert campaign.task is not None
    assert (campaign.task.data, found["question"]["dimension"]) == ("patients", 14)
    checked = json.loads(checkins("check", str(path), "--json").out)
    assert checked["within_budget"]
    assert checked["certificate"]["epsilon"] == found["certificate"]["epsilon"]


def test_the_task_of_a_file_is_kept(checkins, tmp_path: Path) -> None:
    task = ["--task", str(ROOT / "examples" / "demo.toml")]
    outcome = checkins("plan", *task, "--population", "5000", *BUDGET, "--json")
    campaign = parse_campaign(json.loads(outcome.out)["campaign"]).campaign
    assert (campaign.name, campaign.population_id) == ("demo", "demo")
    assert campaign.task is not None
    assert campaign.task.model == "logistic"


def test_a_file_is_not_overwritten_without_force(checkins, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    outcome = checkins("plan", *ASKED, *QUICK, "--out", str(path))
    assert (outcome.code, outcome.out) == (2, "")
    assert "exists already; --force overwrites it" in outcome.err
    assert path.read_text() == "mine"
    assert checkins("plan", *ASKED, *QUICK, "--out", str(path), "--force").code == 0
    assert parse_campaign(path.read_text()).campaign.design.slots == 50
    assert "(choose)" not in path.read_text()  # the planner chose


@pytest.mark.parametrize("missing", ["--population", "--epsilon", "--delta", "--adjacency"])
def test_nothing_that_privacy_depends_on_has_a_default(checkins, missing: str) -> None:
    at = ASKED.index(missing)
    outcome = checkins("plan", *ASKED[:at], *ASKED[at + 2 :])
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"checkins: {missing} is missing")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["--dimension", "0"], "--dimension 0: must be an integer"),
        (["--duration", "2x"], "--duration 2x: must be a time above 0"),
        (["--availability", "0h"], "--availability 0h: must be a time above 0"),
        (["--uplink", "fast"], "--uplink"),
        (["--dropout", "1"], "--dropout 1: must be below 1"),
        (["--updates-per-second", "0"], "--updates-per-second"),
        (["--protocol", "averaged"], "--adjacency add-remove: a lone client is visible"),
        (["--window", "5", "--slots", "2"], "--window 5: must be at most slots = 2"),
        (["--window", "5", "--protocol", "fixed"], "--window 5: needs the sliding"),
        (["--capacity", "all", "--noise-at", "client"], "--capacity all: needs Gaussian"),
        (["--randomizer", "randomized-response"], "--randomizer randomized-response: must be"),
        (["--campaigns", "1e9"], "--campaigns 1e9: must be an integer"),
        (["--duration", "1"], "--duration 1: is too short"),
        (["--uplink", "1"], "--duration 1d (the default): is too short"),
        (["--delta", "1e-300"], "--delta 1e-300: is too small"),
        (["--capacity", "foo"], f"--capacity foo: {CAPACITY}"),
        (["--population", "0"], f"--population 0: {CLIENTS}\n"),
        (["--population", "1e11"], f"--population 1e11: {CLIENTS}\n"),
        (["--population", "7.."], f"--population 7..: {CLIENTS}\n"),
        (
            ["--population", "7..2"],
            "--population 7..2: the smallest number must not exceed the largest",
        ),
        (["--task", "nowhere.toml"], "--task nowhere.toml: must be patients"),
        (["--task", "patients"], "--dimension 14"),
        (["--out", "."], "--out .: is a folder"),
    ],
)
def test_a_mistake_is_one_line(checkins, words: list[str], starts: str) -> None:
    given = dict(zip(ASKED[::2], ASKED[1::2], strict=True))
    given |= dict(zip(words[::2], words[1::2], strict=True))
    if starts == "--dimension 14":
        given["--dimension"] = "15"
        starts = "--dimension 15: the model of the task has 14"
    if "--duration" in words or "--uplink" in words:
        given["--dimension"] = str(10**8)
    outcome = checkins("plan", *(word for pair in given.items() for word in pair))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"checkins: {starts}")
    assert outcome.err.count("\n") == 1


def test_the_text_has_a_design_reasons_and_next_steps(
    checkins, terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = terminal()
    outcome = checkins("plan", *ASKED, *QUICK)
    assert (outcome.code, asked) == (0, [])
    for words in (
        "Recommended: fixed protocol, 50 slots, server noise",
        "epsilon <= ",
        "Why:",
        "Pareto-optimal designs",
        "If the number of clients differs from the planned number:",
        "checkins check campaign.toml",
    ):
        assert words in outcome.out, words
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert read_campaign(tmp_path / "campaign.toml").campaign.design.slots == 50


def test_a_budget_that_is_spent_exactly_is_printed_as_it_was_asked_for(
    checkins, tmp_path: Path
) -> None:
    exact = {"1": "0.8", "add-remove": "replace-one"}
    asked, path = [exact.get(word, word) for word in ASKED], tmp_path / "plan.toml"
    one_slot = ["--slots", "1", "--campaigns", "1", "--participation", "1"]
    outcome = checkins(
        "plan", *asked, *one_slot, "--randomizer", "privunit", "--capacity", "1", "--out", str(path)
    )
    assert outcome.code == 0, outcome.err
    assert "epsilon <= 0.8 " in outcome.out
    assert "0.8001" not in outcome.out
    assert read_campaign(path).campaign.randomizer.dimension == 14


def test_what_is_missing_is_asked_for_and_a_wrong_answer_again(
    checkins, terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = ["nowhere", "other", "many", "14", "1e4..1e3", "1e4", "0", "1", "2", "1e-6", "x"]
    terminal(*answers, "add-remove")
    outcome = checkins("plan", *QUICK, "--out", "-")
    assert outcome.code == 0, outcome.err
    assert "Recommended" in outcome.out
    assert "No file was written" in outcome.out
    for words in ("How many clients are there?", "At what delta?", "above 0", "strictly between"):
        assert words in outcome.err, words
    assert list(tmp_path.iterdir()) == []


def test_a_known_task_can_be_answered(checkins, terminal) -> None:
    terminal("patients")
    outcome = checkins("plan", "--population", "15329", *BUDGET, *QUICK, "--out", "-")
    assert outcome.code == 0, outcome.err
    assert "Recommended" in outcome.out


def test_a_file_in_the_way_is_told_of_before_anyone_is_asked(
    checkins, terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "campaign.toml").write_text("mine")
    asked = terminal()
    outcome = checkins("plan")
    assert (outcome.code, outcome.out, asked) == (2, "", [])
    assert "exists already" in outcome.err


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("none/here.toml", "there is no folder none; create it first"),
        ("file/here.toml", "there is no folder file; create it first"),
        ("folder", "is a folder; name a file in it"),
        ("x" * 300, "cannot be written"),
    ],
)
def test_an_unwritable_place_is_reported_before_planning(
    checkins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, told: str
) -> None:
    def planned(_: object) -> None:
        raise AssertionError("it was planned")

    monkeypatch.setattr("checkins.planning.make_plan", planned)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    outcome = checkins("plan", *ASKED, *QUICK, "--out", place)
    assert (outcome.code, outcome.out) == (2, "")
    assert told in outcome.err
    assert len(list(tmp_path.iterdir())) == 2


def test_json_asks_nothing(checkins, terminal) -> None:
    asked = terminal()
    outcome = checkins("plan", "--json")
    assert (outcome.code, outcome.out, asked) == (2, "", [])


def test_without_a_terminal_for_input_the_missing_option_is_named(
    checkins, terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal()
    monkeypatch.setattr(command, "stdin_is_terminal", lambda: False)
    outcome = checkins("plan")
    assert outcome.code == 2
    assert "--population is missing" in outcome.err


@pytest.mark.parametrize(
    ("text", "found"),
    [("90", 90.0), ("90s", 90.0), ("1.5h", 5400.0), ("30min", 1800.0), ("2d", 172_800.0)],
)
def test_a_time_has_a_unit(text: str, found: float) -> None:
    assert seconds("duration", text) == found


@pytest.mark.parametrize("text", ["", "h", "-1", "1w", "nan", "1e999", "1.2.3h"])
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        seconds("duration", text)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_real_terminal_it_asks_and_answers(tmp_path: Path) -> None:
    answers = iter(["other", "14", "10000", "1", "1e-6", "add-remove"])
    program = "from checkins.cli.main import main; main()"
    words = [sys.executable, "-c", program, "plan", *QUICK]
    said = "".join(_talk(words, answers, tmp_path))
    assert "Recommended" in said
    assert next(answers, None) is None
    assert (tmp_path / "campaign.toml").exists()


def _talk(words: list[str], answers: Iterator[str], folder: Path) -> Iterator[str]:
    """Run a program on a pseudo-terminal; answer each line that stops after a question."""
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    line = ""
    try:
        while True:
            try:
                text = os.read(ours, 65_536).decode(errors="replace")
            except OSError:  # how Linux says that the other end is closed
                break
            if not text:
                break
            yield text
            line = (line + text).rpartition("\n")[2]
            if "?" in line and line.endswith(" "):
                answer = next(answers, None)
                if answer is not None:
                    os.write(ours, f"{answer}\n".encode())
                    line = ""
    finally:
        os.close(ours)
        code = child.wait(timeout=300)
    assert code == 0
