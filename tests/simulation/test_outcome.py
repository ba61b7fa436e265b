"""One simulated campaign: the same from the same seed, however often it was stopped on the way."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.simulation.engine import outcome as outcomes
from checkins.simulation.engine.outcome import Checkpoint, Outcome, simulate, train
from checkins.simulation.engine.training import Training
from checkins.simulation.workers import load_task
from tests.simulation import tiny

REPEATED = tiny.PROTOCOL + "repeats = 2\n"


def with_optimizer(words: str) -> str:
    return tiny.TASK.replace('kind = "sgd", rate = 0.5', words)


VARIANTS = {
    "adam, twice": tiny.text(
        protocol=REPEATED, task=with_optimizer('kind = "optax:adam", rate = 0.1')
    ),
    "minibatches, momentum, a falling rate, a ball": tiny.text(
        task=with_optimizer(
            'kind = "sgd", rate = 0.5, momentum = 0.9, minibatch = 4,'
            ' schedule = "inverse-sqrt", diameter = 1.0'
        )
    ),
    "an average, twice": tiny.text(
        protocol=REPEATED, task=tiny.TASK.replace("[task]", "[task]\naverage = 0.5")
    ),
    "privunit": tiny.text(
        randomizer='[randomizer]\nkind = "privunit"\nlocal_epsilon = 4.0\nclip = 1.0\n'
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write(tmp_path)
    return tmp_path


def training(folder: Path, campaign: Campaign, **changes) -> Training:
    job = tiny.job(folder, campaign=campaign, **changes)
    return job.training(load_task(job.task, job.folder))


def everything(outcome: Outcome) -> tuple[object, ...]:
    """All that a seed decides; not how long it took."""
    return (
        outcome.complete,
        outcome.slots,
        outcome.check_ins,
        outcome.client_updates,
        outcome.dummies,
        outcome.contributors,
        outcome.curve,
        outcome.model.tobytes(),
        outcome.average_curve,
        None if outcome.average_model is None else outcome.average_model.tobytes(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_stopped_after_every_chunk_and_resumed_it_ends_bit_identical(
    folder: Path, tmp_path: Path, name: str
) -> None:
    campaign = tiny.campaign(VARIANTS[name])
    evaluations = 2 if name == "privunit" else 3
    whole = train(training(folder, campaign, evaluations=evaluations))
    checkpoint = Checkpoint(tmp_path / "kept" / "a.checkpoint.npz")
    parts = []
    while not parts or not parts[-1].complete:
        again = training(folder, campaign, evaluations=evaluations)
        parts.append(train(again, on_progress=lambda *_: False, checkpoint=checkpoint))
    assert len(parts) > campaign.repeats
    assert all(before.slots < after.slots for before, after in pairwise(parts))
    assert everything(parts[-1]) == everything(whole)


def test_a_stopped_campaign_counts_what_was_done(folder: Path) -> None:
    campaign = tiny.campaign()
    part = train(training(folder, campaign), on_progress=lambda *_: False)
    whole = train(training(folder, campaign))
    assert (part.complete, part.slots) == (False, 2)
    assert part.client_updates + part.dummies == part.slots * 12
    assert 0 < part.check_ins < whole.check_ins == tiny.CLIENTS
    assert part.curve == whole.curve[:2]
    assert (whole.complete, whole.slots) == (True, 6)
    assert whole.client_updates + whole.dummies == 6 * 12
    assert not np.array_equal(part.model, whole.model)
    assert all(np.isfinite(one.updates_per_second) for one in (part, whole))


def test_on_progress_is_called_for_every_chunk_and_changes_nothing(folder: Path) -> None:
    campaign = tiny.campaign()
    seen = []
    watched = train(
        training(folder, campaign),
        on_progress=lambda progress, metrics: bool(seen.append((progress.slots, metrics)) or True),
    )
    assert everything(watched) == everything(train(training(folder, campaign)))
    assert [slots for slots, _ in seen] == [2, 4, 6]
    assert [point.slots for point in watched.curve] == [0, 2, 4, 6]
    assert seen[-1][1] == watched.metrics


def test_the_seed_decides_and_evaluations_do_not_move_the_counts(folder: Path) -> None:
    campaign = tiny.campaign()
    loaded = load_task(tiny.job(folder, campaign=campaign).task, str(folder))
    first, again, other, unmeasured = (
        simulate(campaign, loaded=loaded, seed=seed, evaluations=count)
        for seed, count in ((1, 3), (1, 3), (2, 3), (1, 0))
    )
    assert everything(first) == everything(again)
    assert first.model.tobytes() != other.model.tobytes()
    assert [point.slots for point in unmeasured.curve] == [0, 6]
    assert unmeasured.check_ins == first.check_ins
    assert unmeasured.client_updates == first.client_updates


def test_checkpoints_are_written_at_intervals(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "CHECKPOINT_INTERVAL_S", 0.0)
    campaign = tiny.campaign()
    checkpoint = Checkpoint(tmp_path / "kept" / "a.checkpoint.npz")
    killed = training(folder, campaign)

    def killed_at(progress, _) -> bool:
        if progress.slots == 4:
            raise SystemExit  # what is written by now must be enough
        return True

    with pytest.raises(SystemExit):
        train(killed, on_progress=killed_at, checkpoint=checkpoint)
    resumed = train(training(folder, campaign), checkpoint=checkpoint)
    assert everything(resumed) == everything(train(training(folder, campaign)))


def test_a_finished_job_is_cached_and_not_run_again(folder: Path, tmp_path: Path) -> None:
    job = tiny.job(folder, campaign=tiny.campaign())
    cache = tmp_path / "kept"
    done = job.run(cache=cache)
    told: list[object] = []
    again = job.run(cache=cache, on_progress=lambda *seen: bool(told.append(seen)))
    assert everything(again) == everything(done)
    assert again.seconds == done.seconds
    assert told == [(job.slots, done.metrics)]
    assert [path.name for path in cache.iterdir()] == [f"{job.key}.npz"]
    (cache / f"{job.key}.npz").write_bytes(b"PK")
    with pytest.raises(InvalidValue, match="is damaged"):
        job.run(cache=cache)


def test_the_key_of_a_job_depends_on_everything_that_decides_its_outcome(folder: Path) -> None:
    job = tiny.job(folder, campaign=tiny.campaign())
    others = [
        tiny.job(folder, campaign=tiny.campaign(), seed=2),
        tiny.job(folder, campaign=tiny.campaign(), evaluations=4),
        replace(job, mechanism=None),
        replace(job, scenario=replace(job.scenario, dropout=0.5)),
        tiny.job(folder, campaign=tiny.campaign(VARIANTS["privunit"])),
    ]
    keys = [one.key for one in (job, *others)]
    assert len(set(keys)) == len(keys)
    assert tiny.job(folder, campaign=tiny.campaign()).key == job.key
    tiny.write_rows(folder / "rows.csv", tiny.rows(each=3))  # other data under the same name
    assert job.key not in keys
    assert load_task(job.task, job.folder).data.labels.size == tiny.CLIENTS * 3


def test_a_model_that_diverges_is_an_error_with_a_remedy(folder: Path) -> None:
    with pytest.raises(InvalidValue, match="diverged: lower the rate"):
        tiny.job(folder, campaign=tiny.campaign(tiny.WILD)).run()


def test_the_json_of_an_outcome_has_one_list_for_each_metric(folder: Path) -> None:
    found = tiny.job(folder, campaign=tiny.campaign()).run().as_json()
    assert "model" not in found
    assert found["metrics"] == {
        name: values[-1] for name, values in found["curve"].items() if name != "slots"
    }
    assert {len(values) for values in found["curve"].values()} == {4}
