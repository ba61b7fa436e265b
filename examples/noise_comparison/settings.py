"""Campaigns of the example ``one_check_in.py``, and the settings that were tuned for them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from checkins.accounting import GaussianNoise
from checkins.campaign import Campaign, parse_campaign
from checkins.strategies import Workload, optimised

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

FOR_AVERAGE = "correlated noise for the average"
"""A method that is tuned only to be compared: the strategy is optimised for the average of the
models alone. With ``CORRELATED``, it is optimised for all models."""
INDEPENDENT_DESIGNS = ((32, 1), (64, 1), (128, 1), (256, 1))
CORRELATED_DESIGNS = ((128, 16), (256, 16), (256, 32), (512, 32))
DESIGNS = {
    CORRELATED: CORRELATED_DESIGNS,
    FOR_AVERAGE: CORRELATED_DESIGNS,
    INDEPENDENT: INDEPENDENT_DESIGNS,
    POISSON: INDEPENDENT_DESIGNS,
}
"""Pairs (slots, bands) that are tried for each method."""
TOTAL_RATES = (256, 512, 1024, 2048, 4096)
"""The rates that are tried, times the number of slots."""


def campaign_of(setting: Setting, epsilon: float) -> Campaign:
    """Return the campaign of a setting, whose noise is not calibrated yet."""
    values = {**setting._asdict(), "epsilon": epsilon, "momentum": MOMENTUM}
    values |= {"divide_by": CLIENTS // setting.slots, "noise": ""}
    if setting.bands > 1:
        strategy = f'{{ bands = {setting.bands}, strategy = "optimised" }}'
        values["noise"] = f", noise = {strategy}"
    return parse_campaign(FILE.format(**values)).campaign


def for_average(campaign: Campaign) -> Campaign:
    """Return the campaign with a strategy that is optimised for the average of the models alone."""
    noise, task, strategy = campaign.design.randomizer, campaign.task, campaign.strategy
    assert isinstance(noise, GaussianNoise)
    assert task is not None
    assert strategy is not None
    momentum = (task.optimizer.momentum, task.optimizer.nesterov)
    workload = Workload(campaign.design.slots, *momentum, tail=task.average)
    noise = replace(noise, strategy=optimised(strategy.bands, workload))
    return replace(campaign, design=replace(campaign.design, randomizer=noise))
