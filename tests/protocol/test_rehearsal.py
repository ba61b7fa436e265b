"""A campaign in a perfect world: its events are all there is to it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import ProtocolViolation
from checkins.protocol.machine import Event
from checkins.protocol.model_update import Model, ModelUpdate
from checkins.protocol.participant import COIN_RANGE, Outcome, Participant
from checkins.protocol.rehearsal import Rehearsal, rehearse
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, FixedWindow, Rules, SlidingWindow, Window
from checkins.protocol.server import SERVER_MACHINE, Ending, Phase, Server
from checkins.protocol.slot import CheckedIn, ChoiceRecorded, Choose, Expired, ReportArrived

DIMENSION = 3
START = np.array([0.1, -0.2, 0.3])


@dataclass(frozen=True)
class Seeded:
    """Dice of a simulation; a report's noise goes by its client, so that it can be asked again."""

    seed: int
    integers: bool = True

    def _of(self, *name: object) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def coin(self, token: str) -> int:
        return self._of("coin", token).randrange(COIN_RANGE)

    def pick(self, token: str, below: int) -> int:
        return self._of("pick", token).randrange(below)

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._of("choose", slot, k).randrange(r) for k, r in enumerate(ranges))

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        return tuple(self._report("dummy", slot, k) for k in range(count))

    def noise(self, slot: int) -> Report:
        return self._report("noise", slot)

    def train(self, token: str, model: Model) -> Report:
        return self._report("report", token)

    def _report(self, *name: object) -> Report:
        dice = self._of(*name)
        if self.integers:
            units = [dice.randrange(-(2**39), 2**39) for _ in range(DIMENSION)]
            return Report.from_simulation(np.array(units, dtype=np.int64))
        noise = [dice.gauss() * 10.0 ** dice.randrange(-9, 9) for _ in range(DIMENSION)]
        return Report.from_simulation(np.array(noise))


KINDS = ("fixed", "capacity", "noise at the server", "averaged", "sliding")


def rules_of(kind: str, *, slots: int = 6, integers: bool = True, **other: Any) -> Rules:
    filling = {"averaged": Filling.NOTHING, "noise at the server": Filling.NOISE}
    capacity = {"capacity": 3, "averaged": None, "noise at the server": None}
    form = ReportChecks(DIMENSION, 2**39 if integers else None, simulated=True)
    minibatch = 1 if kind == "averaged" else 2
    rules = Rules(
        slots=slots,
        capacity=capacity.get(kind, 1),
        filling=filling.get(kind, Filling.DUMMIES),
        warm_up=2 if kind == "sliding" else 0,
        affordable=slots,
        report_checks=form,
        update=ModelUpdate(0.1, unit=1e-3, minibatch=minibatch, decay=0.5, diameter=1e9),
    )
    return replace(rules, **other)


def campaign(
    kind: str,
    dice: Seeded,
    *,
    clients: int = 12,
    train: Callable[[str, Model], Report] | None = None,
    **other: Any,
) -> Rehearsal:
    rules = rules_of(kind, integers=dice.integers, **other)
    window: Window = SlidingWindow(3) if kind == "sliding" else FixedWindow.whole(rules.slots)
    everyone = {f"c{j:02}": Participant(0.9, window) for j in range(clients)}
    wakes = {token: 1 + j % rules.slots for j, token in enumerate(everyone)}
    return rehearse(
        Server.start(rules, START),
        everyone,
        randomness=dice,
        train=train or dice.train,
        wake_slots=wakes if kind == "sliding" else None,
    )


def facts(server: Server) -> tuple[Any, ...]:
    """Everything that a server knows at the end, down to the bits."""
    learner = server.learner
    gradient = None if learner.gradient is None else learner.gradient.tobytes()
    return server.phase, server.closed, learner.slots, gradient, learner.model.tobytes()


# ---- events on paper -----------------------------------------------------------------------


def written(event: Event) -> str:
    """One line of JSON for an event; what a report holds as the hexadecimal of its bytes."""

    def plain(value: Any) -> Any:
        if isinstance(value, Report):
            values = value.values
            return {
                "simulated": value.simulated,
                "dtype": values.dtype.str,
                "shape": values.shape,
                "bytes": values.tobytes().hex(),
            }
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    told = {field.name: plain(getattr(event, field.name)) for field in fields(event)}  # type: ignore[arg-type]
    return json.dumps({"event": type(event).__name__, **told})


def read(line: str) -> Event:
    """The event that a line tells of."""

    def rich(value: Any) -> Any:
        if isinstance(value, dict):
            bits = np.frombuffer(bytes.fromhex(value["bytes"]), dtype=value["dtype"])
            return Report(bits.reshape(value["shape"]), value["simulated"])
        return tuple(rich(item) for item in value) if isinstance(value, list) else value

    told = json.loads(line)
    kind = {event.__name__: event for event in SERVER_MACHINE.events}[told.pop("event")]
    return kind(**{name: rich(value) for name, value in told.items()})


# ---- replay --------------------------------------------------------------------------------


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), integers=st.booleans())
def test_the_events_replay_to_the_identical_model_bit_for_bit(
    kind: str, seed: int, integers: bool
) -> None:
    ran = campaign(kind, Seeded(seed, integers))
    assert facts(ran.replay()) == facts(ran.end)
    assert ran.end.phase is Phase.DONE


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), integers=st.booleans())
def test_nothing_hides_in_memory_a_record_on_paper_replays_as_well(
    kind: str, seed: int, integers: bool
) -> None:
    ran = campaign(kind, Seeded(seed, integers))
    paper = "\n".join(written(event) for event in ran.events)
    fresh = Server.start(rules_of(kind, integers=integers), START)
    again = SERVER_MACHINE.replay(fresh, [read(line) for line in paper.splitlines()])
    assert facts(again) == facts(ran.end)


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), data=st.data())
def test_a_replay_can_stop_anywhere_and_go_on(kind: str, seed: int, data: st.DataObject) -> None:
    ran = campaign(kind, Seeded(seed))
    pause = data.draw(st.integers(0, len(ran.events)))
    halfway = SERVER_MACHINE.replay(ran.start, ran.events[:pause])
    assert facts(SERVER_MACHINE.replay(halfway, ran.events[pause:])) == facts(ran.end)


def test_every_release_is_the_model_of_its_slot() -> None:
    ran = campaign("capacity", Seeded(1))
    ends = [k for k, event in enumerate(ran.events, 1) if isinstance(event, Expired)]
    models = [
        SERVER_MACHINE.replay(ran.start, ran.events[:k]).learner.model.tobytes() for k in ends
    ]
    assert models == [shown.model.tobytes() for shown in ran.releases]


# ---- order ---------------------------------------------------------------------------------


def shuffled(ran: Rehearsal, dice: random.Random) -> list[Event]:
    """The same events; within each slot check-ins, and then reports, come in another order."""
    events = list(ran.events)
    for kind in (CheckedIn, ReportArrived):
        for slot in range(1, ran.end.closed + 1):
            at = [k for k, event in enumerate(events) if type(event) is kind and event.slot == slot]
            moved = [events[k] for k in at]
            dice.shuffle(moved)
            for k, event in zip(at, moved, strict=True):
                events[k] = event
    return events


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    integers=st.booleans(),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_order_in_which_messages_arrive_never_matters(
    kind: str, seed: int, integers: bool, shuffle: random.Random
) -> None:
    ran = campaign(kind, Seeded(seed, integers), clients=20)
    again = SERVER_MACHINE.replay(ran.start, shuffled(ran, shuffle))
    assert facts(again) == facts(ran.end)


@given(seed=st.integers(0, 2**32), shuffle=st.randoms(use_true_random=False))
def test_sums_of_integers_do_not_depend_on_who_comes_first_in_them(
    seed: int, shuffle: random.Random
) -> None:
    """Other receipts sort in another order, and so do dummies: the totals are the same bits."""
    ran = campaign("capacity", Seeded(seed), capacity=20, clients=20)
    names = sorted({event.receipt for event in ran.events if isinstance(event, CheckedIn)})
    others = list(names)
    shuffle.shuffle(others)
    renamed = dict(zip(names, others, strict=True))

    def changed(event: Event) -> Event:
        if isinstance(event, CheckedIn | ReportArrived):
            return replace(event, receipt=renamed[event.receipt])
        if isinstance(event, Expired):
            return replace(event, dummies=tuple(shuffle.sample(event.dummies, len(event.dummies))))
        return event

    again = SERVER_MACHINE.replay(ran.start, [changed(event) for event in ran.events])
    assert facts(again) == facts(ran.end)


@pytest.mark.parametrize("kind", ["capacity", "noise at the server", "averaged"])
def test_sums_of_32_bit_reports_are_kept_in_64_bits(kind: str) -> None:
    """Reports travel as int32; a slot's sum of them does not fit there."""
    most = 2**31 - 1
    full = Report.from_simulation(np.full(DIMENSION, most, dtype=np.int32))
    ran = campaign(kind, Seeded(4), train=lambda token, model: full, slots=1)
    used = sum(isinstance(event, ReportArrived) for event in ran.events)
    (closing,) = ran.closings
    (end,) = (event for event in ran.events if isinstance(event, Expired))
    assert used >= 3
    assert closing.total is not None
    assert closing.total.dtype == np.int64
    noise = 0 if end.noise is None else end.noise.values
    assert (closing.total == used * most + noise).all()


def test_the_same_choice_drawn_in_another_order_gives_the_same_model() -> None:
    """Three of four are chosen: draws (0, 0, 0) and (2, 1, 0) mean the first three both."""
    models = set()
    for draws in ((0, 0, 0), (2, 1, 0), (1, 1, 0), (0, 1, 0)):
        ran = campaign("capacity", Seeded(3), slots=1, clients=4, update=ModelUpdate(0.1))
        (here,) = (event for event in ran.events if isinstance(event, Choose))
        assert len(here.draws) == 3
        dice = Seeded(3)
        events: list[Event] = []
        for event in ran.events:
            if isinstance(event, ReportArrived):
                continue
            events.append(replace(event, draws=draws) if isinstance(event, Choose) else event)
            if isinstance(event, ChoiceRecorded):
                first = ("c00", "c01", "c02")
                events += [ReportArrived(1, f"1/{j}", dice.train(j, START)) for j in first]
        models.add(SERVER_MACHINE.replay(ran.start, events).learner.model.tobytes())
    assert len(models) == 1


# ---- the three protocols -------------------------------------------------------------------


def test_averaged_updates_skip_an_empty_slot() -> None:
    ran = campaign("averaged", Seeded(5), slots=9, clients=4)
    here = {event.slot for event in ran.events if isinstance(event, CheckedIn)}
    assert 0 < len(here) < 9
    before = START.tobytes()
    for shown in ran.releases:
        assert (shown.model.tobytes() == before) == (shown.slot not in here)
        before = shown.model.tobytes()
    for closing in ran.closings:
        assert (closing.total is None) == (closing.contributors == 0) == (closing.slot not in here)
    assert all(not e.dummies and e.noise is None for e in ran.events if isinstance(e, Expired))


def test_a_campaign_that_nobody_joins_shows_every_model_all_the_same() -> None:
    for kind in KINDS:
        ran = campaign(kind, Seeded(6), clients=0)
        shown = [release.slot for release in ran.releases]
        assert shown == list(range(1 + ran.start.rules.warm_up, 7))
        moved = ran.end.learner.model.tobytes() != START.tobytes()
        assert moved == (kind != "averaged")


@given(seed=st.integers(0, 2**32))
def test_a_warm_up_shows_nothing_and_uses_nobody(seed: int) -> None:
    ran = campaign("sliding", Seeded(seed), slots=8, clients=20)
    assert [shown.slot for shown in ran.releases] == [3, 4, 5, 6, 7, 8]
    used = [event for event in ran.events if isinstance(event, ReportArrived)]
    assert min((event.slot for event in used), default=3) >= 3
    early = [p for p in ran.participants.values() if p.slot is not None and p.slot <= 2]
    assert {p.outcome for p in early} <= {Outcome.DISMISSED}
    for event in ran.events:
        if isinstance(event, Expired) and event.slot <= 2:
            assert event.dummies == ()


@given(seed=st.integers(0, 2**32))
def test_a_client_that_draws_a_slot_after_the_last_is_never_used(seed: int) -> None:
    ran = campaign("sliding", Seeded(seed), clients=24)
    late = [p for p in ran.participants.values() if p.slot is not None and p.slot > 6]
    assert all(p.receipt is None and p.outcome is None for p in late)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("affordable", range(7))
def test_a_budget_that_allows_k_slots_stops_the_campaign_after_k(
    kind: str, affordable: int
) -> None:
    ran = campaign(kind, Seeded(7), affordable=affordable)
    assert ran.end.ending is (Ending.COMPLETED if affordable == 6 else Ending.STOPPED)
    shown = [release.slot for release in ran.releases]
    assert shown == list(range(1 + ran.start.rules.warm_up, affordable + 1))
    whole = campaign(kind, Seeded(7))
    assert [r.model.tobytes() for r in ran.releases] == [
        r.model.tobytes() for r in whole.releases[: len(shown)]
    ]


def test_a_simulated_report_is_refused_by_a_real_campaign() -> None:
    real = ReportChecks(DIMENSION, 2**39, simulated=False)
    with pytest.raises(ProtocolViolation, match="simulated"):
        campaign("fixed", Seeded(8), report_checks=real)


def test_a_malformed_report_is_refused() -> None:
    def odd(values: Any) -> Callable[[str, Model], Report]:
        return lambda token, model: Report.from_simulation(values)

    for values, why in (
        (np.zeros(DIMENSION + 1, dtype=np.int64), "coordinates"),
        (np.zeros(DIMENSION), "integers"),
        (np.full(DIMENSION, 2**39 + 1), "must be at most"),
        (np.array([-(2**63), 0, 0]), "must be at most"),
    ):
        with pytest.raises(ProtocolViolation, match=why):
            campaign("fixed", Seeded(9), train=odd(values))


def test_everyone_is_told_how_it_went() -> None:
    ran = campaign("fixed", Seeded(10), clients=30)
    outcomes = _outcomes(ran.participants)
    assert outcomes[Outcome.REPORTED] == sum(isinstance(e, ReportArrived) for e in ran.events)
    assert set(outcomes) == {Outcome.REPORTED, Outcome.DISMISSED, Outcome.ABSTAINED}
    assert sum(outcomes.values()) == 30


def _outcomes(participants: Mapping[str, Participant]) -> dict[Outcome, int]:
    counts: dict[Outcome, int] = {}
    for participant in participants.values():
        assert participant.outcome is not None
        counts[participant.outcome] = counts.get(participant.outcome, 0) + 1
    return counts
