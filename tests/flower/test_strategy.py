"""A campaign inside Flower's ServerApp: who takes part, what is released, and what survives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from checkins.campaign import Campaign, Spending
from checkins.errors import CheckinsError, InvalidValue, OutOfOrder, ProtocolViolation
from checkins.flower.nodes import SimulatedNodes
from checkins.flower.report_mod import REPORT_KEY, report_mod
from checkins.flower.server_run import DIFFERENCES, USED_KEYS_NAME, ServerRun, open_run
from checkins.flower.strategy import RandomCheckIns
from checkins.ledger import lines, verify
from tests.support.campaigns import CLIENT_NOISE, CORRELATED, SLOT_S
from tests.support.flower import (
    DIMENSION,
    INITIAL,
    START_S,
    FakeGrid,
    GridClock,
    flower_campaign,
    in_slot,
    replying,
)

STEP = np.array([1.0, 0.0])
Event = Callable[[FakeGrid], object]


class Killed(BaseException):
    """The process of the ServerApp ends here."""


def run(
    folder: Path, events: dict[float, Event], *, campaign: Campaign | None = None, **options: object
) -> tuple[RandomCheckIns, FakeGrid]:
    """Run a campaign on a grid on which these events happen at these times."""
    grid, clock = FakeGrid(), GridClock()
    clock.at = {when: lambda event=event: event(grid) for when, event in events.items()}
    strategy = RandomCheckIns(campaign or flower_campaign(), folder, clock=clock, **options)
    strategy.start(grid)
    return strategy, grid


def joining(*nodes: int, tensors: dict[str, np.ndarray] | None = None) -> Event:
    def join(grid: FakeGrid) -> None:
        for node in nodes:
            grid.join(node, replying(tensors or {"weights": STEP}))

    return join


def leaving(*nodes: int) -> Event:
    return lambda grid: [grid.leave(node) for node in nodes]


def verified(folder: Path):
    return verify(lines(folder / "ledger.jsonl"), require_closed=True)


def test_a_node_that_is_online_at_the_choice_is_asked_once_to_train(tmp_path: Path) -> None:
    _, grid = run(tmp_path, {in_slot(1): joining(1), in_slot(2): joining(2)})
    assert grid.sent_to == [1, 2]  # node 1 is still online in slot 2
    assert {message.metadata.message_type for message in grid.pushed} == {"train"}
    assert grid.pushed[0].content["config"] == ConfigRecord({"server-round": 1})
    assert all(0.0 < message.metadata.ttl <= SLOT_S for message in grid.pushed)


def test_a_node_that_comes_online_after_the_choice_is_not_asked(tmp_path: Path) -> None:
    _, grid = run(tmp_path, {START_S + SLOT_S - 1.0: joining(1)})
    assert grid.sent_to == []


def test_a_node_that_was_online_before_the_first_slot_is_not_asked(tmp_path: Path) -> None:
    _, grid = run(tmp_path, {START_S - 1.0: joining(1)})
    assert grid.sent_to == []


def test_a_key_that_comes_back_in_a_later_slot_is_not_asked_again(tmp_path: Path) -> None:
    events = {in_slot(1): joining(1), in_slot(2, after_s=0.0): leaving(1), in_slot(2): joining(1)}
    _, grid = run(tmp_path, events)
    assert grid.sent_to == [1]


def test_at_most_the_capacity_is_asked_and_the_others_have_used_their_participation(
    tmp_path: Path,
) -> None:
    again = {in_slot(2, after_s=0.0): leaving(1, 2, 3), in_slot(2): joining(1, 2, 3)}
    _, grid = run(tmp_path, {in_slot(1): joining(1, 2, 3), **again})
    assert len(grid.sent_to) == 2
    assert set(grid.sent_to) < {1, 2, 3}


def test_the_ledger_is_accepted_and_its_certificate_is_the_native_one(tmp_path: Path) -> None:
    campaign = flower_campaign()
    strategy, _ = run(tmp_path, {in_slot(1): joining(1, 2)}, campaign=campaign)
    native = Spending(campaign).after(2)
    found, certified = verified(tmp_path), strategy.certificate
    assert certified is not None
    assert found.certificate.epsilon == certified.epsilon == native.epsilon
    assert found.certificate.epsilon_lower == certified.epsilon_lower == native.epsilon_lower
    assert certified.assumptions == (*native.assumptions, *DIFFERENCES)
    assert found.stated_assumptions == DIFFERENCES
    assert strategy.get_privacy_spent().epsilon == native.epsilon
    assert strategy.get_privacy_spent().num_releases == 2
    assert not found.simulated
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_what_is_spent_before_the_first_slot_is_nothing(tmp_path: Path) -> None:
    strategy = RandomCheckIns(flower_campaign(), tmp_path)
    assert strategy.get_privacy_spent().epsilon == 0.0


def test_the_server_evaluates_each_release_and_no_node_does(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(slot: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(slot)
        return MetricRecord({"norm": float(np.abs(arrays["weights"].numpy()).sum())})

    grid, clock = FakeGrid(), GridClock()
    clock.at[in_slot(1)] = lambda: joining(1)(grid)
    result = RandomCheckIns(flower_campaign(), tmp_path, clock=clock).start(
        grid, evaluate_fn=evaluate
    )
    assert seen == [1, 2] == list(result.evaluate_metrics_serverapp)
    assert result.train_metrics_clientapp == result.evaluate_metrics_clientapp == {}
    assert list(result.arrays) == list(INITIAL)
    assert {message.metadata.message_type for message in grid.pushed} == {"train"}


def test_a_simulation_gives_every_node_one_slot_and_marks_its_ledger(tmp_path: Path) -> None:
    grid = FakeGrid()
    for node in range(30):
        grid.join(node, replying({"weights": STEP}))
    campaign = flower_campaign(capacity="all", optimizer='kind = "sgd", rate = 0.5, divide_by = 3')
    RandomCheckIns(campaign, tmp_path, simulated_nodes=30).start(grid)
    assert sorted(grid.sent_to) == list(range(30))
    assert len({message.metadata.group_id for message in grid.pushed}) == 2  # but for 2**-29
    assert min(message.metadata.ttl for message in grid.pushed) > 3600.0  # time is virtual
    assert verified(tmp_path).simulated
    with pytest.raises(InvalidValue, match=r"is over in .*: give another folder"):
        RandomCheckIns(campaign, tmp_path, simulated_nodes=30).start(grid)


def test_a_process_that_is_killed_costs_its_slot_and_nobody_takes_part_twice(
    tmp_path: Path,
) -> None:
    def kill(grid: FakeGrid) -> None:
        raise Killed

    campaign = flower_campaign(slots=4)
    first = {in_slot(1): joining(1), in_slot(2): joining(2), START_S + SLOT_S + 7.0: kill}
    with pytest.raises(Killed):
        run(tmp_path, first, campaign=campaign)
    assert (tmp_path / USED_KEYS_NAME).exists()
    grid, clock = FakeGrid(), GridClock(START_S + SLOT_S + 8.0)
    everybody = {in_slot(3): joining(1, 2, 3), in_slot(4): joining(4)}
    clock.at = {when: lambda event=event: event(grid) for when, event in everybody.items()}
    strategy = RandomCheckIns(campaign, tmp_path, clock=clock)
    strategy.start(grid)
    assert grid.sent_to == [3, 4]
    assert verified(tmp_path).ledger.closed[0].slots_closed == 4
    assert strategy.certificate is not None
    assert strategy.certificate.epsilon == Spending(campaign).after(4).epsilon


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"schema": 1, "run": "x-1", "keys": []}'])
def test_a_run_is_not_continued_without_its_used_keys(
    tmp_path: Path, content: bytes | None
) -> None:
    def kill(grid: FakeGrid) -> None:
        raise Killed

    with pytest.raises(Killed):
        run(tmp_path, {in_slot(1): joining(1), START_S + SLOT_S + 7.0: kill})
    (tmp_path / USED_KEYS_NAME).unlink()
    if content is not None:
        (tmp_path / USED_KEYS_NAME).write_bytes(content)
    with pytest.raises(InvalidValue, match="without them"):
        run(tmp_path, {in_slot(2): joining(1)})


def test_keys_that_a_kill_at_the_end_has_left_are_erased(tmp_path: Path) -> None:
    run(tmp_path, {in_slot(1): joining(1)})
    (tmp_path / USED_KEYS_NAME).write_bytes(b"left")
    with pytest.raises(InvalidValue, match="is over"):
        run(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_a_run_with_correlated_noise_is_not_continued_without_its_secret_sums(
    tmp_path: Path,
) -> None:
    def kill(grid: FakeGrid) -> None:
        raise Killed

    campaign = flower_campaign(**CORRELATED)
    with pytest.raises(Killed):
        run(tmp_path, {in_slot(1): kill}, campaign=campaign)
    with pytest.raises(InvalidValue, match="correlated noise"):
        run(tmp_path, {}, campaign=campaign)


def test_another_campaign_waits_until_the_open_one_is_over(tmp_path: Path) -> None:
    def kill(grid: FakeGrid) -> None:
        raise Killed

    with pytest.raises(Killed):
        run(tmp_path, {in_slot(1): kill})
    with pytest.raises(InvalidValue, match="while campaign 'small' is open"):
        run(tmp_path, {}, campaign=flower_campaign(name="other"))


def test_a_campaign_is_run_once_and_not_after_its_start(tmp_path: Path) -> None:
    run(tmp_path, {})
    with pytest.raises(InvalidValue, match="is over"):
        run(tmp_path, {})
    late = RandomCheckIns(flower_campaign(name="late"), tmp_path, clock=GridClock(START_S + 1.0))
    with pytest.raises(InvalidValue, match="has passed"):
        late.start(FakeGrid())


@pytest.mark.parametrize(
    "argument", [{"num_rounds": 3}, {"timeout": 1.0}, {"evaluate_config": ConfigRecord()}]
)
def test_what_the_campaign_fixes_is_refused(tmp_path: Path, argument: dict) -> None:
    with pytest.raises(InvalidValue, match="must be None"):
        RandomCheckIns(flower_campaign(), tmp_path).start(FakeGrid(), **argument)


def test_the_strategy_cannot_be_driven_round_by_round(tmp_path: Path) -> None:
    strategy = RandomCheckIns(flower_campaign(), tmp_path)
    with pytest.raises(OutOfOrder, match="start"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), FakeGrid())
    with pytest.raises(OutOfOrder, match="start"):
        strategy.aggregate_train(1, [])
    assert list(strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), FakeGrid())) == []


def test_a_campaign_of_several_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="repeats"):
        run(tmp_path, {}, campaign=flower_campaign(repeats=2))


def open_slot(folder: Path, **given: object) -> tuple[object, ServerRun, str]:
    """Return a run whose first slot has one chosen node, and the receipt of the node."""
    context = open_run(flower_campaign(**given), np.zeros(DIMENSION), folder, now_s=START_S - 1.0)
    opened = context.__enter__()
    opened.begin_slot()
    (receipt,) = opened.choose([b"key"])
    return context, opened, receipt


@pytest.mark.parametrize(
    ("update", "units"),
    [
        (np.zeros(3), [0, 0, 0]),
        (np.array([np.nan, 1.0, 0.0]), [0, 0, 0]),
        (np.array([np.inf, 0.0, 0.0]), [0, 0, 0]),
        (np.array([0.0, -1e30, 0.0]), [0, -1_000_000, 0]),
        (np.array([0.25, 0.0, 0.5]), [250_000, 0, 500_000]),
    ],
)
def test_updates_are_clipped_on_the_grid(tmp_path: Path, update, units: list[int]) -> None:
    context, opened, receipt = open_slot(tmp_path)
    opened.add_update(receipt, update)
    assert opened.server.slot is not None
    assert opened.server.slot.reports[receipt].values.tolist() == units
    context.__exit__(None, None, None)


def refusing(message: Message) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)


def oversized(message: Message) -> Message:
    units = Array(np.full(DIMENSION, 2**30, np.int32))
    return Message(RecordDict({REPORT_KEY: ArrayRecord({REPORT_KEY: units})}), reply_to=message)


@pytest.mark.parametrize("reply", [refusing, oversized, lambda message: None])
@pytest.mark.parametrize("randomizer", [None, CLIENT_NOISE])
def test_a_reply_that_is_no_report_of_the_campaign_counts_as_missing(
    tmp_path: Path, reply, randomizer: str | None
) -> None:
    given = {} if randomizer is None else {"randomizer": randomizer}
    _, grid = run(
        tmp_path,
        {in_slot(1): lambda grid: grid.join(1, reply)},
        campaign=flower_campaign(**given),
    )
    assert grid.sent_to == [1]
    assert verified(tmp_path).ledger.closed[0].slots_closed == 2


def trained(app: ClientApp) -> ClientApp:
    @app.train()
    def train(message: Message, context: object) -> Message:
        return replying({"weights": np.array([5.0, 0.0])}, secret=42.0)(message)

    @app.evaluate()
    def evaluate(message: Message, context: object) -> Message:
        raise AssertionError("nothing is evaluated on clients")

    return app


@pytest.mark.parametrize("randomizer", [None, CLIENT_NOISE])
def test_with_the_mod_a_reply_has_the_clipped_report_and_nothing_else(
    tmp_path: Path, randomizer: str | None
) -> None:
    campaign = flower_campaign(**({} if randomizer is None else {"randomizer": randomizer}))
    app = trained(ClientApp(mods=[report_mod(campaign)]))
    seen: list[Message] = []

    def reply(message: Message) -> Message:
        grid = FakeGrid(apps={1: app})
        seen.append(grid._reply(message))
        return seen[-1]

    run(tmp_path, {in_slot(1): lambda grid: grid.join(1, reply)}, campaign=campaign)
    (answer,) = seen
    assert list(answer.content) == [REPORT_KEY]
    units = answer.content[REPORT_KEY][REPORT_KEY].numpy()
    assert units.dtype == np.int32
    assert (units.tolist() == [-1_000_000, 0, 0]) == (randomizer is None)


def test_with_the_mod_an_app_evaluates_nothing_and_does_not_tell_that_training_failed() -> None:
    app = trained(ClientApp(mods=[report_mod(flower_campaign())]))
    grid = FakeGrid()
    grid.join(1, app)
    sent = Message(RecordDict(), dst_node_id=1, message_type="evaluate")
    assert "evaluate nothing" in grid._reply(sent).error.reason

    failing = ClientApp(mods=[report_mod(flower_campaign())])

    @failing.train()
    def train(message: Message, context: object) -> Message:
        return refusing(message)

    grid.join(2, failing)
    arrays = ArrayRecord({name: Array(value) for name, value in INITIAL.items()})
    sent = Message(RecordDict({"arrays": arrays}), dst_node_id=2, message_type="train")
    units = grid._reply(sent).content[REPORT_KEY][REPORT_KEY].numpy()
    assert units.tolist() == [0, 0, 0]


def test_a_client_without_the_mod_cannot_take_part_if_clients_add_the_noise(
    tmp_path: Path,
) -> None:
    context, opened, receipt = open_slot(tmp_path, randomizer=CLIENT_NOISE)
    with pytest.raises(ProtocolViolation, match="clients add the noise"):
        opened.add_update(receipt, np.zeros(DIMENSION))
    context.__exit__(None, None, None)


def test_the_run_config_of_an_app_names_the_campaign_and_the_folder(tmp_path: Path) -> None:
    from checkins.campaign import campaign_text

    (tmp_path / "campaign.toml").write_text(campaign_text(flower_campaign()), encoding="utf-8")
    config = {"campaign": "campaign.toml", "folder": str(tmp_path / "state")}
    strategy = RandomCheckIns.from_run_config(config, tmp_path)
    assert strategy.campaign == flower_campaign()
    assert (tmp_path / "state").is_dir()
    with pytest.raises(CheckinsError, match="absolute"):
        RandomCheckIns.from_run_config({**config, "folder": "state"}, tmp_path)


def test_a_simulation_with_too_few_nodes_names_both_numbers_and_the_option(tmp_path: Path) -> None:
    grid, clock = FakeGrid(), GridClock()
    for node in range(10):
        grid.join(node, replying({"weights": STEP}))
    nodes = SimulatedNodes(grid, flower_campaign(), 20, clock=clock)
    with pytest.raises(InvalidValue, match=r"20: must be .* simulates, 10: .*num-supernodes=20"):
        nodes.note_online()


def test_a_simulation_waits_as_long_as_nodes_are_created(tmp_path: Path) -> None:
    grid, clock = FakeGrid(), GridClock(now_s=0.0)
    for node in range(4):
        event = joining(node)
        clock.at[20.0 * (node + 1)] = lambda event=event: event(grid)
    nodes = SimulatedNodes(grid, flower_campaign(), 4, clock=clock)
    nodes.note_online()
    assert nodes.nodes_by_slot is not None
    assert sum(map(len, nodes.nodes_by_slot.values())) == 4


@pytest.mark.parametrize("simulated_first", [True, False])
def test_a_folder_has_either_simulated_or_real_runs(tmp_path: Path, simulated_first: bool) -> None:
    campaign, other = flower_campaign(), replace(flower_campaign(), name="other")
    model = np.zeros(DIMENSION)
    with open_run(campaign, model, tmp_path, now_s=0.0, simulated=simulated_first):
        pass
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with (
        pytest.raises(InvalidValue, match="give another folder"),
        open_run(other, model, tmp_path, now_s=0.0, simulated=not simulated_first),
    ):
        pass
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_real_run_says_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "checkins.flower.strategy.log", lambda level, text, *given: said.append(text % given)
    )
    run(tmp_path, {})
    begins = datetime.fromtimestamp(START_S, UTC).isoformat(timespec="seconds")
    assert f"Waiting for slot 1 at {begins}; to simulate, set simulated-nodes=N" in said
