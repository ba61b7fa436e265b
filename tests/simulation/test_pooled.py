"""Learning without privacy: as good as the data allow, the same from the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkins.campaign import Optimizer, Task
from checkins.simulation.baselines import BATCH, EPOCHS, MIN_STEPS_PER_EPOCH, train_pooled
from checkins.simulation.workers import load_task
from tests.simulation import tiny

BEST_KNOWN_AUC = 0.861
"""Of logistic regression on the patients' 13 features, pooled."""


@pytest.mark.slow
def test_on_the_patients_it_reaches_the_auc_of_logistic_regression() -> None:
    loaded = load_task(Task("patients", "logistic", Optimizer(rate=1.0)), ".")
    found = train_pooled(loaded, seed=1)
    assert abs(found.metrics["auc"] - BEST_KNOWN_AUC) <= 0.01
    assert found.complete
    assert (
        found.client_updates == EPOCHS * MIN_STEPS_PER_EPOCH * BATCH
    )  # more than one pass of the few
    assert (found.check_ins, found.dummies, found.contributors) == (0, 0, ())


def test_the_same_seed_gives_the_same_model_and_it_can_be_stopped(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    task = tiny.campaign().task
    assert task is not None
    loaded = load_task(task, str(tmp_path))
    first, again, other = (train_pooled(loaded, seed=seed) for seed in (1, 1, 2))
    assert first.model.tobytes() == again.model.tobytes() != other.model.tobytes()
    passes: list[int] = []
    part = train_pooled(
        loaded, seed=1, on_progress=lambda done, _: bool(passes.append(done)) or done < 3
    )
    assert passes == [1, 2, 3]
    assert not part.complete
    assert part.client_updates * EPOCHS == first.client_updates * 3
    assert part.metrics["loss"] > first.metrics["loss"]
