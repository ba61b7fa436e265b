"""The paper's algorithms as plain loops, and the machines: the same on the same draws, exactly."""

from __future__ import annotations

import importlib.util
import math
import random
import runpy
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import COIN_RANGE, Outcome, Participant, coin_threshold
from checkins.protocol.rehearsal import Rehearsal, rehearse
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, FixedWindow, Rules, SlidingWindow
from checkins.protocol.server import Server
from checkins.protocol.slot import ReportArrived

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = ("fixed_window", "averaged_updates", "sliding_window")
DIMENSION = 3
START = np.array([0.5, -0.25, 0.0])
Models = list[NDArray[np.float64]]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fixed_window = _load("fixed_window").fixed_window
averaged_updates = _load("averaged_updates").averaged_updates
sliding_window = _load("sliding_window").sliding_window


@dataclass(frozen=True)
class Draws:
    """Every draw of a campaign. A draw has a name: the loop and the machines get the same."""

    seed: int
    integers: bool
    coins: dict[str, int]

    def of(self, *name: object) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def coin(self, token: str) -> int:
        return self.coins[token]

    def pick(self, token: str, below: int) -> int:
        return self.of("pick", token).randrange(below)

    def choose(self, slot: int, ranges: Any) -> tuple[int, ...]:
        return tuple(self.of("choose", slot, k).randrange(r) for k, r in enumerate(ranges))

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        return tuple(self._report(np.zeros(DIMENSION), "dummy", slot, k) for k in range(count))

    def noise(self, slot: int) -> Report:
        return self._report(np.zeros(DIMENSION), "noise", slot)

    def report(self, token: str, model: NDArray[np.float64]) -> Report:
        """A gradient that depends on the client and on the model, with noise."""
        return self._report(model, "report", token)

    def _report(self, model: NDArray[np.float64], *name: object) -> Report:
        dice = self.of(*name)
        if self.integers:
            units = [dice.randrange(-(2**30), 2**30) for _ in range(DIMENSION)]
            rounded = np.rint(np.clip(model, -1e6, 1e6)).astype(np.int64)
            return Report.from_simulation(rounded + np.array(units, dtype=np.int64))
        noise = [dice.gauss() * 2.0 ** dice.randrange(-20, 20) for _ in range(DIMENSION)]
        return Report.from_simulation(model + np.array(noise))

    @property
    def form(self) -> ReportChecks:
        return ReportChecks(DIMENSION, 2**31 if self.integers else None, simulated=True)


def _tokens(n: int) -> list[str]:
    return [f"{j:02}" for j in range(n)]


@st.composite
def campaigns(draw: st.DrawFn) -> tuple[int, dict[str, tuple[tuple[int, ...], float]], Draws]:
    """m slots, clients with a window R_j and a p_j each, and draws; coins fall close to p_j."""
    m = draw(st.integers(1, 6), label="m")
    windows = st.sets(st.integers(1, m), min_size=1).map(sorted).map(tuple)
    chances = st.sampled_from([0.0, 1.0, 0.25, 2.0**-63, 2.5 * 2.0**-64]) | st.floats(0.0, 1.0)
    clients, coins = {}, {}
    for token in _tokens(draw(st.integers(0, 9), label="n")):
        clients[token] = draw(st.tuples(windows, chances))
        edge = coin_threshold(clients[token][1])
        coin = st.integers(0, COIN_RANGE - 1) | st.sampled_from(
            [0, edge - 1, edge, edge + 1, COIN_RANGE - 1]
        )
        coins[token] = min(max(draw(coin), 0), COIN_RANGE - 1)
    seed, integers = draw(st.integers(0, 2**32)), draw(st.booleans(), label="integer reports")
    return m, clients, Draws(seed, integers, coins)


def _same(machines: Rehearsal, models: Models, used: list[list[str]], first: int) -> None:
    """Every model bit for bit, and the same clients in the same slots."""
    assert [shown.slot for shown in machines.releases] == list(range(first, first + len(models)))
    assert [shown.model.tobytes() for shown in machines.releases] == [t.tobytes() for t in models]
    taken = [e.receipt for e in machines.events if isinstance(e, ReportArrived)]
    assert taken == [f"{i}/{j}" for i, J in enumerate(used, start=first) for j in sorted(J)]
    reported = {j for j, p in machines.participants.items() if p.outcome is Outcome.REPORTED}
    assert reported == {j for J in used for j in J}


def _rules(draws: Draws, update: ModelUpdate, slots: int, filling: Filling, **more: Any) -> Rules:
    more = {"capacity": None, "warm_up": 0, "affordable": slots, **more}
    return Rules(slots=slots, filling=filling, report_checks=draws.form, update=update, **more)


@given(
    campaign=campaigns(),
    capacity=st.integers(1, 4),
    b=st.integers(1, 4),
    eta=st.floats(1e-6, 10.0),
    unit=st.floats(1e-9, 1.0),
)
def test_the_fixed_window_is_algorithm_1(
    campaign: Any, capacity: int, b: int, eta: float, unit: float
) -> None:
    m, clients, draws = campaign
    models, used = fixed_window(
        START,
        clients,
        draws,
        draws.report,
        draws.dummies,
        slots=m,
        eta=eta * unit,
        b=b,
        capacity=capacity,
    )
    update = ModelUpdate(eta, unit=unit, minibatch=b)
    rules = _rules(draws, update, m, Filling.DUMMIES, capacity=capacity)
    participants = {j: Participant(p, FixedWindow(R)) for j, (R, p) in clients.items()}
    start = Server.start(rules, START)
    machines = rehearse(start, participants, randomness=draws, train=draws.report)
    _same(machines, models, used, first=1)


@given(campaign=campaigns(), capacity=st.none() | st.integers(1, 4), b=st.integers(1, 4))
def test_noise_at_the_server_is_the_same_loop_with_one_noise_for_each_sum(
    campaign: Any, capacity: int | None, b: int
) -> None:
    m, clients, draws = campaign
    models, used = fixed_window(
        START,
        clients,
        draws,
        draws.report,
        lambda i, missing: [draws.noise(i)],
        slots=m,
        eta=0.3,
        b=b,
        capacity=capacity or math.inf,
    )
    rules = _rules(draws, ModelUpdate(0.3, minibatch=b), m, Filling.NOISE, capacity=capacity)
    participants = {j: Participant(p, FixedWindow(R)) for j, (R, p) in clients.items()}
    start = Server.start(rules, START)
    machines = rehearse(start, participants, randomness=draws, train=draws.report)
    _same(machines, models, used, first=1)


@given(
    campaign=campaigns(),
    eta=st.floats(1e-6, 10.0),
    decay=st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 1.0),
    diameter=st.none() | st.floats(0.1, 1e3),
)
def test_averaged_updates_are_algorithm_2(
    campaign: Any, eta: float, decay: float, diameter: float | None
) -> None:
    m, clients, draws = campaign
    models, used = averaged_updates(
        START,
        clients,
        draws,
        draws.report,
        slots=m,
        eta=lambda i: eta / (math.sqrt(i) if decay == 0.5 else float(i) ** decay),
        diameter=diameter or math.inf,
    )
    rules = _rules(draws, ModelUpdate(eta, decay=decay, diameter=diameter), m, Filling.NOTHING)
    participants = {j: Participant(p, FixedWindow(R)) for j, (R, p) in clients.items()}
    start = Server.start(rules, START)
    machines = rehearse(start, participants, randomness=draws, train=draws.report)
    _same(machines, models, used, first=1)


@given(data=st.data(), integers=st.booleans(), seed=st.integers(0, 2**32))
def test_the_sliding_window_is_section_4_2(data: Any, integers: bool, seed: int) -> None:
    n = data.draw(st.integers(1, 9), label="slots")
    m = data.draw(st.integers(1, n), label="window")
    capacity = data.draw(st.integers(1, 3), label="capacity")
    papers = st.just(list(range(1, n + 1)))
    wakes_at = data.draw(papers | st.lists(st.integers(1, n + 2), max_size=12), label="wakes")
    wakes = dict(zip(_tokens(len(wakes_at)), wakes_at, strict=True))
    draws = Draws(seed, integers, dict.fromkeys(wakes, COIN_RANGE - 1))
    models, used = sliding_window(
        START,
        wakes,
        draws,
        draws.report,
        draws.dummies,
        slots=n,
        window=m,
        eta=0.3,
        capacity=capacity,
    )
    assert len(models) == n - m + 1
    rules = _rules(draws, ModelUpdate(0.3), n, Filling.DUMMIES, capacity=capacity, warm_up=m - 1)
    participants = {j: Participant(1.0, SlidingWindow(m)) for j in wakes}
    start = Server.start(rules, START)
    machines = rehearse(start, participants, randomness=draws, train=draws.report, wake_slots=wakes)
    _same(machines, models, used, first=m)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_learns_and_finds_that_the_machines_agree(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "5.00 before, 0." in printed.out
    assert printed.out.endswith("The state machines agree, bit for bit.\n")
    assert max(map(len, printed.out.splitlines())) <= 80


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_loop_itself_uses_nothing_of_this_package(name: str) -> None:
    everything = vars(_load(name))
    ours = {key for key, value in everything.items() if _module(value).startswith("checkins.")}
    assert ours >= {"Report", "Rules", "Server", "rehearse"}
    loops = [value for value in everything.values() if isinstance(value, FunctionType)]
    for loop in (loop for loop in loops if _module(loop) == f"examples_{name}"):
        assert not ours & set(loop.__code__.co_names)


def _module(value: object) -> str:
    return str(getattr(value, "__module__", ""))
