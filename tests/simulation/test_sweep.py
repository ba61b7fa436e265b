"""A sweep: every combination once, each the campaign that its file with those values would be."""

from __future__ import annotations

import pytest

from checkins.campaign import parse_campaign
from checkins.errors import InvalidValue
from checkins.simulation.sweep import (
    MAX_SETTINGS,
    Axis,
    setting_combinations,
    setting_label,
    with_setting,
)
from tests.simulation import tiny


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("protocol.slots=100,200", (100, 200)),
        (" protocol.slots = 1_000 , 2 ", (1000, 2)),
        ("task.optimizer.rate=1e-2,0.5", (0.01, 0.5)),
        ("task.model=logistic,mlp", ("logistic", "mlp")),
        ('task.model="logistic",mlp', ("logistic", "mlp")),
        ("protocol.capacity=all,5", ("all", 5)),
        ("task.optimizer.nesterov=true,false", (True, False)),
        ("task.optimizer.kind=sgd,optax:adam", ("sgd", "optax:adam")),
        ("budget.population=[10, 20],[30, 40]", ([10, 20], [30, 40])),
        ("name=a", ("a",)),
    ],
)
def test_values_are_read_as_toml_and_quotes_may_be_left_out(text: str, values: object) -> None:
    assert Axis.parse(text).values == values


@pytest.mark.parametrize("text", ["", "x", "x=", "=1", " = 1", "protocol.slots"])
def test_a_malformed_axis_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"must be SECTION\.KEY=VALUE"):
        Axis.parse(text)


def test_a_value_twice_and_a_key_twice_are_refused() -> None:
    with pytest.raises(InvalidValue, match="the value 5 more than once"):
        Axis.parse("protocol.slots=5,6,5")
    with pytest.raises(InvalidValue, match="was given more than once"):
        list(setting_combinations([Axis("a", (1,)), Axis("a", (2,))]))


def test_settings_are_all_combinations_in_order() -> None:
    found = list(setting_combinations([Axis("a", (1, 2)), Axis("b", ("x", "y"))]))
    assert [setting_label(one) for one in found] == ["a=1, b=x", "a=1, b=y", "a=2, b=x", "a=2, b=y"]
    assert list(setting_combinations([])) == [{}]
    with pytest.raises(InvalidValue, match="more than 1,000 campaigns"):
        list(setting_combinations([Axis("a", tuple(range(MAX_SETTINGS + 1)))]))


@pytest.mark.parametrize(
    ("setting", "old", "new"),
    [
        ({"protocol.slots": 9}, "slots = 6", "slots = 9"),
        ({"protocol.capacity": 7}, "capacity = 12", "capacity = 7"),
        ({"task.optimizer.rate": 2}, "rate = 0.5", "rate = 2"),
        ({"task.data.holdout": 0.25}, '"y"\n', '"y"\nholdout = 0.25\n'),
        ({"protocol.repeats": 3}, "capacity = 12", "capacity = 12\nrepeats = 3"),
        ({"name": "other"}, '"tiny"', '"other"'),
    ],
)
def test_a_changed_campaign_is_that_of_the_changed_file(setting, old: str, new: str) -> None:
    file = tiny.text()
    assert file.count(old) == 1
    wanted = parse_campaign(file.replace(old, new)).campaign
    assert with_setting(tiny.campaign(), setting) == wanted
    assert with_setting(tiny.campaign(), setting).seal != tiny.campaign().seal


def test_without_settings_the_campaign_is_unchanged() -> None:
    campaign = tiny.campaign()
    assert with_setting(campaign, {}) is campaign


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"protocol.slots": 0}, "sweep = 'protocol.slots=0': .*slots: must be an integer"),
        ({"protocol.slot": 5}, "did you mean slots"),
        ({"nowhere.slots": 5}, "the file has no table 'nowhere'"),
        ({"protocol.slots.deeper": 5}, "the file has no table 'protocol.slots'"),
        ({"randomizer.noise_multiplier": 1e-9}, "noise_multiplier: the noise of a slot"),
    ],
)
def test_an_invalid_value_is_refused_by_the_name_of_the_sweep(setting, said) -> None:
    with pytest.raises(InvalidValue, match=said) as caught:
        with_setting(tiny.campaign(), setting)
    assert caught.value.name == "sweep"
