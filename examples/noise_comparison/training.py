"""Train the campaigns of the example ``one_check_in.py``, and choose their settings."""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from functools import cache

from noise_comparison.settings import (
    CLIENTS,
    CORRELATED,
    DESIGNS,
    FOR_AVERAGE,
    POISSON,
    TOTAL_RATES,
    Setting,
    campaign_of,
    for_average,
)

from checkins.accounting import Parameter, calibrate
from checkins.simulation.baselines import Baseline, calibrate_baseline
from checkins.simulation.engine.evaluation import Evaluation
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import train
from checkins.simulation.engine.training import Scenario, Training
from checkins.tasks.loaded_task import LoadedTask

TUNING_SEEDS = (101, 102)
COMPARED_SEEDS = range(103, 113)
"""Seeds with which two tuned methods are compared on even pictures."""
EVEN, ODD = 0, 1
"""Number of the first test picture of each half."""


@cache
def calibrated(method: str, slots: int, bands: int, epsilon: float) -> tuple[Mechanism, float]:
    """Return the mechanism with the least noise for a budget, and the epsilon of its certificate.

    Poisson sampling has the epsilon of check-ins with the same number of slots.
    """
    campaign = campaign_of(Setting(slots, bands, rate=1.0), epsilon)
    if method == FOR_AVERAGE:
        campaign = for_average(campaign)
    found = calibrate(
        campaign.design, parameter=Parameter.NOISE_MULTIPLIER, **asdict(campaign.budget)
    )
    dimension = loaded_task().model.dimension
    mechanism = Mechanism.of(replace(campaign, design=found.design), dimension)
    if method == POISSON:
        sizes = {"clients": CLIENTS, "dimension": dimension}
        baseline = calibrate_baseline(Baseline.POISSON, mechanism, found.certificate, **sizes)
        mechanism = baseline.mechanism
    return mechanism, found.certificate.epsilon


@cache
def loaded_task() -> LoadedTask:
    """Return the pictures with their features, and the model."""
    return LoadedTask.of(campaign_of(Setting(8, 1, rate=1.0), epsilon=1.0).task)


@cache
def evaluation(first: int) -> Evaluation:
    """Return the evaluation on every second test picture, from picture ``first`` on."""
    loaded = loaded_task()
    pictures, labels = loaded.data.holdout_features[first::2], loaded.data.holdout_labels[first::2]
    half = replace(loaded.data, holdout_features=pictures, holdout_labels=labels)
    return Evaluation(replace(loaded, data=half))


def accuracy(method: str, setting: Setting, epsilon: float, *, seed: int, pictures: int) -> float:
    """Train from a seed. Return the accuracy of the average of the models on half of the test
    pictures: those with even numbers (``EVEN``) or with odd numbers (``ODD``)."""
    mechanism, _ = calibrated(method, setting.slots, setting.bands, epsilon)
    task = campaign_of(setting, epsilon).task
    scenario = Scenario(CLIENTS)
    training = Training.of(task, mechanism, loaded_task(), scenario, seed=seed, evaluations=0)
    return evaluation(pictures)(train(training).average_model)["accuracy"]


def score(method: str, setting: Setting, epsilon: float) -> float:
    """Return the accuracy on even pictures, as a mean over the tuning seeds."""
    seeds = TUNING_SEEDS
    found = [accuracy(method, setting, epsilon, seed=seed, pictures=EVEN) for seed in seeds]
    print(f"{method}, epsilon {epsilon:g}, {setting}: {statistics.fmean(found):.2%}", flush=True)
    return statistics.fmean(found)


def tune(method: str, epsilon: float) -> Setting:
    """Return the setting with the best score. Rates grow until the score falls."""
    scores: dict[Setting, float] = {}
    for slots, bands in DESIGNS[method]:
        best = 0.0
        for total in TOTAL_RATES:
            setting = Setting(slots, bands, total / slots)
            scores[setting] = score(method, setting, epsilon)
            if scores[setting] < best:
                break
            best = scores[setting]
    return max(scores, key=scores.__getitem__)


def loss_of_average_strategy(correlated: Setting, epsilon: float) -> list[float]:
    """Return what accuracy is lost, by seed, if the strategy is optimised for the average alone.

    ``correlated`` is the tuned setting of the strategy for all models. The other strategy is tuned
    in the same way. Both are compared on even pictures, with seeds that tuned neither.
    """
    average = tune(FOR_AVERAGE, epsilon)
    return [
        accuracy(CORRELATED, correlated, epsilon, seed=seed, pictures=EVEN)
        - accuracy(FOR_AVERAGE, average, epsilon, seed=seed, pictures=EVEN)
        for seed in COMPARED_SEEDS
    ]
