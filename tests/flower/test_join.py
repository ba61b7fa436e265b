"""`checkins join --flower` at a service of this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkins.client import Outcome
from tests.client.test_participant import soon
from tests.support.fake_service import FakeService, on_a_socket
from tests.support.program import refused

APP = """
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    print("the app prints", context.node_config["partition-id"])
    if message.content["config"]["lr"] > 1.0:
        raise ValueError("diverged")
    received = message.content["arrays"].to_numpy_ndarrays()
    rate = message.content["config"]["lr"]
    arrays = ArrayRecord([np.asarray(array + rate) for array in received])
    return Message(RecordDict({"arrays": arrays}), reply_to=message)
"""
FLOWER = ("--flower", "my_train_app:app", "--node-config", "partition-id=3")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_train_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_train_app", None)


def of_devices() -> FakeService:
    return soon(data="devices", model="arrays:initial")


def test_an_app_trains_and_prints_to_standard_error(
    checkins: Callable[..., Any], folder: Path
) -> None:
    service = of_devices()
    with on_a_socket(service) as url:
        words = ("join", url, "--state", "state", "--json", *FLOWER, "--train-config", "lr=0.1")
        outcome = checkins(*words)
    assert outcome.code == 0
    assert json.loads(outcome.out)["outcome"] == "reported"
    assert "the app prints 3" in outcome.err
    assert len(service.reports) == 1


def test_an_app_that_fails_is_named_and_its_participation_is_over(
    checkins: Callable[..., Any], folder: Path
) -> None:
    service = of_devices()
    with on_a_socket(service) as url:
        words = ("join", url, "--state", "state", "--json", *FLOWER, "--train-config", "lr=2.0")
        failed = checkins(*words)
        assert failed.code == 1
        assert failed.out == ""
        last = failed.err.splitlines()[-1]
        assert last.startswith("checkins: the Flower app raised ValueError: diverged")
        again = checkins(*words, "--campaign", service.id)
    assert json.loads(again.out)["outcome"] == Outcome.REPORTED.name.lower()
    assert len(service.reports) == 1  # a dummy


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--flower nowhere:app", "--flower nowhere:app: cannot be imported"),
        ("--flower my_train_app:app --train-config lr", "--train-config lr: must be a TOML file"),
        ("--flower my_train_app:app --row 1", "--data, --row or --flower"),
        ("--row 1 --try", "--try: needs --flower"),
        ("--row 1 --run-config a=1", "--run-config a=1: needs --flower"),
    ],
)
def test_a_mistake_is_named_with_its_option(
    checkins: Callable[..., Any], folder: Path, words: str, said: str
) -> None:
    with on_a_socket(of_devices()) as url:
        refused(checkins("join", url, "--state", "state", *words.split()), says=said)


def test_an_app_is_not_used_for_a_campaign_with_data_of_its_own(
    checkins: Callable[..., Any], folder: Path
) -> None:
    with on_a_socket(soon()) as url:
        outcome = checkins("join", url, "--state", "state", *FLOWER)
    refused(outcome, says='is for a campaign with data = "devices"')


def test_an_app_is_tried_without_a_trace(checkins: Callable[..., Any], folder: Path) -> None:
    service = of_devices()
    files = sorted(folder.iterdir())
    with on_a_socket(service) as url:
        tried = checkins("join", url, "--try", "--json", *FLOWER, "--train-config", "lr=0.1")
        failed = checkins("join", url, "--try", *FLOWER, "--train-config", "lr=2.0")
        text = checkins("join", url, "--try", *FLOWER, "--train-config", "lr=0.1")
    assert tried.code == text.code == 0
    answer, clip = json.loads(tried.out), service.campaign.randomizer.clip
    assert answer.pop("norm") == pytest.approx(0.1 * 14**0.5, rel=1e-5)  # 14 numbers
    assert answer == {"campaign": service.id, "finite": True, "clip": clip}
    assert "Nothing was sent or stored." in text.out
    assert failed.code == 1
    assert "the Flower app raised ValueError: diverged" in failed.err
    assert (service.tokens, service.check_ins, service.reports) == ({}, {}, {})
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == files
