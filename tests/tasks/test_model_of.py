"""The model of a task without its data is the one that its data would give."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import Optimizer
from checkins.campaign.task import DataFile, DataSet, Features, Task
from checkins.errors import InvalidValue
from checkins.tasks.data import fashion_mnist
from checkins.tasks.loaded_task import INITIAL_WEIGHTS_SEED, LoadedTask, model_of
from checkins.tasks.own_model import MODEL_NAMES

RATE = Optimizer(rate=1.0)


def same(one, other) -> None:
    assert type(one) is type(other)
    assert dict(one.shapes) == dict(other.shapes)
    assert list(one.shapes) == list(other.shapes)
    assert one.dimension == other.dimension
    assert np.array_equal(one.start(INITIAL_WEIGHTS_SEED), other.start(INITIAL_WEIGHTS_SEED))


@pytest.fixture
def few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fashion-MNIST with a client of each class: the scattering of all of them takes long."""
    monkeypatch.setattr(fashion_mnist, "CLIENTS", 10)
    monkeypatch.setattr(fashion_mnist, "HOLDOUT", 10)
    monkeypatch.setenv(fashion_mnist.FOLDER_VARIABLE, str(tmp_path))
    for part in ("train", "t10k"):
        for name, content in (
            ("images-idx3", np.zeros((10, 28, 28), np.uint8)),
            ("labels-idx1", np.arange(10, dtype=np.uint8)),
        ):
            sizes = b"".join(size.to_bytes(4, "big") for size in content.shape)
            head = bytes((0, 0, 8, content.ndim)) + sizes
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(head + content.tobytes())


@pytest.mark.parametrize("data", list(DataSet))
@pytest.mark.usefixtures("few_pictures")
def test_the_model_of_every_data_set_fits_its_loaded_data(data: DataSet) -> None:
    compared = 0
    for model, features in itertools.product(MODEL_NAMES, (None, Features.SCATTERING)):
        if features is not None and data is not DataSet.FASHION_MNIST:
            continue
        try:
            task = Task(str(data), model, RATE, features=features)
            found = model_of(task)
        except InvalidValue:
            continue  # such as a convolution of rows that are no pictures
        same(found, LoadedTask.of(task).model)
        compared += 1
    assert compared >= 3


def test_a_logistic_model_of_a_table_has_two_classes_and_others_must_say() -> None:
    data = DataFile("x.csv", "who", "y", features=("a", "b"), ranges=((0, 1), (0, 1)))
    assert model_of(Task(data, "logistic", RATE)).dimension == 3
    with pytest.raises(InvalidValue, match="classes"):
        model_of(Task(data, "softmax", RATE))
    assert model_of(Task(replace(data, classes=3), "softmax", RATE)).dimension == 9


def test_an_own_model_is_looked_for_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "blueprint_model.py").write_text(
        "from checkins.tasks.built_in_models import Softmax\n\n\n"
        "def made(shape, classes):\n    return Softmax(shape[0], classes)\n"
    )
    task = Task("synthetic", "blueprint_model:made", RATE)
    same(model_of(task, folder=tmp_path), model_of(replace(task, model="softmax")))
