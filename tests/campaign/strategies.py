"""Hypothesis strategies for campaigns and their parts: values that a file may really hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from checkins.accounting import Adjacency, Design, GaussianNoise, LocalRandomizer, NoiseAt, Protocol
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
)
from checkins.campaign.model import MAX_REPORTS_IN_SUM
from checkins.campaign.task import DEVICES, DataSet, Model
from tests.strategies import (
    _powers,
    adjacencies,
    counts,
    deltas,
    local_epsilons,
    noise_multipliers,
    noise_strategies,
    participations,
    populations,
)

MAX_SLOTS = 10**6
"""Few enough that a schedule ends before the year 10000."""

MAX_MINIBATCH = 100
MAX_CAPACITY = MAX_REPORTS_IN_SUM // MAX_MINIBATCH
"""Few enough that sums of reports on a grid fit 64 bits."""

_signs = st.characters(codec="utf-8", exclude_categories=("C", "Z"))
texts = st.text(
    st.one_of(_signs, st.just(" "), st.sampled_from("\"'\\#[]{}.,=-")), min_size=1, max_size=20
)
lengths = _powers(1e-6, 1e6)
rates = _powers(1e-9, 1e9)
budgets = st.builds(Budget, _powers(1e-3, 100.0), deltas, adjacencies)
momenta = st.none() | st.floats(0.0, 1.0, exclude_max=True)
arguments = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True),
    st.booleans() | st.floats(-1e300, 1e300) | st.integers(-10, 10),
    max_size=4,
)


@st.composite
def optimizers(draw: st.DrawFn) -> Optimizer:
    common = Optimizer(
        rate=draw(rates),
        minibatch=draw(counts(MAX_MINIBATCH)),
        schedule=draw(st.sampled_from(StepSizes)),
        diameter=draw(st.none() | lengths),
        divide_by=draw(st.none() | counts()),
    )
    if draw(st.booleans()):
        momentum = draw(momenta)
        nesterov = momentum is not None and draw(st.booleans())
        return replace(common, momentum=momentum, nesterov=nesterov)
    kind = draw(st.sampled_from(["optax:adam", "optax:adamw", "optax:yogi", "optax:_x1"]))
    return replace(common, kind=kind, arguments=tuple(draw(arguments).items()))


offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@st.composite
def data_files(draw: st.DrawFn) -> DataFile:
    columns = draw(st.lists(texts, min_size=3, max_size=6, unique=True))
    client, label, *features = columns
    ends = st.floats(-1e9, 1e9).filter(lambda x: x == 0.0 or abs(x) > 1e-300)
    ranges = [
        tuple(sorted(draw(st.lists(ends, min_size=2, max_size=2, unique=True)))) for _ in features
    ]
    return DataFile(
        draw(texts),
        client,
        label,
        tuple(features),
        tuple(ranges),
        draw(st.none() | st.integers(2, 10**6)),
        draw(st.just(0.0) | st.floats(0.0, 1.0, exclude_max=True)),
    )


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    named = st.sampled_from([str(data) for data in DataSet])
    models = st.sampled_from([*(str(model) for model in Model), "mine:model", "a.b_2:C"])
    data, steps = draw(named | data_files() | st.just(DEVICES)), draw(counts(10**6))
    if data == DEVICES:
        models, steps = st.sampled_from(["mine:model", "a.b_2:C"]), 1
    return Task(
        data,
        draw(models),
        draw(optimizers()),
        steps,
        None if steps == 1 else draw(st.none() | rates),
        draw(st.none() | st.sampled_from(Features)) if data == "fashion-mnist" else None,
        draw(st.none() | st.floats(0.0, 1.0, exclude_min=True)),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    start = draw(
        st.datetimes(datetime(1000, 1, 1), datetime(3000, 1, 1), timezones=offsets | st.just(UTC))
    )
    slot_s = draw(_powers(1e-3, 1e5))
    return Schedule(start, slot_s, slot_s * draw(st.floats(0.01, 0.99)))


def grids(*, clip: float, shortest: float, longest: float) -> SearchStrategy[float | None]:
    """Grids from ``longest`` / 2**31 up that devices take: at most ``shortest``, and the clip."""
    low, high = max(clip / 2**29, longest / 2**30), min(clip, shortest) * 0.99
    return st.none() if low >= high else st.none() | _powers(low, high)


@st.composite
def randomizers(draw: st.DrawFn) -> tuple[RandomizerConfig, LocalRandomizer | GaussianNoise]:
    """A randomizer with a noise that it takes."""
    kind = draw(st.sampled_from(RandomizerKind))
    if kind is RandomizerKind.GAUSSIAN:
        clip, noise = draw(lengths), draw(noise_multipliers)
        at = draw(st.sampled_from(NoiseAt))
        strategy = draw(st.none() | noise_strategies()) if at is NoiseAt.SERVER else None
        longest = clip * (1 + 14 * noise) * 2.0 ** (0 if strategy is None else strategy.bits)
        step = draw(grids(clip=clip, shortest=noise * clip / 3, longest=longest))
        gaussian = GaussianNoise(noise, at, strategy)
        return RandomizerConfig(kind, clip=clip, grid=step), gaussian
    local_epsilon = draw(local_epsilons)
    pure = LocalRandomizer(local_epsilon)
    if kind is RandomizerKind.RANDOMIZED_RESPONSE:
        return RandomizerConfig(kind, categories=draw(st.integers(2, 1000))), pure
    some_clip = draw(st.none() | lengths)
    grid = None
    if kind is RandomizerKind.LAPLACE and some_clip is not None:
        longest = some_clip * (1 + 184 / local_epsilon)
        grid = draw(grids(clip=some_clip, shortest=some_clip, longest=longest))
    dimension = None
    if kind is RandomizerKind.PRIVUNIT:
        dimension = draw(st.none() | st.integers(1, 10**6))
    return RandomizerConfig(kind, clip=some_clip, grid=grid, dimension=dimension), pure


@st.composite
def campaign_designs(
    draw: st.DrawFn, noise: LocalRandomizer | GaussianNoise, most_slots: int = MAX_SLOTS
) -> Design:
    at_server = isinstance(noise, GaussianNoise) and noise.at is NoiseAt.SERVER
    protocols = [Protocol.FIXED, Protocol.SLIDING] + [Protocol.AVERAGED] * (not at_server)
    protocol = draw(st.sampled_from(protocols))
    slots = draw(counts(most_slots))
    if protocol is Protocol.AVERAGED:
        return Design(
            protocol,
            slots=slots,
            participation=1.0,
            randomizer=noise,
            population=draw(populations()),
        )
    capacities: SearchStrategy[int | None] = counts(MAX_CAPACITY)
    if not isinstance(noise, GaussianNoise) or at_server:
        capacities = st.none() | capacities
    return Design(
        protocol,
        slots=slots,
        participation=draw(participations),
        randomizer=noise,
        capacity=draw(capacities),
        window=draw(counts(slots)) if protocol is Protocol.SLIDING else None,
        population=draw(st.none() | populations()),
    )


@st.composite
def campaigns(draw: st.DrawFn, most_slots: int = MAX_SLOTS) -> Campaign:
    """Any campaign that is not refused."""
    randomizer, noise = draw(randomizers())
    design = draw(campaign_designs(noise, most_slots))
    budget = draw(budgets)
    averaged = design.protocol is Protocol.AVERAGED
    if averaged:
        budget = Budget(budget.epsilon, budget.delta, Adjacency.REPLACE_ONE)
    task = draw(st.none() | tasks())
    if task is not None:
        optimizer = replace(
            task.optimizer,
            minibatch=1 if averaged else min(task.optimizer.minibatch, design.slots),
            divide_by=None if averaged else task.optimizer.divide_by,
        )
        task = replace(task, optimizer=optimizer)
    return Campaign(
        name=draw(texts),
        population_id=draw(st.none() | texts),
        budget=budget,
        design=design,
        repeats=draw(counts(10**6)),
        randomizer=randomizer,
        task=task,
        schedule=draw(st.none() | schedules()),
    )


DESCRIPTIONS: dict[type, SearchStrategy[object]] = {
    Budget: budgets,
    Campaign: campaigns(),
    DataFile: data_files(),
    Optimizer: optimizers(),
    RandomizerConfig: randomizers().map(lambda both: both[0]),
    Schedule: schedules(),
    Task: tasks(),
}
