"""One check-in of each client: the table of the example, on a small synthetic task."""

from __future__ import annotations

import importlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checkins.tasks.built_in_models import Softmax
from checkins.tasks.data import synthetic
from checkins.tasks.loaded_task import LoadedTask
from tests.soak import only_in_soak

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "one_check_in.py"
CLIENTS = 2_000


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("one_check_in", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_tuned_setting_is_one_that_was_tried(example: Any) -> None:
    epsilons = [set(settings) for settings in example.TUNED.values()]
    assert epsilons == [{0.5, 1.0, 1.35, 2.7}] * 3
    tried = importlib.import_module("noise_comparison.settings")
    for method, settings in example.TUNED.items():
        for setting in settings.values():
            assert (setting.slots, setting.bands) in tried.DESIGNS[method]
            assert setting.rate * setting.slots in tried.TOTAL_RATES


@pytest.mark.slow
@only_in_soak  # test_loop.py and test_baselines.py run its parts
def test_each_method_is_within_its_epsilon_and_has_an_accuracy_for_each_seed(
    example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = synthetic.load(clients=CLIENTS, classes=3)
    loaded = LoadedTask(data, Softmax(data.dimension, 3))
    monkeypatch.setattr("noise_comparison.training.loaded_task", cache(lambda: loaded))
    for module in ("settings", "training"):
        monkeypatch.setattr(f"noise_comparison.{module}.CLIENTS", CLIENTS)
    arguments = ["one_check_in.py", "--seeds", "2", "--epsilon", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    example.main()
    rows = json.loads((tmp_path / "result.json").read_text())
    assert [row["method"] for row in rows] == list(example.TUNED)
    assert all(row["epsilon"] <= 1.0 and len(row["accuracy"]) == 2 for row in rows)
    assert all(0.0 <= accuracy <= 1.0 for row in rows for accuracy in row["accuracy"])
    assert "correlated over" in rows[0]["noise"]
    table = (tmp_path / "table.md").read_text()
    assert table.count("±") == 4
