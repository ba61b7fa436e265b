"""Flower apps as devices of a real coordinator, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from checkins.protocol.report import model_from_bytes
from tests.support.campaigns import campaign_text
from tests.support.coordinator import Coordinator, serving
from tests.support.forks import Forked
from tests.support.waiting import PATIENCE_S, wait_until

INITIAL = """
import numpy as np


def initial():
    return {"weights": np.zeros(8), "bias": np.ones(3)}
"""
APP = """
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

FOLDER = Path(__file__).parent
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    number = context.node_config["partition-id"]
    with (FOLDER / f"trained-{number}").open("a") as calls:
        calls.write("called\\n")
    while (FOLDER / f"hangs-{number}").exists():
        time.sleep(0.05)
    print("training")
    arrays = {name: array.numpy().copy() for name, array in msg.content["arrays"].items()}
    arrays["weights"][number] += context.run_config["size"]
    content = {
        "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
        "metrics": MetricRecord({"accuracy": 0.5, "num-examples": 10}),
    }
    return Message(content=RecordDict(content), reply_to=msg)
"""
PYPROJECT = """
[project]
name = "marker"
version = "1.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "marker_app:server"
clientapp = "marker_app:app"

[tool.flwr.app.config]
size = 5.0
"""
DEVICES = 4
KILLED, JOINS = 0, 3
"""The device that is killed in its training, and the one that is the command `checkins join`."""
CAMPAIGN: dict[str, Any] = {
    "slots": 1,
    "capacity": DEVICES,
    "randomizer": 'kind = "laplace"\nlocal_epsilon = 40.0',
    "epsilon": 1000.0,
    "optimizer": 'kind = "sgd", rate = 1.0',
    "slot_s": 30.0,
    "choose_s": 12.0,
}
UNIT = 1e-6
NEAR = 0.75
"""More than the noise of a report, with Laplace's scale of 1/20, by e^-15 for each number."""


def write_app(folder: Path) -> Path:
    app = folder / "app"
    app.mkdir()
    (app / "marker_app.py").write_text(APP, encoding="utf-8")
    (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (app / f"hangs-{KILLED}").touch()
    return app


def trained(app: Path, number: int) -> int:
    path = app / f"trained-{number}"
    return path.read_text(encoding="utf-8").count("called\n") if path.exists() else 0


def start(service: Coordinator, app: Path, number: int, folder: Path, stack: ExitStack) -> Forked:
    state = folder / f"state-{number}"
    errors = stack.enter_context((folder / f"errors-{number}").open("a"))
    if number == JOINS:
        words = ("join", service.url, "--flower", app, "--state", state, "--json")
        return Forked((*words, "--node-config", f"partition-id={number}"), stderr=errors)
    words = (service.url, app, number, state, folder / f"journal-{number}")
    return Forked(words, module="tests.flower.device_process", stderr=errors)


def reports_of(folder: Path, number: int) -> list[Any]:
    """The different reports that a device sent, in grid units."""
    path = folder / f"journal-{number}"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sent = {line["sha256"]: line["units"] for line in lines if line["event"] == "reporting"}
    return [np.array(units) for units in sent.values()]


def test_flower_apps_take_part_and_the_model_is_their_sum(
    tmp_path: Path, checkins: Callable[..., Any]
) -> None:
    app = write_app(tmp_path)
    text = campaign_text(data="devices", model="initial_arrays:initial", **CAMPAIGN)
    (tmp_path / "initial_arrays.py").write_text(INITIAL, encoding="utf-8")
    with serving(tmp_path, text, start="+8") as service, ExitStack() as stack:
        processes = [start(service, app, each, tmp_path, stack) for each in range(DEVICES)]
        wait_until(lambda: trained(app, KILLED), "the app is called")
        processes[KILLED].kill()
        processes[KILLED].communicate(PATIENCE_S)
        (app / f"hangs-{KILLED}").unlink()
        processes[KILLED] = start(service, app, KILLED, tmp_path, stack)
        said = [process.communicate(PATIENCE_S) for process in processes]
        errors = [(tmp_path / f"errors-{each}").read_text() for each in range(DEVICES)]
        assert [process.returncode for process in processes] == [0] * DEVICES, errors
        page = f"{service.url}/campaigns/{service.campaign}"
        wait_until(lambda: httpx.get(page).json()["status"] == "completed", every_s=0.2)
        model, _ = model_from_bytes(httpx.get(f"{page}/models/latest").content)
        verified = checkins("verify", page, "--json")
    released = np.concatenate([model["weights"], model["bias"]])
    initial = np.concatenate([np.zeros(8), np.ones(3)])
    total = np.rint((initial - released) * DEVICES / UNIT)  # in grid units

    joined = json.loads(said[JOINS])
    assert joined["outcome"] == "reported"
    assert "training" in errors[JOINS]  # what the app prints is not in the output
    assert [trained(app, each) for each in range(1, DEVICES)] == [1] * (DEVICES - 1)
    journalled = [each for each in range(DEVICES) if each != JOINS]
    reports = {each: reports_of(tmp_path, each) for each in journalled}
    assert all(len(each) <= 1 for each in reports.values())  # a retry sends the same bytes
    rest = (total - sum(report for each in reports.values() for report in each)) * UNIT
    # What remains is the report of `checkins join`: −5 in its own number, clipped to −1, and noise.
    # If the killed device came back too late, it is also a dummy of the server.
    expected = np.zeros(11)
    expected[JOINS] = -1.0
    assert np.abs(rest - expected).max() < NEAR
    if said[KILLED].strip() == "REPORTED":
        assert trained(app, KILLED) == 2
        [report] = reports[KILLED]
        assert abs(report[KILLED] * UNIT + 1.0) < NEAR

    assert verified.code == 0
    answer = json.loads(verified.out)
    assert answer["valid"] is True
    native = tmp_path / "native.toml"
    native.write_text(campaign_text(**CAMPAIGN), encoding="utf-8")
    checked = json.loads(checkins("check", str(native), "--json").out)
    own = {name: answer["certificate"][name] for name in ("epsilon", "delta", "adjacency")}
    assert own == {name: checked["certificate"][name] for name in own}
