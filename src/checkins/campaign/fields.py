"""The keys of a campaign file, each declared once.

A ``Key`` says in which section it stands, how its value is read, which attribute of the campaign
holds it, whether it is sealed, which comment is written next to it and what the documentation says
of it. Reading and writing (``file``), sealing (``seal``) and the tables of
docs/campaign-file.md (tools/campaign_keys.py) all follow these declarations. To add a key, declare
it here and add the attribute that holds it to the class that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from checkins import validate
from checkins.accounting import Adjacency, NoiseAt, Protocol
from checkins.campaign.field_types import (
    ADJACENCY_COMMENTS,
    NOISE_AT_COMMENTS,
    PROTOCOL_COMMENTS,
    RANDOMIZER_COMMENTS,
    Key,
    Sealed,
    Section,
    capacity_comment,
    check_schema,
    clip_comment,
    noise_comment,
    one_of,
    ranges_by_feature,
    read_arguments,
    read_capacity,
    read_data,
    read_features,
    read_optimizer_kind,
    read_population,
    read_ranges,
    written_capacity,
    written_divide_by,
    written_schedule,
)
from checkins.campaign.randomizer_config import RandomizerKind
from checkins.campaign.task import MOST_CLASSES, MOST_LOCAL_STEPS, SGD, StepSizes
from checkins.campaign.toml import TomlSource

_number, _integer, _text = TomlSource.number, TomlSource.integer, TomlSource.text


def _top() -> Iterator[Key]:
    key = partial(Key, "")
    yield key(
        "schema",
        read=check_schema,
        accepts="1",
        meaning="the version of this format",
        privacy="none",
    )
    yield key(
        "name",
        read=_text,
        default=None,
        accepts="text; the file's name without it",
        meaning="for people",
        privacy="none",
    )
    yield key(
        "population_id",
        read=_text,
        default=None,
        comment="campaigns that share it are composed",
        accepts="text, optional",
        meaning="campaigns that share it draw on the same people, and compose in the ledger",
        privacy="epsilon, of all together",
    )


def _budget() -> Iterator[Key]:
    key = partial(Key, "budget")
    yield key(
        "epsilon",
        read=_number,
        comment="(choose) largest epsilon: a campaign stops before exceeding it",
        accepts="above 0",
        meaning="the largest ε: a campaign stops before a release that would exceed it",
        privacy="guarantee",
    )
    yield key(
        "delta",
        read=_number,
        comment="(choose) failure probability of the guarantee: far below 1 / clients",
        accepts="strictly between 0 and 1",
        meaning="the δ of the guarantee; keep it far below one over the number of clients",
        privacy="guarantee",
    )
    yield key(
        "adjacency",
        read=one_of(Adjacency),
        comment=lambda campaign: ADJACENCY_COMMENTS[campaign.budget.adjacency],
        accepts="`add-remove`, `replace-one`",
        meaning="which two populations must look alike: one client more or less, or one client's"
        " data changed",
        privacy="guarantee",
    )
    yield key(
        "population",
        path="design.population",
        read=read_population,
        default=None,
        comment="(choose) an assumption; a certificate that uses it says so",
        accepts="N or [LO, HI], optional",
        meaning="how many clients there are. Averaged updates need it; with a capacity it makes"
        " overflows rare. A certificate that uses it says so. A coordinator enrols at most HI"
        " clients in a run",
        privacy="assumption",
    )


def _protocol() -> Iterator[Key]:
    key = partial(Key, "protocol")
    yield key(
        "kind",
        path="design.protocol",
        read=one_of(Protocol),
        comment=lambda campaign: PROTOCOL_COMMENTS[campaign.design.protocol],
        accepts="`fixed`, `averaged`, `sliding`",
        meaning="what a slot does with its check-ins",
        privacy="epsilon",
    )
    yield key(
        "slots",
        path="design.slots",
        read=_integer,
        comment="(choose) time steps, and releases",
        accepts="1 to 10¹²",
        meaning="time steps, and releases",
        privacy="epsilon",
    )
    yield key(
        "participation",
        path="design.participation",
        read=_number,
        comment="(choose) probability that a client checks in at all",
        accepts="0 to 1",
        meaning="probability that a client checks in at all; averaged needs 1",
        privacy="epsilon",
    )
    yield key(
        "window",
        path="design.window",
        read=_integer,
        default=None,
        comment="(choose) slots that a client draws from",
        accepts="1 to `slots`",
        meaning="sliding only: among how many slots a client draws",
        privacy="epsilon",
    )
    yield key(
        "capacity",
        path="design.capacity",
        read=read_capacity,
        default=None,
        written=written_capacity,
        comment=capacity_comment,
        accepts='1 to 10¹², or `"all"`',
        meaning="check-ins that a slot uses at most, chosen uniformly; dummies fill the rest."
        ' Gaussian noise at the client needs it; `"all"` (or nothing) goes with noise at the'
        " server; with `local_epsilon` it is 1 if left out, and does not change ε",
        privacy="epsilon",
    )
    yield key(
        "repeats",
        path="repeats",
        read=partial(TomlSource.integer, most=validate.MOST_CAMPAIGNS),
        default=1,
        aliases=("campaigns",),
        comment="runs with fresh randomness",
        accepts="1 to 10⁶; 1 without it",
        meaning="runs with fresh randomness; declared together, they compose as fixed beforehand",
        privacy="epsilon",
    )


def _randomizer() -> Iterator[Key]:
    key = partial(Key, "randomizer")
    yield key(
        "kind",
        read=one_of(RandomizerKind),
        comment=lambda campaign: RANDOMIZER_COMMENTS[campaign.randomizer.kind],
        accepts="`gaussian`, `laplace`, `privunit`, `randomized-response`",
        meaning="how a report is made private",
        privacy="epsilon",
    )
    yield key(
        "noise_at",
        path="noise_at",
        read=one_of(NoiseAt),
        default=None,
        comment=lambda campaign: NOISE_AT_COMMENTS[campaign.noise_at],
        accepts="`client`, `server`",
        meaning="Gaussian only: noise on each report, or one noise on the sum of a slot",
        privacy="epsilon",
    )
    yield key(
        "noise_multiplier",
        path="noise_multiplier",
        read=_number,
        default=None,
        comment=noise_comment,
        accepts="above 0",
        meaning="Gaussian only: standard deviation of that noise / `clip`",
        privacy="epsilon",
    )
    yield key(
        "local_epsilon",
        path="local_epsilon",
        read=_number,
        default=None,
        comment="(choose) the epsilon of one report",
        accepts="above 0",
        meaning="the other kinds: each report is ε₀-DP",
        privacy="epsilon",
    )
    yield key(
        "categories",
        read=_integer,
        default=None,
        comment="how many answers there are",
        accepts="2 or more",
        meaning="randomized response only, which needs it: how many answers there are",
        privacy="none: ε follows from `local_epsilon`",
    )
    yield key(
        "clip",
        read=_number,
        default=None,
        comment=clip_comment,
        accepts="above 0",
        meaning="the largest norm of an update: L2, for Laplace L1. Gaussian noise needs it; the"
        " other kinds can be certified without",
        privacy="epsilon",
    )
    yield key(
        "grid",
        read=_number,
        default=None,
        aliases=("variation",),
        comment="reports are integer multiples of this",
        accepts="above 0, optional",
        meaning="reports are integer multiples of this. At most a third of the Gaussian noise, and"
        " coarse enough that reports fit 32 bits. Without it a Gaussian or Laplace campaign can"
        " only be simulated; PrivUnit and randomized response take none",
        privacy="epsilon: [a little of δ](theory/total-variation.md)",
    )


def _task() -> Iterator[Key]:
    key = partial(Key, "task")
    yield key(
        "data",
        read=read_data,
        comment="patients, fashion-mnist, synthetic, or a table that names a file",
        accepts='`"patients"`, `"fashion-mnist"`, `"synthetic"`, or a table',
        meaning="where examples come from",
        privacy="none",
    )
    yield key(
        "features",
        read=read_features,
        default=None,
        comment="public, computed before learning",
        accepts='`"scattering"`, optional',
        meaning="what is computed from an example before learning, without looking at any other:"
        " the data's own values without it. Scattering is for pictures"
        ' (`data = "fashion-mnist"`)',
        privacy="none",
    )
    yield key(
        "model",
        read=_text,
        comment='logistic, softmax, mlp, cnn, or "module:function"',
        accepts='`"logistic"`, `"softmax"`, `"mlp"`, `"cnn"`, or `"module:function"`',
        meaning="what is learned",
        privacy="none",
    )
    yield key(
        "local_steps",
        read=partial(TomlSource.integer, most=MOST_LOCAL_STEPS),
        default=1,
        comment="1: one gradient; more: a difference of models",
        accepts="1 to 10⁶; 1 without it",
        meaning="1: a client reports one gradient; more: the difference of models after so many"
        " steps of its own, divided by `local_rate`: a sum of gradients. It is clipped as a whole",
        privacy="none",
    )
    yield key(
        "local_rate",
        read=_number,
        default=None,
        comment="the step size of a client's own steps",
        accepts="above 0; 1 without it",
        meaning="the step size of those steps; only with `local_steps` above 1",
        privacy="none",
    )
    yield key(
        "optimizer",
        read=None,
        accepts="a table",
        meaning="what the server does with the sum of a slot",
        privacy="none",
    )


def _optimizer() -> Iterator[Key]:
    key = partial(Key, "task.optimizer")
    yield key(
        "kind",
        read=read_optimizer_kind,
        accepts=f'`"{SGD}"`, `"optax:NAME"`',
        meaning="gradient descent, or the optimizer of that name in"
        ' [optax](https://optax.readthedocs.io) (`"optax:adam"`, `"optax:yogi"`, ...). Those are'
        ' for simulations: a campaign with real clients needs `"sgd"`',
    )
    yield key("rate", read=_number, accepts="above 0", meaning="the step size η, or the c of c/√i")
    yield key(
        "minibatch",
        read=_integer,
        default=1,
        accepts="1 to `slots`; 1 without it",
        meaning="slots between two steps; their sums add up, and η is divided by it. Averaged"
        " updates take 1",
    )
    yield key(
        "schedule",
        read=one_of(StepSizes),
        default=StepSizes.CONSTANT,
        written=written_schedule,
        accepts='`"constant"` (without it), `"inverse-sqrt"`',
        meaning="step size η, or the paper's η/√i in step i",
    )
    yield key(
        "diameter",
        read=_number,
        default=None,
        accepts="above 0, optional",
        meaning="the model is projected onto the ball of that diameter around 0",
    )
    yield key(
        "divide_by",
        read=_integer,
        default=None,
        written=written_divide_by,
        accepts="1 or more",
        meaning="the fixed public count that a slot's sum is divided by: the capacity without it, 1"
        " where there is none. Averaged updates divide by their reports instead",
    )
    yield key(
        "momentum",
        read=_number,
        default=None,
        accepts='0 to below 1, optional; only with `"sgd"`',
        meaning="with the mean gradient g of a step and momentum μ, the velocity v ← g + μv"
        " replaces g; 0 is none. The next of several `repeats` goes on with the velocity of the"
        " last",
    )
    yield key(
        "nesterov",
        read=TomlSource.boolean,
        default=False,
        sealed=Sealed.UNLESS_DEFAULT,
        accepts="true or false (without it); true only with `momentum`",
        meaning="the step is g + μv in place of v",
    )
    yield key(
        "arguments",
        read=read_arguments,
        default={},
        sealed=Sealed.UNLESS_DEFAULT,
        get=lambda campaign: dict(campaign.task.optimizer.arguments),
        accepts='`{ b1 = 0.9, ... }`, optional; only with `"optax:NAME"`',
        meaning="other arguments of that optimizer: finite numbers, true or false",
    )


def _data() -> Iterator[Key]:
    key = partial(Key, "task.data")
    yield key(
        "file",
        read=_text,
        comment="CSV or Parquet, one row for each example",
        accepts="text",
        meaning="CSV or Parquet, one row for each example",
    )
    yield key(
        "client_column",
        read=_text,
        comment="whose row it is: the unit of privacy",
        accepts="text",
        meaning="whose row it is: all rows of one client are one unit of privacy",
    )
    yield key(
        "label_column",
        read=_text,
        comment="what to predict",
        accepts="text",
        meaning="what to predict",
    )
    yield key(
        "features", read=TomlSource.texts, accepts="list of texts", meaning="from which columns"
    )
    yield key(
        "classes",
        read=partial(TomlSource.integer, most=MOST_CLASSES),
        default=None,
        comment="how many labels there are",
        accepts="2 to 10⁶, optional",
        meaning="how many labels there are: 0 to `classes` − 1. Without it the labels must be"
        " exactly 0, 1, ... up to some number, which is taken as known to everyone",
    )
    yield key(
        "holdout",
        read=_number,
        default=0.0,
        sealed=Sealed.UNLESS_DEFAULT,
        comment="share of clients made public, to test on",
        accepts="0 (without it) to below 1",
        meaning="the share of clients, chosen by a public hash of their ids, that models are tested"
        " on. Nothing protects these: their data must be public",
    )
    yield key(
        "ranges",
        read=read_ranges,
        get=lambda campaign: ranges_by_feature(campaign.task.data),
        comment="public constants: never read off the data",
        accepts="`{ column = [LOW, HIGH], ... }`",
        meaning="one for each feature: values are clipped to it and scaled by it. These are public"
        " constants; a range that was read off the clients' data leaks it, and no certificate"
        " covers that",
    )


def _schedule() -> Iterator[Key]:
    key = partial(Key, "schedule")
    yield key(
        "start",
        read=TomlSource.date_time,
        written=lambda campaign: campaign.schedule.start,
        comment="when the first slot begins; a simulation does not wait",
        accepts="a date and time with its offset, `2030-01-01T00:00:00Z`",
        meaning="when the first slot begins, on the server's clock",
        privacy="none",
    )
    yield key(
        "slot_s",
        read=_number,
        comment="seconds of a slot",
        accepts="above 0",
        meaning="seconds of a slot",
        privacy="none",
    )
    yield key(
        "choose_s",
        read=_number,
        comment="seconds into it at which the choice is made",
        accepts="above 0, below `slot_s`",
        meaning="seconds into a slot at which check-ins end and the choice is made; reports are"
        " taken until the slot's end",
        privacy="none",
    )


SECTIONS = (
    Section("", tuple(_top())),
    Section("budget", tuple(_budget())),
    Section("protocol", tuple(_protocol())),
    Section("randomizer", tuple(_randomizer())),
    Section("task", tuple(_task()), owner="task"),
    Section("task.optimizer", tuple(_optimizer()), owner="task.optimizer", inline=True),
    Section("task.data", tuple(_data()), owner="task.data"),
    Section("schedule", tuple(_schedule()), owner="schedule"),
)
"""The sections of a campaign file, in the order in which they are written."""


def places() -> Mapping[str, tuple[str, str]]:
    """Return the section and key of each argument that a description or the accountant refuses.

    An argument named ``kind`` belongs to several sections, so that it has no place. An argument
    named ``features`` is that of the later section, ``task.data``.
    """
    found: dict[str, tuple[str, str]] = {}
    for key in (key for section in SECTIONS for key in section.keys):
        for name in (key.path.rpartition(".")[2], *key.aliases):
            found[name] = (key.section, key.name)
    del found["kind"]
    return found
