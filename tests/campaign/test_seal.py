"""A seal changes with every value of a campaign, and with nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given

from checkins.accounting import (
    Adjacency,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign import (
    Budget,
    Campaign,
    DataFile,
    Features,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    StepSizes,
    Task,
    campaign_from_canonical,
    parse_campaign,
)
from checkins.campaign.file import Template, template_text
from checkins.campaign.model import seal_of
from checkins.errors import InvalidValue
from tests.campaign.strategies import campaigns

TEXT = template_text(Template.PATIENTS)
PATIENTS = parse_campaign(TEXT).campaign
FILE = parse_campaign(template_text(Template.FILE)).campaign
SYNTHETIC = parse_campaign(template_text(Template.SYNTHETIC)).campaign


@given(campaign=campaigns())
def test_the_canonical_form_reads_back_as_the_same_campaign(campaign: Campaign) -> None:
    again = campaign_from_canonical(campaign.canonical())
    assert again == campaign
    assert again.seal == campaign.seal


@given(campaign=campaigns())
def test_the_canonical_form_is_json_in_utf_8_sorted_and_without_spaces(campaign: Campaign) -> None:
    text = campaign.canonical()
    values = json.loads(text.encode("utf-8"), parse_constant=lambda word: 1 / 0)
    packed = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert packed == text
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", campaign.seal)
    assert campaign.seal == seal_of(text)


def test_the_seal_of_the_example_is_known() -> None:
    """A seal is for ever: if this fails, every ledger that was ever written is void."""
    assert PATIENTS.seal == (
        "sha256:3ca5f3a725b64176472776381c9b5357443241d70388a5133625ad1068e6ed11"
    )


def test_what_a_file_does_not_say_is_not_in_its_canonical_form() -> None:
    """What was added to the format later leaves the seals of older files as they were."""
    later = {"momentum", "nesterov", "arguments", "local_rate", "average", "classes", "holdout"}
    for campaign in (PATIENTS, FILE, SYNTHETIC):
        task = json.loads(campaign.canonical())["task"]
        held = {*task, *task["optimizer"], *(task["data"] if campaign is FILE else ())}
        assert not held & later
        assert "features" not in task


def budgeted(**changes: object) -> Campaign:
    return replace(PATIENTS, budget=replace(PATIENTS.budget, **changes))


def designed(**changes: object) -> Campaign:
    return replace(PATIENTS, design=replace(PATIENTS.design, **changes))


def randomized(**changes: object) -> Campaign:
    return replace(PATIENTS, randomizer=replace(PATIENTS.randomizer, **changes))


def tasked(**changes: object) -> Campaign:
    return replace(PATIENTS, task=replace(PATIENTS.task, **changes))


def optimized(**changes: object) -> Campaign:
    return tasked(optimizer=replace(PATIENTS.task.optimizer, **changes))


def scheduled(**changes: object) -> Campaign:
    return replace(PATIENTS, schedule=replace(PATIENTS.schedule, **changes))


def from_file(**changes: object) -> Campaign:
    return replace(FILE, task=replace(FILE.task, data=replace(FILE.task.data, **changes)))


def as_kind(kind: RandomizerKind, local_epsilon: float, **values: object) -> Campaign:
    design = replace(SYNTHETIC.design, randomizer=LocalRandomizer(local_epsilon))
    return replace(SYNTHETIC, randomizer=RandomizerConfig(kind, **values), design=design)


CHANGED = {
    "name": replace(PATIENTS, name="patient"),
    "population_id": replace(PATIENTS, population_id="clinics"),
    "no population_id": replace(PATIENTS, population_id=None),
    "repeats": replace(PATIENTS, repeats=2),
    "epsilon": budgeted(epsilon=0.6),
    "delta": budgeted(delta=1e-7),
    "adjacency": budgeted(adjacency=Adjacency.REPLACE_ONE),
    "protocol": designed(protocol=Protocol.SLIDING, window=200),
    "window": designed(protocol=Protocol.SLIDING, window=100),
    "slots": designed(slots=201),
    "participation": designed(participation=0.5),
    "capacity": designed(capacity=177),
    "population": designed(population=Population(15_000, 20_001)),
    "no population": designed(population=None),
    "clip": randomized(clip=2.0),
    "grid": randomized(grid=2e-6),
    "no grid": randomized(grid=None),
    "noise_multiplier": designed(randomizer=GaussianNoise(0.2, NoiseAt.CLIENT)),
    "noise_at": designed(randomizer=GaussianNoise(1.0, NoiseAt.SERVER)),
    "laplace": as_kind(RandomizerKind.LAPLACE, local_epsilon=2.0, clip=1.0),
    "privunit": as_kind(RandomizerKind.PRIVUNIT, local_epsilon=2.0, clip=1.0),
    "dimension": as_kind(RandomizerKind.PRIVUNIT, local_epsilon=2.0, clip=1.0, dimension=10),
    "another dimension": as_kind(
        RandomizerKind.PRIVUNIT, local_epsilon=2.0, clip=1.0, dimension=11
    ),
    "local_epsilon": as_kind(RandomizerKind.LAPLACE, local_epsilon=3.0, clip=1.0),
    "categories": as_kind(RandomizerKind.RANDOMIZED_RESPONSE, local_epsilon=2.0, categories=3),
    "more categories": as_kind(RandomizerKind.RANDOMIZED_RESPONSE, local_epsilon=2.0, categories=4),
    "no task": replace(PATIENTS, task=None),
    "data": tasked(data="synthetic"),
    "model": tasked(model="mlp"),
    "local_steps": tasked(local_steps=2),
    "rate": optimized(rate=0.25),
    "minibatch": optimized(minibatch=2),
    "step sizes": optimized(schedule=StepSizes.INVERSE_SQRT),
    "diameter": optimized(diameter=10.0),
    "divide_by": optimized(divide_by=175),
    "momentum": optimized(momentum=0.9),
    "more momentum": optimized(momentum=0.95),
    "nesterov": optimized(momentum=0.9, nesterov=True),
    "optimizer's kind": optimized(kind="optax:adam"),
    "another kind": optimized(kind="optax:adamw"),
    "arguments": optimized(kind="optax:adam", arguments={"b1": 1.0}),
    "argument's value": optimized(kind="optax:adam", arguments={"b1": 0.5}),
    "argument's type": optimized(kind="optax:adam", arguments={"b1": True}),
    "argument's name": optimized(kind="optax:adam", arguments={"b2": 0.5}),
    "two arguments": optimized(kind="optax:adam", arguments={"b1": 0.5, "b2": 0.5}),
    "local_rate": tasked(local_steps=2, local_rate=0.5),
    "average": tasked(average=0.25),
    "an average of all": tasked(average=1.0),
    "pictures": tasked(data="fashion-mnist"),
    "scattering": tasked(data="fashion-mnist", features=Features.SCATTERING),
    "classes": from_file(classes=2),
    "more classes": from_file(classes=3),
    "holdout": from_file(holdout=0.2),
    "data file": FILE,
    "file": from_file(file="other.csv"),
    "client_column": from_file(client_column="client"),
    "label_column": from_file(label_column="label"),
    "features": from_file(features=("age", "height")),
    "order of features": from_file(
        features=tuple(reversed(FILE.task.data.features)),
        ranges=tuple(reversed(FILE.task.data.ranges)),
    ),
    "ranges": from_file(ranges=((0.0, 101.0), (30.0, 200.0))),
    "no schedule": replace(PATIENTS, schedule=None),
    "start": scheduled(start=datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    "slot_s": scheduled(slot_s=2.0),
    "choose_s": scheduled(choose_s=0.4),
}


def test_any_changed_value_changes_the_seal() -> None:
    seals = [PATIENTS.seal, *(campaign.seal for campaign in CHANGED.values())]
    assert len(set(seals)) == len(seals)


def test_every_field_of_a_campaign_is_changed_above() -> None:
    parts = (Campaign, Budget, RandomizerConfig, Task, DataFile, Optimizer, Schedule)
    names = {field.name for part in parts for field in fields(part)}
    whole = {"budget", "design", "randomizer", "task", "optimizer"}
    assert names - whole - {"kind", "schedule"} <= set(CHANGED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epsilon = 0.5 ", "epsilon = 5e-1 "),
        ("delta = 1e-6", "delta = 0.000001"),
        ("participation = 1.0", "participation = 1"),
        ("clip = 1.0", "clip = 1"),
        ("slots = 200", "slots = 2_00"),
        ("repeats = 1 ", ""),
        ("local_steps = 1 ", ""),
        (", minibatch = 1", ""),
        (", minibatch = 1", ', minibatch = 1, divide_by = 176, schedule = "constant"'),
        ("2030-01-01T00:00:00Z", "2030-01-01T02:30:00+02:30"),
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00.000Z"),
        ("[15000, 20000]", "[ 15000,20000, ]"),
        ('"patients"', "'patients'"),
        ("#", "## another comment"),
    ],
)
def test_what_means_the_same_has_the_same_seal(old: str, new: str) -> None:
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    assert parse_campaign(changed).campaign.seal == PATIENTS.seal


def test_the_order_of_keys_and_sections_does_not_matter() -> None:
    head, *sections = re.split(r"(?m)^(?=\[)", TEXT)
    shuffled = [
        section.splitlines()[0] + "\n" + "\n".join(reversed(section.splitlines()[1:])) + "\n"
        for section in reversed(sections)
    ]
    assert parse_campaign(head + "".join(shuffled)).campaign == PATIENTS


def test_whole_numbers_in_place_of_floats_have_the_same_seal() -> None:
    assert budgeted(epsilon=1).seal == budgeted(epsilon=1.0).seal
    assert designed(participation=1).seal == designed(participation=1.0).seal
    assert designed(participation=-0.0).seal == designed(participation=0.0).seal
    assert optimized(rate=2, diameter=3).seal == optimized(rate=2.0, diameter=3.0).seal
    adam = {"b1": 0, "eps_root": 1}, {"eps_root": 1.0, "b1": -0.0}
    assert len({optimized(kind="optax:adam", arguments=given).seal for given in adam}) == 1
    assert tasked(local_steps=2, local_rate=3).seal == tasked(local_steps=2, local_rate=3.0).seal
    assert tasked(average=1).seal == tasked(average=1.0).seal
    east = timezone(timedelta(hours=5))
    assert scheduled(start=datetime(2030, 1, 1, 5, tzinfo=east)).seal == PATIENTS.seal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 10_000,
        "9" * 10_000,
        PATIENTS.canonical() + " ",
        PATIENTS.canonical().replace("0.5", "0.50"),
        PATIENTS.canonical().replace('"participation":1.0', '"participation":1'),
        PATIENTS.canonical().replace('"slots":200', '"slots":200,"slots":200'),
        PATIENTS.canonical().replace('"repeats":1,', ""),
        PATIENTS.canonical().replace('"epsilon":0.5', '"epsilon":NaN'),
        PATIENTS.canonical().replace('"epsilon":0.5', '"epsilon":1e999'),
        PATIENTS.canonical().replace('"slots":200', '"slots":0'),
        PATIENTS.canonical().replace("2030-01-01T00:00:00Z", "2030-01-01T00:00:00"),
        PATIENTS.canonical().replace("2030-01-01T00:00:00Z", "2030-01-01T00:00:00+00:00"),
        PATIENTS.canonical().replace("2030-01-01T00:00:00Z", "soon"),
    ],
)
def test_any_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        campaign_from_canonical(text)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_number_that_is_not_finite_gets_into_a_campaign(bad: float) -> None:
    for change in (
        lambda: budgeted(epsilon=bad),
        lambda: budgeted(delta=bad),
        lambda: designed(participation=bad),
        lambda: randomized(clip=bad),
        lambda: randomized(grid=bad),
        lambda: designed(randomizer=GaussianNoise(bad, NoiseAt.CLIENT)),
        lambda: optimized(rate=bad),
        lambda: optimized(diameter=bad),
        lambda: optimized(momentum=bad),
        lambda: optimized(kind="optax:adam", arguments={"b1": bad}),
        lambda: tasked(local_steps=2, local_rate=bad),
        lambda: tasked(average=bad),
        lambda: from_file(holdout=bad),
        lambda: scheduled(slot_s=bad),
        lambda: scheduled(choose_s=bad),
        lambda: from_file(ranges=((bad, 1.0), (0.0, 1.0))),
    ):
        with pytest.raises(InvalidValue):
            change()
