"""The object that users make: against a service on a socket, in real time, with a real disk."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkins.client import CampaignRefused, Outcome, Participant, ServiceFailed, fetch_campaign
from checkins.client.state import SavedState, StateFile, file_lock
from checkins.errors import InvalidValue
from checkins.protocol.participant import Phase
from tests.client.world import SlopeTrainer
from tests.support.fake_service import FakeService, campaign, on_a_socket
from tests.support.program import output_of, run_python


def soon(**given: Any) -> FakeService:
    """A campaign of one slot that begins in a moment; a client is chosen as soon as it asks.

    Slow machines have seconds to spare: twenty-five to check in, thirty to report.
    """
    start = datetime.now(UTC) + timedelta(seconds=0.1)
    given = {"slots": 1, "slot_s": 30.0, "choose_s": 25.0, "start": start, **given}
    service = FakeService(campaign(**given), now_s=time.time)
    service.chooses_at_once = True
    return service


def device(url: str, service: FakeService, folder: Path, **given: Any) -> Participant:
    return Participant(url=url, campaign=service.id, trainer=SlopeTrainer(), state=folder, **given)


def test_a_device_takes_part_over_http(tmp_path: Path) -> None:
    service = soon()
    events_logged: list[Any] = []
    with on_a_socket(service) as url:
        found = fetch_campaign(url)
        assert (found.id, found.campaign) == (service.id, service.campaign)
        here = device(
            url, service, tmp_path / "state", seal=found.seal, journal=events_logged.append
        )
        assert here.run() is Outcome.REPORTED
    assert len(service.reports) == 1
    assert [fields["event"] for fields in events_logged][-2:] == ["acknowledged", "done"]
    kept = json.loads((tmp_path / "state" / f"{service.id}.json").read_text())
    assert kept == {"schema": 1, "campaign": service.id, "ended": "REPORTED"}


def test_many_devices_share_an_event_loop(tmp_path: Path) -> None:
    service = soon()

    async def live(url: str) -> list[Outcome]:
        devices = [device(url, service, tmp_path / str(n)) for n in range(5)]
        return await asyncio.gather(*(one.run_async() for one in devices))

    with on_a_socket(service) as url:
        assert set(asyncio.run(live(url))) == {Outcome.REPORTED}
    assert len(service.reports) == 5
    assert len(set(service.reports.values())) == 5


def test_a_state_folder_is_its_owners_alone(tmp_path: Path) -> None:
    service = soon()
    with on_a_socket(service) as url:
        device(url, service, tmp_path / "state").run()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / f"{service.id}.json").stat().st_mode & 0o777 == 0o600


def test_two_processes_cannot_use_one_state(tmp_path: Path) -> None:
    service = FakeService()
    with file_lock(tmp_path / f"{service.id}.lock"), pytest.raises(InvalidValue, match="in use"):
        device("https://nowhere.test", service, tmp_path).run()


def test_a_withdrawn_device_never_takes_part(tmp_path: Path) -> None:
    service = FakeService(campaign(start=datetime.now(UTC) + timedelta(hours=1)), now_s=time.time)
    key, file = "k" * 20, StateFile(tmp_path / f"{service.id}.json")
    with on_a_socket(service) as url:
        here = device(url, service, tmp_path)
        assert here.withdraw() is False  # nothing to withdraw
        file.save(SavedState(service.id, key=key).to_bytes())  # stopped while it enrolled
        assert here.withdraw() is True
        assert len(service.withdrawn) == 1
        assert json.loads(file.load() or b"")["ended"] == "WITHDRAWN"
        with pytest.raises(CampaignRefused, match="has withdrawn"):
            here.run()
        assert here.withdraw() is False
        assert asyncio.run(here.withdraw_async()) is False


def test_a_device_that_withdraws_before_it_enrols_never_does(tmp_path: Path) -> None:
    service = FakeService(campaign(start=datetime.now(UTC) + timedelta(hours=1)), now_s=time.time)
    with on_a_socket(service) as url:
        here = device(url, service, tmp_path)
        assert here.withdraw() is False
        with pytest.raises(CampaignRefused, match="has withdrawn"):
            here.run()
        assert not service.withdrawn


def test_a_withdrawal_is_retried_until_the_service_responds(tmp_path: Path) -> None:
    service = FakeService()
    file = StateFile(tmp_path / f"{service.id}.json")
    kept = SavedState(service.id, key="k" * 20, token="t-1", phase=Phase.DRAWN, slot=2)
    file.save(kept.to_bytes())
    here = device("http://127.0.0.1:9", service, tmp_path, retry_timeout_s=0.0)
    with pytest.raises(ServiceFailed):
        here.withdraw()
    assert SavedState.from_bytes(file.load() or b"") == kept


def test_a_device_follows_a_campaign_from_run_to_run(tmp_path: Path) -> None:
    first = soon(repeats=2)
    ahead_s = first.campaign.schedule.slot_s  # type: ignore[union-attr]
    second = FakeService(first.campaign, run=2, now_s=lambda: time.time() + ahead_s)
    second.chooses_at_once = True
    first.next = second.id

    def routed(method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        ours = path.startswith(f"/campaigns/{second.id}")
        return second.handle(method, path, headers, body) if ours else None

    first.override = routed
    with on_a_socket(first) as url:
        second.wait = first.wait
        runs = list(device(url, first, tmp_path).follow())
    assert runs == [(first.id, Outcome.REPORTED), (second.id, Outcome.REPORTED)]
    assert set(first.tokens).isdisjoint(second.tokens)


def test_a_service_that_is_not_there_is_a_failure_with_its_address(tmp_path: Path) -> None:
    here = device("http://127.0.0.1:9", FakeService(), tmp_path, retry_timeout_s=0.0)
    with pytest.raises(ServiceFailed) as failure:
        here.run()
    assert failure.value.filename == "http://127.0.0.1:9"
    assert "ConnectError" in failure.value.strerror


def test_other_machines_are_contacted_only_encrypted_or_if_told(tmp_path: Path) -> None:
    def participant(url: str, **given: Any) -> Participant:
        values = {"campaign": "0-1", "trainer": SlopeTrainer(), "state": tmp_path, **given}
        return Participant(url=url, **values)

    for url in ("http://campaigns.example", "http://10.0.0.5:8470", "http://localhost.example"):
        for refuse in (participant, fetch_campaign):
            with pytest.raises(InvalidValue, match="is not encrypted"):
                refuse(url)
        participant(url, plain_http=True)
    for url in ("http://127.0.0.1:8470", "http://[::1]:8470", "http://localhost"):
        participant(url)
        for refuse in (participant, fetch_campaign):
            with pytest.raises(InvalidValue, match="is for https://"):
                refuse(url, ca="authority.pem")
    with pytest.raises(InvalidValue, match="ca = "):
        fetch_campaign("https://campaigns.example", ca=tmp_path / "missing.pem")


@pytest.mark.parametrize("url", ["", "service.test", "ftp://service.test", "http://"])
def test_a_malformed_address_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="url"):
        device(url, FakeService(), tmp_path)


@pytest.mark.parametrize("name", ["", "../../etc", "a/b"])
def test_a_malformed_id_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="campaign"):
        Participant(url="https://x", campaign=name, trainer=SlopeTrainer(), state=tmp_path)


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    here = device("https://x", FakeService(), tmp_path, key="very secret")
    assert "very secret" not in repr(here)


def listing(*campaigns: dict[str, object]) -> httpx.Client:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"server_time": "", "campaigns": list(campaigns)})

    return httpx.Client(base_url="https://x", transport=httpx.MockTransport(handle))


def test_a_campaign_must_be_named_where_several_are_open() -> None:
    one = {"id": "aaaaaaaaaaaa-1", "run": 1, "status": "running"}
    two = {"id": "bbbbbbbbbbbb-1", "run": 1, "status": "waiting"}
    with pytest.raises(CampaignRefused, match="several are open; name one of aaa"):
        fetch_campaign("https://x", http=listing(one, two))
    over = [{**one, "status": "completed"}, {**two, "status": "stopped"}]
    with pytest.raises(CampaignRefused, match="none is open"):
        fetch_campaign("https://x", http=listing(*over))


def test_a_state_file_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path / "state.json")
    assert file.load() is None
    file.save(b"old")
    done: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        real_sync(descriptor)
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")

    def swap(part: Any, path: Any) -> None:
        assert done == ["file"]  # what is renamed is durable
        assert file.load() == b"old"
        real_replace(part, path)
        done.append("renamed")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", swap)
    file.save(b"new")
    assert done == ["file", "renamed", "folder"]
    assert file.load() == b"new"

    def fails(part: Any, path: Any) -> None:
        raise OSError(5, "the power fails")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="power"):
        file.save(b"newer")
    assert file.load() == b"new"


FORBIDDEN = (
    "click",
    "dp_accounting",
    "fastapi",
    "httpx",
    "jax",
    "matplotlib",
    "pandas",
    "pyarrow",
    "rich",
    "sqlalchemy",
    "uvicorn",
    "checkins.service",
    "checkins.simulation",
)


def test_a_device_imports_nothing_that_a_device_does_not_need() -> None:
    code = f"""
import sys
import checkins.client, checkins.swarm, checkins.client.trainer
heavy = [name for name in {FORBIDDEN!r} if name in sys.modules]
assert not heavy, heavy
"""
    output_of(code)


@pytest.mark.slow
def test_a_device_trains_and_reports_without_them(tmp_path: Path) -> None:
    service = soon(choose_s=20.0, start=datetime.now(UTC) + timedelta(seconds=2))
    gone = [name for name in FORBIDDEN if name not in ("httpx", "rich")]
    code = f"""
import sys
for name in {gone!r}:
    sys.modules[name] = None  # what "import name" then refuses
import numpy as np
from checkins.client import Participant, RowsTrainer, fetch_campaign
url, folder = sys.argv[1:]
view = fetch_campaign(url)
trainer = RowsTrainer(view.campaign.task, np.zeros((1, 13)), np.array([1]))
print(Participant(url=url, campaign=view.id, trainer=trainer, state=folder).run().name)
"""
    with on_a_socket(service) as url:
        assert output_of(code, url, tmp_path) == "REPORTED\n"


@pytest.mark.slow
def test_the_example_takes_part(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "device.py"
    service = soon(choose_s=20.0, start=datetime.now(UTC) + timedelta(seconds=2))
    with on_a_socket(service) as url:
        done = run_python(example, url, tmp_path / "state")
    assert (done.stderr, done.returncode) == ("", 0)
    assert "reported: its report was acknowledged" in done.stdout
    assert len(service.reports) == 1
