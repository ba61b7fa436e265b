"""Questions that few would ask are answered, or refused, with as little work as usual ones."""

from __future__ import annotations

import pytest

from checkins.accounting import Adjacency, Design, NoiseAt, Protocol, precision
from checkins.accounting.precision import delta_at
from checkins.campaign import RandomizerKind
from checkins.errors import InvalidValue
from checkins.planning import Constraints, Devices, Question, make_plan
from tests.planning.plans import REPLACE_ONE, ask

MAX_LOOKS = 110
"""Proven evaluations of one plan: usual ones take about sixty, of some ten milliseconds each."""

ODD: dict[str, Question] = {
    "a delta near one": ask(delta=0.999),
    "a delta near one, replaced": ask(delta=0.999, adjacency=REPLACE_ONE),
    "a tiny epsilon": ask(1e-6),
    "a tiny epsilon, replaced": ask(1e-6, REPLACE_ONE),
    "a huge epsilon": ask(100.0),
    "one report a slot": ask(fixed=Constraints(capacity=1)),
    "crowded, replaced": ask(
        0.01, REPLACE_ONE, delta=1e-10, fixed=Constraints(capacity=13, repeats=1, slots=2_000)
    ),
    "averaged thrice": ask(
        1.0, REPLACE_ONE, fixed=Constraints(protocol=Protocol.AVERAGED, repeats=3)
    ),
    "laplace, replaced, four times": ask(
        1.0, REPLACE_ONE, fixed=Constraints(randomizer=RandomizerKind.LAPLACE, repeats=4)
    ),
    "ten thousand runs": ask(fixed=Constraints(repeats=10_000)),
    "one client": ask(population=(1, 1)),
    "short stays": ask(
        delta=0.9,
        adjacency=Adjacency.REPLACE_ONE,
        devices=Devices(availability_s=36.0),
        fixed=Constraints(repeats=1),
    ),
}
QUICK = ("a delta near one", "a tiny epsilon", "averaged thrice", "one client")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Design]:
    """What was certified."""
    seen: list[Design] = []

    def counted(design: Design, **more: object) -> float:
        seen.append(design)
        return delta_at(design, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(precision, "delta_at", counted)
    return seen


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ODD]
)
def test_an_odd_question_takes_no_more_evaluations_than_a_usual_one(
    name: str, looks: list[Design]
) -> None:
    found = make_plan(ODD[name])
    assert found.certificate.epsilon <= ODD[name].epsilon
    assert len(looks) <= MAX_LOOKS


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_delta_that_grids_use_up_is_refused_before_any_evaluation(
    adjacency: Adjacency, looks: list[Design]
) -> None:
    with pytest.raises(InvalidValue, match="rounding the noise to a grid") as refused:
        make_plan(ask(1.0, adjacency, delta=1e-300))
    assert refused.value.name == "delta"
    assert not looks


def test_a_target_out_of_reach_is_refused_after_a_few_evaluations(
    looks: list[Design],
) -> None:
    with pytest.raises(InvalidValue, match="no allowed design"):
        make_plan(ask(1e-9, delta=1e-12, fixed=Constraints(slots=1, noise_at=NoiseAt.SERVER)))
    assert len(looks) <= MAX_LOOKS


def test_an_epsilon_of_zero_can_be_reported() -> None:
    """Fewer take part than delta allows to be seen: epsilon is 0."""
    fixed = Constraints(randomizer=RandomizerKind.LAPLACE, participation=0.1, slots=10, repeats=1)
    found = make_plan(ask(1.0, delta=0.5, fixed=fixed))
    assert found.certificate.epsilon == 0.0
    assert "have epsilon <= 0." in " ".join(reason.sentence for reason in found.reasons)
