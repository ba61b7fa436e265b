"""The average of the released models: the loop's is the one of the definition."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from checkins.accounting import Protocol
from checkins.campaign import Campaign
from checkins.protocol.model_update import RunningAverage
from checkins.simulation.engine.loop import server_of
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.training import Scenario, Training
from tests.simulation.campaigns import campaign, loaded

SHARE = 0.4
CASES = {
    "fixed, two runs": campaign(capacity=3, slots=6, repeats=2),
    "minibatches": campaign(capacity=3, slots=9, minibatch=3),
    "sliding, with a warm-up in each run": campaign(
        protocol=Protocol.SLIDING, window=4, capacity=2, slots=10, repeats=2
    ),
    "averaged, with skipped slots": campaign(
        protocol=Protocol.AVERAGED, slots=16, least_reports=3, rate=0.2
    ),
}


def training(asked: Campaign, *, average: float | None) -> Training:
    """A training that is evaluated after every slot, so that each of its chunks is one slot."""
    assert asked.task is not None
    taught = loaded()
    mechanism = Mechanism.of(asked, taught.model.dimension)
    scenario = Scenario(taught.data.clients)
    return Training(
        mechanism,
        taught,
        server_of(asked.task.optimizer),
        scenario,
        seed=1,
        evaluations=mechanism.runs * mechanism.design.slots,
        average=average,
    )


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_average_of_the_models_of_all_slots_that_release_one(name: str) -> None:
    asked = CASES[name]
    found, models, average = training(asked, average=SHARE), [], None
    for progress in found.run_chunks():
        if progress.position.slots > found.mechanism.warm_up:
            models.append(found.model(progress.position))
        average = found.average_model(progress.position)
        assert progress.average_metrics is not None
    assert len(models) == asked.repeats * (asked.design.slots - found.mechanism.warm_up)
    expected = reduce(RunningAverage.with_model, models, RunningAverage(SHARE)).model
    assert np.linalg.norm(average - models[-1]) > 1e-3  # it is not the last model
    assert average == pytest.approx(expected, abs=1e-5)


def test_it_changes_no_model_and_without_it_there_is_none() -> None:
    asked = campaign(capacity=3, slots=6, repeats=2)
    with_average, without = training(asked, average=SHARE), training(asked, average=None)
    ends = [[*one.run_chunks()][-1] for one in (with_average, without)]
    assert np.array_equal(with_average.model(ends[0].position), without.model(ends[1].position))
    assert without.average_model(ends[1].position) is None
    assert ends[1].average_metrics is None
