"""Anyone's own model: found beside the campaign's file, and its faults told as its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkins.errors import InvalidValue
from checkins.simulation.engine.outcome import simulate
from checkins.simulation.study import Study
from checkins.tasks.loaded_task import LoadedTask
from tests.simulation import tiny

MODULE = """
import jax.numpy as jnp
import numpy as np
from checkins.tasks import OwnModel


def linear(shape, classes):
    def score(own, x):
        return x @ own["w"]

    def loss(own, x, y):
        return jnp.logaddexp(score(own, x), 0.0) - y * score(own, x)

    return OwnModel({"w": np.zeros(shape)}, loss, example_scores=score)


def failing(shape, classes):
    raise KeyError("x")


def misnamed(shape, classes):
    return OwnModel({"w": np.zeros(shape)}, lambda own, x, y: own["zz"])


def long(shape, classes):
    return OwnModel({"w": np.zeros(shape)}, lambda own, x, y: own["w"])


def endless(shape, classes):
    return OwnModel({"w": np.zeros(shape)}, lambda own, x, y: own["w"].sum() + jnp.inf)
"""


def study_of(folder: Path, function: str) -> Study:
    tiny.write(folder)
    name = f"mine_{abs(hash(str(folder)))}"  # a module is imported once
    (folder / f"{name}.py").write_text(MODULE)
    task = tiny.TASK.replace('"logistic"', f'"{name}:{function}"')
    return Study((({}, tiny.campaign(tiny.text(task=task))),), str(folder), evaluations=1)


def test_an_own_model_is_found_in_the_folder_of_the_campaign_file(tmp_path: Path) -> None:
    study = study_of(tmp_path, "linear")
    [(_, campaign)] = study.campaigns
    study.check(campaign)
    assert campaign.task is not None
    found = simulate(campaign, loaded=LoadedTask.of(campaign.task, folder=tmp_path))
    assert found.metrics["auc"] > 0.5


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("failing", "failing failed: KeyError: 'x'"),
        ("misnamed", "its loss fails at the first row: KeyError: 'zz'"),
        ("long", "its loss must be one number, but has the shape (2,)"),
        ("absent", "absent does not exist"),
    ],
)
def test_an_error_in_an_own_model_names_the_model(tmp_path: Path, function: str, why: str) -> None:
    study = study_of(tmp_path, function)
    with pytest.raises(InvalidValue) as caught:
        study.check(study.campaigns[0][1])
    assert caught.value.name == "model"
    assert why in str(caught.value)


def test_a_loss_that_is_not_finite_at_the_start_is_not_blamed_on_the_rate(tmp_path: Path) -> None:
    study = study_of(tmp_path, "endless")
    [(_, campaign)] = study.campaigns
    assert campaign.task is not None
    with pytest.raises(InvalidValue, match="not finite at its initial weights"):
        simulate(campaign, loaded=LoadedTask.of(campaign.task, folder=tmp_path))


def test_more_slots_than_memory_holds_are_refused(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    text = tiny.text().replace("slots = 6", "slots = 1000000000")
    study = Study((({}, tiny.campaign(text)),), str(tmp_path))
    with pytest.raises(InvalidValue, match="slots = 1000000000: must be at most 50,000,000"):
        study.check(study.campaigns[0][1])
