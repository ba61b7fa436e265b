"""What a device computes is what the simulator computes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from checkins.campaign import DataFile, Optimizer, Task
from checkins.client import RowsTrainer
from checkins.client.trainer import DatasetClients, trainer_of_file
from checkins.errors import InvalidValue
from checkins.simulation.engine.updates import LocalWork, client_updates
from checkins.tasks.data import Dataset, synthetic
from checkins.tasks.data import table as table_module
from checkins.tasks.loaded_task import model_of
from checkins.tasks.model import flatten, unflatten

FEATURES = ("x", "y", "z")


def table(classes: int, model: str, **given: Any) -> Task:
    source = DataFile(
        "people.csv",
        client_column="who",
        label_column="label",
        features=FEATURES,
        ranges=((-1.0, 1.0),) * 3,
        classes=classes,
    )
    return Task(source, model, Optimizer(rate=1.0), **given)


def people(classes: int) -> Dataset:
    generator = np.random.default_rng(5)
    offsets = np.array([0, 1, 5, 7, 12], dtype=np.int64)
    return Dataset(
        "people",
        generator.uniform(-1, 1, (12, 3)).astype(np.float32),
        generator.integers(0, classes, 12),
        offsets,
        classes,
        np.zeros((0, 3), np.float32),
        np.zeros(0, np.int64),
    )


@pytest.mark.parametrize(("model", "classes"), [("logistic", 2), ("softmax", 3), ("mlp", 3)])
@pytest.mark.parametrize(("steps", "rate"), [(1, None), (4, 0.3)])
def test_an_update_is_the_simulators(
    model: str, classes: int, steps: int, rate: float | None
) -> None:
    task, data = table(classes, model, local_steps=steps, local_rate=rate), people(classes)
    found = model_of(task)
    start = np.random.default_rng(1).normal(size=found.dimension)
    with jax.enable_x64(True):
        work = LocalWork(task.local_steps, task.local_step_size)
        simulated = np.asarray(
            client_updates(found, data, work=work, dtype=np.float64)(
                jax.numpy.asarray(start), np.arange(4)
            )
        )
    for client in range(data.clients):
        rows = data.rows_of(client)
        trainer = RowsTrainer(task, data.features[rows], data.labels[rows])
        update = trainer.update(unflatten(start, found.shapes))
        assert flatten(update, found.shapes) == pytest.approx(simulated[client], rel=1e-9)


CSV = "who,label,x,y,z\nann,1,0.5,0,9\nbob,0,1,1,1\nann,0,-0.5,0.25,-9\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def test_rows_are_read_by_the_sealed_columns_and_ranges(file: Path) -> None:
    task = table(2, "logistic")
    trainer = trainer_of_file(task, file, client="ann")
    expected = RowsTrainer(task, [[0.5, 0.0, 1.0], [-0.5, 0.25, -1.0]], [1, 0])
    model = {"weights": np.array([0.1, 0.2, 0.3]), "bias": np.array(0.5)}
    assert flatten(trainer.update(model), trainer.model.shapes) == pytest.approx(
        flatten(expected.update(model), trainer.model.shapes)
    )


def test_a_file_of_one_person_needs_no_column_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("label,x,y,z\n1,0.5,0,1\n")
    model = {"weights": np.zeros(3), "bias": np.array(0.0)}
    update = trainer_of_file(table(2, "logistic"), path).update(model)
    assert update["weights"].tolist() == [-0.25, 0.0, -0.5]


@pytest.mark.parametrize(
    ("client", "words"), [(None, "several clients: ann, bob; name one"), ("eve", "has no rows")]
)
def test_the_owner_of_the_rows_must_be_clear(file: Path, client: str | None, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        trainer_of_file(table(2, "logistic"), file, client=client)


def test_an_unknown_label_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("label,x,y,z\n2,0.5,0,1\n")
    with pytest.raises(InvalidValue, match="must be 0 to 1"):
        trainer_of_file(table(2, "logistic"), path)


def test_a_person_of_the_public_holdout_does_not_take_part(file: Path) -> None:
    source = table(2, "logistic").data
    assert isinstance(source, DataFile)
    held = DataFile(
        source.file,
        source.client_column,
        source.label_column,
        source.features,
        source.ranges,
        classes=2,
        holdout=1 - 1e-12,
    )
    with pytest.raises(InvalidValue, match="public holdout"):
        trainer_of_file(Task(held, "logistic", Optimizer(rate=1.0)), file, client="ann")


def test_people_of_a_built_in_data_set_each_have_their_rows() -> None:
    task = Task("synthetic", "logistic", Optimizer(rate=1.0))
    crowd, data = DatasetClients.load(task), synthetic.load()
    assert len(crowd) == data.clients
    model = unflatten(np.zeros(11), crowd.model.shapes)
    one = RowsTrainer(task, data.features[data.rows_of(7)], data.labels[data.rows_of(7)])
    assert flatten(crowd.trainer(7).update(model), crowd.model.shapes).tolist() == pytest.approx(
        flatten(one.update(model), crowd.model.shapes).tolist()
    )


def test_people_of_a_table_come_from_the_file_that_is_named(file: Path) -> None:
    crowd = DatasetClients.load(table(2, "logistic"), file=file)
    assert len(crowd) == 2
    with pytest.raises(InvalidValue, match="name the file"):
        DatasetClients.load(table(2, "logistic"))
    with pytest.raises(InvalidValue, match="built-in data"):
        DatasetClients.load(Task("synthetic", "logistic", Optimizer(rate=1.0)), file=file)


NAMED = "code_of_a_service:build"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """A module that a campaign could name; says whether it was imported."""
    lines = [
        "from pathlib import Path",
        f"Path({str(tmp_path / 'imported')!r}).touch()",
        "from checkins.tasks.built_in_models import Softmax",
        "def build(shape, classes):",
        "    return Softmax(shape[0], classes)",
    ]
    (tmp_path / "code_of_a_service.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield (tmp_path / "imported").exists
    sys.modules.pop("code_of_a_service", None)


def ways_to_a_model(file: Path, **given: Any) -> dict[str, Callable[[], Any]]:
    """Every way from a fetched task to a trainer."""
    return {
        "rows": lambda: RowsTrainer(table(2, NAMED), np.zeros((1, 3)), [1], **given).model,
        "file": lambda: trainer_of_file(table(2, NAMED), file, client="ann", **given).model,
        "people": lambda: (
            DatasetClients.load(Task("synthetic", NAMED, Optimizer(rate=1.0)), **given).model
        ),
        "table": lambda: DatasetClients.load(table(2, NAMED), file=file, **given).model,
    }


@pytest.mark.parametrize("way", ["rows", "file", "people", "table"])
@pytest.mark.parametrize("allowed", [None, "", "code_of_a_service", "code_of_a_service:other"])
def test_no_code_is_imported_because_a_campaign_names_it(
    file: Path, code: Callable[[], bool], way: str, allowed: str | None
) -> None:
    given = {} if allowed is None else {"allow_model": allowed}
    with pytest.raises(InvalidValue, match=r"code_of_a_service:build.*allow"):
        ways_to_a_model(file, **given)[way]()
    assert not code()
    assert "code_of_a_service" not in sys.modules


@pytest.mark.parametrize("way", ["rows", "file", "people", "table"])
def test_code_that_the_owner_names_is_imported(
    file: Path, code: Callable[[], bool], way: str
) -> None:
    assert ways_to_a_model(file, allow_model=NAMED)[way]().dimension > 0
    assert code()


def test_a_built_in_model_needs_no_permission(file: Path) -> None:
    assert RowsTrainer(table(2, "logistic"), np.zeros((1, 3)), [1], allow_model=NAMED)


@pytest.mark.parametrize("named", ["people.csv", "/etc/hostname", "../people.csv"])
def test_no_file_is_opened_because_a_campaign_names_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The owner names the file; the one that the campaign names stays closed."""
    opened: list[Path] = []

    def read(path: Path, **how: Any) -> Any:
        opened.append(path)
        return original(path, **how)

    original = table_module.read_columns
    monkeypatch.setattr(table_module, "read_columns", read)
    source = table(2, "logistic").data
    assert isinstance(source, DataFile)
    task = Task(replace(source, file=named), "logistic", Optimizer(rate=1.0))
    assert len(DatasetClients.load(task, file=file)) == 2
    trainer_of_file(task, file, client="ann")
    with pytest.raises(InvalidValue, match="name the file"):
        DatasetClients.load(task)
    assert [path.resolve() for path in opened] == [file.resolve()] * 2
