"""The keys of a campaign file, each declared once.

A ``Key`` says in which section it stands, how its value is read, which attribute of the campaign
holds it, whether it is sealed, which comment is written next to it and what the documentation says
of it. Reading and writing (``file``), sealing (``seal``) and the tables of
docs/campaign-file.md (tools/campaign_keys.py) all follow these declarations. To add a key, declare
it here and add the attribute that holds it to the class that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from checkins import validate
from checkins.accounting import Adjacency, NoiseAt, Protocol
from checkins.campaign import field_types
from checkins.campaign.field_types import Key, Sealed, Section
from checkins.campaign.randomizer_config import RandomizerKind
from checkins.campaign.task import MOST_CLASSES, MOST_LOCAL_STEPS, SGD, StepSizes
from checkins.campaign.toml import TomlSource

_number, _integer, _text = TomlSource.number, TomlSource.integer, TomlSource.text
Declared = Callable[[str, str], Key]


def _key(*arguments: Any, **options: Any) -> Declared:
    """Declare a key of a section, with the effect on privacy of its section by default."""
    return lambda section, privacy: Key(section, *arguments, **{"privacy": privacy, **options})


def _optional(*arguments: Any, **options: Any) -> Declared:
    """Declare a key whose value is None if the file does not have it."""
    return _key(*arguments, default=None, **options)


def _section(
    name: str, *keys: Declared, privacy: str = "", owner: str | None = None, inline: bool = False
) -> Section:
    return Section(name, tuple(key(name, privacy) for key in keys), owner, inline)


TOP = _section(
    "",
    _key("schema", field_types.check_schema, "1", "the version of this format"),
    _optional("name", _text, "text; the file's name without it", "for people"),
    _optional(
        "population_id",
        _text,
        "text, optional",
        "campaigns that share it draw on the same people, and compose in the ledger",
        comment="campaigns that share it are composed",
        privacy="epsilon, of all together",
    ),
    privacy="none",
)
BUDGET = _section(
    "budget",
    _key(
        "epsilon",
        _number,
        "above 0",
        "the largest ε: a campaign stops before a release that would exceed it",
        comment="(choose) largest epsilon: a campaign stops before exceeding it",
    ),
    _key(
        "delta",
        _number,
        "strictly between 0 and 1",
        "the δ of the guarantee; keep it far below one over the number of clients",
        comment="(choose) failure probability of the guarantee: far below 1 / clients",
    ),
    _key(
        "adjacency",
        field_types.one_of(Adjacency),
        "`add-remove`, `replace-one`",
        "which two populations must look alike: one client more or less, or one client's data"
        " changed",
        comment=lambda campaign: field_types.ADJACENCY_COMMENTS[campaign.budget.adjacency],
    ),
    _optional(
        "population",
        field_types.read_population,
        "N or [LO, HI], optional",
        "how many clients there are. Averaged updates need it; with a capacity it makes overflows"
        " rare. A certificate that uses it says so. A coordinator enrols at most HI clients in a"
        " run",
        path="design.population",
        comment="(choose) an assumption; a certificate that uses it says so",
        privacy="assumption",
    ),
    privacy="guarantee",
)
PROTOCOL = _section(
    "protocol",
    _key(
        "kind",
        field_types.one_of(Protocol),
        "`fixed`, `averaged`, `sliding`",
        "what a slot does with its check-ins",
        path="design.protocol",
        comment=lambda campaign: field_types.PROTOCOL_COMMENTS[campaign.design.protocol],
    ),
    _key(
        "slots",
        _integer,
        "1 to 10¹²",
        "time steps, and releases",
        path="design.slots",
        comment="(choose) time steps, and releases",
    ),
    _key(
        "participation",
        _number,
        "0 to 1",
        "probability that a client checks in at all; averaged needs 1",
        path="design.participation",
        comment="(choose) probability that a client checks in at all",
    ),
    _optional(
        "window",
        _integer,
        "1 to `slots`",
        "sliding only: among how many slots a client draws",
        path="design.window",
        comment="(choose) slots that a client draws from",
    ),
    _optional(
        "capacity",
        field_types.read_capacity,
        '1 to 10¹², or `"all"`',
        "check-ins that a slot uses at most, chosen uniformly; dummies fill the rest. Gaussian"
        ' noise at the client needs it; `"all"` (or nothing) goes with noise at the server; with'
        " `local_epsilon` it is 1 if left out, and does not change ε",
        path="design.capacity",
        written=field_types.written_capacity,
        comment=field_types.capacity_comment,
    ),
    _key(
        "repeats",
        partial(TomlSource.integer, most=validate.MOST_CAMPAIGNS),
        "1 to 10⁶; 1 without it",
        "runs with fresh randomness; declared together, they compose as fixed beforehand",
        path="repeats",
        default=1,
        aliases=("campaigns",),
        comment="runs with fresh randomness",
    ),
    privacy="epsilon",
)
RANDOMIZER = _section(
    "randomizer",
    _key(
        "kind",
        field_types.one_of(RandomizerKind),
        "`gaussian`, `laplace`, `privunit`, `randomized-response`",
        "how a report is made private",
        comment=lambda campaign: field_types.RANDOMIZER_COMMENTS[campaign.randomizer.kind],
    ),
    _optional(
        "noise_at",
        field_types.one_of(NoiseAt),
        "`client`, `server`",
        "Gaussian only: noise on each report, or one noise on the sum of a slot",
        path="noise_at",
        comment=lambda campaign: field_types.NOISE_AT_COMMENTS[campaign.noise_at],
    ),
    _optional(
        "noise_multiplier",
        _number,
        "above 0",
        "Gaussian only: standard deviation of that noise / `clip`",
        path="noise_multiplier",
        comment=field_types.noise_comment,
    ),
    _optional(
        "local_epsilon",
        _number,
        "above 0",
        "the other kinds: each report is ε₀-DP",
        path="local_epsilon",
        comment="(choose) the epsilon of one report",
    ),
    _optional(
        "categories",
        _integer,
        "2 or more",
        "randomized response only, which needs it: how many answers there are",
        comment="how many answers there are",
        privacy="none: ε follows from `local_epsilon`",
    ),
    _optional(
        "clip",
        _number,
        "above 0",
        "the largest norm of an update: L2, for Laplace L1. Gaussian noise needs it; the other"
        " kinds can be certified without",
        comment=field_types.clip_comment,
    ),
    _optional(
        "grid",
        _number,
        "above 0, optional",
        "reports are integer multiples of this. At most a third of the Gaussian noise, and coarse"
        " enough that reports fit 32 bits. Without it a Gaussian or Laplace campaign can only be"
        " simulated; PrivUnit and randomized response take none",
        aliases=("variation",),
        comment="reports are integer multiples of this",
        privacy="epsilon: [a little of δ](theory/total-variation.md)",
    ),
    privacy="epsilon",
)
TASK = _section(
    "task",
    _key(
        "data",
        field_types.read_data,
        '`"patients"`, `"fashion-mnist"`, `"synthetic"`, or a table',
        "where examples come from",
        comment="patients, fashion-mnist, synthetic, or a table that names a file",
    ),
    _optional(
        "features",
        field_types.read_features,
        '`"scattering"`, optional',
        "what is computed from an example before learning, without looking at any other: the"
        " data's own values without it. Scattering is for pictures (`data ="
        ' "fashion-mnist"`)',
        comment="public, computed before learning",
    ),
    _key(
        "model",
        _text,
        '`"logistic"`, `"softmax"`, `"mlp"`, `"cnn"`, or `"module:function"`',
        "what is learned",
        comment='logistic, softmax, mlp, cnn, or "module:function"',
    ),
    _key(
        "local_steps",
        partial(TomlSource.integer, most=MOST_LOCAL_STEPS),
        "1 to 10⁶; 1 without it",
        "1: a client reports one gradient; more: the difference of models after so many steps of"
        " its own, divided by `local_rate`: a sum of gradients. It is clipped as a whole",
        default=1,
        comment="1: one gradient; more: a difference of models",
    ),
    _optional(
        "local_rate",
        _number,
        "above 0; 1 without it",
        "the step size of those steps; only with `local_steps` above 1",
        comment="the step size of a client's own steps",
    ),
    _key("optimizer", None, "a table", "what the server does with the sum of a slot"),
    privacy="none",
    owner="task",
)
OPTIMIZER = _section(
    "task.optimizer",
    _key(
        "kind",
        field_types.read_optimizer_kind,
        f'`"{SGD}"`, `"optax:NAME"`',
        "gradient descent, or the optimizer of that name in [optax](https://optax.readthedocs.io)"
        ' (`"optax:adam"`, `"optax:yogi"`, ...). Those are for simulations: a campaign with real'
        ' clients needs `"sgd"`',
    ),
    _key("rate", _number, "above 0", "the step size η, or the c of c/√i"),
    _key(
        "minibatch",
        _integer,
        "1 to `slots`; 1 without it",
        "slots between two steps; their sums add up, and η is divided by it. Averaged updates take"
        " 1",
        default=1,
    ),
    _key(
        "schedule",
        field_types.one_of(StepSizes),
        '`"constant"` (without it), `"inverse-sqrt"`',
        "step size η, or the paper's η/√i in step i",
        default=StepSizes.CONSTANT,
        written=field_types.written_schedule,
    ),
    _optional(
        "diameter",
        _number,
        "above 0, optional",
        "the model is projected onto the ball of that diameter around 0",
    ),
    _optional(
        "divide_by",
        _integer,
        "1 or more",
        "the fixed public count that a slot's sum is divided by: the capacity without it, 1 where"
        " there is none. Averaged updates divide by their reports instead",
        written=field_types.written_divide_by,
    ),
    _optional(
        "momentum",
        _number,
        '0 to below 1, optional; only with `"sgd"`',
        "with the mean gradient g of a step and momentum μ, the velocity v ← g + μv replaces g; 0"
        " is none. The next of several `repeats` goes on with the velocity of the last",
    ),
    _key(
        "nesterov",
        TomlSource.boolean,
        "true or false (without it); true only with `momentum`",
        "the step is g + μv in place of v",
        default=False,
        sealed=Sealed.UNLESS_DEFAULT,
    ),
    _key(
        "arguments",
        field_types.read_arguments,
        '`{ b1 = 0.9, ... }`, optional; only with `"optax:NAME"`',
        "other arguments of that optimizer: finite numbers, true or false",
        default={},
        sealed=Sealed.UNLESS_DEFAULT,
        get=lambda campaign: dict(campaign.task.optimizer.arguments),
    ),
    owner="task.optimizer",
    inline=True,
)
DATA = _section(
    "task.data",
    _key(
        "file",
        _text,
        "text",
        "CSV or Parquet, one row for each example",
        comment="CSV or Parquet, one row for each example",
    ),
    _key(
        "client_column",
        _text,
        "text",
        "whose row it is: all rows of one client are one unit of privacy",
        comment="whose row it is: the unit of privacy",
    ),
    _key("label_column", _text, "text", "what to predict", comment="what to predict"),
    _key("features", TomlSource.texts, "list of texts", "from which columns"),
    _optional(
        "classes",
        partial(TomlSource.integer, most=MOST_CLASSES),
        "2 to 10⁶, optional",
        "how many labels there are: 0 to `classes` − 1. Without it the labels must be exactly 0,"
        " 1, ... up to some number, which is taken as known to everyone",
        comment="how many labels there are",
    ),
    _key(
        "holdout",
        _number,
        "0 (without it) to below 1",
        "the share of clients, chosen by a public hash of their ids, that models are tested on."
        " Nothing protects these: their data must be public",
        default=0.0,
        sealed=Sealed.UNLESS_DEFAULT,
        comment="share of clients made public, to test on",
    ),
    _key(
        "ranges",
        field_types.read_ranges,
        "`{ column = [LOW, HIGH], ... }`",
        "one for each feature: values are clipped to it and scaled by it. These are public"
        " constants; a range that was read off the clients' data leaks it, and no certificate"
        " covers that",
        get=lambda campaign: field_types.ranges_by_feature(campaign.task.data),
        comment="public constants: never read off the data",
    ),
    owner="task.data",
)
SCHEDULE = _section(
    "schedule",
    _key(
        "start",
        TomlSource.date_time,
        "a date and time with its offset, `2030-01-01T00:00:00Z`",
        "when the first slot begins, on the server's clock",
        written=lambda campaign: campaign.schedule.start,
        comment="when the first slot begins; a simulation does not wait",
    ),
    _key("slot_s", _number, "above 0", "seconds of a slot", comment="seconds of a slot"),
    _key(
        "choose_s",
        _number,
        "above 0, below `slot_s`",
        "seconds into a slot at which check-ins end and the choice is made; reports are taken"
        " until the slot's end",
        comment="seconds into it at which the choice is made",
    ),
    privacy="none",
    owner="schedule",
)
SECTIONS = (TOP, BUDGET, PROTOCOL, RANDOMIZER, TASK, OPTIMIZER, DATA, SCHEDULE)
"""The sections of a campaign file, in the order in which they are written."""
