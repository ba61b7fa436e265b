"""The keys of a campaign file. Each is declared once, as a ``Key``.

Reading and writing (``file``), sealing (``model``) and the tables of docs/campaign-file.md
(tools/campaign_keys.py) use these declarations. To add a key, declare it here, and add an attribute
for its value to the class that uses it.
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
    """Declare a key. If ``privacy`` is not given, the key has the ``privacy`` of its section."""
    return lambda section, privacy: Key(section, *arguments, **{"privacy": privacy, **options})


def _optional(*arguments: Any, **options: Any) -> Declared:
    """Declare a key whose value is None if it is not in the file."""
    return _key(*arguments, default=None, **options)


def _section(
    name: str, *keys: Declared, privacy: str = "", owner: str | None = None, inline: bool = False
) -> Section:
    return Section(name, tuple(key(name, privacy) for key in keys), owner, inline)


TOP = _section(
    "",
    _key("schema", field_types.check_schema, "1", "the version of this format"),
    _optional("name", _text, "text; by default the file's name", "a name for people to read"),
    _optional(
        "population_id",
        _text,
        "text, optional",
        "campaigns with the same id have the same clients, so their epsilons are composed in the"
        " ledger",
        comment="campaigns with the same id are composed",
        privacy="epsilon of all campaigns together",
    ),
    privacy="none",
)
BUDGET = _section(
    "budget",
    _key(
        "epsilon",
        _number,
        "above 0",
        "the largest ε. A campaign stops before a release that would exceed it",
        comment="(choose) largest epsilon. The campaign stops before exceeding it",
    ),
    _key(
        "delta",
        _number,
        "strictly between 0 and 1",
        "the δ of the guarantee. It should be far below 1 / the number of clients",
        comment="(choose) delta of the guarantee. It should be far below 1 / clients",
    ),
    _key(
        "adjacency",
        field_types.one_of(Adjacency),
        "`add-remove`, `replace-one`",
        "which two populations the guarantee makes hard to distinguish: they differ by one client"
        " more or less, or by the data of one client",
        comment=lambda campaign: field_types.ADJACENCY_COMMENTS[campaign.budget.adjacency],
    ),
    _optional(
        "population",
        field_types.read_population,
        "N or [LO, HI], optional",
        "how many clients there are: an assumption. Averaged updates need it. With a capacity, it"
        " can make ε smaller, because few slots overflow. A certificate that uses it says so. A"
        " coordinator enrols at most HI clients in a run",
        path="design.population",
        comment="(choose) an assumption. A certificate that uses it says so",
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
        "number of time steps. Each releases one model",
        path="design.slots",
        comment="(choose) number of time steps. Each releases one model",
    ),
    _key(
        "participation",
        _number,
        "0 to 1",
        "probability that a client checks in at all. Averaged updates need 1",
        path="design.participation",
        comment="(choose) probability that a client checks in at all",
    ),
    _optional(
        "window",
        _integer,
        "1 to `slots`",
        "sliding only: number of slots from which a client draws one",
        path="design.window",
        comment="(choose) number of slots from which a client draws one",
    ),
    _optional(
        "capacity",
        field_types.read_capacity,
        '1 to 10¹², or `"all"`',
        "the most check-ins that a slot uses. They are chosen uniformly. If there are fewer, the"
        " server draws dummy reports to fill the slot. Gaussian noise at the client needs a"
        ' number. With noise at the server it may be `"all"` or absent. With `local_epsilon` the'
        " default is 1, and ε does not depend on it",
        path="design.capacity",
        written=field_types.written_capacity,
        comment=field_types.capacity_comment,
    ),
    _key(
        "repeats",
        partial(TomlSource.integer, most=validate.MOST_CAMPAIGNS),
        "1 to 10⁶; by default 1",
        "number of runs with fresh randomness. They are declared together, so they are composed"
        " as if fixed beforehand",
        path="repeats",
        default=1,
        aliases=("campaigns",),
        comment="number of runs with fresh randomness",
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
        "Gaussian only: the client adds noise to each report, or the server adds noise to the sum"
        " of a slot",
        path="noise_at",
        comment=lambda campaign: field_types.NOISE_AT_COMMENTS[campaign.noise_at],
    ),
    _optional(
        "noise_multiplier",
        _number,
        "above 0",
        "Gaussian only: standard deviation of the noise / `clip`",
        path="noise_multiplier",
        comment=field_types.noise_comment,
    ),
    _optional(
        "local_epsilon",
        _number,
        "above 0",
        "all other kinds: the ε₀ of one report, which is ε₀-DP",
        path="local_epsilon",
        comment="(choose) the epsilon of one report",
    ),
    _optional(
        "categories",
        _integer,
        "2 or more",
        "required for randomized response, and only for it: the number of possible values",
        comment="number of possible values",
        privacy="none: ε follows from `local_epsilon`",
    ),
    _optional(
        "clip",
        _number,
        "above 0",
        "the largest norm of an update. It is the L1 norm for Laplace, and the L2 norm for all"
        " other kinds. Gaussian noise needs it. The other kinds can be certified without it",
        comment=field_types.clip_comment,
    ),
    _optional(
        "grid",
        _number,
        "above 0, optional",
        "reports are integer multiples of this. It must be at most a third of the standard"
        " deviation of Gaussian noise, and large enough that reports fit 32 bits. Without it, a"
        " Gaussian or Laplace campaign can only be simulated. PrivUnit and randomized response"
        " have no grid",
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
        "the data set",
        comment="patients, fashion-mnist, synthetic, or a table that names a file",
    ),
    _optional(
        "features",
        field_types.read_features,
        '`"scattering"`, optional',
        "features that are computed from each example separately, before learning. By default"
        " the values of the data are used as they are. Scattering is for pictures (`data ="
        ' "fashion-mnist"`)',
        comment="computed from each example before learning",
    ),
    _key(
        "model",
        _text,
        '`"logistic"`, `"softmax"`, `"mlp"`, `"cnn"`, or `"module:function"`',
        "the model",
        comment='logistic, softmax, mlp, cnn, or "module:function"',
    ),
    _key(
        "local_steps",
        partial(TomlSource.integer, most=MOST_LOCAL_STEPS),
        "1 to 10⁶; by default 1",
        "with 1, a client reports one gradient. With more, it makes so many training steps and"
        " reports the difference of the models divided by `local_rate`, which is a sum of"
        " gradients. The report is clipped as a whole",
        default=1,
        comment="1: a report is one gradient. More: a difference of models",
    ),
    _optional(
        "local_rate",
        _number,
        "above 0; by default 1",
        "the step size of a client's training steps. It requires `local_steps` above 1",
        comment="the step size of a client's training steps",
    ),
    _key("optimizer", None, "a table", "how the server updates the model with the sum of a slot"),
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
        ' (`"optax:adam"`, `"optax:yogi"`, ...). The optimizers of optax are only for'
        ' simulations. A campaign with real clients needs `"sgd"`',
    ),
    _key("rate", _number, "above 0", "the step size η"),
    _key(
        "minibatch",
        _integer,
        "1 to `slots`; by default 1",
        "number of slots per step. Their sums are added, and η is divided by this number. Averaged"
        " updates need 1",
        default=1,
    ),
    _key(
        "schedule",
        field_types.one_of(StepSizes),
        '`"constant"` (the default), `"inverse-sqrt"`',
        "the step size is η in every step, or η/√i in step i as in the paper",
        default=StepSizes.CONSTANT,
        written=field_types.written_schedule,
    ),
    _optional(
        "diameter",
        _number,
        "above 0, optional",
        "after each step, the model is projected onto the ball of this diameter around 0",
    ),
    _optional(
        "divide_by",
        _integer,
        "1 or more",
        "the fixed public number by which a slot's sum is divided. By default it is the capacity,"
        " or 1 if there is no capacity. Averaged updates divide by the number of reports instead",
        written=field_types.written_divide_by,
    ),
    _optional(
        "momentum",
        _number,
        '0 to below 1, optional; only with `"sgd"`',
        "the momentum μ. With the mean gradient g of a step, the velocity is v ← g + μv, and the"
        " step uses v in place of g. 0 means no momentum. A repeated run continues with the"
        " velocity of the run before it",
    ),
    _key(
        "nesterov",
        TomlSource.boolean,
        "true or false (the default); true only with `momentum`",
        "if true, the step uses g + μv in place of v",
        default=False,
        sealed=Sealed.UNLESS_DEFAULT,
    ),
    _key(
        "arguments",
        field_types.read_arguments,
        '`{ b1 = 0.9, ... }`, optional; only with `"optax:NAME"`',
        "other arguments of the optax optimizer. Values are finite numbers, true or false",
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
        "the column that names the client of a row. All rows of a client are protected together",
        comment="column that names the client of a row",
    ),
    _key("label_column", _text, "text", "the column to predict", comment="column to predict"),
    _key("features", TomlSource.texts, "list of texts", "the columns from which it is predicted"),
    _optional(
        "classes",
        partial(TomlSource.integer, most=MOST_CLASSES),
        "2 to 10⁶, optional",
        "the number of labels, which are 0 to `classes` − 1. Without it, the labels in the data"
        " must be exactly 0, 1, ... up to a largest label, which is assumed to be public",
        comment="number of labels",
    ),
    _key(
        "holdout",
        _number,
        "0 (the default) to below 1",
        "the share of clients whose data are used for testing, chosen by a public hash of their"
        " ids. Their data are not protected, so they must be public",
        default=0.0,
        sealed=Sealed.UNLESS_DEFAULT,
        comment="share of clients for testing. They are not protected",
    ),
    _key(
        "ranges",
        field_types.read_ranges,
        "`{ column = [LOW, HIGH], ... }`",
        "one range for each feature. Values are clipped to the range and scaled by it. Ranges must"
        " be public constants. A range that was computed from the clients' data leaks information"
        " that no certificate covers",
        get=lambda campaign: field_types.ranges_by_feature(campaign.task.data),
        comment="public constants, never computed from the data",
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
        comment="start of the first slot. A simulation does not wait for it",
    ),
    _key("slot_s", _number, "above 0", "length of a slot in seconds", comment="seconds of a slot"),
    _key(
        "choose_s",
        _number,
        "above 0, below `slot_s`",
        "seconds after the start of a slot. At this time check-ins end, and the server chooses the"
        " check-ins that it uses. It accepts reports until the end of the slot",
        comment="seconds from a slot's start until the server chooses check-ins",
    ),
    privacy="none",
    owner="schedule",
)
SECTIONS = (TOP, BUDGET, PROTOCOL, RANDOMIZER, TASK, OPTIMIZER, DATA, SCHEDULE)
"""The sections of a campaign file, in the order in which they are written."""
