"""A campaign's file hands out roles that fit each other: what is certified is what runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import Campaign, Spending, parse_campaign
from checkins.errors import InvalidValue, OutOfOrder, ProtocolViolation
from checkins.ledger import (
    Closed,
    InvalidLedger,
    Ledger,
    LedgerFile,
    Reason,
    SlotClosed,
    certificate,
    earlier_of,
    spending_of,
)
from checkins.protocol.participant import COIN_RANGE, Outcome, participant_of
from checkins.protocol.rehearsal import Rehearsal, rehearse
from checkins.protocol.report import Report
from checkins.protocol.rules import Filling, FixedWindow, SlidingWindow, sampler_of
from checkins.protocol.server import Ending, Server, server_of, simulation_server_of
from checkins.randomizers import DeviceReport, DeviceSampler, Grid

FIXED = 'kind = "fixed", slots = 6, participation = 1.0, capacity = 2'
GAUSSIAN = 'kind = "gaussian", noise_at = "client", noise_multiplier = 2.0, clip = 1.0, grid = 1e-3'


def real_server(of: Campaign, ledger: Ledger | None = None) -> Server:
    """Create the server of a campaign whose population has this ledger."""
    return server_of(
        of, np.zeros(2), affordable=spending_of(ledger or Ledger(), of).affordable_slots_in_run()
    )


def campaign(
    protocol: str = FIXED,
    randomizer: str = GAUSSIAN,
    budget: str = 'epsilon = 50.0, delta = 1e-6, adjacency = "add-remove"',
    optimizer: str = 'kind = "sgd", rate = 0.5',
) -> Campaign:
    return parse_campaign(
        f"""
schema = 1
name = "small"
budget = {{ {budget} }}
protocol = {{ {protocol} }}
randomizer = {{ {randomizer} }}
task = {{ data = "synthetic", model = "logistic", optimizer = {{ {optimizer} }} }}
schedule = {{ start = 2030-01-01T00:00:00Z, slot_s = 1.0, choose_s = 0.3 }}
"""
    ).campaign


class SystemDice:
    """Every draw from the operating system."""

    def __init__(self, sampler: DeviceSampler) -> None:
        self.sampler = sampler

    def coin(self, token: str) -> int:
        return secrets.randbelow(COIN_RANGE)

    def pick(self, token: str, below: int) -> int:
        return secrets.randbelow(below)

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(secrets.randbelow, ranges))

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        return tuple(Report.from_device(self.sampler.dummy()) for _ in range(count))

    def noise(self, slot: int) -> Report:
        return Report.from_noise(self.sampler.noise())


def played(of: Campaign, clients: int = 20) -> Rehearsal:
    sampler = sampler_of(of, dimension=2)
    encode = of.noise_at == "server"
    make = sampler.encode if encode else sampler.privatize
    return rehearse(
        real_server(of),
        {f"c{number}": participant_of(of) for number in range(clients)},
        randomness=SystemDice(sampler),
        train=lambda token, model: Report.from_device(make(model - 1.0)),
        wake_slots={f"c{number}": 1 + number % of.design.slots for number in range(clients)},
    )


SERVER_NOISE = GAUSSIAN.replace("client", "server")
CORRELATED_NOISE = f"{SERVER_NOISE}, noise = {{ bits = 4, numerators = [12, 6, 5, 4] }}"
LAPLACE = 'kind = "laplace", local_epsilon = 2.0, clip = 1.0, grid = 1e-3'
REPLACE = 'epsilon = 50.0, delta = 1e-6, adjacency = "replace-one", population = [10, 1000]'


@pytest.mark.parametrize(
    ("protocol", "randomizer", "budget"),
    [
        (FIXED, GAUSSIAN, None),
        (FIXED, LAPLACE, None),
        (FIXED.replace("capacity = 2", 'capacity = "all"'), SERVER_NOISE, None),
        (FIXED, SERVER_NOISE, None),
        (FIXED.replace("capacity = 2", 'capacity = "all"'), CORRELATED_NOISE, None),
        (FIXED.replace('"fixed"', '"sliding"') + ", window = 3", CORRELATED_NOISE, None),
        ('kind = "averaged", slots = 6, participation = 1.0', LAPLACE, REPLACE),
        (FIXED.replace('"fixed"', '"sliding"') + ", window = 3", GAUSSIAN, None),
    ],
)
def test_a_real_campaign_of_every_protocol_runs_to_its_end_and_replays(
    protocol: str, randomizer: str, budget: str | None
) -> None:
    of = campaign(protocol, randomizer, *([] if budget is None else [budget]))
    found = played(of)
    assert found.end.ending is Ending.COMPLETED
    assert len(found.releases) == 6 - found.end.rules.warm_up
    assert found.replay().learner.model.tobytes() == found.end.learner.model.tobytes()
    outcomes = {p.outcome for p in found.participants.values()}
    assert Outcome.REPORTED in outcomes


def test_the_rules_follow_the_protocol() -> None:
    assert real_server(campaign()).rules.filling is Filling.DUMMIES
    averaged = campaign('kind = "averaged", slots = 6, participation = 1.0', LAPLACE, REPLACE)
    assert real_server(averaged).rules.filling is Filling.NOTHING
    sliding = campaign(FIXED.replace('"fixed"', '"sliding"') + ", window = 3")
    assert real_server(sliding).rules.warm_up == 2
    assert participant_of(sliding).window == SlidingWindow(3)
    assert participant_of(campaign()).window == FixedWindow.whole(6)


def test_a_server_runs_the_slots_that_its_budget_allows() -> None:
    limited = campaign(budget='epsilon = 1.25, delta = 1e-6, adjacency = "add-remove"')
    affordable = Spending(limited).affordable_slots_in_run()
    assert 0 < affordable < 6
    found = played(limited)
    assert (found.end.ending, len(found.releases)) == (Ending.STOPPED, affordable)
    spending = Spending(limited)
    assert spending.after(affordable).epsilon <= 1.25 < spending.after(affordable + 1).epsilon


def closed_after(of: Campaign, slots: int) -> Ledger:
    """A ledger in which the campaign ran for so many slots."""
    ledger, _ = Ledger().append(Ledger().opening(of, model=np.zeros(2)))
    for slot in range(1, slots + 1):
        total = np.zeros(2, dtype=np.int64)
        ledger, _ = ledger.append(SlotClosed.of(slot=slot, total=total, model=np.zeros(2)))
    reason = Reason.COMPLETED if slots == of.design.slots else Reason.STOPPED
    return ledger.append(Closed(reason, certificate(ledger).as_dict()))[0]


def test_what_earlier_campaigns_of_the_population_spent_is_gone() -> None:
    budget = 'epsilon = 1.5, delta = 1e-6, adjacency = "add-remove"'
    of = replace(campaign(budget=budget), population_id="people", repeats=2)
    alone = real_server(of).rules.affordable
    before = closed_after(of, 6)
    after = real_server(of, before).rules.affordable
    assert after < alone == 6
    spent = Spending(of, earlier_of(before))
    assert spent.after(after).epsilon <= 1.5 < spent.after(after + 1).epsilon


def test_a_ledger_refuses_a_slot_that_its_budget_does_not_allow(tmp_path: Path) -> None:
    limited = campaign(budget='epsilon = 1.25, delta = 1e-6, adjacency = "add-remove"')
    affordable = Spending(limited).affordable_slots_in_run()
    with LedgerFile(tmp_path) as file:
        file.append(file.ledger.opening(limited, model=np.zeros(2)))
        for slot in range(1, affordable + 2):
            entry = SlotClosed.of(slot=slot, total=np.zeros(2, dtype=np.int64), model=np.zeros(2))
            if slot <= affordable:
                file.append(entry)
                continue
            with pytest.raises(InvalidLedger, match=f"allows {affordable} of 6 slots"):
                file.append(entry)
        assert file.ledger.running is not None
        assert file.ledger.running.slots_closed == affordable


def test_a_warm_up_costs_nothing() -> None:
    sliding = campaign(FIXED.replace('"fixed"', '"sliding"') + ", window = 3")
    spending = Spending(sliding)
    assert spending.after(2).epsilon == 0.0 < spending.after(3).epsilon


def test_every_honest_report_is_well_formed_whatever_the_data() -> None:
    of = campaign()
    sampler, form = (
        sampler_of(of, dimension=2),
        real_server(of).rules.report_checks,
    )
    for update in ([np.nan, 0], [np.inf, -np.inf], [1e308, 1e308], [0, 0], [5e-324, 1]):
        form.check(Report.from_device(sampler.privatize(np.array(update, dtype=float))))
        form.check(Report.from_device(sampler.dummy()))


def test_without_noise_of_its_own_a_report_is_no_longer_than_the_clip() -> None:
    at_server = real_server(campaign(FIXED, SERVER_NOISE)).rules.report_checks
    at_client = real_server(campaign(FIXED, GAUSSIAN)).rules.report_checks
    grid = Grid(1e-3)
    longest, longer = (
        Report.from_device(DeviceReport(np.array([0, units], dtype=np.int32), grid))
        for units in (999, 1000)  # the float 1e-3 is above a thousandth
    )
    at_server.check(longest)
    with pytest.raises(ProtocolViolation, match=r"at most 999,999,.*must clip its update"):
        at_server.check(longer)
    at_client.check(longer)


def test_a_real_server_takes_nothing_simulated_and_a_rehearsing_one_does() -> None:
    simulated = Report.from_simulation(np.zeros(2, dtype=np.int64))
    with pytest.raises(ProtocolViolation, match="simulated"):
        real_server(campaign()).rules.report_checks.check(simulated)
    rehearsing = simulation_server_of(campaign(), np.zeros(2))
    rehearsing.rules.report_checks.check(simulated)
    floats = simulation_server_of(
        campaign(randomizer=GAUSSIAN.replace(", grid = 1e-3", "")), np.zeros(2)
    )
    floats.rules.report_checks.check(Report.from_simulation(np.array([0.5, -0.25])))


def test_what_cannot_run_is_refused_by_name() -> None:
    no_grid = campaign(randomizer=GAUSSIAN.replace(", grid = 1e-3", ""))
    with pytest.raises(InvalidValue, match="grid"):
        real_server(no_grid)
    private_unit = campaign(randomizer='kind = "privunit", local_epsilon = 2.0, clip = 1.0')
    with pytest.raises(InvalidValue, match="grid"):
        sampler_of(private_unit, dimension=2)
    response = campaign(
        randomizer='kind = "randomized-response", local_epsilon = 2.0, categories = 2'
    )
    with pytest.raises(InvalidValue, match="categories"):
        simulation_server_of(response, np.zeros(2))
    with pytest.raises(InvalidValue, match="task"):
        server_of(replace(campaign(), task=None), np.zeros(2), affordable=1)


MOMENTUM = 'kind = "sgd", rate = 0.5, momentum = 0.9, nesterov = true'


def test_a_server_steps_with_the_momentum_of_its_file_and_goes_on_with_a_velocity() -> None:
    of = campaign(optimizer=MOMENTUM)
    for server in (
        server_of(of, np.zeros(2), affordable=1, velocity=[1.0, 2.0]),
        simulation_server_of(of, np.zeros(2), velocity=[1.0, 2.0]),
    ):
        assert (server.rules.update.momentum, server.rules.update.nesterov) == (0.9, True)
        assert server.learner.velocity.tolist() == [1.0, 2.0]
    assert real_server(of).learner.velocity is None
    with pytest.raises(InvalidValue, match="velocity"):
        simulation_server_of(campaign(), np.zeros(2), velocity=np.zeros(2))


def test_a_real_campaign_with_momentum_runs_to_its_end_and_replays() -> None:
    found = played(campaign(optimizer=MOMENTUM))
    assert found.end.ending is Ending.COMPLETED
    assert found.end.learner.velocity is not None
    assert found.replay().learner.model.tobytes() == found.end.learner.model.tobytes()


def test_only_the_simulator_steps_with_optax() -> None:
    of = campaign(optimizer='kind = "optax:adam", rate = 0.5')
    with pytest.raises(InvalidValue, match=r"optimizer = 'optax:adam': .* need kind = \"sgd\""):
        real_server(of)
    with pytest.raises(InvalidValue, match="needs optax"):
        simulation_server_of(of, np.zeros(2))


def test_a_report_is_real_only_if_a_device_made_it() -> None:
    with pytest.raises(InvalidValue, match="DeviceReport"):
        Report.from_device(np.zeros(2, dtype=np.int32))  # type: ignore[arg-type]
    form = real_server(campaign()).rules.report_checks
    with pytest.raises(ProtocolViolation, match="made by a DeviceSampler"):
        form.check(Report.from_noise(np.zeros(2, dtype=np.int64)))
    other = replace(sampler_of(campaign(), dimension=2), grid=Grid(2e-3))
    with pytest.raises(ProtocolViolation, match="grid"):
        form.check(Report.from_device(other.dummy()))
    rehearsing = simulation_server_of(campaign(), np.zeros(2)).rules.report_checks
    with pytest.raises(ProtocolViolation, match="a simulation refuses real"):
        rehearsing.check(Report.from_device(sampler_of(campaign(), dimension=2).dummy()))


def test_an_event_for_a_server_that_is_done_is_refused() -> None:
    from checkins.protocol.server import SlotBegan, step

    none = campaign(budget='epsilon = 1e-3, delta = 1e-6, adjacency = "add-remove"')
    server = real_server(none)
    assert isinstance(server, Server)
    assert server.ending is Ending.STOPPED
    with pytest.raises(OutOfOrder, match="DONE"):
        step(server, SlotBegan(1))
