"""What a device has spent over campaigns: charged before it matters, and never too little."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import Adjacency
from checkins.client import CampaignRefused, Outcome
from checkins.client.actions import RequestKind
from checkins.client.odometer import FILE_NAME, Charge, Odometer, OdometerFile
from checkins.client.state import SavedState, file_lock
from checkins.client.view import CampaignView, parse_view
from checkins.errors import InvalidValue
from tests.client.world import Crash, FixedRandomness, World
from tests.support.fake_service import FakeService, campaign, problem

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


class SharedLedger(FakeService):
    """A campaign that follows others in the ledger ``ledger``."""

    def __init__(self, described: Any, *, ledger: str, earlier: int = 0) -> None:
        super().__init__(described)
        self.ledger, self.earlier = ledger, earlier

    def entries(self) -> int:
        return self.earlier + super().entries()

    def head(self, entries: int) -> str:
        return hashlib.sha256(f"{self.ledger}/{entries}".encode()).hexdigest()


def view_of(service: FakeService) -> CampaignView:
    return parse_view(json.dumps(service.view()).encode())


def take_part(folder: Path, service: FakeService, **given: Any) -> World:
    """One device in one run of this service, from the view to its end."""
    world = World(service, odometer=OdometerFile(folder), plan=given)
    assert world.live() in Outcome
    return world


def test_one_campaign_costs_its_sealed_budget(tmp_path: Path) -> None:
    take_part(tmp_path, FakeService(campaign(epsilon=2.0)))
    total = OdometerFile(tmp_path).load().total()
    assert (total.epsilon, total.delta, total.adjacency) == (2.0, 1e-6, ADD_REMOVE)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_run_is_charged_once_however_often_it_resumes(tmp_path: Path) -> None:
    service = FakeService(campaign(epsilon=2.0))
    for _ in range(3):
        World(service, odometer=OdometerFile(tmp_path)).live()
    assert OdometerFile(tmp_path).load().total().epsilon == 2.0


def test_campaigns_of_one_ledger_cost_its_budget_together(tmp_path: Path) -> None:
    for place, name in enumerate(("first", "second", "third")):
        described = campaign(epsilon=2.0, name=name)
        take_part(tmp_path, SharedLedger(described, ledger="one", earlier=9 * place))
    [charge] = OdometerFile(tmp_path).load().charges
    assert charge.epsilon == 2.0
    assert len(charge.runs) == 3


def test_other_ledgers_of_the_same_population_are_added(tmp_path: Path) -> None:
    """A coordinator with a second store would spend the budget a second time."""
    for place, name in enumerate(("first", "second", "third")):
        described = campaign(epsilon=2.0, name=name)
        take_part(tmp_path, SharedLedger(described, ledger=name, earlier=9 * place))
    assert 6.0 <= OdometerFile(tmp_path).load().total().epsilon <= 6.0 * (1 + 1e-12)


def test_a_ledger_that_is_shorter_than_before_is_another(tmp_path: Path) -> None:
    take_part(tmp_path, SharedLedger(campaign(name="first"), ledger="one", earlier=50))
    take_part(tmp_path, SharedLedger(campaign(name="second"), ledger="one"))
    assert len(OdometerFile(tmp_path).load().charges) == 2


def test_a_service_that_cannot_show_earlier_lines_is_charged_in_full(tmp_path: Path) -> None:
    take_part(tmp_path, SharedLedger(campaign(name="first"), ledger="one"))
    service = SharedLedger(campaign(name="second"), ledger="one", earlier=9)
    asked = False

    def unknown(method: str, path: str, *_: object) -> Any:
        nonlocal asked
        first, asked = not asked, asked or "/ledger/heads/" in path
        return problem(404, "unknown-path") if first and "/ledger/heads/" in path else None

    service.override = unknown
    World(service, odometer=OdometerFile(tmp_path)).live()
    assert len(OdometerFile(tmp_path).load().charges) == 2


def test_a_raised_budget_is_charged_in_full(tmp_path: Path) -> None:
    """The filter of a ledger bounds what it spends only by budgets that were fixed before."""
    for place, epsilon in enumerate((1.0, 3.0, 2.0)):
        described = campaign(epsilon=epsilon, name=f"number {place}")
        take_part(tmp_path, SharedLedger(described, ledger="one", earlier=9 * place))
    assert [each.epsilon for each in OdometerFile(tmp_path).load().charges] == [1.0, 3.0]


@pytest.mark.parametrize("step", range(1, 40))
def test_no_crash_leaves_a_draw_that_is_not_charged(tmp_path: Path, step: int) -> None:
    """Whenever the device stops, what its disk can still cause is on its odometer."""
    world = World(odometer=OdometerFile(tmp_path), crash_before=step)
    try:
        world.live()
    except Crash:
        pass
    else:
        assert step > 20
    state = SavedState.from_bytes(world.disk) if world.disk else SavedState("")
    is_drawn = state.phase is not None or state.ended is not None
    charges = OdometerFile(tmp_path).load().charges
    assert bool(charges) or not is_drawn
    assert charges or not world.requests(RequestKind.CHECK_IN)


def test_a_draw_of_a_version_without_odometer_is_charged_when_it_resumes(tmp_path: Path) -> None:
    world = World(randomness=FixedRandomness(slot=3), crash_before=12)
    with pytest.raises(Crash):
        world.live()
    assert SavedState.from_bytes(world.disk or b"").phase is not None
    world.odometer, world.crash_before = OdometerFile(tmp_path), None
    world.live()
    assert OdometerFile(tmp_path).load().total().epsilon == 8.0


def test_a_campaign_beyond_the_limit_is_refused_before_the_device_enrols(tmp_path: Path) -> None:
    limit = {"most_epsilon": 10.0}
    take_part(tmp_path, FakeService(campaign(name="first")), **limit)
    world = World(FakeService(campaign(name="second")), odometer=OdometerFile(tmp_path), plan=limit)
    with pytest.raises(CampaignRefused, match=r"most_epsilon = 10\.0: would be exceeded") as error:
        world.live()
    assert "16.0" in str(error.value)
    assert {request.kind for request in world.sent} == {RequestKind.VIEW}
    assert world.disk is None
    assert OdometerFile(tmp_path).load().total().epsilon == 8.0
    take_part(tmp_path, FakeService(campaign(name="third", epsilon=1.5)), **limit)
    with pytest.raises(InvalidValue, match="needs an odometer"):
        World(plan=limit).live()


def test_two_processes_cannot_both_spend_what_is_left(tmp_path: Path) -> None:
    """The second one checked before the first one charged, and is refused when it charges."""
    file = OdometerFile(tmp_path)
    first, second = (view_of(FakeService(campaign(name=name))) for name in ("first", "second"))
    limit: Any = {"same_ledger": (), "most_epsilon": 10.0}
    file.check(first, **limit)
    file.check(second, **limit)
    file.charge(first, **limit)
    with pytest.raises(CampaignRefused):
        file.charge(second, **limit)
    with file_lock(tmp_path / "odometer.lock"), pytest.raises(InvalidValue, match="in use"):
        file.charge(first, **limit)


def test_averaged_updates_have_no_bound_before_their_end(tmp_path: Path) -> None:
    averaged = {"kind": "averaged", "capacity": None, "population": (4, 1000)}
    view = view_of(FakeService(campaign(**averaged)))
    assert math.isinf(Charge.of(view).epsilon)
    with pytest.raises(CampaignRefused, match="more than any number"):
        OdometerFile(tmp_path).charge(view, same_ledger=(), most_epsilon=1e9)
    OdometerFile(tmp_path).charge(view, same_ledger=(), most_epsilon=None)
    read = OdometerFile(tmp_path).load().total()
    assert read.as_json()["epsilon"] is None
    enough = view_of(FakeService(campaign(**averaged, least_reports=3)))
    assert Charge.of(enough).epsilon == 8.0


def test_a_limit_is_refused_where_the_past_is_unknown(tmp_path: Path) -> None:
    view = view_of(FakeService(campaign()))
    limit: Any = {"same_ledger": (), "most_epsilon": 100.0}
    begun = SavedState("0123456789ab-1", key="key")
    (tmp_path / "0123456789ab-1.json").write_bytes(begun.to_bytes())
    OdometerFile(tmp_path).check(view, **limit)  # it had not drawn, and now never will
    (tmp_path / "0123456789ab-1.json").write_bytes(begun.ended_with("REPORTED").to_bytes())
    with pytest.raises(CampaignRefused, match="0123456789ab-1 before it had an odometer"):
        OdometerFile(tmp_path).check(view, **limit)
    OdometerFile(tmp_path).charge(view, same_ledger=(), most_epsilon=None)


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"schema": 1, "charges": [{}]}', b"[1]"])
def test_a_damaged_odometer_is_refused_and_not_started_again(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    with pytest.raises(InvalidValue, match="is not a device's odometer"):
        World(odometer=OdometerFile(tmp_path)).live()


charges = st.builds(
    Charge,
    population=st.sampled_from(["clinic", "school"]),
    adjacency=st.sampled_from(Adjacency),
    epsilon=st.floats(0.0, 300.0) | st.just(math.inf),
    delta=st.floats(0.0, 1.0),
    entries=st.integers(0, 10**6),
    head=st.text("0123456789abcdef", min_size=64, max_size=64),
    runs=st.lists(st.text("0123456789abcdef-", min_size=3), max_size=3).map(tuple),
)
odometers = st.lists(charges, max_size=8).map(tuple).map(Odometer)


@given(odometers)
def test_the_total_is_never_below_the_sum(odometer: Odometer) -> None:
    total = odometer.total()
    if any(math.isinf(each.epsilon) for each in odometer.charges):
        assert math.isinf(total.epsilon)
        return
    mixed = total.adjacency is REPLACE_ONE
    twice = [mixed and each.adjacency is ADD_REMOVE for each in odometer.charges]
    pairs = list(zip(odometer.charges, twice, strict=True))
    epsilon = sum(Fraction(each.epsilon) * (2 if double else 1) for each, double in pairs)
    assert Fraction(total.epsilon) >= epsilon
    assert total.epsilon <= float(epsilon) * (1 + 1e-12)
    delta = math.fsum(
        each.delta * (1 + math.exp(each.epsilon) if double else 1) for each, double in pairs
    )
    assert total.delta >= min(1.0, delta * (1 - 1e-13))


@given(odometers, charges)
def test_one_more_charge_never_lowers_the_total(odometer: Odometer, more: Charge) -> None:
    before, after = odometer.total(), Odometer((*odometer.charges, more)).total()
    assert (after.epsilon, after.delta) >= (before.epsilon, before.delta) or (
        after.epsilon >= before.epsilon and after.delta >= before.delta
    )


@given(odometers)
def test_an_odometer_is_read_as_it_was_written(odometer: Odometer) -> None:
    assert Odometer.from_bytes(odometer.to_bytes()) == odometer


def test_a_replaced_budget_in_the_same_run_is_charged(tmp_path: Path) -> None:
    """A service cannot give another campaign the id of a run that is charged."""
    view = view_of(FakeService(campaign(epsilon=2.0)))
    other = replace(view, campaign=campaign(epsilon=5.0))
    odometer = Odometer().charged(view, same_ledger=()).charged(other, same_ledger=())
    assert [each.epsilon for each in odometer.charges] == [2.0, 5.0]
