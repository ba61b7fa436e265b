"""A ClientApp trains as a device: what it is given, what leaves the device, and what goes wrong."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod

from checkins.client import Outcome
from checkins.client.actions import RequestKind, Save, Train
from checkins.errors import InvalidValue, TrainingFailed
from checkins.flower import ClientAppTrainer
from checkins.protocol.report import report_from_bytes
from checkins.tasks.own_model import InitialArrays
from tests.client.world import Crash, World
from tests.support.campaigns import SERVER_NOISE
from tests.support.fake_service import DIMENSION, FakeService, campaign

RUN = "abababababab-1"
MODEL = {"weights": np.zeros(3), "bias": np.zeros(())}
Replied = Callable[[Message, Context], object]


def app_that(reply: Callable[[Message, Context], Any], **given: Any) -> ClientApp:
    app = ClientApp(**given)
    app.train()(reply)
    return app


def returning(change: Any, *, metrics: Any = None) -> Callable[[Message, Context], Message]:
    """A train function that adds ``change`` to every array."""

    def train(message: Message, context: Context) -> Message:
        received = message.content["arrays"]
        trained = ArrayRecord(
            {name: array_of(received[name].numpy() + change) for name in received}
        )
        content = {"arrays": trained, "metrics": MetricRecord(metrics or {"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return train


def array_of(values: Any) -> Array:
    return Array(np.asarray(values))


def trainer(reply: Callable[[Message, Context], Any], folder: Path, **given: Any) -> Any:
    return ClientAppTrainer(app_that(reply), state=folder, **given)


def test_the_update_is_received_minus_returned(tmp_path: Path) -> None:
    update = trainer(returning(0.5), tmp_path).update_in_slot(MODEL, run=RUN, slot=2)
    assert {name: values.tolist() for name, values in update.items()} == {
        "weights": [-0.5] * 3,
        "bias": -0.5,
    }
    assert list(tmp_path.iterdir()) == []  # an app without state leaves none


def test_the_app_gets_its_configs_and_the_slot_as_the_round(tmp_path: Path) -> None:
    seen: list[Any] = []

    def train(message: Message, context: Context) -> Message:
        seen.append((dict(message.content["config"]), context.run_config, context.node_config))
        assert context.run_id == message.metadata.run_id == int("ab" * 6, 16)
        assert context.node_id == message.metadata.dst_node_id
        return returning(1.0)(message, context)

    configs = {"run_config": {"epochs": 2}, "node_config": {"partition-id": 0}}
    trainer(train, tmp_path, train_config={"lr": 0.1}, **configs).update_in_slot(
        MODEL, run=RUN, slot=7
    )
    assert seen == [({"lr": 0.1, "server-round": 7}, {"epochs": 2}, {"partition-id": 0})]


def test_mods_of_the_app_and_of_its_function_are_called(tmp_path: Path) -> None:
    called: list[str] = []

    def mod(name: str) -> Any:
        def wrapped(message: Message, context: Context, call_next: Replied) -> object:
            called.append(name)
            return call_next(message, context)

        return wrapped

    app = ClientApp(mods=[mod("app"), arrays_size_mod])
    app.train(mods=[mod("function")])(returning(1.0))
    ClientAppTrainer(app, state=tmp_path).update_in_slot(MODEL, run=RUN, slot=1)
    assert called == ["app", "function"]


def counting(message: Message, context: Context) -> Message:
    """Keep the number of trainings in the context, and return it as the update."""
    before = context.state.config_records.get("own", ConfigRecord({"trained": 0}))
    context.state["own"] = ConfigRecord({"trained": int(before["trained"]) + 1})
    return returning(float(before["trained"]))(message, context)


def trained(folder: Path, run: str) -> float:
    update = trainer(counting, folder).update_in_slot(MODEL, run=run, slot=1)
    return -float(update["bias"])


def test_the_context_persists_from_one_run_of_a_campaign_to_the_next(tmp_path: Path) -> None:
    assert [trained(tmp_path, f"abababababab-{run}") for run in (1, 2, 3)] == [0.0, 1.0, 2.0]
    assert trained(tmp_path, "cdcdcdcdcdcd-1") == 0.0  # another campaign
    [own, _] = sorted(tmp_path.iterdir())
    assert own.stat().st_mode & 0o077 == 0


def test_an_app_that_is_called_again_for_a_run_begins_with_the_same_context(tmp_path: Path) -> None:
    assert trained(tmp_path, "abababababab-1") == 0.0
    assert [trained(tmp_path, "abababababab-2") for _ in range(3)] == [1.0, 1.0, 1.0]
    assert trained(tmp_path, "abababababab-3") == 2.0


def test_a_damaged_context_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "flower-abababababab.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InvalidValue, match="saved context"):
        trained(tmp_path, RUN)
    assert path.read_text(encoding="utf-8") == "{"


def raises(message: Message, context: Context) -> Message:
    raise KeyError("lr")


def exits(message: Message, context: Context) -> Message:
    raise SystemExit(1)


FAILURES: dict[str, tuple[Callable[[Message, Context], Any], str]] = {
    "exception": (raises, "raised KeyError: 'lr'"),
    "exit": (exits, "raised SystemExit"),
    "error": (lambda message, _: Message(Error(20, "no rows"), reply_to=message), "no rows"),
    "nothing": (lambda message, context: None, "must be a Message"),
    "metrics alone": (
        lambda message, _: Message(RecordDict({"m": MetricRecord({"a": 1})}), reply_to=message),
        "0 ArrayRecords",
    ),
    "shapes": (
        lambda message, _: Message(
            RecordDict({"arrays": ArrayRecord([np.zeros(2), np.zeros(())])}), reply_to=message
        ),
        "must have the shape",
    ),
    "NaN": (returning(np.nan), "NaN or infinity"),
    "infinity": (returning(-np.inf), "NaN or infinity"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_an_app_that_fails_says_why(failure: str, tmp_path: Path) -> None:
    reply, said = FAILURES[failure]
    with pytest.raises(TrainingFailed, match="the Flower app") as caught:
        trainer(reply, tmp_path).update_in_slot(MODEL, run=RUN, slot=1)
    assert said in str(caught.value)


def world_of(reply: Callable[[Message, Context], Any], folder: Path, **given: Any) -> World:
    """A device with this app. The server adds the noise, so that its report can be read."""
    service = FakeService(campaign(randomizer=SERVER_NOISE, capacity=2))
    return World(service, trainer=trainer(reply, folder), **given)


def reported(world: World) -> Any:
    """The only report, in units of the clip."""
    [report] = world.service.reports.values()
    return report_from_bytes(report, dimension=DIMENSION) * 1e-6


@pytest.mark.parametrize("failure", FAILURES)
def test_a_dummy_stands_in_for_an_app_that_fails(failure: str, tmp_path: Path) -> None:
    world = world_of(FAILURES[failure][0], tmp_path)
    with pytest.raises(TrainingFailed):
        world.live()
    assert not reported(world).any()
    assert world.live() is Outcome.REPORTED  # spent: it does not train again


def test_an_update_that_is_too_large_is_clipped_and_one_that_is_zero_stays_zero(
    tmp_path: Path,
) -> None:
    for change in (1e30, -3e38, 1e-3, 0.0):
        world = world_of(returning(change), tmp_path)
        assert world.live() is Outcome.REPORTED
        expected = min(1.0, abs(change) * DIMENSION**0.5)
        assert np.linalg.norm(reported(world)) == pytest.approx(expected, abs=1e-5)
        assert np.linalg.norm(reported(world)) <= 1.0


def test_metrics_do_not_leave_the_device(tmp_path: Path) -> None:
    secret = {"accuracy": 0.123456789, "num-examples": 31337}
    worlds = []
    for reply in (returning(1e-3, metrics=secret), returning(1e-3)):
        world = world_of(reply, tmp_path)
        world.live()
        worlds.append(world)
    with_metrics, without = [[request.body for request in each.sent] for each in worlds]
    assert with_metrics == without  # byte for byte
    assert b"31337" not in b"".join(body for body in with_metrics if body)
    assert "31337" not in json.dumps(worlds[0].events_logged)


STEPS = 26


@pytest.mark.parametrize("step", range(1, STEPS))
def test_after_a_crash_at_any_step_the_app_is_not_called_once_its_update_is_stored(
    step: int, tmp_path: Path
) -> None:
    calls: list[int] = []

    def train(message: Message, context: Context) -> Message:
        calls.append(len(calls))
        return counting(message, context)

    world = world_of(train, tmp_path, crash_after=step)
    try:
        world.live()
    except Crash:
        before = len(calls)
        was_stored = any(saved.report for saved in world.saved)
        world.crash_after = None
        assert world.live() is Outcome.REPORTED
        assert len(calls) == (before if was_stored else before + 1)
    assert len(calls) <= 2
    assert len({request.body for request in world.requests(RequestKind.REPORT)}) == 1
    assert not reported(world).any()  # each call began with the same context, which counts from 0


def test_the_crashes_reach_the_report() -> None:
    world = world_of(returning(1.0), Path("."))
    world.live()
    kinds = [type(action) for action in world.actions[:STEPS]]
    assert Save in kinds[kinds.index(Train) :]


QUICKSTARTS: dict[str, dict[str, Any]] = {
    "numpy_lists": {},
    "sklearn_iris": {
        "run_config": {"penalty": "l2"},
        "node_config": {"partition-id": 1, "num-partitions": 5},
    },
    "torch_state_dict": {"run_config": {"local-epochs": 2}, "train_config": {"lr": 0.5}},
    "numpy_client": {"run_config": {"learning-rate": 0.25}},
}


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_apps_in_the_form_of_the_quickstarts_train_without_a_change(
    name: str, tmp_path: Path
) -> None:
    module = importlib.import_module(f"tests.flower.quickstarts.{name}")
    arrays = module.initial()
    named = arrays if isinstance(arrays, dict) else {str(i): each for i, each in enumerate(arrays)}
    model = InitialArrays(named)
    tensors = {key: np.asarray(value, np.float64) for key, value in named.items()}
    app = ClientAppTrainer(module.app, state=tmp_path, **QUICKSTARTS[name])
    update = app.update_in_slot(tensors, run=RUN, slot=1)
    assert {key: np.shape(values) for key, values in update.items()} == model.shapes
    assert any(np.any(values) for values in update.values())
    if name == "torch_state_dict":
        assert update["bn.num_batches_tracked"] == 0.0  # a counter
        assert update["fc.bias"].tolist() == [1.0, 1.0]
        assert update["bn.running_mean"].tolist() == [-0.5, -0.5]
