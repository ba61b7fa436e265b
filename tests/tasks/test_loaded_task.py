"""A lesson: the data of a task, its features, and a model that fits them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import DataFile, Features, Optimizer, Task
from checkins.errors import InvalidValue
from checkins.tasks import loaded_task
from checkins.tasks.built_in_models import MLP, Logistic, Softmax
from checkins.tasks.data import Dataset, fashion_mnist, patients, synthetic
from checkins.tasks.data.scattering import Scattering
from checkins.tasks.loaded_task import LoadedTask, with_features

SGD = Optimizer(0.5)
TABLE = DataFile(
    "records.csv",
    client_column="person",
    label_column="outcome",
    features=("age",),
    ranges=((0.0, 100.0),),
)


def table(folder: Path, labels: list[int], people: int = 20) -> Path:
    with (folder / "records.csv").open("w", newline="", encoding="utf-8") as text:
        rows = [[f"p{n % people}", n % 100, labels[n % len(labels)]] for n in range(2 * people)]
        csv.writer(text).writerows([["person", "age", "outcome"], *rows])
    return folder


def pictures(size: int = 8, rows: int = 6) -> Dataset:
    generator = np.random.default_rng(1)
    return Dataset.one_row_each(
        "pictures",
        generator.random((rows, size, size), np.float32),
        generator.integers(0, 3, rows),
        3,
        holdout_features=generator.random((2, size, size), np.float32),
        holdout_labels=generator.integers(0, 3, 2),
    )


def test_a_task_by_name_gets_its_data_and_a_model_that_fits() -> None:
    found = LoadedTask.of(Task("synthetic", "logistic", SGD))
    assert (found.data.name, found.data.clients) == ("synthetic-logistic", 10_000)
    assert found.model == Logistic(10)
    assert LoadedTask.of(Task("synthetic", "mlp", SGD)).model == MLP(10, 2)


@pytest.mark.parametrize(
    ("name", "module"), [("patients", patients), ("fashion-mnist", fashion_mnist)]
)
def test_each_name_loads_its_own_data(
    name: str, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = synthetic.load(clients=5, holdout=0)
    monkeypatch.setattr(module, "load", lambda: data)
    assert LoadedTask.of(Task(name, "softmax", SGD)).data is data


def test_a_table_counts_from_its_folder(tmp_path: Path) -> None:
    table(tmp_path, [0, 1, 2])
    found = LoadedTask.of(Task(TABLE, "softmax", SGD), folder=tmp_path)
    assert (found.data.clients, found.data.max_rows_per_client, found.data.classes) == (20, 2, 3)
    assert found.model == Softmax(1, 3)


def test_a_table_says_its_classes_and_its_holdout(tmp_path: Path) -> None:
    table(tmp_path, [0, 1], people=200)
    source = DataFile(
        TABLE.file,
        client_column=TABLE.client_column,
        label_column=TABLE.label_column,
        features=TABLE.features,
        ranges=TABLE.ranges,
        classes=4,
        holdout=0.3,
    )
    found = LoadedTask.of(Task(source, "softmax", SGD), folder=str(tmp_path))
    assert found.data.classes == 4
    assert found.model == Softmax(1, 4)
    assert 20 < len(found.data.holdout_labels) // 2 < 100
    assert found.data.clients + len(found.data.holdout_labels) // 2 == 200


def test_a_model_that_does_not_fit_its_data_is_refused(tmp_path: Path) -> None:
    table(tmp_path, [0, 1, 2])
    with pytest.raises(InvalidValue, match="use softmax"):
        LoadedTask.of(Task(TABLE, "logistic", SGD), folder=tmp_path)
    with pytest.raises(InvalidValue, match="pictures"):
        LoadedTask.of(Task("synthetic", "cnn", SGD))
    with pytest.raises(InvalidValue, match="cannot be imported"):
        LoadedTask.of(Task("synthetic", "no_such_module_here:model", SGD))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"records\.csv"):
        LoadedTask.of(Task(TABLE, "softmax", SGD), folder=tmp_path)


def test_scattering_features_replace_pictures_of_clients_and_holdout() -> None:
    data = pictures()
    found = with_features(data, Features.SCATTERING)
    scattering = Scattering(8)
    assert np.array_equal(found.features, scattering.features(data.features))
    assert np.array_equal(found.holdout_features, scattering.features(data.holdout_features))
    assert found.dimension == math.prod(scattering.shape)
    assert np.array_equal(found.labels, data.labels)
    assert with_features(data, None) is data


def test_scattering_of_what_is_no_square_picture_is_refused() -> None:
    with pytest.raises(InvalidValue, match="square pictures"):
        with_features(synthetic.load(clients=3, holdout=0), Features.SCATTERING)
    wide = Dataset.one_row_each("wide", np.zeros((2, 8, 16), np.float32), np.array([0, 1]), 2)
    with pytest.raises(InvalidValue, match="square pictures"):
        with_features(wide, Features.SCATTERING)


def test_the_features_of_a_task_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_task.fashion_mnist, "load", pictures)
    task = Task("fashion-mnist", "softmax", SGD, features=Features.SCATTERING)
    found = LoadedTask.of(task)
    assert found.data.dimension == math.prod(Scattering(8).shape)
    assert found.model == Softmax(found.data.dimension, 3)
