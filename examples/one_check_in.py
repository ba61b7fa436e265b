"""Fashion-MNIST with one check-in of each client: correlated noise compared with independent noise.

60,000 clients check in once, and every model is trained in one pass over their updates. Three
methods have the same (epsilon, 1e-5)-DP for add-remove neighbours: check-ins with noise that the
server correlates across slots, check-ins with independent noise, and Poisson-sampled DP-SGD.
All use the same features, clip and momentum, and the average of the models. Slots, bands and rate
were tuned alike for each method and epsilon, on the test pictures with even numbers and on seeds
that are not used again. The accuracy is of the pictures with odd numbers, which chose none of them.

    python examples/one_check_in.py --seeds 20 --out out/one-check-in
    python examples/one_check_in.py --tune --out out/one-check-in    # how the settings were chosen

It needs the four files of Fashion-MNIST (docs/data.md). On two cores, the features take about a
minute and each of the 240 runs about two seconds. A GPU is used if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from checkins.accounting import Parameter, calibrate
from checkins.campaign import Campaign, parse_campaign
from checkins.simulation.baselines import Baseline, calibrate_baseline
from checkins.simulation.engine.evaluation import Evaluation
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import train
from checkins.simulation.engine.training import Scenario, Training
from checkins.tasks.loaded_task import LoadedTask

CLIENTS, MOMENTUM = 60_000, 0.9
FILE = """schema = 1
name = "one check-in"
budget = {{ epsilon = {epsilon}, delta = 1e-5, adjacency = "add-remove" }}
protocol = {{ kind = "fixed", slots = {slots}, participation = 1.0, capacity = "all" }}
randomizer = {{ kind = "gaussian", noise_at = "server", noise_multiplier = 1.0, clip = 0.1{noise} }}

[task]
data = "fashion-mnist"
features = "scattering"
model = "softmax"
average = 0.25

[task.optimizer]
kind = "sgd"
rate = {rate}
momentum = {momentum}
nesterov = true
divide_by = {divide_by}
"""


class Setting(NamedTuple):
    """What is tuned. One band means independent noise."""

    slots: int
    bands: int
    rate: float


CORRELATED, INDEPENDENT, POISSON = "correlated noise", "independent noise", "Poisson DP-SGD"
TUNED: dict[str, dict[float, Setting]] = {
    CORRELATED: {
        0.5: Setting(256, 16, 2.0),
        1.0: Setting(256, 32, 8.0),
        1.35: Setting(256, 32, 8.0),
        2.7: Setting(128, 16, 16.0),
    },
    INDEPENDENT: {
        0.5: Setting(64, 1, 8.0),
        1.0: Setting(64, 1, 16.0),
        1.35: Setting(64, 1, 16.0),
        2.7: Setting(64, 1, 16.0),
    },
    POISSON: {
        0.5: Setting(128, 1, 4.0),
        1.0: Setting(128, 1, 4.0),
        1.35: Setting(64, 1, 16.0),
        2.7: Setting(64, 1, 16.0),
    },
}
"""The settings that ``tune`` chose for each method and epsilon."""

INDEPENDENT_DESIGNS = ((32, 1), (64, 1), (128, 1), (256, 1))
DESIGNS = {
    CORRELATED: ((128, 16), (256, 16), (256, 32), (512, 32)),
    INDEPENDENT: INDEPENDENT_DESIGNS,
    POISSON: INDEPENDENT_DESIGNS,
}
"""Pairs (slots, bands) that are tried for each method."""
TOTAL_RATES = (512, 1024, 2048, 4096)
"""The rates that are tried, times the number of slots."""
TUNING_SEEDS = (101, 102)
EVEN, ODD = 0, 1
"""Number of the first test picture of each half."""


def campaign_of(setting: Setting, epsilon: float) -> Campaign:
    """Return the campaign of a setting, whose noise is not calibrated yet."""
    values = {**setting._asdict(), "epsilon": epsilon, "momentum": MOMENTUM}
    values |= {"divide_by": CLIENTS // setting.slots, "noise": ""}
    if setting.bands > 1:
        strategy = f'{{ bands = {setting.bands}, strategy = "optimised" }}'
        values["noise"] = f", noise = {strategy}"
    return parse_campaign(FILE.format(**values)).campaign


@cache
def calibrated(method: str, slots: int, bands: int, epsilon: float) -> tuple[Mechanism, float]:
    """Return the mechanism with the least noise for a budget, and the epsilon of its certificate.

    Poisson sampling has the epsilon of check-ins with the same number of slots.
    """
    campaign = campaign_of(Setting(slots, bands, rate=1.0), epsilon)
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


def compare(seeds: Sequence[int], epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each epsilon and method, with the accuracies on odd pictures by seed."""
    rows = []
    for epsilon, method in itertools.product(epsilons, TUNED):
        setting = TUNED[method][epsilon]
        mechanism, certified = calibrated(method, setting.slots, setting.bands, epsilon)
        accuracies = [accuracy(method, setting, epsilon, seed=seed, pictures=ODD) for seed in seeds]
        noise = mechanism.noise_description
        rows.append(
            {
                "epsilon_at_most": epsilon,
                "method": method,
                **setting._asdict(),
                "epsilon": certified,
                "noise": noise,
                "accuracy": accuracies,
            }
        )
        print(f"{epsilon:<5g}{method:18}{described(accuracies)}, {noise}", flush=True)
    return rows


def described(values: Sequence[float]) -> str:
    """Return the mean in per cent and its standard error as text."""
    if len(values) < 2:
        return f"{statistics.fmean(values):.2%}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.2%} ± {error:.2%}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the accuracies of all methods, and the gain of correlated noise, as Markdown."""
    lines = [
        f"| epsilon | {' | '.join(TUNED)} | correlated − independent |",
        f"|---{'|---' * len(TUNED)}|---|",
    ]
    for epsilon in dict.fromkeys(row["epsilon_at_most"] for row in rows):
        found = {
            row["method"]: row["accuracy"] for row in rows if row["epsilon_at_most"] == epsilon
        }
        pairs = zip(found[CORRELATED], found[INDEPENDENT], strict=True)
        gain = described([correlated - independent for correlated, independent in pairs])
        cells = [described(found[method]) for method in TUNED]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} | {gain} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 1.35, 2.7])
    parser.add_argument("--tune", action="store_true", help="search the settings; takes an hour")
    parser.add_argument("--out", type=Path, default=Path("out/one-check-in"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tune:
        for epsilon, method in itertools.product(options.epsilon, TUNED):
            TUNED[method][epsilon] = tune(method, epsilon)
            print(f"{method}, epsilon {epsilon:g}: {TUNED[method][epsilon]}", flush=True)
    rows = compare(range(1, options.seeds + 1), options.epsilon)
    text = table(rows)
    print(text, end="")
    (options.out / "table.md").write_text(text, encoding="utf-8")
    (options.out / "result.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
