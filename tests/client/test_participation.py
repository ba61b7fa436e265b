"""What one device does, action by action, whatever network, clock and power do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.client import CampaignRefused, Outcome, ServiceFailed
from checkins.client.actions import LogEvent, Request, RequestKind, Response, Save, Train
from checkins.client.service_client import ServiceClient
from checkins.client.state import SavedState
from checkins.client.view import parse_view
from checkins.errors import InvalidValue
from checkins.protocol.participant import Phase
from checkins.protocol.report import report_from_bytes
from tests.client.world import Crash, FixedRandomness, SlopeTrainer, World, faults, slope
from tests.support.campaigns import SERVER_NOISE
from tests.support.fake_service import DIMENSION, START_S, FakeService, campaign, problem


def test_a_service_that_needs_a_key_says_so() -> None:
    request = Request(RequestKind.ENROL, "POST", "/enrolments", 1.0)
    flow = ServiceClient("http://x", "r", 0.0).retry_until(request, lambda response: None)
    next(flow)
    with pytest.raises(CampaignRefused, match="this service needs a key"):
        flow.send(Response(401, problem(401, "not-enrolled").body, 0.0, 0.0))


def test_a_device_that_is_chosen_reports() -> None:
    world = World(randomness=FixedRandomness(slot=2))
    assert world.live() is Outcome.REPORTED
    assert world.events() == [
        "enrolled",
        "drawn",
        "asleep",
        "checking-in",
        "checked-in",
        "chosen",
        "reporting",
        "acknowledged",
        "done",
    ]
    assert [slot for slot, _ in world.service.reports] == [2]
    assert world.trainer.calls == 1


def test_a_device_that_is_not_chosen_is_dismissed() -> None:
    world = World(FakeService(choose=lambda receipt: False))
    assert world.live() is Outcome.DISMISSED
    assert world.service.reports == {}
    assert world.trainer.calls == 0


def test_a_coin_that_says_no_means_no_check_in() -> None:
    world = World(FakeService(campaign(participation=0.5)), FixedRandomness(tails=True))
    assert world.live() is Outcome.ABSTAINED
    assert {request.kind for request in world.sent} == {RequestKind.VIEW, RequestKind.ENROL}


def test_it_checks_in_while_check_ins_are_taken_and_not_all_at_once() -> None:
    world = World(randomness=FixedRandomness(slot=3))
    world.live()
    [at] = [
        index
        for index, action in enumerate(world.actions)
        if isinstance(action, Request) and action.kind is RequestKind.CHECK_IN
    ]
    assert world.requests(RequestKind.LEDGER)[0] == world.actions[at - 2]
    asleep = world.actions[at - 3]
    begin = world.service.begin(3)
    assert asleep.monotonic_s == pytest.approx(world.booted_s + begin - START_S + 0.5, abs=0.02)


def test_the_draw_is_durable_before_anything_depends_on_it() -> None:
    world = World()
    world.live()
    kinds = [type(action) for action in world.actions if not isinstance(action, LogEvent)]
    sent = [
        action.kind if isinstance(action, Request) else kind
        for action, kind in zip(
            [a for a in world.actions if not isinstance(a, LogEvent)], kinds, strict=True
        )
    ]
    assert sent.index(Save) < sent.index(RequestKind.ENROL)
    drawn = next(i for i, kept in enumerate(world.saved) if kept.phase is Phase.DRAWN)
    assert world.saved[drawn].slot == 1
    assert world.saved[drawn].token is not None
    saves = [i for i, kind in enumerate(sent) if kind is Save]
    assert saves[drawn] < sent.index(RequestKind.CHECK_IN)
    made = sent.index(Train)
    assert sent[made + 1 : made + 4] == [Save, RequestKind.LEDGER, RequestKind.REPORT]


def test_the_final_state_holds_only_the_outcome() -> None:
    world = World()
    world.live()
    assert json.loads(world.disk or b"") == {
        "schema": 1,
        "campaign": world.service.id,
        "ended": "REPORTED",
    }
    before = len(world.sent)
    assert world.live() is Outcome.REPORTED  # the same outcome again, without any request
    assert len(world.sent) == before


@pytest.mark.parametrize(
    "what", ["lost", "unanswered", "twice", "slow", "busy", "broken", "portal"]
)
@pytest.mark.parametrize("kind", [kind for kind in RequestKind if kind is not RequestKind.WITHDRAW])
def test_one_fault_of_any_kind_is_survived(kind: RequestKind, what: str) -> None:
    service = FakeService(campaign(slot_s=60.0, choose_s=25.0))
    service.model_is_large = kind is RequestKind.MODEL  # else it has no request of its own
    world = World(service, fault=faults(what, on=kind))
    assert world.live() is Outcome.REPORTED
    assert len(service.reports) == 1
    assert len(service.tokens) == 1
    assert len(service.check_ins) == 1


def kinds_in_slot(world: World) -> list[RequestKind]:
    """The requests of a device in its slot, without those for the ledger."""
    outside = (RequestKind.VIEW, RequestKind.ENROL, RequestKind.LEDGER)
    return [request.kind for request in world.sent if request.kind not in outside]


def test_a_check_in_shortly_before_the_choice_gets_the_outcome_and_the_model() -> None:
    world = World(FakeService(campaign(slot_s=2.0, choose_s=1.0)))
    assert world.live() is Outcome.REPORTED
    assert kinds_in_slot(world) == [RequestKind.CHECK_IN, RequestKind.REPORT]
    world = World(FakeService(campaign(slot_s=2.0, choose_s=1.0), choose=lambda receipt: False))
    assert world.live() is Outcome.DISMISSED
    assert kinds_in_slot(world) == [RequestKind.CHECK_IN]


def test_an_earlier_check_in_gets_its_receipt_at_once() -> None:
    world = World()
    assert world.live() is Outcome.REPORTED
    kinds = [RequestKind.CHECK_IN, RequestKind.OUTCOME, RequestKind.REPORT]
    assert kinds_in_slot(world) == kinds


@pytest.mark.parametrize("slot_s", [2.0, 10.0])
@pytest.mark.parametrize("reason", ["is_older", "model_is_large"])
def test_a_model_that_is_not_in_the_outcome_is_fetched(reason: str, slot_s: float) -> None:
    world = World(FakeService(campaign(slot_s=slot_s, choose_s=0.5 * slot_s)))
    setattr(world.service, reason, True)
    assert world.live() is Outcome.REPORTED
    assert kinds_in_slot(world)[-2:] == [RequestKind.MODEL, RequestKind.REPORT]


@pytest.mark.parametrize("what", ["unanswered", "twice", "busy", "broken"])
def test_a_check_in_that_waits_for_the_outcome_survives_a_fault(what: str) -> None:
    service = FakeService(campaign(slot_s=20.0, choose_s=2.0))
    world = World(service, fault=faults(what, on=RequestKind.CHECK_IN))
    assert world.live() is Outcome.REPORTED
    assert len(service.check_ins) == len(service.reports) == 1


def test_a_retry_sends_the_same_bytes_with_noise_drawn_once() -> None:
    service = FakeService(campaign(slot_s=600.0, choose_s=25.0))
    world = World(service, fault=faults("unanswered", "busy", "lost", on=RequestKind.REPORT))
    assert world.live() is Outcome.REPORTED
    sent = world.requests(RequestKind.REPORT)
    assert len(sent) == 4
    assert len({(r.path, r.body, r.headers["Authorization"]) for r in sent}) == 1
    assert sum(isinstance(action, Train) for action in world.actions) == 1


def test_retries_back_off_and_respect_retry_after() -> None:
    world = World(fault=faults(*["broken"] * 6, "busy", on=RequestKind.ENROL))
    world.live()
    asked = [
        i
        for i, action in enumerate(world.actions)
        if isinstance(action, Request) and action.kind is RequestKind.ENROL
    ]
    ends = [world.actions[i + 1].monotonic_s for i in asked[:7]]  # type: ignore[union-attr]
    pauses = np.diff([world.booted_s + world.begins_s, *ends])
    assert all(a < b for a, b in pairwise(pauses[1:]))
    assert pauses[6] > pauses[5] + 1.0  # Retry-After: 1


def test_offline_at_its_slot_means_that_it_abstains() -> None:
    world = World(
        randomness=FixedRandomness(slot=2), fault=faults(*["lost"] * 50, on=RequestKind.CHECK_IN)
    )
    assert world.live() is Outcome.LATE
    assert world.service.check_ins == {}
    assert world.server_s < world.service.begin(3) + 2


def test_a_slot_that_has_passed_means_that_it_abstains() -> None:
    world = World(randomness=FixedRandomness(slot=1), begins_s=15.0)
    assert world.live() is Outcome.MISSED
    assert world.requests(RequestKind.CHECK_IN) == []


def test_a_device_started_again_after_its_slot_abstains() -> None:
    world = World(randomness=FixedRandomness(slot=2), crash_before=7)
    with pytest.raises(Crash):
        world.live()
    assert SavedState.from_bytes(world.disk or b"").slot == 2
    world.server_s = world.service.begin(3)
    assert world.live() is Outcome.MISSED
    assert world.service.check_ins == {}


def test_a_report_that_is_not_acknowledged_in_its_slot_is_never_sent_again() -> None:
    world = World(
        randomness=FixedRandomness(slot=2), fault=faults(*["lost"] * 99, on=RequestKind.REPORT)
    )
    assert world.live() is Outcome.LATE
    assert world.service.reports == {}
    assert b"report" not in (world.disk or b"")


def test_a_check_in_after_the_choice_is_refused_and_ends_it() -> None:
    world = World(randomness=FixedRandomness(slot=1), begins_s=5.0)
    assert world.live() is Outcome.REFUSED
    assert len(world.requests(RequestKind.CHECK_IN)) == 1


def test_a_report_that_the_service_refuses_is_not_sent_over_and_over() -> None:
    world = World(randomness=FixedRandomness(slot=1))
    world.service.override = lambda method, path, *_: (
        problem(401, "not-enrolled") if path.endswith("/report") else None
    )
    assert world.live() is Outcome.LATE
    assert len(world.requests(RequestKind.REPORT)) == 1


@pytest.mark.parametrize("hours", [-30.0, 0.5, 10_000.0])
def test_the_devices_own_calendar_does_not_matter(hours: float) -> None:
    world = World(randomness=FixedRandomness(slot=3), booted_s=hours * 3600.0)
    assert world.live() is Outcome.REPORTED


def test_a_long_sleep_is_followed_by_a_fresh_clock_reading() -> None:
    slow = 1.0 - 1e-4  # the device's clock loses 8.6 s a day
    world = World(randomness=FixedRandomness(slot=2), begins_s=-86_400.0, clock_rate=slow)
    assert world.live() is Outcome.REPORTED
    assert len(world.requests(RequestKind.VIEW)) == 2
    [again] = [
        i for i, action in enumerate(world.actions) if action == world.requests(RequestKind.VIEW)[1]
    ][1:]
    assert isinstance(world.actions[again + 1], Save)


def test_without_a_response_before_its_slot_the_old_clock_is_used() -> None:
    world = World(randomness=FixedRandomness(slot=2), begins_s=-3600.0)
    world.fault = lambda request: (
        "lost" if request.kind is RequestKind.VIEW and world.server_s > START_S - 3000 else "fine"
    )
    assert world.live() is Outcome.REPORTED


def test_a_check_in_that_is_too_early_is_made_again_in_time() -> None:
    world = World(randomness=FixedRandomness(slot=2))
    world.service.late_s = 5.0
    assert world.live() in (Outcome.REPORTED, Outcome.LATE)
    assert len(world.service.check_ins) == 1


def test_sliding_devices_draw_from_the_slots_that_are_still_open() -> None:
    service = FakeService(campaign(kind="sliding", slots=40, window=4))
    world = World(service, FixedRandomness(slot=2), begins_s=55.0)  # slot 6, and its choice is over
    assert world.live() is Outcome.REPORTED
    assert [slot for slot, _ in service.reports] == [8]


def test_a_sliding_slot_after_the_last_one_means_that_it_abstains() -> None:
    service = FakeService(campaign(kind="sliding", slots=5, window=4))
    world = World(service, FixedRandomness(slot=4), begins_s=31.0)
    assert world.live() is Outcome.MISSED
    assert service.check_ins == {}


def test_noise_at_the_server_means_none_on_the_device() -> None:
    described = campaign(noise_at="server", kind="fixed")
    worlds = [World(FakeService(described)) for _ in range(2)]
    for world in worlds:
        assert world.live() is Outcome.REPORTED
    [first], [second] = ([*world.service.reports.values()] for world in worlds)
    assert first == second
    units = report_from_bytes(first, dimension=DIMENSION)
    expected = 0.1 + worlds[0].service.model
    assert np.allclose(units * 1e-6, expected, atol=1e-6)


def test_noise_at_the_client_is_fresh_for_every_device() -> None:
    reports = []
    for _ in range(2):
        world = World()
        world.live()
        reports += world.service.reports.values()
    assert reports[0] != reports[1]  # equal with probability far below 1e-9


def test_a_text_that_does_not_hash_to_its_seal_is_refused() -> None:
    service = FakeService()
    view = service.view()
    view["campaign"] = str(view["campaign"]).replace("8.0", "9.0")
    with pytest.raises(CampaignRefused, match="the hash of its text"):
        parse_view(json.dumps(view).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", "000000000000-1"),
        ("run", 2),
        ("dimension", 15),
        (
            "schedule",
            {"start": "2030-01-01T00:00:05Z", "slot_s": 10.0, "choose_s": 4.0, "slots": 4},
        ),
        (
            "schedule",
            {"start": "2030-01-01T00:00:00Z", "slot_s": 10.0, "choose_s": 5.0, "slots": 4},
        ),
    ],
)
def test_what_the_service_says_must_be_what_is_sealed(key: str, value: object) -> None:
    with pytest.raises(CampaignRefused, match="sealed"):
        parse_view(json.dumps(FakeService().view() | {key: value}).encode())


def test_another_campaign_than_the_pinned_one_is_refused_before_enrolment() -> None:
    world = World(plan={"seal": "sha256:" + "0" * 64})
    with pytest.raises(CampaignRefused, match="another campaign"):
        world.live()
    assert world.service.tokens == {}
    assert world.disk is None


def test_the_owner_can_decline() -> None:
    def accept(described: object) -> None:
        raise InvalidValue("epsilon", 8.0, "is too much for me")

    world = World(plan={"accept": accept})
    with pytest.raises(InvalidValue, match="too much for me"):
        world.live()
    assert world.service.tokens == {}


def test_a_campaign_that_clients_cannot_join_is_refused() -> None:
    world = World(FakeService(campaign(grid=None)))
    with pytest.raises(CampaignRefused, match="grid"):
        world.live()


def test_a_campaign_that_is_over_is_refused() -> None:
    world = World(begins_s=100.0)
    with pytest.raises(CampaignRefused, match="is over"):
        world.live()
    assert world.service.tokens == {}


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_service_that_asks_for_a_key_gets_it_or_refuses(key: str | None) -> None:
    world = World(FakeService(secret="a good secret"), plan={"key": key})
    with pytest.raises(CampaignRefused, match="key"):
        world.live()
    world.plan = {"key": "a good secret"}
    assert world.live() is Outcome.REPORTED


def test_an_unreachable_service_is_an_error_after_the_patience() -> None:
    world = World(fault=lambda request: "lost")
    with pytest.raises(ServiceFailed, match="lost on the way"):
        world.live()
    assert 60.0 <= world.server_s - START_S - world.begins_s < 180.0


def test_a_busy_service_is_retried() -> None:
    world = World(begins_s=-3000.0, fault=faults(*["busy"] * 100, on=RequestKind.ENROL))
    assert world.live() is Outcome.REPORTED


@pytest.mark.parametrize("what", ["epoch", "slots"])
def test_a_service_that_was_rolled_back_gets_no_check_in(what: str) -> None:
    world = World(randomness=FixedRandomness(slot=4), begins_s=12.0, crash_before=8)
    world.service.epoch = 3
    with pytest.raises(Crash):
        world.live()
    kept = SavedState.from_bytes(world.disk or b"")
    assert (kept.epoch, kept.slots_closed) == (3, 1)
    if what == "epoch":
        world.service.epoch = 2
    else:
        world.service.closed_less = 1
    with pytest.raises(ServiceFailed, match="was rolled back"):
        world.live()
    assert world.service.check_ins == {}
    assert SavedState.from_bytes(world.disk or b"") == kept


def test_a_service_that_was_rolled_back_and_went_on_gets_no_check_in() -> None:
    """It shows as many slots as before, in the same epoch: only the ledger is another one."""
    world = World(randomness=FixedRandomness(slot=4), begins_s=22.0, crash_before=8)
    with pytest.raises(Crash):
        world.live()
    kept = SavedState.from_bytes(world.disk or b"")
    assert (kept.entries, kept.head) == (3, world.service.head(3))
    world.service.forked_after = 2
    world.crash_before = None
    with pytest.raises(ServiceFailed, match="was rolled back"):
        world.live()
    assert world.service.check_ins == {}
    assert SavedState.from_bytes(world.disk or b"") == kept


@pytest.mark.parametrize(
    ("after", "before"),
    [(RequestKind.ENROL, RequestKind.CHECK_IN), (RequestKind.MODEL, RequestKind.REPORT)],
)
def test_a_service_that_was_rolled_back_meanwhile_gets_nothing_more(
    after: RequestKind, before: RequestKind
) -> None:
    """The ledger is looked at again before the device checks in, and before it reports."""
    world = World(randomness=FixedRandomness(slot=3), begins_s=-5.0)
    world.service.model_is_large = True  # so that it has a request of its own

    def fault(request: Request) -> str:
        if request.kind is after:
            world.service.forked_after = 0
        return "fine"

    world.fault = fault
    with pytest.raises(ServiceFailed, match="was rolled back"):
        world.live()
    assert world.requests(before) == []
    kept = SavedState.from_bytes(world.disk or b"")
    assert kept.phase is (Phase.DRAWN if before is RequestKind.CHECK_IN else Phase.PRIVATIZED)
    assert (kept.report is not None) == (before is RequestKind.REPORT)
    with pytest.raises(ServiceFailed, match="was rolled back"):
        world.live()  # and it stays so
    assert world.requests(before) == []


def test_a_lagging_worker_is_not_taken_for_a_rollback() -> None:
    world = World(randomness=FixedRandomness(slot=3), begins_s=12.0)
    behind = iter([True, True])
    world.service.override = lambda method, path, *_: (
        problem(404, "unknown-entry") if "/ledger/heads/" in path and next(behind, False) else None
    )
    assert world.live() is Outcome.REPORTED


def test_a_service_that_does_not_show_its_ledger_gets_no_check_in() -> None:
    world = World(randomness=FixedRandomness(slot=3), begins_s=12.0)
    world.service.override = lambda method, path, *_: (
        problem(404, "unknown-path") if "/ledger/heads/" in path else None
    )
    with pytest.raises(ServiceFailed, match="cannot show"):
        world.live()
    assert world.service.check_ins == {}


def test_a_state_without_a_ledger_head_still_reads() -> None:
    world = World(randomness=FixedRandomness(slot=3), begins_s=12.0, crash_before=8)
    with pytest.raises(Crash):
        world.live()
    values = json.loads(world.disk or b"")
    del values["entries"], values["head"]
    world.disk = json.dumps(values).encode()
    world.crash_before = None
    assert world.live() is Outcome.REPORTED


def test_the_view_after_a_restart_is_durable_too() -> None:
    world = World(randomness=FixedRandomness(slot=4), begins_s=2.0, crash_before=8)
    with pytest.raises(Crash):
        world.live()
    assert SavedState.from_bytes(world.disk or b"").entries == 1
    world.server_s = world.service.begin(3) + 1.0
    world.crash_before = world.steps + 4
    with pytest.raises(Crash):
        world.live()
    kept = SavedState.from_bytes(world.disk or b"")
    assert (kept.entries, kept.head) == (3, world.service.head(3))


def fails(model: object) -> object:
    raise RuntimeError("out of battery")


WRONG_SHAPE = {"weights": np.zeros(3), "bias": np.zeros(())}


@pytest.mark.parametrize(
    ("update", "error", "said"),
    [(fails, RuntimeError, "battery"), (lambda model: WRONG_SHAPE, InvalidValue, "shape")],
)
def test_a_device_whose_training_fails_sends_a_dummy_and_raises_at_its_end(
    update: Callable[[Any], Any], error: type[Exception], said: str
) -> None:
    service = FakeService(campaign(randomizer=SERVER_NOISE, capacity=2))
    world = World(service, trainer=SlopeTrainer(update))
    with pytest.raises(error, match=said):
        world.live()
    [report] = world.service.reports.values()
    assert not np.any(report_from_bytes(report, dimension=DIMENSION))
    assert [event["event"] for event in world.events_logged].count("training-failed") == 1
    assert world.live() is Outcome.REPORTED  # it has ended, and does not train again
    assert world.trainer.calls == 1


def test_after_a_crash_the_same_dummy_is_sent_and_the_failed_training_is_not_repeated() -> None:
    whole = World(FakeService(), trainer=SlopeTrainer(fails))
    with pytest.raises(RuntimeError):
        whole.live()
    stored = [isinstance(each, Train) for each in whole.actions].index(True) + 3
    assert isinstance(whole.actions[stored - 1], Save)
    world = World(FakeService(), trainer=SlopeTrainer(fails), crash_after=stored)
    with pytest.raises(Crash):
        world.live()
    world.crash_after = None
    assert world.live() is Outcome.REPORTED
    assert world.trainer.calls == 1
    [sent] = world.requests(RequestKind.REPORT)
    assert sent.body == next(saved.report for saved in world.saved if saved.report)


class InSlot:
    """A trainer that records in which run and slot it was called."""

    def __init__(self) -> None:
        self.called: list[tuple[str, int]] = []

    def update_in_slot(self, model: Any, *, run: str, slot: int) -> Any:
        self.called.append((run, slot))
        return slope(model)


def test_a_trainer_can_ask_for_the_run_and_the_slot() -> None:
    trainer = InSlot()
    world = World(randomness=FixedRandomness(slot=2), trainer=trainer)  # type: ignore[arg-type]
    assert world.live() is Outcome.REPORTED
    assert trainer.called == [(world.service.id, 2)]


def crashed(world: World) -> Outcome:
    """Let it crash, start it again a moment later, until it ends."""
    for _ in range(20):
        try:
            return world.live()
        except Crash:
            world.server_s += 0.3
            world.crash_before = world.crash_after = None
    raise AssertionError


STEPS = 28


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_crash_between_any_two_actions_changes_nothing(step: int, when: str) -> None:
    service = FakeService(campaign(slot_s=60.0, choose_s=25.0))
    randomness = FixedRandomness(slot=2)
    world = World(service, randomness, **{f"crash_{when}": step})
    assert crashed(world) is Outcome.REPORTED
    assert len(service.tokens) == len(service.check_ins) == len(service.reports) == 1
    sent = world.requests(RequestKind.REPORT)
    assert len({request.body for request in sent}) == 1
    drawn = [kept for kept in world.saved if kept.phase is Phase.DRAWN]
    assert len({(kept.slot, kept.token) for kept in drawn}) == 1
    assert json.loads(world.disk or b"")["ended"] == "REPORTED"


def test_the_crashes_cover_every_action() -> None:
    world = World(FakeService(campaign(slot_s=60.0, choose_s=25.0)), FixedRandomness(slot=2))
    world.live()
    assert world.steps < STEPS


KINDS = ("fine", "fine", "fine", "lost", "unanswered", "twice", "slow", "busy", "broken", "portal")


@given(
    schedule=st.lists(st.sampled_from(KINDS), max_size=40),
    crashes=st.lists(st.integers(1, 60), max_size=4, unique=True),
    after=st.booleans(),
    slot=st.integers(1, 4),
    begins_s=st.floats(-200.0, 60.0),
    backoff_s=st.floats(0.0, 20.0),
    chosen=st.booleans(),
)
def test_whatever_happens_a_device_takes_part_at_most_once(
    schedule: list[str],
    crashes: list[int],
    after: bool,
    slot: int,
    begins_s: float,
    backoff_s: float,
    chosen: bool,
) -> None:
    service = FakeService(campaign(slot_s=20.0, choose_s=8.0), choose=lambda receipt: chosen)
    world = World(service, FixedRandomness(slot=slot), fault=faults(*schedule), begins_s=begins_s)
    world.plan = {"retry_timeout_s": 1e9}
    left = sorted(crashes)
    outcome = None
    while outcome is None:
        at = left.pop(0) if left else None
        if at is not None and at <= world.steps:
            continue
        world.crash_before, world.crash_after = (None, at) if after else (at, None)
        try:
            outcome = world.live()
        except Crash:
            world.server_s += backoff_s
        except CampaignRefused:
            break  # it was over before the device drew
    drawn = {(kept.slot, kept.token) for kept in world.saved if kept.phase is not None}
    assert len(drawn) <= 1
    assert len(service.tokens) <= 1
    assert len(service.check_ins) <= 1
    assert len({request.body for request in world.requests(RequestKind.REPORT)}) <= 1
    assert {request.path.split("?")[0] for request in world.requests(RequestKind.CHECK_IN)} <= {
        f"/campaigns/{service.id}/slots/{slot}/check-ins"
    }
    if outcome is not None:
        assert json.loads(world.disk or b"") == {
            "schema": 1,
            "campaign": service.id,
            "ended": outcome.name,
        }
    if outcome is Outcome.REPORTED:
        assert len(service.reports) == 1
    if outcome is Outcome.DISMISSED:
        assert not chosen


def test_a_state_of_another_campaign_is_refused() -> None:
    world = World(disk=SavedState("0123456789ab-1").to_bytes())
    with pytest.raises(CampaignRefused, match="must be the state of"):
        world.live()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"schema": 2, "campaign": "x"}', b"\xff"])
def test_a_damaged_state_is_refused_and_not_guessed(data: bytes) -> None:
    with pytest.raises(InvalidValue, match="is not a device's state"):
        SavedState.from_bytes(data)


@given(
    st.builds(
        SavedState,
        st.just("0123456789ab-1"),
        seal=st.none() | st.text(max_size=5),
        key=st.none() | st.text(max_size=5),
        token=st.none() | st.text(max_size=5),
        epoch=st.integers(0, 5),
        slots_closed=st.integers(0, 5),
        phase=st.none() | st.sampled_from(Phase),
        slot=st.none() | st.integers(1, 9),
        receipt=st.none() | st.text(max_size=5),
        report=st.none() | st.binary(min_size=1, max_size=9),
    )
)
def test_a_saved_state_reads_back(kept: SavedState) -> None:
    assert SavedState.from_bytes(kept.to_bytes()) == kept
    over = replace(kept.ended_with("REPORTED"))
    assert SavedState.from_bytes(over.to_bytes()) == over
