"""A campaign is checked once, on construction, and holds what its file left out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins import validate
from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    PrivUnitReports,
    Protocol,
)
from checkins.campaign import (
    Budget,
    Campaign,
    DataFile,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    StepSizes,
    Task,
)
from checkins.campaign.randomizer_config import noise_of_kind
from checkins.campaign.spending import Spending
from checkins.errors import InvalidValue, NotCovered
from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse, Randomizer
from checkins.randomizers.grid import Grid
from tests.campaign.strategies import campaigns, randomizers

NOISE = GaussianNoise(0.5, NoiseAt.CLIENT)
RANDOMIZER = RandomizerConfig(RandomizerKind.GAUSSIAN, clip=1.0, grid=1e-4)
DESIGN = Design(Protocol.FIXED, slots=10, participation=1.0, randomizer=NOISE, capacity=9)
TASK = Task("patients", "logistic", Optimizer(rate=0.5))
SCHEDULE = Schedule(datetime(2030, 1, 1, tzinfo=UTC), slot_s=60.0, choose_s=20.0)
CAMPAIGN = Campaign(
    name="one",
    population_id=None,
    budget=Budget(1.0, 1e-6, Adjacency.ADD_REMOVE),
    design=DESIGN,
    repeats=1,
    randomizer=RANDOMIZER,
    task=TASK,
    schedule=SCHEDULE,
)
LOCAL = replace(
    CAMPAIGN,
    randomizer=RandomizerConfig(RandomizerKind.LAPLACE, clip=1.0, grid=1e-4),
    design=Design(Protocol.FIXED, slots=10, participation=1.0, randomizer=LocalRandomizer(1.0)),
)
AVERAGED = replace(
    LOCAL,
    budget=Budget(1.0, 1e-6, Adjacency.REPLACE_ONE),
    design=Design(
        Protocol.AVERAGED,
        slots=10,
        participation=1.0,
        randomizer=LocalRandomizer(1.0),
        population=Population(100, 200),
    ),
    task=TASK,
)


@given(campaign=campaigns())
def test_the_noise_of_a_campaign_is_that_of_its_design(campaign: Campaign) -> None:
    noise = campaign.design.randomizer
    if isinstance(noise, GaussianNoise):
        levels = (noise.noise_multiplier, noise.at, None)
    else:
        levels = (None, None, noise.local_epsilon)
    assert (campaign.noise_multiplier, campaign.noise_at, campaign.local_epsilon) == levels


def test_a_noise_of_another_kind_than_the_randomizer_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"randomizer .* needs Gaussian noise"):
        replace(CAMPAIGN, randomizer=RANDOMIZER, design=LOCAL.design)
    with pytest.raises(InvalidValue, match=r"randomizer .* needs a local epsilon"):
        replace(CAMPAIGN, randomizer=LOCAL.randomizer)
    with pytest.raises(InvalidValue, match=r"randomizer .* has no local delta"):
        LOCAL.randomizer.check_noise(LocalRandomizer(1.0, 1e-6))


def test_a_sum_is_divided_by_the_capacity_unless_another_count_is_given() -> None:
    assert CAMPAIGN.task.optimizer.divide_by == 9
    own = replace(TASK, optimizer=Optimizer(rate=0.5, divide_by=5))
    assert replace(CAMPAIGN, task=own).task.optimizer.divide_by == 5
    at_server = GaussianNoise(0.5, NoiseAt.SERVER)
    uncapped = replace(
        CAMPAIGN, task=TASK, design=replace(DESIGN, randomizer=at_server, capacity=None)
    )
    assert uncapped.task.optimizer.divide_by == 1


def test_a_local_randomizer_without_a_capacity_uses_one_check_in_as_in_the_paper() -> None:
    assert LOCAL.design.capacity == 1
    assert AVERAGED.design.capacity is None


def test_averaged_updates_divide_by_their_reports_and_step_in_every_slot() -> None:
    assert AVERAGED.task.optimizer.divide_by is None
    for wrong in (Optimizer(rate=0.5, divide_by=5), Optimizer(rate=0.5, minibatch=2)):
        with pytest.raises(InvalidValue, match=r"divide_by|minibatch"):
            replace(AVERAGED, task=replace(TASK, optimizer=wrong))
    with pytest.raises(NotCovered, match="adjacency"):
        replace(AVERAGED, budget=CAMPAIGN.budget)


def test_a_minibatch_longer_than_the_campaign_is_refused() -> None:
    with pytest.raises(InvalidValue, match="minibatch = 11: must be at most slots = 10"):
        replace(CAMPAIGN, task=replace(TASK, optimizer=Optimizer(rate=0.5, minibatch=11)))


def test_what_is_missing_before_clients_can_join_is_named() -> None:
    assert CAMPAIGN.missing == ()
    bare = replace(CAMPAIGN, task=None, schedule=None, randomizer=replace(RANDOMIZER, grid=None))
    assert bare.missing == ("[randomizer] grid", "[task]", "[schedule]")
    unclipped = RandomizerConfig(RandomizerKind.LAPLACE)
    assert replace(LOCAL, randomizer=unclipped).missing == (
        "[randomizer] clip",
        "[randomizer] grid",
    )
    answer = RandomizerConfig(RandomizerKind.RANDOMIZED_RESPONSE, categories=3)
    stepless = replace(LOCAL, randomizer=answer)
    assert stepless.missing == ("[randomizer] kind = gaussian, laplace or privunit",)
    assert replace(stepless, task=None).missing == ("[task]",)


def test_sums_of_reports_on_a_grid_fit_64_bits() -> None:
    def summing(capacity: int, *, minibatch: int = 1) -> Campaign:
        optimizer = Optimizer(rate=0.5, minibatch=minibatch)
        return replace(
            CAMPAIGN,
            design=replace(DESIGN, capacity=capacity),
            task=replace(TASK, optimizer=optimizer),
        )

    most = 2**32 - 1
    assert most * (2**31 - 1) < 2**63
    assert summing(most).design.capacity == most
    with pytest.raises(
        InvalidValue, match=r"capacity = 4294967296: must be at most 4,294,967,295,"
    ):
        summing(most + 1)
    assert summing(most // 10, minibatch=10).design.capacity == most // 10
    with pytest.raises(InvalidValue, match="at most 429,496,729 with minibatch = 10, or sums"):
        summing(most // 10 + 1, minibatch=10)
    simulated = replace(RANDOMIZER, grid=None)
    design = replace(DESIGN, capacity=10**12)
    assert replace(CAMPAIGN, randomizer=simulated, design=design).design.capacity == 10**12


@pytest.mark.parametrize(
    "huge",
    [10**400, -(10**400), Fraction(10**400), 10**5000],
    ids=["integer", "negative", "fraction", "unprintable"],
)
def test_a_number_that_no_float_holds_is_refused_like_any_other(huge: object) -> None:
    for name in ("epsilon", "delta"):
        with pytest.raises(InvalidValue, match=f"^{name} = -?inf: must"):
            replace(CAMPAIGN.budget, **{name: huge})
    for refuses in (
        validate.positive,
        validate.non_negative,
        validate.open_unit,
        validate.probability,
    ):
        with pytest.raises(InvalidValue, match=r"^x = -?inf: must"):
            refuses(x=huge)
    with pytest.raises(InvalidValue, match=r"^minibatch = .*: must be an integer"):
        Optimizer(rate=0.5, minibatch=huge)


def test_a_randomizer_becomes_a_mechanism_once_the_dimension_is_known() -> None:
    def of(kind: RandomizerKind, **values: float) -> Randomizer:
        return RandomizerConfig(kind, **values).mechanism(LocalRandomizer(2.0), dimension=7)

    assert CAMPAIGN.mechanism(7) == Gaussian(1.0, 0.5)
    assert of(RandomizerKind.LAPLACE, clip=3.0) == Laplace(3.0, 2.0)
    assert of(RandomizerKind.PRIVUNIT, clip=3.0) == PrivUnit(3.0, 2.0, 7)
    assert of(RandomizerKind.RANDOMIZED_RESPONSE, categories=4) == RandomizedResponse(4, 2.0)
    with pytest.raises(InvalidValue, match=r"clip.*certified, not run"):
        of(RandomizerKind.LAPLACE)


def test_privunit_has_a_name_only_with_its_dimension() -> None:
    """Otherwise two campaigns with one seal could have different certificates."""
    for noise in (LocalRandomizer(1.0), PrivUnitReports(1.0, dimension=3)):
        design = replace(LOCAL.design, randomizer=noise)
        for dimension, name in (
            (7, PrivUnitReports(1.0, dimension=7)),
            (None, LocalRandomizer(1.0)),
        ):
            config = RandomizerConfig(RandomizerKind.PRIVUNIT, clip=1.0, dimension=dimension)
            named = replace(LOCAL, randomizer=config, design=design)
            assert named.design.randomizer == name
            assert ("dimension" in named.canonical()) == (dimension is not None)


def test_the_dimension_of_a_campaign_is_that_of_the_model() -> None:
    config = RandomizerConfig(RandomizerKind.PRIVUNIT, clip=1.0, dimension=7)
    campaign = replace(LOCAL, randomizer=config)
    assert campaign.mechanism(7) == PrivUnit(1.0, 1.0, 7)
    with pytest.raises(InvalidValue, match=r"dimension = 7: must be 14, .*; set it to 14, or"):
        campaign.mechanism(14)


@given(
    local_epsilon=st.floats(1e-3, 8.0),
    dimension=st.integers(1, 10**6),
    slots=st.integers(1, 10**4),
    adjacency=st.sampled_from(Adjacency),
)
@settings(max_examples=5)
def test_the_dimension_never_raises_epsilon(
    local_epsilon: float, dimension: int, slots: int, adjacency: Adjacency
) -> None:
    def epsilon(dimension: int | None) -> float:
        noise = LocalRandomizer(local_epsilon)
        design = Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=noise)
        config = RandomizerConfig(RandomizerKind.PRIVUNIT, dimension=dimension)
        campaign = Campaign("one", None, Budget(1.0, 1e-6, adjacency), design, 1, config)
        return Spending(campaign).epsilon_after(slots)

    assert epsilon(dimension) <= epsilon(None) * (1.0 + 1e-2) + 1e-6


LEVELS = ("noise_multiplier", "noise_at", "local_epsilon")


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("gaussian", {"noise_multiplier": 1.0, "clip": 1.0}, "noise_at"),
        ("gaussian", {"noise_at": NoiseAt.CLIENT, "clip": 1.0}, "noise_multiplier"),
        ("gaussian", {"noise_at": NoiseAt.CLIENT, "noise_multiplier": 1.0}, "clip"),
        ("gaussian", {"local_epsilon": 1.0}, "local_epsilon = 1.0: is not used with kind"),
        ("laplace", {"local_epsilon": 1.0, "noise_at": NoiseAt.CLIENT}, "noise_at .*gaussian"),
        ("laplace", {"clip": 1.0}, "local_epsilon"),
        ("laplace", {"local_epsilon": 1.0, "grid": 1e-3}, "clip = None"),
        ("laplace", {"local_epsilon": 1e9, "clip": 1.0}, "local_epsilon"),
        ("privunit", {"local_epsilon": 1.0, "clip": 1.0, "grid": 0.1}, "grid = 0.1: .*simulated"),
        ("randomized-response", {"local_epsilon": 1.0}, "categories"),
        ("randomized-response", {"local_epsilon": 1.0, "categories": 1}, "at least 2"),
        ("randomized-response", {"local_epsilon": 1.0, "categories": 3, "clip": 1.0}, "clip"),
        ("laplace", {"local_epsilon": 1.0, "categories": 3}, "categories = 3: is not used"),
        ("laplace", {"local_epsilon": 1.0, "dimension": 3}, "dimension = 3: .*for privunit"),
        ("privunit", {"local_epsilon": 1.0, "dimension": 0}, "dimension = 0: must be an integer"),
    ],
)
def test_each_kind_takes_its_own_values_and_no_others(
    kind: str, values: dict[str, object], message: str
) -> None:
    def randomizer() -> None:
        levels = {name: value for name, value in values.items() if name in LEVELS}
        others = {name: value for name, value in values.items() if name not in LEVELS}
        noise_of_kind(RandomizerKind(kind), **levels)
        RandomizerConfig(RandomizerKind(kind), **others)

    with pytest.raises(InvalidValue, match=message):
        randomizer()


def test_a_grid_is_fine_enough_for_sums_of_noises_and_coarse_enough_for_32_bits() -> None:
    def on(campaign: Campaign, grid: float) -> Campaign:
        return replace(campaign, randomizer=replace(campaign.randomizer, grid=grid))

    assert on(CAMPAIGN, 0.5 / 3.0).randomizer.grid == 0.5 / 3.0
    with pytest.raises(InvalidValue, match=r"grid = 0\.17: is too coarse"):
        on(CAMPAIGN, 0.17)
    with pytest.raises(InvalidValue, match=r"grid = 1e-09: is too fine: .* 32 bits"):
        on(CAMPAIGN, 1e-9)
    with pytest.raises(InvalidValue, match=r"grid = 2\.0: is too coarse"):
        on(CAMPAIGN, 2.0)
    with pytest.raises(InvalidValue, match=r"grid = 1e-08: is too fine: .* 32 bits"):
        on(LOCAL, 1e-8)


@pytest.mark.parametrize("exponent", [-9.5, -9.0, -8.6, -8.45, -8.4, -8.0, -4.0, -1.0, -0.78, -0.7])
@pytest.mark.parametrize("kind", [RandomizerKind.GAUSSIAN, RandomizerKind.LAPLACE])
def test_a_campaign_takes_the_grids_that_a_device_takes(
    kind: RandomizerKind, exponent: float
) -> None:
    gaussian = kind is RandomizerKind.GAUSSIAN
    noise = NOISE if gaussian else LocalRandomizer(50.0)
    mechanism = Gaussian(1.0, 0.5) if gaussian else Laplace(1.0, 50.0)

    def refused(what: object) -> bool:
        try:
            what()
        except InvalidValue:
            return True
        return False

    grid = 10.0**exponent
    randomizer = RandomizerConfig(kind, clip=1.0, grid=grid)
    assert refused(lambda: randomizer.check_noise(noise)) == refused(
        lambda: Grid(grid).noise(mechanism)
    )


@given(both=randomizers())
def test_a_randomizer_is_the_same_built_again_from_its_own_fields(
    both: tuple[RandomizerConfig, LocalRandomizer | GaussianNoise],
) -> None:
    assert replace(both[0]) == both[0]


@pytest.mark.parametrize("text", ["", "two\nlines", "a" * 201, "\x00", "\ud800", 3, None])
def test_a_name_is_one_printable_line(text: object) -> None:
    with pytest.raises(InvalidValue, match="name"):
        replace(CAMPAIGN, name=text)


def test_a_schedule_keeps_instants_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    assert replace(SCHEDULE, start=datetime(2030, 1, 1, 2, tzinfo=east)) == SCHEDULE
    assert replace(SCHEDULE, start=datetime(2030, 1, 1, 2, tzinfo=east)).start.tzinfo is UTC
    assert SCHEDULE.slot_start(3) == datetime(2030, 1, 1, 0, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": datetime(2030, 1, 1)}, "start .* end it with Z"),
        ({"start": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "out of range"),
        ({"start": "2030-01-01"}, "start"),
        ({"slot_s": 0.0}, "slot_s"),
        ({"choose_s": 0.0}, "choose_s"),
        ({"choose_s": 60.0}, r"choose_s = 60\.0: must be below slot_s = 60\.0"),
        ({"choose_s": float("nan")}, "choose_s"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        replace(SCHEDULE, **changes)


def test_a_campaign_ends_before_the_calendar_does() -> None:
    with pytest.raises(InvalidValue, match=r"slot_s .* year 9999"):
        replace(CAMPAIGN, schedule=replace(SCHEDULE, slot_s=1e11))


@pytest.mark.parametrize(
    "model", ["linear", "module:", ":function", "a b:c", "a:b:c", "1a:b", "", "x" * 300, None]
)
def test_a_model_is_known_or_a_function_of_a_module(model: object) -> None:
    with pytest.raises(InvalidValue, match="model"):
        replace(TASK, model=model)


def test_the_paper_s_step_sizes_decay_with_the_root() -> None:
    assert (StepSizes.CONSTANT.decay, StepSizes.INVERSE_SQRT.decay) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": (), "ranges": ()}, "features"),
        ({"features": ("a", "a"), "ranges": ((0, 1), (0, 1))}, "only once"),
        ({"features": ("y",)}, "only once"),
        ({"ranges": ()}, "one range for each"),
        ({"ranges": ((1.0, 1.0),)}, "the first number must be below"),
        ({"client_column": "y"}, "only once"),
        ({"file": ""}, "file"),
    ],
)
def test_a_table_names_its_columns_once_and_their_ranges(
    changes: dict[str, object], message: str
) -> None:
    table = DataFile("x.csv", "who", "y", ("a",), ((0.0, 1.0),))
    with pytest.raises(InvalidValue, match=message):
        replace(table, **changes)


def test_data_is_known_or_a_table() -> None:
    with pytest.raises(InvalidValue, match="data = 'mnist'"):
        replace(TASK, data="mnist")
