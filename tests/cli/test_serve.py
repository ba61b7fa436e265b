"""checkins serve: what it refuses before it answers anyone, in one line each."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from checkins.service import backup, server
from checkins.service.runs import opening
from checkins.service.store.database import Database
from checkins.service.store.schema import migrate
from tests.support.campaigns import campaign_text
from tests.support.certificates import write_certificate
from tests.support.program import refused


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "campaign.toml"
    path.write_text(campaign_text())
    return path


@pytest.fixture
def serve(checkins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Serve without a socket: what would have been served is returned."""
    served: list[dict[str, Any]] = []

    def pretend(settings: Any, listener: Any, *, ready: Any, **how: Any) -> None:
        ready()
        served.append({"settings": settings, **how})
        listener.close()

    monkeypatch.setattr(server, "serve", pretend)
    monkeypatch.setattr(server, "serve_with_workers", pretend)
    monkeypatch.delenv("CHECKINS_OPERATOR_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*words: object):
        outcome = checkins("serve", *map(str, words), "--port", "0")
        return outcome, served

    return call


def logged(lines: str) -> list[str]:
    """The events of a log on standard error."""
    return [json.loads(line)["event"] for line in lines.splitlines()]


def test_json_is_one_object_that_says_where_it_answers(serve, file: Path, tmp_path: Path) -> None:
    outcome, served = serve(file, "--json", "--store", f"sqlite:///{tmp_path}/x.db")
    assert (outcome.code, logged(outcome.err)) == (0, ["opened"])
    told = json.loads(outcome.out)
    assert set(told) == {
        *(
            "url",
            "campaign",
            "seal",
            "start",
            "store",
            "progress_file",
            "witness",
            "enrolment",
            "workers",
            "operator_token",
        )
    }
    assert told["start"] == "2040-01-01T00:00:00.000000Z"
    assert told["store"] == f"sqlite:///{tmp_path}/x.db"
    assert len(told["operator_token"]) >= 32
    settings = served[0]["settings"]
    assert settings.operator_token == told["operator_token"]
    assert settings.progress_file.parent == Path(os.environ["XDG_STATE_HOME"]) / "checkins"
    assert settings.progress_file.name.startswith("x.db-")
    assert settings.folder == file.parent
    assert settings.progress_file.is_file()


def test_the_text_has_the_page_and_how_to_join(serve, file: Path) -> None:
    outcome, _ = serve(file)
    assert outcome.code == 0
    assert "Page:      http://127.0.0.1:" in outcome.out
    assert "checkins join http://127.0.0.1:" in outcome.out
    assert "first slot at 2040-01-01T00:00:00" in outcome.out
    assert "--data FILE --state DIR" in outcome.out


def test_a_campaign_that_devices_train_is_joined_with_an_app(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arrays_of_app.py").write_text(
        "import numpy as np\n\n\ndef initial():\n    return [np.zeros(3)]\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "campaign.toml"
    file.write_text(campaign_text(data="devices", model="arrays_of_app:initial"))
    outcome, _ = serve(file)
    sys.modules.pop("arrays_of_app", None)
    assert outcome.code == 0, outcome.err
    assert "--flower APP --state DIR" in outcome.out


@pytest.mark.parametrize("how", [(), ("--json",)])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_a_closed_standard_output_does_not_stop_the_service(
    serve, file: Path, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], number: int
) -> None:
    """A full disk, or a reader of standard output that is gone."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

    pretended = server.serve

    def pretend(settings: Any, listener: Any, *, ready: Any, **given: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Full())
            pretended(settings, listener, ready=ready, **given)
            print("and what is printed later", flush=True)
            sys.stdout.close()  # nothing, opened instead of it

    monkeypatch.setattr(server, "serve", pretend)
    outcome, served = serve(file, *how)
    assert (outcome.code, len(served)) == (0, 1)
    assert logged(outcome.err) == ["opened", "output-lost"]


def test_a_start_is_sealed_and_the_run_is_found_again(serve, file: Path) -> None:
    first = json.loads(serve(file, "--json", "--start", "+3600")[0].out)
    begins = datetime.fromisoformat(first["start"])
    assert 3000 < (begins - datetime.now(UTC)).total_seconds() <= 3600
    outcome, _ = serve(file, "--json", "--start", "+7200")
    assert json.loads(outcome.out)["campaign"] == first["campaign"]
    assert f"--start ignored: run {first['campaign']} is open" in outcome.err
    outcome, _ = serve(file, "--json", "--start", first["start"])
    assert "--start ignored" not in outcome.err


def test_a_start_that_is_days_away_is_warned_of(serve, file: Path) -> None:
    assert "Warning:   the first slot is" in serve(file)[0].out


def test_a_start_that_is_near_is_not_warned_of(serve, file: Path) -> None:
    assert "Warning:" not in serve(file, "--start", "+3600")[0].out


def test_a_stopped_campaign_is_not_offered_to_join(serve, file: Path, tmp_path: Path) -> None:
    run = json.loads(serve(file, "--json")[0].out)["campaign"]
    database = Database(f"sqlite:///{tmp_path}/checkins.db")
    assert backup.end_runs(database) == [run]
    database.close()
    outcome, _ = serve(file, "--start", "+45")
    assert outcome.code == 0
    assert f"Campaign {run} is stopped; --again with --start +SECONDS opens a new" in outcome.out
    assert "To join" not in outcome.out
    assert "--start ignored" not in outcome.err


def test_an_address_for_all_interfaces_is_not_offered_to_others(serve, file: Path) -> None:
    outcome, _ = serve(file, "--host", "0.0.0.0", "--plain-http")
    assert "Page:      http://NAME:" in outcome.out
    assert "checkins join http://NAME:" in outcome.out


def test_an_operator_token_that_was_given_is_not_shown(
    serve, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the-operators-own-token\n")
    outcome, served = serve(file, "--json", "--operator-token-file", tmp_path / "token")
    assert "the-operators-own-token" not in outcome.out + outcome.err
    assert json.loads(outcome.out)["operator_token"] is None
    assert served[-1]["settings"].operator_token == "the-operators-own-token"
    monkeypatch.setenv("CHECKINS_OPERATOR_TOKEN", "another-token-of-the-operator")
    outcome, served = serve(file, "--json")
    assert json.loads(outcome.out)["operator_token"] is None
    assert served[-1]["settings"].operator_token == "another-token-of-the-operator"


def test_without_a_file_it_serves_what_the_store_holds(serve) -> None:
    told = json.loads(serve("--json")[0].out)
    assert told["campaign"] is None


def test_who_may_enrol_is_what_the_files_say(serve, file: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret-of-many-letters\n")
    (tmp_path / "keys").write_text("key-number-one-of-many\nkey-number-two-of-many\n")
    _, served = serve(file, "--secret-file", tmp_path / "secret")
    assert served[-1]["settings"].enrolment.kind == "secret"
    _, served = serve(file, "--allow-list", tmp_path / "keys")
    assert len(served[-1]["settings"].enrolment.allow_list) == 2
    refused(serve(file, "--enrolment", "secret")[0], says="--secret-file")
    _, served = serve(file, "--enrolment", "allow-list")  # `checkins allow-list` adds keys later
    assert served[-1]["settings"].enrolment.file_keys == frozenset()
    refused(serve(file, "--enrolment", "anyone")[0], says="enrolment")
    refused(serve(file, "--secret-file", tmp_path / "none")[0], says="must be a text file")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", "2"), "SQLite allows only one worker"),
        (("--workers", "0"), "must be an integer from 1"),
        (("--workers", "two"), "must be an integer from 1"),
        (("--start", "tomorrow"), "must be now, +SECONDS, or a time with its zone"),
        (("--start", "2020-01-01T00:00:00Z"), "has passed"),
        (("--store", "mysql://ann:hidden-word@x/y"), "must be sqlite:///FILE.db or postgresql://"),
        (("--store", "sqlite:///:memory:"), "a store in memory"),
        (("--store", "sqlite:////no/such/folder/x.db"), "cannot be used"),
        (("--rate", "-1"), "rate"),
        (("--connections", "-1"), "connections"),
        (("--host", "999.1.1.1"), "999.1.1.1"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(
    serve, file: Path, words: tuple[str, ...], says: str
) -> None:
    outcome, served = serve(file, *words)
    refused(outcome, says=says)
    assert "hidden-word" not in outcome.err
    assert served == []


def test_an_unreachable_postgresql_is_reported_in_one_line(
    serve, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkins.service.store.database.START_TIMEOUT_S", 0)
    store = ("--store", "postgresql://ann:hidden-word@127.0.0.1:1/x")
    outcome, served = serve(file, *store, "--log-file", tmp_path / "log")
    assert outcome.code == 1
    assert outcome.err.startswith("checkins: --store postgresql://ann:***@127.0.0.1:1/x: Postgre")
    assert "accepted no connections for 0 s: is it running" in outcome.err
    assert (outcome.err.count("\n"), "hidden-word" in outcome.err, served) == (1, False, [])


@pytest.mark.parametrize("text", ["-1", "65536", "http"])
def test_a_port_is_a_number(checkins, file: Path, text: str) -> None:
    refused(checkins("serve", str(file), "--port", text), says="must be an integer from 0")


def test_now_is_not_past_when_the_certificate_is_computed(
    serve, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pricing takes longer than the two seconds that ``now`` leaves, for examples/patients.toml."""
    made = opening._PreparedRun.of

    def slow(*given: Any) -> Any:
        prepared = made(*given)
        time.sleep(2.5)
        return prepared

    monkeypatch.setattr(opening._PreparedRun, "of", slow)
    outcome, _ = serve(file, "--start", "now")
    assert (outcome.code, logged(outcome.err)) == (0, ["opened"])


def test_until_done_needs_something_to_be_done(serve, file: Path) -> None:
    refused(serve("--until-done")[0], says="needs a campaign file")
    outcome, served = serve(file, "--until-done", "--json")
    assert served[-1]["until_done"] == json.loads(outcome.out)["campaign"]


def test_plans_are_made_unless_told_otherwise(serve, file: Path) -> None:
    assert serve(file)[1][-1]["settings"].plan
    assert not serve(file, "--no-plan")[1][-1]["settings"].plan


def test_a_campaign_that_cannot_be_served_is_refused(serve, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    text = campaign_text()
    path.write_text(text[: text.index("[schedule]")])
    refused(serve(path)[0], says="cannot be served without [schedule]")
    path.write_text(campaign_text(epsilon=0.001))
    refused(serve(path)[0], says="the epsilon of the first slot is 0.")
    refused(serve(tmp_path / "none.toml")[0], says="none.toml")


def test_another_campaign_on_the_same_people_is_refused_while_one_runs(
    serve, file: Path, tmp_path: Path
) -> None:
    assert serve(file)[0].code == 0
    other = tmp_path / "other.toml"
    other.write_text(campaign_text(name="other"))
    outcome, _ = serve(other)
    refused(outcome, says="is open on this population", code=outcome.code)


def test_a_store_of_a_newer_version_is_refused(serve, file: Path, tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/checkins.db")
    migrate(database)
    with database.exclusive_transaction("test") as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    refused(serve(file)[0], says="newer version of checkins")


def test_a_store_that_was_rolled_back_is_refused_and_restored_on_request(
    serve, file: Path, tmp_path: Path
) -> None:
    outcome, served = serve(file)
    assert outcome.code == 0
    progress_file = served[0]["settings"].progress_file
    held = json.loads(progress_file.read_text())
    progress_file.write_text(json.dumps({"epoch": 9, "entries": {"population clinic": 4}}))
    refused(serve(file)[0], says="the store was rolled back")
    outcome, _ = serve(file, "--restore", "--json")
    assert outcome.code == 0
    assert "checkins: ended by --restore: " in outcome.err
    assert '"event": "ended-by-restore"' in outcome.err
    assert json.loads(progress_file.read_text())["entries"]["population clinic"] == 2
    assert held["epoch"] == 1


def test_restoring_a_healthy_store_is_refused(serve, file: Path, tmp_path: Path) -> None:
    assert serve(file)[0].code == 0
    refused(serve(file, "--restore")[0], says="the store was not rolled back")
    assert serve(file)[0].code == 0


def test_a_used_store_whose_progress_file_is_missing_is_served_with_a_warning(
    serve, file: Path
) -> None:
    outcome, served = serve(file)
    assert "no such progress file" not in outcome.err
    served[0]["settings"].progress_file.unlink()
    outcome, _ = serve(file)
    assert outcome.code == 0
    assert '"event": "progress-file-missing"' in outcome.err
    assert "checkins: " in outcome.err
    assert "no such progress file, but the store was used before (epoch 1, 1 entry" in outcome.err
    assert "name it with --progress-file" in outcome.err
    outcome, _ = serve(file)  # there is one again
    assert "no such progress file" not in outcome.err


def test_a_progress_file_beside_its_store_is_warned_of(serve, file: Path, tmp_path: Path) -> None:
    outcome, _ = serve(file, "--progress-file", tmp_path / "w")
    assert outcome.code == 0
    assert '"event": "progress-file-near-store"' in outcome.err
    assert "is in the folder of the store" in outcome.err
    (tmp_path / "elsewhere").mkdir()
    outcome, _ = serve(file, "--witness", tmp_path / "elsewhere" / "w")  # the earlier name
    assert "is in the folder of the store" not in outcome.err


def test_a_progress_file_that_cannot_be_written_is_refused_by_its_name(
    serve, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "plain"))
    refused(serve(file)[0], says="--progress-file")
    outcome, _ = serve(file, "--progress-file", tmp_path / "nowhere" / "w")
    assert outcome.code == 2
    assert f"--progress-file {tmp_path}/nowhere/w: cannot be used"[:50] in outcome.err


def test_a_file_that_is_no_store_is_refused(serve, file: Path, tmp_path: Path) -> None:
    (tmp_path / "checkins.db").write_text("no database at all, but long enough to be looked at\n")
    refused(serve(file)[0], says="is not a database of checkins")


def test_other_machines_are_served_only_encrypted_or_if_told(
    serve, file: Path, tmp_path: Path
) -> None:
    for host in ("0.0.0.0", "::"):
        outcome, served = serve(file, "--host", host)
        refused(outcome, code=2, says="--plain-http")
        assert served == []
    outcome, served = serve(file, "--host", "0.0.0.0", "--plain-http")
    assert (outcome.code, len(served)) == (0, 1)
    files = write_certificate(tmp_path)
    outcome, served = serve(file, "--host", "0.0.0.0", *files.options, "--json")
    assert json.loads(outcome.out)["url"].startswith("https://0.0.0.0:")
    outcome, served = serve(file, "--tls-cert", files.cert)
    refused(outcome, code=2, says="--tls-key")
    outcome, served = serve(file, "--tls-cert", files.key, "--tls-key", files.key)
    refused(outcome, code=2, says="--tls-cert")
