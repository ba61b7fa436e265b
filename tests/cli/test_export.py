"""checkins export: the latest release as a file, from a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkins.ledger.entry import hash_model
from checkins.protocol.report import model_from_bytes
from tests.support.campaigns import campaign
from tests.support.program import refused
from tests.support.store import House


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    yield made
    made.database.close()


def test_the_newest_run_of_a_store_is_exported(checkins, house: House, tmp_path: Path) -> None:
    first = house.open(campaign(slots=1))
    house.finish(first)
    house.clock.now -= 1000
    second = house.open(campaign(slots=3, name="second", population_id="other"))
    house.close(second, 2)
    outcome = checkins("export", house.url, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    tensors, known = model_from_bytes((tmp_path / "model.safetensors").read_bytes())
    model = house.snapshot(second).learner.model
    assert (np.concatenate([t.ravel() for t in tensors.values()]) == model).all()
    assert known["model_hash"] == told["model_hash"] == hash_model(model)
    assert (known["slot"], known["run"], known["seal"]) == ("2", "1", second.seal)
    assert (told["slot"], told["run"]) == (2, 1)
    assert told["tensors"] == {name: list(shape) for name, shape in second.shapes.items()}
    outcome = checkins("export", house.url, "--campaign", first.id, "--out", "first.npz")
    assert outcome.code == 0
    with np.load(tmp_path / "first.npz") as held:
        assert str(held["about_slot"]) == "1"
        assert set(first.shapes) <= set(held)


def test_the_average_of_the_released_models_is_exported(
    checkins, house: House, tmp_path: Path
) -> None:
    asked = campaign(slots=3)
    assert asked.task is not None
    run = house.open(replace(asked, task=replace(asked.task, average=0.5)))
    refused(checkins("export", house.url, "--average"), says="has released no model yet")
    models = []
    for slot in (1, 2):
        house.close(run, slot)
        models.append(house.snapshot(run).learner.model)
    outcome = checkins("export", house.url, "--average", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    tensors, known = model_from_bytes((tmp_path / "model.safetensors").read_bytes())
    flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    assert np.linalg.norm(models[1] - models[0]) > 0.0
    assert flat == pytest.approx(models[0] / 4 + models[1] * 3 / 4)  # η = 2: weights 1, then 3 / 4
    assert (known["slot"], known["averaged_models"], told["averaged_models"]) == ("2", "2", 2)
    assert known["model_hash"] == hash_model(flat)


def test_a_campaign_without_an_average_has_none_to_export(checkins, house: House) -> None:
    run = house.open(campaign())
    house.close(run, 1)
    refused(checkins("export", house.url, "--average"), says="declares no average in [task]")


def test_a_file_that_exists_is_kept_unless_told_otherwise(checkins, house: House) -> None:
    house.open(campaign())
    assert checkins("export", house.url).code == 0
    refused(checkins("export", house.url), says="exists already; --force overwrites it")
    assert checkins("export", house.url, "--force").code == 0


def test_mistakes_are_told_in_one_line(checkins, house: House, tmp_path: Path) -> None:
    refused(checkins("export", house.url), says="holds no campaign")
    house.open(campaign())
    refused(checkins("export", house.url, "--campaign", "x"), says="must be one of")
    refused(checkins("export", house.url, "--out", "model.pkl"), says="must end in .safetensors")
    refused(checkins("export", "store.db"), says="must be http://")
    refused(checkins("export", f"sqlite:///{tmp_path}/none.db"), says="no such file")
    refused(checkins("export", "http://127.0.0.1:1"), says="is a coordinator there?")
    refused(
        checkins("export", "http://127.0.0.1:1", "--campaign", "x"),
        says="cannot be combined with the URL of a service",
    )


@pytest.mark.parametrize("content", [b"", b"no database, but long enough to be looked at " * 9])
def test_a_file_that_is_no_store_is_refused(checkins, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.db").write_bytes(content)
    refused(checkins("export", f"sqlite:///{tmp_path}/x.db"), says="x.db")


def test_a_database_that_is_away_is_told_without_its_password(checkins) -> None:
    outcome = checkins("export", "postgresql://ann:hidden-word@127.0.0.1:1/x")
    assert "hidden-word" not in outcome.err
    refused(outcome, says="postgresql://ann:***@127.0.0.1:1/x")
