"""What a campaign file can say of its task beside data, model and rate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from checkins.campaign import (
    Campaign,
    InvalidCampaign,
    Optimizer,
    Task,
    campaign_from_canonical,
    campaign_text,
    parse_campaign,
)
from checkins.campaign.file import Template, template_text
from checkins.campaign.task import DataFile, Features
from checkins.errors import InvalidValue
from tests.campaign.strategies import optimizers, tasks

HEAD = template_text(Template.PATIENTS).partition("[task]")[0]
LINE = HEAD.count("\n") + 1
TABLE = DataFile("x.csv", "who", "y", ("a",), ((0.0, 1.0),))
TASK = Task("fashion-mnist", "softmax", Optimizer(rate=0.5))


def campaign(
    optimizer: str = 'kind = "sgd", rate = 0.5', data: str = '"fashion-mnist"', rest: str = ""
) -> Campaign:
    """The example with another [task], its data on the second line and its optimizer the third."""
    task = f'[task]\ndata = {data}\noptimizer = {{ {optimizer} }}\nmodel = "softmax"\n{rest}'
    found = parse_campaign(HEAD + task, path="c.toml").campaign
    assert parse_campaign(campaign_text(found)).campaign == found
    assert campaign_from_canonical(found.canonical()) == found
    return found


def refusal(*args: str, **kwargs: str) -> str:
    with pytest.raises(InvalidCampaign) as caught:
        campaign(*args, **kwargs)
    return str(caught.value)


def optimizer(text: str) -> Optimizer:
    task = campaign(text).task
    assert task is not None
    return task.optimizer


def test_momentum_is_read_and_none_without_it() -> None:
    assert optimizer('kind = "sgd", rate = 1').momentum is None
    found = optimizer('kind = "sgd", rate = 1, momentum = 0.9')
    assert (found.momentum, found.nesterov) == (0.9, False)
    found = optimizer('kind = "sgd", rate = 1, momentum = 0.9, nesterov = true')
    assert (found.momentum, found.nesterov) == (0.9, True)


def test_a_momentum_of_zero_is_none() -> None:
    """Its steps are the same, so its campaign is, and its seal."""
    plain = campaign('kind = "sgd", rate = 1')
    for zero in ("momentum = 0", "momentum = -0.0, nesterov = true", "nesterov = false"):
        assert campaign(f'kind = "sgd", rate = 1, {zero}').seal == plain.seal


def test_an_optimizer_of_optax_is_named_with_its_arguments_sorted() -> None:
    found = optimizer(
        'kind = "optax:adamw", rate = 1, arguments = { nesterov = true, b2 = 1, b1 = 0.5 }'
    )
    assert (found.kind, found.optax) == ("optax:adamw", "adamw")
    assert found.arguments == (("b1", 0.5), ("b2", 1.0), ("nesterov", True))
    assert [type(value) for _, value in found.arguments] == [float, float, bool]
    assert optimizer('kind = "sgd", rate = 1').optax is None


def test_every_spelling_of_a_table_of_arguments_is_one_campaign() -> None:
    inline = campaign('kind = "optax:lion", rate = 1, arguments = { b1 = 0.5, b2 = 0.25 }')
    for task in (
        '[task.optimizer]\nkind = "optax:lion"\nrate = 1\narguments.b2 = 0.25\narguments.b1 = 0.5',
        '[task.optimizer]\nkind = "optax:lion"\nrate = 1\n'
        "[task.optimizer.arguments]\nb2 = 0.25\nb1 = 0.5",
    ):
        text = f'{HEAD}[task]\ndata = "fashion-mnist"\nmodel = "softmax"\n{task}\n'
        assert parse_campaign(text).campaign == inline


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('"sgd", rate = 1, momentum = 1', "momentum = 1: must be below 1"),
        ('"sgd", rate = 1, momentum = -0.1', "momentum = -0.1: must lie in [0, 1]"),
        ('"sgd", rate = 1, momentum = nan', "momentum = nan: must lie in [0, 1]"),
        ('"sgd", rate = 1, momentum = true', "momentum = true: must be a number"),
        ('"sgd", rate = 1, nesterov = true', "nesterov = true: requires momentum"),
        ('"sgd", rate = 1, momentum = 0.5, nesterov = 1', "nesterov = 1: must be true or false"),
        ('"optax:adam", rate = 1, momentum = 0.5', 'momentum = 0.5: requires kind = "sgd"'),
        ('"optax:adam", rate = 1, nesterov = true', "nesterov = true: requires momentum"),
        ('"adam", rate = 1', 'kind = "adam": must be "sgd", or "optax:NAME" for a simulation'),
        ('"optax:", rate = 1', 'kind = "optax:": must be "sgd", or "optax:NAME"'),
        ('"optax:a.b", rate = 1', 'kind = "optax:a.b": must be "sgd", or "optax:NAME"'),
        ('"optax:adam"', "rate: is missing; it has no default"),
        ('"sgd", rate = 1, arguments = { b1 = 1 }', "arguments = { b1 = 1 }: require kind = "),
        ('"optax:adam", rate = 1, arguments = 3', "arguments = 3: must be a table"),
        (
            '"optax:adam", rate = 1, arguments = { b1 = nan }',
            "arguments.b1 = nan: must be a finite number, true or false",
        ),
        ('"optax:adam", rate = 1, arguments = { b1 = "x" }', 'arguments.b1 = "x": must be a fin'),
        ('"optax:adam", rate = 1, arguments = { b1 = [1] }', "arguments.b1 = [1]: must be a fin"),
        (
            f'"optax:adam", rate = 1, arguments = {{ b1 = {"9" * 400} }}',
            "arguments.b1 = an integer of many digits: must be a finite number",
        ),
        (
            '"optax:adam", rate = 1, arguments = { b-1 = 1 }',
            "arguments.b-1 = 1: must have a name of",
        ),
        ('"optax:adam", rate = 1, arguments = { "" = 1 }', "arguments. = 1: must be a text of 1"),
        (
            '"optax:adam", rate = 1, arguments = { learning_rate = 1 }',
            "arguments.learning_rate = 1: is set by rate and schedule",
        ),
    ],
)
def test_a_mistake_in_an_optimizer_is_told_with_its_line_and_key(given: str, message: str) -> None:
    assert refusal(f"kind = {given}").startswith(f"c.toml:{LINE + 2}: [task] optimizer.{message}")


def test_an_argument_is_given_once_and_there_are_not_too_many() -> None:
    with pytest.raises(InvalidValue, match=r"arguments .* each named once"):
        Optimizer(1.0, kind="optax:adam", arguments=(("b1", 0.5), ("b1", 0.25)))
    many = {f"a{number}": 1.0 for number in range(101)}
    with pytest.raises(InvalidValue, match=r"arguments .* at most 100"):
        Optimizer(1.0, kind="optax:adam", arguments=many)  # type: ignore[arg-type]


def test_optax_is_named_among_what_is_missing_before_real_clients_can_join() -> None:
    only = replace(campaign('kind = "optax:adam", rate = 1'), schedule=None)
    assert only.missing == ('[task] optimizer kind = "sgd"', "[schedule]")
    assert replace(campaign(), schedule=None).missing == ("[schedule]",)


def test_a_client_s_own_steps_have_a_size() -> None:
    assert campaign(rest="local_steps = 5").task.local_step_size == 1.0
    own = campaign(rest="local_steps = 5\nlocal_rate = 0.25")
    assert (own.task.local_rate, own.task.local_step_size) == (0.25, 0.25)
    default = campaign(rest="local_steps = 5\nlocal_rate = 1")
    assert default.seal == campaign(rest="local_steps = 5").seal != own.seal


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("local_rate = 0.5", "local_rate = 0.5: requires local_steps above 1"),
        ("local_rate = 1", "local_rate = 1: requires local_steps above 1"),
        ("local_rate = 0", "local_rate = 0: must be a finite number above 0"),
        ("local_rate = inf", "local_rate = inf: must be a finite number above 0"),
        ('local_rate = "x"', 'local_rate = "x": must be a number'),
        ('features = "wavelets"', 'features = "wavelets": must be "scattering"'),
        ("average = 0", "average = 0: must be a finite number above 0"),
        ("average = 1.5", "average = 1.5: must lie in [0, 1]"),
        ("features = 1", 'features = 1: must be "scattering"'),
    ],
)
def test_a_mistake_in_a_task_is_told_with_its_line_and_key(given: str, message: str) -> None:
    assert refusal(rest=given).startswith(f"c.toml:{LINE + 4}: [task] {message}")


FILE = '{ file = "x.csv", client_column = "who", label_column = "y", features = ["a"]'


def test_scattering_is_for_pictures() -> None:
    said = 'features = "scattering"'
    assert campaign(rest=said).task.features is Features.SCATTERING
    assert campaign().task.features is None
    table = f"{FILE}, ranges = {{ a = [0, 1] }} }}"
    for data in ('"patients"', '"synthetic"', table):
        assert refusal(data=data, rest=said).startswith(
            f"c.toml:{LINE + 4}: [task] {said}: scattering is for pictures"
        )
    for other in ("patients", TABLE):
        with pytest.raises(InvalidValue, match=r"features = 'scattering': .* for pictures"):
            replace(TASK, data=other, features=Features.SCATTERING)


def test_the_columns_of_a_table_are_still_refused_at_their_own_place() -> None:
    table = FILE.replace('"a"', '"y"') + ", ranges = { y = [0, 1] } }"
    assert refusal(data=table).startswith(f'c.toml:{LINE + 1}: [task] data.features = ["y"]: a col')


def test_a_table_may_say_its_classes_and_what_is_held_out() -> None:
    table = f"{FILE}, ranges = {{ a = [0, 1] }}, classes = 3, holdout = 0.25 }}"
    assert campaign(data=table).task.data == replace(TABLE, classes=3, holdout=0.25)
    bare = campaign(data=f"{FILE}, ranges = {{ a = [0, 1] }} }}")
    assert (bare.task.data.classes, bare.task.data.holdout) == (None, 0.0)
    zero = campaign(data=f"{FILE}, ranges = {{ a = [0, 1] }}, holdout = -0.0 }}")
    assert zero.seal == bare.seal


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("classes = 1", "classes = 1: must be at least 2"),
        ("classes = 1_000_001", "classes = 1000001: must be an integer"),
        ("classes = 2.0", "classes = 2.0: must be an integer"),
        ("classes = true", "classes = true: must be an integer"),
        ("holdout = 1", "holdout = 1: must be below 1"),
        ("holdout = -0.1", "holdout = -0.1: must lie in [0, 1]"),
        ("holdout = nan", "holdout = nan: must lie in [0, 1]"),
        ('holdout = "half"', 'holdout = "half": must be a number'),
    ],
)
def test_a_mistake_in_a_table_is_told_with_its_line_and_key(given: str, message: str) -> None:
    table = f"{FILE}, ranges = {{ a = [0, 1] }}, {given} }}"
    assert refusal(data=table).startswith(f"c.toml:{LINE + 1}: [task] data.{message}")


@given(optimizer=optimizers())
def test_an_optimizer_is_the_same_built_again_from_its_own_fields(optimizer: Optimizer) -> None:
    assert replace(optimizer) == optimizer


@given(task=tasks())
def test_a_task_is_the_same_built_again_from_its_own_fields(task: Task) -> None:
    assert replace(task) == task
