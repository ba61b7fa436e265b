"""The keys of a campaign file. Each key is declared once, as a ``Key``.

Reading and writing (``file``), sealing (``model``) and the tables of docs/campaign-file.md
(tools/campaign_keys.py) use these declarations. To add a key, declare it here, and add an attribute
for its value to the class that uses it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from checkins import validate
from checkins.accounting import Adjacency, NoiseAt, Protocol, WakeTimes
from checkins.accounting.design import MOST_PRIVUNIT_DIMENSION
from checkins.campaign import field_types
from checkins.campaign.field_types import Key, Sealed, Section
from checkins.campaign.randomizer_config import RandomizerKind
from checkins.campaign.task import MAX_CLASSES, MAX_LOCAL_STEPS, SGD, StepSizes
from checkins.campaign.toml import TomlSource

_number, _integer, _text = TomlSource.number, TomlSource.integer, TomlSource.text


def _optional(*arguments: Any, **options: Any) -> Key:
    """Declare a key whose value is None if it is not in the file."""
    return Key(*arguments, default=None, **options)


def _section(
    name: str,
    *keys: Key,
    privacy: str = "",
    campaign_attribute: str | None = None,
    inline: bool = False,
) -> Section:
    """Declare a section. ``privacy`` applies to each key that declares no ``privacy`` itself."""
    keys = tuple(replace(key, section=name, privacy=key.privacy or privacy) for key in keys)
    return Section(name, keys, campaign_attribute, inline)


TOP = _section(
    "",
    Key("schema", field_types.check_schema, "1").documented("the version of this format"),
    _optional("name", _text, "text; by default the file's name").documented(
        "a name for people to read"
    ),
    _optional("population_id", _text, "text, optional").documented(
        "campaigns with the same id have the same clients, so their epsilons are composed in the"
        " ledger",
        comment="campaigns with the same id are composed",
        privacy="epsilon of all campaigns together",
    ),
    privacy="none",
)
BUDGET = _section(
    "budget",
    Key("epsilon", _number, "above 0").documented(
        "the largest ε. A campaign stops before a release that would exceed it",
        comment="(choose) largest epsilon. The campaign stops before exceeding it",
    ),
    Key("delta", _number, "strictly between 0 and 1").documented(
        "the δ of the guarantee. It should be far below 1 / the number of clients",
        comment="(choose) delta of the guarantee. It should be far below 1 / clients",
    ),
    Key(
        "adjacency", field_types.choice_reader(Adjacency), "`add-remove`, `replace-one`"
    ).documented(
        "which two populations the guarantee makes hard to distinguish: they differ by one client"
        " more or less, or by the data of one client",
        comment=field_types.ADJACENCY_COMMENTS,
    ),
    _optional(
        "population",
        field_types.read_population,
        "N or [LO, HI], optional",
        attribute_path="design.population",
    ).documented(
        "how many clients there are: an assumption. Averaged updates need it. With a capacity, it"
        " can make ε smaller, because few slots are full. A certificate that uses it says so. A"
        " coordinator enrols at most HI clients in a run",
        comment="(choose) an assumption. A certificate that uses it says so",
        privacy="assumption",
    ),
    _optional(
        "arrivals", _integer, "1 to 10¹², optional", attribute_path="design.arrivals"
    ).documented(
        "sliding only: the largest number of clients that wake in any `window` consecutive slots."
        " It is an assumption. With a capacity and Gaussian noise, it can make ε smaller than"
        " `population` does. A certificate that uses it says so",
        comment="an assumption about any window of slots. A certificate that uses it says so",
        privacy="assumption",
    ),
    privacy="guarantee",
)
PROTOCOL = _section(
    "protocol",
    Key(
        "kind",
        field_types.choice_reader(Protocol),
        "`fixed`, `averaged`, `sliding`",
        attribute_path="design.protocol",
    ).documented("what a slot does with its check-ins", comment=field_types.PROTOCOL_COMMENTS),
    Key("slots", _integer, "1 to 10¹²", attribute_path="design.slots").documented(
        "number of time steps. Each releases one model",
        comment="(choose) number of time steps. Each releases one model",
    ),
    Key("participation", _number, "0 to 1", attribute_path="design.participation").documented(
        "probability that a client checks in at all. Averaged updates need 1",
        comment="(choose) probability that a client checks in at all",
    ),
    _optional("window", _integer, "1 to `slots`", attribute_path="design.window").documented(
        "sliding only: number of slots from which a client draws one",
        comment="(choose) number of slots from which a client draws one",
    ),
    _optional(
        "capacity",
        field_types.read_capacity,
        '1 to 10¹², or `"all"`',
        attribute_path="design.capacity",
        get_for_file=field_types.capacity_for_file,
    ).documented(
        "the largest number of check-ins that a slot uses, chosen uniformly. If there are fewer,"
        " the server draws dummy reports to fill the slot. Gaussian noise at the client needs a"
        ' number. With noise at the server it may be `"all"` or absent. With `local_epsilon` the'
        " default is 1, and a larger capacity can lower ε",
        comment=field_types.capacity_comment,
    ),
    _optional(
        "least_reports", _integer, "1 to 10¹², optional", attribute_path="design.least_reports"
    ).documented(
        "averaged Gaussian reports only: the server skips every slot with fewer reports. Its"
        " reports are not used, and the model does not change. So the noise of at least this many"
        " reports hides each client. The number of reports of each slot is public",
        comment="a slot with fewer reports is skipped",
    ),
    Key(
        "wake_times",
        field_types.choice_reader(WakeTimes),
        "`independent` (the default), `any`",
        attribute_path="design.wake_times",
        default=WakeTimes.INDEPENDENT,
        sealed=Sealed.UNLESS_DEFAULT,
    ).documented(
        "sliding only: whether the time at which a client wakes may depend on its data. For"
        " replace-one, `independent` is an assumption, and `any` gives a larger ε without it",
        comment="wake times may depend on data",
    ),
    Key(
        "repeats",
        partial(TomlSource.integer, most=validate.MAX_CAMPAIGNS),
        "1 to 10⁶; by default 1",
        attribute_path="repeats",
        default=1,
        aliases=("campaigns",),
    ).documented(
        "number of runs with fresh randomness. They are declared together, so they are composed"
        " like runs whose parameters were fixed beforehand",
        comment="number of runs with fresh randomness",
    ),
    privacy="epsilon",
)
RANDOMIZER = _section(
    "randomizer",
    Key(
        "kind",
        field_types.choice_reader(RandomizerKind),
        "`gaussian`, `laplace`, `privunit`, `randomized-response`",
    ).documented("how a report is made private", comment=field_types.RANDOMIZER_COMMENTS),
    _optional(
        "noise_at",
        field_types.choice_reader(NoiseAt),
        "`client`, `server`",
        attribute_path="noise_at",
    ).documented(
        "Gaussian only: the client adds noise to each report, or the server adds noise to the sum"
        " of a slot",
        comment=field_types.NOISE_AT_COMMENTS,
    ),
    _optional("noise_multiplier", _number, "above 0", attribute_path="noise_multiplier").documented(
        "Gaussian only: standard deviation of the noise / `clip`", comment=field_types.noise_comment
    ),
    _optional("local_epsilon", _number, "above 0", attribute_path="local_epsilon").documented(
        "all other kinds: the ε₀ of one report, which is ε₀-DP",
        comment="(choose) the epsilon of one report",
    ),
    _optional("categories", _integer, "2 or more").documented(
        "required for randomized response, and only for it: the number of possible values",
        comment="number of possible values",
        privacy="none: ε follows from `local_epsilon`",
    ),
    _optional(
        "dimension", partial(_integer, most=MOST_PRIVUNIT_DIMENSION), "1 to 10⁸, optional"
    ).documented(
        "PrivUnit only: the number of coordinates of a report, one for each parameter of the model."
        " With it, the certificate uses how dummies are drawn, so ε is smaller. Without it,"
        " PrivUnit is certified like any randomizer with this `local_epsilon`",
        comment="number of parameters of the model. With it, epsilon is smaller",
    ),
    _optional("clip", _number, "above 0").documented(
        "the largest norm of an update. It is the L1 norm for Laplace, and the L2 norm for all"
        " other kinds. Gaussian noise needs it. The other kinds can be certified without it",
        comment=field_types.clip_comment,
    ),
    _optional("grid", _number, "above 0, optional", aliases=("variation",)).documented(
        "reports are integer multiples of this. It must be at most a third of the standard"
        " deviation of Gaussian noise, and large enough that reports fit 32 bits. Without it, a"
        " Gaussian or Laplace campaign can only be simulated. PrivUnit and randomized response"
        " have no grid",
        comment="reports are integer multiples of this",
        privacy="epsilon: [a little of δ](theory/total-variation.md)",
    ),
    _optional(
        "noise",
        field_types.read_noise,
        '`{ bands = B, strategy = "square-root" }`, `"optimised"`, or'
        " `{ bits = F, numerators = [...] }`; optional",
        attribute_path="strategy",
        get=field_types.noise_for_file,
        aliases=("bands", "bits", "numerators"),
    ).documented(
        "noise at the server only: correlate the noise of each slot with that of the next B - 1"
        " slots, so that it harms the model less ([theory](theory/correlated-noise.md)). The"
        " `optimised` strategy is for the optimizer and the number of slots of this file, whatever"
        " `average` is. The campaign seals the coefficients, which are `numerators` divided by 2^F."
        " Written files contain them, so another version of checkins runs the same campaign."
        " Without this key, the noise of all slots is independent",
        comment="coefficients that correlate the noise of slots: numerators / 2^bits",
    ),
    privacy="epsilon",
)
TASK = _section(
    "task",
    Key(
        "data",
        field_types.read_data,
        '`"patients"`, `"fashion-mnist"`, `"synthetic"`, `"devices"`, or a table',
    ).documented(
        'the data set. With `"devices"`, only the devices know their data and how to train, such as'
        " Flower apps. Such a campaign can be served, and not simulated",
        comment="patients, fashion-mnist, synthetic, devices, or a table with a file",
    ),
    _optional("features", field_types.read_features, '`"scattering"`, optional').documented(
        "features that are computed from each example separately, before learning. By default"
        " the values of the data are used as they are. Scattering is for pictures (`data ="
        ' "fashion-mnist"`)',
        comment="computed from each example before learning",
    ),
    Key(
        "model", _text, '`"logistic"`, `"softmax"`, `"mlp"`, `"cnn"`, or `"module:function"`'
    ).documented(
        'the model. With `data = "devices"`, a function without arguments that returns the'
        " [initial arrays](models.md#arrays-of-devices)",
        comment='logistic, softmax, mlp, cnn, or "module:function"',
    ),
    Key(
        "local_steps",
        partial(TomlSource.integer, most=MAX_LOCAL_STEPS),
        "1 to 10⁶; by default 1",
        default=1,
    ).documented(
        "with 1, a client reports one gradient. With more, it makes this many training steps and"
        " reports the difference of the models divided by `local_rate`, which is a sum of"
        " gradients. The report is clipped as a whole",
        comment="1: a report is one gradient. More: a difference of models",
    ),
    _optional("local_rate", _number, "above 0; by default 1").documented(
        "the step size of a client's training steps. It requires `local_steps` above 1",
        comment="the step size of a client's training steps",
    ),
    _optional("average", _number, "above 0 to 1, optional").documented(
        "also average the released models. 0.25 covers about the last quarter of the slots, and 1"
        " covers all slots equally. After every slot, there is [an average](simulator.md#averaged"
        "-models) of the models so far. Anyone can compute it from the released models",
        comment="also average the released models of about this share of the slots",
    ),
    Key("optimizer", None, "a table").documented(
        "how the server updates the model with the sum of a slot",
        comment=field_types.optimizer_comment,
    ),
    privacy="none",
    campaign_attribute="task",
)
OPTIMIZER = _section(
    "task.optimizer",
    Key("kind", field_types.read_optimizer_kind, f'`"{SGD}"`, `"optax:NAME"`').documented(
        "gradient descent, or the optimizer of that name in [optax](https://optax.readthedocs.io)"
        ' (`"optax:adam"`, `"optax:yogi"`, ...). The optimizers of optax are only for'
        ' simulations. A campaign with real clients needs `"sgd"`'
    ),
    Key("rate", _number, "above 0").documented("the step size η"),
    Key("minibatch", _integer, "1 to `slots`; by default 1", default=1).documented(
        "number of slots per step. Their sums are added, and η is divided by this number. Averaged"
        " updates need 1"
    ),
    Key(
        "schedule",
        field_types.choice_reader(StepSizes),
        '`"constant"` (the default), `"inverse-sqrt"`',
        default=StepSizes.CONSTANT,
        get_for_file=field_types.schedule_for_file,
    ).documented("the step size is η in every step, or η/√i in step i as in the paper"),
    _optional("diameter", _number, "above 0, optional").documented(
        "after each step, the model is projected onto the ball of this diameter around 0"
    ),
    _optional(
        "divide_by", _integer, "1 or more", get_for_file=field_types.divide_by_for_file
    ).documented(
        "the fixed public number by which a slot's sum is divided. By default it is the capacity,"
        " or 1 if there is no capacity. Averaged updates divide by the number of reports instead"
    ),
    _optional("momentum", _number, '0 to below 1, optional; only with `"sgd"`').documented(
        "the momentum μ. With the mean gradient g of a step, the velocity is v ← g + μv, and the"
        " step uses v in place of g. 0 means no momentum. A repeated run continues with the"
        " velocity of the run before it"
    ),
    Key(
        "nesterov",
        TomlSource.boolean,
        "true or false (the default); true only with `momentum`",
        default=False,
        sealed=Sealed.UNLESS_DEFAULT,
    ).documented("if true, the step uses g + μv in place of v"),
    Key(
        "arguments",
        field_types.read_arguments,
        '`{ b1 = 0.9, ... }`, optional; only with `"optax:NAME"`',
        default={},
        sealed=Sealed.UNLESS_DEFAULT,
        get=lambda campaign: dict(campaign.task.optimizer.arguments),
    ).documented(
        "other arguments of the optax optimizer. Values are finite numbers, true or false"
    ),
    campaign_attribute="task.optimizer",
    inline=True,
)
DATA = _section(
    "task.data",
    Key("file", _text, "text").documented(
        "CSV or Parquet, one row for each example",
        comment="(choose) CSV or Parquet, one row for each example",
    ),
    Key("client_column", _text, "text").documented(
        "the column that names the client of a row. All rows of a client are protected together",
        comment="(choose) column that names the client of a row",
    ),
    Key("label_column", _text, "text").documented(
        "the column to predict", comment="(choose) column to predict"
    ),
    Key("features", TomlSource.texts, "list of texts").documented(
        "the columns from which the label is predicted",
        comment="(choose) columns from which the label is predicted",
    ),
    _optional(
        "classes", partial(TomlSource.integer, most=MAX_CLASSES), "2 to 10⁶, optional"
    ).documented(
        "the number of labels, which are 0 to `classes` − 1. Without it, the labels in the data"
        " must be exactly 0, 1, ... up to a largest label, which is assumed to be public",
        comment="number of labels",
    ),
    Key(
        "holdout", _number, "0 (the default) to below 1", default=0.0, sealed=Sealed.UNLESS_DEFAULT
    ).documented(
        "the share of clients whose data are used for testing, chosen by a public hash of their"
        " ids. Their data are not protected, so they must be public",
        comment="share of clients for testing. They are not protected",
    ),
    Key(
        "ranges",
        field_types.read_ranges,
        "`{ column = [LOW, HIGH], ... }`",
        get=lambda campaign: field_types.ranges_by_feature(campaign.task.data),
    ).documented(
        "one range for each feature. Values are clipped to the range and scaled by it. Ranges must"
        " be public constants. A range that was computed from the clients' data leaks information"
        " that no certificate covers",
        comment="(choose) public constants, never computed from the data",
    ),
    campaign_attribute="task.data",
)
SCHEDULE = _section(
    "schedule",
    Key(
        "start",
        TomlSource.date_time,
        "a date and time with its offset, `2030-01-01T00:00:00Z`",
        get_for_file=lambda campaign: campaign.schedule.start,
    ).documented(
        "when the first slot begins, on the server's clock",
        comment="start of the first slot. A simulation does not wait for it",
    ),
    Key("slot_s", _number, "above 0").documented(
        "length of a slot in seconds", comment="seconds of a slot"
    ),
    Key("choose_s", _number, "above 0, below `slot_s`").documented(
        "seconds after the start of a slot. At this time check-ins end, and the server chooses the"
        " check-ins that it uses. It accepts reports until the end of the slot",
        comment="seconds from a slot's start until the server chooses check-ins",
    ),
    privacy="none",
    campaign_attribute="schedule",
)
SECTIONS = (TOP, BUDGET, PROTOCOL, RANDOMIZER, TASK, OPTIMIZER, DATA, SCHEDULE)
"""The sections of a campaign file, in the order in which they are written."""
