"""A task whose data only the devices have: its model is a function that returns initial arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import Optimizer, Task, parse_campaign
from checkins.campaign.task import Model
from checkins.client import RowsTrainer
from checkins.client.trainer import DatasetClients, trainer_of_file
from checkins.errors import InvalidValue
from checkins.tasks.loaded_task import INITIAL_WEIGHTS_SEED, LoadedTask, model_of
from tests.support.campaigns import campaign, campaign_text

NAMED = "my_arrays:initial"
TASK = Task("devices", NAMED, Optimizer(rate=1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("my_arrays", None)


def write(folder: Path, returned: str) -> None:
    text = f"import numpy as np\n\n\ndef initial():\n    return {returned}\n"
    (folder / "my_arrays.py").write_text(text, encoding="utf-8")


def test_the_function_names_the_arrays_of_the_model(folder: Path) -> None:
    write(folder, '{"layer.weight": np.ones((2, 3)), "layer.bias": np.array(0.5)}')
    model = model_of(TASK, folder=folder)
    assert model.shapes == {"layer.weight": (2, 3), "layer.bias": ()}
    assert model.start(INITIAL_WEIGHTS_SEED).tolist() == [1.0] * 6 + [0.5]
    assert model.dimension == 7


def test_the_arrays_of_a_list_are_numbered(folder: Path) -> None:
    write(folder, "[np.zeros(2), np.ones((1, 1))]")
    model = model_of(TASK, folder=folder)
    assert list(model.shapes.items()) == [("0", (2,)), ("1", (1, 1))]


def test_initial_arrays_are_rounded_to_what_devices_receive(folder: Path) -> None:
    write(folder, "[np.array([0.1])]")
    assert model_of(TASK, folder=folder).start(0).tolist() == [float(np.float32(0.1))]


@pytest.mark.parametrize(
    "returned", ["{}", "[]", "None", "np.zeros(3)", "[np.nan]", '["a"]', "1 / 0", "[[1e39]]"]
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_function_that_returns_no_arrays_is_refused(folder: Path, returned: str) -> None:
    write(folder, returned)
    with pytest.raises(InvalidValue, match="does not return initial arrays"):
        model_of(TASK, folder=folder)


def test_only_devices_train_such_a_model(folder: Path) -> None:
    write(folder, "[np.zeros(2)]")
    model = model_of(TASK, folder=folder)
    for use in (model.gradient, model.loss):
        with pytest.raises(InvalidValue, match="only the devices"):
            use(np.zeros(2), np.zeros((1, 2)), np.zeros(1))
    with pytest.raises(InvalidValue, match="only the devices"):
        model.scores(np.zeros(2), np.zeros((1, 2)))


def test_its_data_cannot_be_loaded_to_simulate() -> None:
    with pytest.raises(InvalidValue, match="not simulated"):
        LoadedTask.of(TASK)


def test_a_device_without_a_trainer_of_its_own_is_told_what_to_do() -> None:
    for use in (
        lambda: RowsTrainer(TASK, np.zeros((1, 1)), [0], allow_model=NAMED),
        lambda: trainer_of_file(TASK, "rows.csv", allow_model=NAMED),
        lambda: DatasetClients.load(TASK, allow_model=NAMED),
    ):
        with pytest.raises(InvalidValue, match="--flower, or pass your own Trainer"):
            use()


def test_a_campaign_file_can_leave_data_and_training_to_the_devices() -> None:
    task = campaign(data="devices", model=NAMED).task
    assert task is not None
    assert (task.data, task.model) == ("devices", NAMED)


@pytest.mark.parametrize("model", list(Model))
def test_a_model_of_this_package_needs_data_that_are_known(model: Model) -> None:
    with pytest.raises(InvalidValue, match="a function without arguments"):
        parse_campaign(campaign_text(data="devices", model=str(model)))


def test_the_devices_decide_how_many_steps_they_train() -> None:
    with pytest.raises(InvalidValue, match="the devices decide how to train"):
        Task("devices", NAMED, Optimizer(rate=1.0), local_steps=2)
