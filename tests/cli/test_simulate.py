"""`checkins simulate`: what it prints, what it refuses, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkins.cli.commands import simulate
from checkins.cli.main import run
from checkins.simulation import workers
from tests.simulation import tiny

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "patients.toml")
OWN = ("--client-column", "who", "--label-column", "y")

LAPLACE = '[randomizer]\nkind = "laplace"\nlocal_epsilon = 2.0\nclip = 1.0\n'
SERVER = tiny.GAUSSIAN.replace('"client"', '"server"').replace("0.5", "1.5")
AVERAGED = tiny.PROTOCOL.replace("fixed", "averaged").replace("capacity = 12\n", "")


def with_population(text: str, low: int, high: int) -> str:
    return re.sub(r"(adjacency = .*\n)", rf"\1population = [{low}, {high}]\n", text)


def with_optimizer(words: str) -> str:
    return tiny.text(task=tiny.TASK.replace('kind = "sgd", rate = 0.5', words))


VARIANTS = {
    "fixed, capacity, noise at the clients": tiny.text(),
    "noise at the server": tiny.text(
        protocol=tiny.PROTOCOL.replace("12", '"all"'), randomizer=SERVER
    ),
    "averaged": with_population(tiny.text(protocol=AVERAGED, adjacency="replace-one"), 50, 70),
    "sliding": tiny.text(protocol=tiny.PROTOCOL.replace("fixed", "sliding") + "window = 3\n"),
    "laplace": tiny.text(randomizer=LAPLACE),
    "privunit": tiny.text(randomizer=LAPLACE.replace("laplace", "privunit")),
    "local steps": tiny.text(
        task=tiny.TASK.replace("\n[task.data]", "local_steps = 3\nlocal_rate = 0.1\n\n[task.data]")
    ),
    "projection and a falling rate": with_optimizer(
        'kind = "sgd", rate = 0.5, schedule = "inverse-sqrt", diameter = 1.0'
    ),
    "adam": with_optimizer('kind = "optax:adam", rate = 0.1'),
    "minibatch, momentum": with_optimizer(
        'kind = "sgd", rate = 0.5, minibatch = 2, momentum = 0.9, nesterov = true'
    ),
    "repeats": tiny.text(protocol=tiny.PROTOCOL + "repeats = 3\n"),
    "mlp": tiny.text(task=tiny.TASK.replace('"logistic"', '"mlp"')),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def only_object(text: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not finite")

    found = json.loads(text, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_the_example_is_one_object_keeps_its_budget_and_beats_no_amplification(
    checkins: Callable[..., Any],
) -> None:
    words = ["--baselines", "no-amplification", "--evaluations", "1"]
    done = checkins("simulate", EXAMPLE, *words, "--workers", "1", "--json")
    assert (done.code, done.err) == (0, "")
    found = only_object(done.out)
    assert {"metrics", "certificate", "slots", "check_ins", "dummies"} <= set(found)
    assert found["client_updates_per_second"] > 0
    assert found["complete"]
    assert found["simulated"]
    assert found["within_budget"]
    assert found["metrics_on"] == "holdout"
    assert found["metrics"]["auc"] > 0.6
    assert found["command"] == f"checkins simulate {EXAMPLE} {' '.join(words)}"
    [known] = found["baselines"]
    assert found["metrics"]["auc"] > known["metrics"]["auc"]  # at the same epsilon
    certified = only_object(checkins("account", EXAMPLE, "--json").out)
    assert found["certificate"]["epsilon"] == certified["epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_campaign_has_the_certificate_of_account(
    folder: Path, checkins: Callable[..., Any], name: str
) -> None:
    (folder / "other.toml").write_text(VARIANTS[name])
    done = checkins("simulate", "other.toml", "--json", "--evaluations", "1")
    assert (done.code, done.err) == (0, "")
    found = only_object(done.out)
    repeats = 3 if name == "repeats" else 1
    assert (found["complete"], found["slots"]) == (True, 6 * repeats)
    assert 0 < found["check_ins"] <= tiny.CLIENTS * repeats
    assert (found["dummies_expected"] is None) == (name in ("averaged", "noise at the server"))
    certified = only_object(checkins("account", "other.toml", "--json").out)
    assert found["certificate"]["campaigns"] == certified["campaigns"] == repeats
    # Averaged updates are certified for those who reported, others for what was designed.
    assert found["certificate"]["epsilon"] <= certified["epsilon"]
    assert name == "averaged" or found["certificate"]["epsilon"] == certified["epsilon"]


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ("--availability diurnal:6:0.2", 0.6),
        ("--availability arrivals:6", 3.5 / 6),
        ("--dropout 0.5", 1.0),
    ],
)
def test_who_cannot_be_reached_is_missing(
    folder: Path, checkins: Callable[..., Any], options: str, share: float
) -> None:
    words = f"simulate tiny.toml --json --evaluations 0 --clients 6000 --reuse-clients {options}"
    found = only_object(checkins(words).out)
    # 6000 clients at about one in two: 0.03 is more than four and a half standard deviations,
    # and the seed is fixed.
    assert found["check_ins"] / 6000 == pytest.approx(share, abs=0.03)
    assert found["scenario"]["reused"]
    assert options.split()[1] in (str(value) for value in found["scenario"].values())
    if "dropout" in options:
        assert found["client_updates"] < 6 * 12 * 0.75


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_users_own_table_with_many_rows_for_each_client(
    folder: Path, checkins: Callable[..., Any], suffix: str
) -> None:
    table = folder / f"own.{suffix}"
    rows = tiny.rows(clients=40, each=5)
    if suffix == "csv":
        tiny.write_rows(table, rows)
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        who, a, b, y = zip(*rows, strict=True)
        columns = {"who": who, "a": map(float, a), "b": map(float, b), "y": map(int, y)}
        parquet.write_table(
            arrow.table({key: list(cells) for key, cells in columns.items()}), table
        )
    words = ["simulate", "tiny.toml", "--data", table.name, *OWN, "--evaluations", "0", "--json"]
    found = only_object(checkins(*words).out)
    assert (found["data"]["clients"], found["data"]["rows"]) == (40, 200)
    assert found["notes"] == []  # ranges of the file's own table fit
    if suffix == "parquet":
        return  # rows are held out of a table, whatever file it was read from
    held = only_object(checkins(*words, "--holdout", "0.25").out)
    assert held["metrics_on"] == "holdout"
    assert held["data"]["clients"] * 5 + held["data"]["holdout_rows"] == 200


def test_ranges_computed_from_the_data_are_noted(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    tiny.write_rows(folder / "own.csv", tiny.rows(), "who,c,d,y")
    done = checkins("simulate", "tiny.toml", "--data", "own.csv", *OWN, "--evaluations", "0")
    assert done.code == 0
    assert "ranges of the features were computed from the data" in " ".join(done.out.split())


BAD_TABLES: dict[str, tuple[list[tuple[str, ...]], str]] = {
    "text": ([("p1", "1", "red", "0"), ("p2", "2", "1", "1")], "column 'b', row 1 = red: is not a"),
    "nan": ([("p1", "1", "nan", "0"), ("p2", "2", "1", "1")], "column 'b', row 1 = nan: must be f"),
    "empty": ([("p1", "1", "", "0"), ("p2", "2", "1", "1")], "column 'b', row 1 = '': is empty"),
    "gap": ([("p1", "1", "1", "0"), ("p2", "2", "1", "3")], "--label-column y: holds the labels"),
    "half": (
        [("p1", "1", "1", "0"), ("p2", "2", "1", "0.5")],
        "column 'y', row 2 = 0.5: is not a l",
    ),
    "one class": ([("p1", "1", "1", "1"), ("p2", "2", "1", "1")], "--label-column y: is 1 in eve"),
    "one client": ([("p", "1", "1", "1"), ("p", "2", "1", "0")], "--client-column who: is 'p' in"),
    "short": ([("p1", "1", "1")], "row 1 = 3: must have 4 cells"),
    "no rows": ([], "has a header but no rows"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_that_cannot_be_learned_from_is_refused_in_one_line(
    folder: Path, checkins: Callable[..., Any], name: str
) -> None:
    rows, said = BAD_TABLES[name]
    tiny.write_rows(folder / "own.csv", rows)
    done = checkins("simulate", "tiny.toml", "--data", "own.csv", *OWN)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    if not said.startswith("--"):
        assert "own.csv" in done.err


def test_an_unknown_label_is_refused_where_the_classes_are_declared(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    (folder / "two.toml").write_text(tiny.text() + "classes = 2\n")
    tiny.write_rows(folder / "rows.csv", [*tiny.rows(), ("p1", "0", "0", "7")])
    done = checkins("simulate two.toml")
    line = "checkins: rows.csv: column 'y', row 121 = 7: is an unknown label: must be 0 to 1\n"
    assert (done.code, done.out, done.err) == (2, "", line)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--data none.csv --client-column who --label-column y", "--data none.csv: does not exi"),
        ("--data tiny.toml --client-column who --label-column y", "--data tiny.toml: must end in"),
        ("--data rows.csv --client-column wo --label-column y", "--client-column wo: is not a c"),
        (
            "--data rows.csv --client-column who --label-column z",
            "z: is not a column",
        ),
        ("--data rows.csv --client-column who --label-column who", "--label-column who: must d"),
        ("--data rows.csv --client-column who", "--label-column is missing"),
        ("--data rows.csv --label-column y", "--client-column is missing"),
        ("--client-column who", "--client-column who: needs --data FILE"),
        ("--holdout 0.5", "--holdout 0.5: needs --data FILE"),
        ("--data rows.csv --client-column who --label-column y --holdout 1", "--holdout 1: must b"),
        ("--data rows.csv --client-column who --label-column y --holdout x", "--holdout x: must l"),
        ("--clients 61", "--clients 61: the data has 60: use --reuse-clients"),
        ("--clients 0", "--clients 0: must be an integer from 1"),
        ("--clients 1e3", "--clients 1e3: the data has 60: use --reuse-clients"),
        ("--clients 1.5", "--clients 1.5: must be an integer"),
        ("--clients 1e999999999", "--clients 1e999999999: must be an integer"),
        ("--seeds 1e6", "--seeds 1e6: must be an integer from 1 to 10,000"),
        ("--seeds 0", "--seeds 0: must be an integer from 1 to 10,000"),
        ("--seeds two", "--seeds two: must be an integer"),
        ("--seeds 1000000000000", "--seeds 1000000000000: must be an integer from 1 to 10"),
        ("--seed -1", "--seed -1: must be an integer from 1"),
        ("--dropout 1.5", "--dropout 1.5: must lie in [0, 1]"),
        ("--dropout nan", "--dropout nan: must lie in [0, 1]"),
        ("--dropout x", "--dropout x: must lie in [0, 1]"),
        ("--availability sometimes", "--availability sometimes: must be always, diurnal"),
        ("--availability diurnal:0:0.5", "--availability diurnal:0:0.5: period must be"),
        ("--availability arrivals:nan", "--availability arrivals:nan: must be always"),
        ("--sweep slots", "--sweep slots: must be SECTION.KEY=VALUE"),
        ("--sweep protocol.slots=5,5", "--sweep protocol.slots=5,5: has the value 5 more than onc"),
        ("--sweep protocol.slots=0", "--sweep protocol.slots=0: [protocol] slots: must be an int"),
        ("--sweep protocol.slot=1", "is not a known key; did you mean slots?"),
        ("--sweep nowhere.slots=1", "--sweep nowhere.slots: the file has no table 'nowhere'"),
        ("--sweep task.model=logistic,cnn", "--sweep task.model=cnn: model needs pictures"),
        ("--baselines best", "--baselines best: must be all, or some of non-private, poisson, sh"),
        ("--baselines poisson,best", "--baselines poisson,best: must be all"),
        ("--evaluations -1", "--evaluations -1: must be an integer from 0"),
        ("--workers 0", "--workers 0: must be an integer from 1"),
        ("--resume", "--resume: needs --out DIR"),
        ("--resume --out new", "--resume: new has no saved results of this simulation"),
        ("--out rows.csv", "--out rows.csv: cannot be written: Not a directory"),
        ("--out rows.csv/deeper", "--out rows.csv/deeper: cannot be written: Not a directory"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(
    folder: Path, checkins: Callable[..., Any], options: str, said: str
) -> None:
    done = checkins(f"simulate tiny.toml --json {options}")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.startswith("checkins: ")
    assert done.err.count("\n") == 1
    assert not (folder / "new").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (tiny.text(task=""), "bad.toml: task: a campaign that learns needs a [task]"),
        (
            tiny.text(randomizer=LAPLACE.replace("laplace", "randomized-response")).replace(
                "clip = 1.0", "categories = 2"
            ),
            "reports categories, not model updates: use gaussian, laplace or privunit",
        ),
        (
            with_optimizer('kind = "optax:nothing", rate = 1.0'),
            "optax has no function of this name",
        ),
        (
            VARIANTS["privunit"].replace("clip = 1.0", "clip = 1.0\ndimension = 1234"),
            "[randomizer] dimension = 1234: must be ",
        ),
        (with_optimizer('kind = "optax:clip", rate = 1.0'), "cannot be used as an optimizer"),
        (VARIANTS["mlp"].replace('"mlp"', '"cnn"'), '[task] model = "cnn": needs pictures'),
        (VARIANTS["mlp"].replace('"mlp"', '"no.such:thing"'), "cannot be imported"),
        (tiny.text().replace("rows.csv", "gone.csv"), "gone.csv: does not exist"),
        (with_population(tiny.text(), 100, 200), "the data has 60 clients: change this, or use --"),
    ],
    ids=["task", "categories", "optax", "dimension", "clip", "cnn", "module", "file", "population"],
)
def test_a_file_that_cannot_be_simulated_is_refused_in_one_line(
    folder: Path, checkins: Callable[..., Any], text: str, said: str
) -> None:
    (folder / "bad.toml").write_text(text)
    done = checkins("simulate bad.toml")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_three_classes_are_too_many_for_logistic_and_not_for_softmax(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    tiny.write_rows(folder / "rows.csv", tiny.rows(each=3, classes=3))
    done = checkins("simulate tiny.toml")
    assert done.code == 2
    assert '[task] model = "logistic": is for two classes, but the data has 3' in done.err
    (folder / "soft.toml").write_text(tiny.text().replace('"logistic"', '"softmax"'))
    found = only_object(checkins("simulate soft.toml --json --evaluations 0").out)
    assert set(found["metrics"]) == {"accuracy", "loss"}


def test_clients_are_reused_where_it_is_said(folder: Path, checkins: Callable[..., Any]) -> None:
    (folder / "more.toml").write_text(with_population(tiny.text(), 100, 200))
    done = checkins("simulate more.toml --reuse-clients --json --evaluations 0")
    found = only_object(done.out)
    assert found["scenario"] == {
        "clients": 100,
        "reused": True,
        "availability": "always",
        "dropout": 0.0,
    }
    assert found["check_ins"] == 100


def test_clients_beyond_the_promise_of_the_file_are_told_what_to_change(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    (folder / "more.toml").write_text(with_population(tiny.text(), 100, 200))
    done = checkins("simulate more.toml --clients 50")
    said = "the file's population is 100 to 200: change or remove [budget] population"
    assert (done.code, done.err) == (2, f"checkins: --clients 50: {said}\n")


def test_whole_numbers_may_have_an_exponent_and_one_is_singular(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    words = "--clients 1e0 --seeds 1e0 --evaluations 1e9 --workers 1e0 --seed 2e0"
    (folder / "one.toml").write_text(tiny.text(protocol=tiny.PROTOCOL.replace("= 6", "= 1")))
    done = checkins(f"simulate one.toml {words}")
    assert (done.code, done.err) == (0, "")
    assert ": 1 slot, 1 check-in of 1 client, 1 report used, 11 dummy reports" in " ".join(
        done.out.split()
    )


def test_without_ray_it_says_how_to_get_it_before_anything_else(
    folder: Path, checkins: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = checkins("simulate missing.toml --ray")
    line = "checkins: --ray: needs ray, which is not installed: pip install 'checkins[ray]'\n"
    assert (done.code, done.out, done.err) == (2, "", line)


def test_out_holds_a_page_the_result_and_models_and_resume_does_nothing_twice(
    folder: Path, checkins: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "simulate tiny.toml --evaluations 2 --seeds 2 --workers 1 --out deep/out"
    done = checkins(words)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("Saved: deep/out/report.html\n")
    out = folder / "deep" / "out"
    names = {"saved-jobs", "model-seed-1.npz", "model-seed-2.npz", "report.html", "result.json"}
    assert {path.name for path in out.iterdir()} == names
    first = only_object((out / "result.json").read_text())
    with np.load(out / "model-seed-1.npz") as model:
        assert sum(model[name].size for name in model) == first["model"]["dimension"] == 3
    monkeypatch.setattr(workers.Job, "training", lambda *_: pytest.fail("it was done before"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("checkins.simulation.result.compare_with_theory", lambda *_: (None, None))
        again = checkins(f"{words} --resume --json")
    assert only_object(again.out)["seeds"] == first["seeds"]


def test_a_sweep_saves_the_models_of_every_combination(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    done = checkins(
        "simulate tiny.toml --evaluations 0 --workers 1 --out out --sweep protocol.slots=5,6"
    )
    assert done.code == 0
    assert re.search(r"^ slots +AUC +accuracy +loss +epsilon", done.out, re.MULTILINE)
    models = sorted(path.name for path in (folder / "out").glob("model*"))
    assert models == ["model-1-seed-1.npz", "model-2-seed-1.npz"]
    found = only_object((folder / "out" / "result.json").read_text())
    assert [one["settings"] for one in found["sweep"]] == [
        {"protocol.slots": 5},
        {"protocol.slots": 6},
    ]


def test_a_setting_that_diverges_is_said_and_the_others_go_on(
    folder: Path, checkins: Callable[..., Any]
) -> None:
    (folder / "wild.toml").write_text(tiny.WILD)
    words = "simulate wild.toml --evaluations 0 --workers 1 --sweep task.optimizer.rate=3e38,0.001"
    found = only_object(checkins(f"{words} --json --out out").out)["sweep"]
    assert [one["diverged"] for one in found] == [True, False]
    assert (found[0]["metrics"], found[0]["spread"]) == ({}, None)
    assert found[0]["certificate"]["epsilon"] == found[1]["certificate"]["epsilon"]
    assert re.search(r"^ 3e\+38 +diverged", checkins(words).out, re.MULTILINE)
    alone = checkins("simulate wild.toml --evaluations 0")
    assert (alone.code, alone.out) == (2, "")
    assert "diverged: lower the rate" in alone.err


def test_a_page_that_cannot_be_made_does_not_hide_the_result(
    folder: Path, checkins: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device", "out/report.html")

    monkeypatch.setattr("checkins.simulation.report.write_report", broken)
    done = checkins("simulate tiny.toml --evaluations 0 --json --out out")
    assert done.code == 1
    assert done.err == "checkins: out/report.html: No space left on device\n"
    assert only_object(done.out)["complete"]


def test_the_text_fits_eighty_columns(folder: Path, checkins: Callable[..., Any]) -> None:
    (folder / "one.toml").write_text(tiny.text(randomizer=LAPLACE))
    for options in (
        "--seeds 2 --baselines non-private,no-amplification,poisson",
        "--sweep randomizer.local_epsilon=1.0,2.0 --baselines non-private",
    ):
        done = checkins(f"simulate one.toml {options} --evaluations 0 --workers 1")
        assert (done.code, done.err) == (0, "")
        assert max(map(len, done.out.splitlines())) <= 80
        assert "non-private" in done.out
        assert "AUC" in done.out
        assert "gives no privacy" in " ".join(done.out.split())


@pytest.mark.usefixtures("ignored_interrupt")
def test_an_interrupt_that_was_ignored_at_the_start_stays_ignored() -> None:
    with simulate._exit_on_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


# Real processes, and a terminal to watch them by.

LONG = tiny.text(randomizer=LAPLACE).replace("slots = 6", "slots = 2400").replace("12", "3")
LONG_OPTIONS = ["--evaluations", "100", "--clients", "2400", "--reuse-clients", "--out", "out"]
WAITS_FOR_CTRL_C = """
import time
from checkins.cli.main import main
from checkins.simulation.workers import Job

run = Job.run

def run_until_stopped(job, *, on_progress, cache):
    def report(slots, metrics):
        going_on = on_progress(slots, metrics)
        while going_on and slots > 0:
            time.sleep(0.02)
            going_on = on_progress(slots, metrics)
        return going_on

    return run(job, on_progress=report, cache=cache)

Job.run = run_until_stopped  # in the processes of workers too, which import this file
if __name__ == "__main__":
    main()
"""
"""The command, but once a simulation has trained in some slots it only waits to be stopped.

A fast machine would otherwise be done before anybody has pressed Ctrl-C."""


def start_and_interrupt(folder: Path, *options: str) -> tuple[int, str, str]:
    """Begin, wait until a bar has moved, press Ctrl-C; the exit code, output, errors."""
    terminal, ours = pty.openpty()
    (folder / "waits.py").write_text(WAITS_FOR_CTRL_C)
    process = subprocess.Popen(
        [sys.executable, "waits.py", "simulate", "long.toml", *LONG_OPTIONS, *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=ours,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(ours)
    seen, sent, deadline = "", False, time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if not sent and re.search(r" [1-9][\d,]*/2,400", seen):
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                sent = True
        out = process.stdout.read().decode() if process.stdout else ""
        return process.wait(30), out, seen
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
        os.close(terminal)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What seeds 1 and 2 leave when nobody interrupts them."""
    folder = tmp_path_factory.mktemp("never-stopped")
    tiny.write(folder)
    (folder / "long.toml").write_text(LONG)
    plain = [option if option != "out" else str(folder / "out") for option in LONG_OPTIONS]
    words = ["simulate", str(folder / "long.toml"), *plain, "--seeds", "2", "--workers", "1"]
    assert run(words) == 0
    return folder / "out"


@pytest.mark.slow
@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize("seeds", [1, 2])
def test_ctrl_c_leaves_a_partial_result_and_resume_ends_bit_identical(
    folder: Path, checkins: Callable[..., Any], never_stopped: Path, seeds: int
) -> None:
    (folder / "long.toml").write_text(LONG)
    code, out, seen = start_and_interrupt(folder, "--seeds", str(seeds), "--workers", str(seeds))
    assert code == 130
    assert "Traceback" not in seen
    assert "the simulation was interrupted before its end; continue with --resume" in seen
    assert "so far" in out
    partial = only_object((folder / "out" / "result.json").read_text())
    assert partial["complete"] is False
    assert 0 < partial["slots"] < 2400
    assert 1 <= len(partial["seeds"]) <= seeds  # one of them may not have begun
    here = ["--seeds", str(seeds), "--workers", "1"]
    done = checkins("simulate", "long.toml", *LONG_OPTIONS, *here, "--resume", "--json")
    assert done.code == 0
    whole = only_object(done.out)
    assert whole["complete"]
    assert partial["certificate"]["epsilon"] <= whole["certificate"]["epsilon"]
    for seed in range(1, seeds + 1):
        name = f"model-seed-{seed}.npz"
        assert (folder / "out" / name).read_bytes() == (never_stopped / name).read_bytes()
