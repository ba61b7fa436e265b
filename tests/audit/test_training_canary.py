"""A canary from the task's own data, in real training: it runs, and it proves little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkins.audit import Attacks, Settings, Verdict, audit_campaign
from checkins.audit.bounds import lower_bounds
from checkins.audit.training_canary import TrainingCanary
from checkins.campaign import Campaign, parse_campaign
from checkins.errors import NotCovered
from checkins.simulation.workers import load_task
from tests.soak import only_in_soak

TEXT = """
schema = 1
name = "small"
[budget]
epsilon = 50.0
delta = 1e-3
adjacency = "add-remove"
[protocol]
kind = "fixed"
slots = 6
participation = 1.0
capacity = 20
repeats = 1
[randomizer]
kind = "gaussian"
noise_at = "client"
noise_multiplier = 0.5
clip = 1.0
[task]
data = { file = "people.csv", client_column = "who", label_column = "y", features = ["a", "b"], \
ranges = { a = [0.0, 1.0], b = [0.0, 1.0] } }
model = "logistic"
optimizer = { kind = "sgd", rate = 0.5 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    rows = ["who,a,b,y"]
    for who in range(60):
        a, b = generator.random(2)
        rows.append(f"{who},{a:.4f},{b:.4f},{int(a > b)}")
    (tmp_path / "people.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def campaign(*changes: tuple[str, str]) -> Campaign:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_campaign(text).campaign


def canary(folder: Path, *changes: tuple[str, str]) -> TrainingCanary:
    found = campaign(*changes)
    assert found.task is not None
    return TrainingCanary(found, load_task(found.task, str(folder)))


QUIET = (
    ("noise_multiplier = 0.5", "noise_multiplier = 0.05"),
    ("participation = 1.0", "participation = 0.5"),
)


@pytest.mark.slow
def test_the_canary_shows_in_its_runs_where_there_is_hardly_any_noise(folder: Path) -> None:
    """Its score speaks for it; 7 deviations of about 150 runs, probability below 1e-9.

    A run in which the canary has no seat is the same run with it and without it.
    """
    found = canary(folder, *QUIET)
    trials = found.trials(300, np.random.default_rng(2))
    first, second = found._clients_of_slots(300, np.random.default_rng(2))  # the same draws
    there = (first != second).any(axis=(1, 2))
    assert 100 < there.sum() < 200
    assert np.array_equal(trials.scores_with[~there], trials.scores_without[~there])
    gain = (trials.scores_with - trials.scores_without)[there]
    assert gain.mean() > 7 * gain.std() / np.sqrt(gain.size)


@pytest.mark.slow
@only_in_soak  # the audit below compares the measured bound with the certificate too
def test_what_it_measures_is_below_what_is_certified(folder: Path) -> None:
    """Wrong with probability below 1e-9."""
    from checkins.audit import certificate_at

    found = canary(folder)
    trials = found.trials(2000, np.random.default_rng(3))
    [bound] = lower_bounds(trials, deltas=[1e-3], confidence=1.0 - 1e-10)
    assert bound.epsilon <= certificate_at(found.campaign, 1e-3).epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        [('adjacency = "add-remove"', 'adjacency = "replace-one"')],
        [("repeats = 1", "repeats = 2")],
        [("participation = 1.0", "participation = 0.5")],
        [('noise_at = "client"', 'noise_at = "server"'), ("capacity = 20", 'capacity = "all"')],
        [("rate = 0.5", "rate = 0.5, momentum = 0.9, minibatch = 2")],
        [
            ('kind = "gaussian"', 'kind = "laplace"'),
            ('noise_at = "client"\nnoise_multiplier = 0.5', "local_epsilon = 2.0"),
        ],
    ],
    ids=str,
)
def test_every_kind_of_training_is_scored(folder: Path, changes: list[tuple[str, str]]) -> None:
    trials = canary(folder, *changes).trials(20, np.random.default_rng(4))
    assert trials.fewest_runs == 20
    assert np.isfinite(trials.scores_with).all()
    assert np.ptp(trials.scores_with) > 0.0


def test_no_client_has_two_seats_and_the_canary_displaces_one(folder: Path) -> None:
    found = canary(folder, ("capacity = 20", "capacity = 3"))
    first, second = found._clients_of_slots(200, np.random.default_rng(6))
    for run in range(200):
        for seats in (first[run], second[run]):
            sitting = seats[seats >= 0]
            assert len(set(sitting.tolist())) == sitting.size
            assert found._canary_client not in sitting
        there = np.argwhere(first[run] == 60)
        assert len(there) <= 1
        assert not (second[run] == 60).any()
        assert (first[run] != second[run]).sum() == len(there)


def test_unsupported_training_is_refused(folder: Path) -> None:
    with pytest.raises(NotCovered, match="fixed protocol"):
        canary(folder, ('kind = "fixed"', 'kind = "sliding"\nwindow = 3'))
    private = ('kind = "gaussian"', 'kind = "privunit"')
    local = ('noise_at = "client"\nnoise_multiplier = 0.5', "local_epsilon = 4.0")
    with pytest.raises(NotCovered, match="additive noise"):
        canary(folder, private, local)


@pytest.mark.slow
def test_an_audit_runs_the_training_canary_with_the_worst_case(folder: Path) -> None:
    settings = Settings(runs=512, deltas=(1e-3,), folder=str(folder))  # 1 + 3 batches of 128
    audit = audit_campaign(campaign(), settings)
    assert [result.canary for result in audit.check.results] == ["alone", "displacing", "own data"]
    assert audit.verdict is Verdict.CONSISTENT


def test_data_that_are_missing_are_a_note_unless_they_are_asked_for(tmp_path: Path) -> None:
    settings = Settings(runs=100, deltas=(1e-3,), folder=str(tmp_path / "nowhere"))
    audit = audit_campaign(campaign(), settings)
    assert any("people.csv" in note for note in audit.notes)
    with pytest.raises(Exception, match=r"people\.csv"):
        audit_campaign(campaign(), replace(settings, attacks=Attacks.DATA))
