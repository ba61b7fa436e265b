"""A campaign as a commented campaign.toml; reading it back gives the same campaign.

What is a default and says nothing about privacy is left out; every value that privacy depends on
stands in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from checkins.accounting import Adjacency, NoiseAt, Protocol
from checkins.campaign.description import (
    Campaign,
    DataFile,
    RandomizerKind,
    StepSizes,
    Task,
)
from checkins.campaign.file import SCHEMA

COMMENT_COLUMN = 30
WIDTH = 100

PROTOCOLS = {
    Protocol.FIXED: "each client draws one of all slots; also: averaged, sliding",
    Protocol.AVERAGED: "a slot averages all its reports; also: fixed, sliding",
    Protocol.SLIDING: "each client draws from the slots after it wakes; also: fixed, averaged",
}
RANDOMIZERS = {
    RandomizerKind.GAUSSIAN: "also: laplace, privunit, randomized-response (local_epsilon)",
    RandomizerKind.LAPLACE: "also: gaussian (noise_multiplier), privunit, randomized-response",
    RandomizerKind.PRIVUNIT: "also: gaussian (noise_multiplier), laplace, randomized-response",
    RandomizerKind.RANDOMIZED_RESPONSE: "also: gaussian (noise_multiplier), laplace, privunit",
}
NOISE_AT = {
    NoiseAt.CLIENT: "on each report; server: one noise on the sum of a slot",
    NoiseAt.SERVER: "one noise on the sum of a slot; client: on each report",
}
ADJACENCIES = {
    Adjacency.ADD_REMOVE: "(choose) one client more or less; also: replace-one",
    Adjacency.REPLACE_ONE: "(choose) one client's data changed; also: add-remove",
}


def campaign_text(campaign: Campaign, *, head: Sequence[str] = ()) -> str:
    """The text of a campaign file; ``head`` are lines of a comment at its top."""
    lines = [*_commented(head), *_top(campaign)]
    for section in (_budget, _protocol, _randomizer, _task, _schedule):
        content = list(section(campaign))
        if content:
            lines += ["", *content]
    return "\n".join(lines) + "\n"


def _commented(head: Sequence[str]) -> Iterator[str]:
    for line in head:
        yield f"# {line}".rstrip()
    if head:
        yield ""


def _top(campaign: Campaign) -> Iterator[str]:
    yield _line("schema", SCHEMA)
    yield _line("name", campaign.name)
    if campaign.population_id is not None:
        yield _line(
            "population_id", campaign.population_id, "campaigns that share it are priced together"
        )


def _budget(campaign: Campaign) -> Iterator[str]:
    budget, population = campaign.budget, campaign.design.population
    yield "[budget]"
    yield _line(
        "epsilon", budget.epsilon, "(choose) what may be spent; a campaign stops before that"
    )
    yield _line(
        "delta", budget.delta, "(choose) chance that the promise fails: far below 1 / clients"
    )
    yield _line("adjacency", str(budget.adjacency), ADJACENCIES[budget.adjacency])
    if population is not None:
        ends = [population.fewest, population.most]
        yield _line(
            "population", ends, "(choose) an assumption; a certificate that uses it says so"
        )


def _protocol(campaign: Campaign) -> Iterator[str]:
    design = campaign.design
    yield "[protocol]"
    yield _line("kind", str(design.protocol), PROTOCOLS[design.protocol])
    yield _line("slots", design.slots, "(choose) time steps, and releases")
    yield _line(
        "participation", design.participation, "(choose) probability that a client checks in at all"
    )
    if design.window is not None:
        yield _line("window", design.window, "(choose) slots that a client draws from")
    if design.capacity is not None:
        yield _line(
            "capacity", design.capacity, "(choose) check-ins a slot uses at most; dummies fill it"
        )
    elif design.protocol is not Protocol.AVERAGED:
        yield _line("capacity", "all", "every check-in of a slot is used")
    yield _line("repeats", campaign.repeats, "runs with fresh coins")


def _randomizer(campaign: Campaign) -> Iterator[str]:
    chosen = campaign.randomizer
    yield "[randomizer]"
    yield _line("kind", str(chosen.kind), RANDOMIZERS[chosen.kind])
    if chosen.noise_at is not None:
        yield _line("noise_at", str(chosen.noise_at), NOISE_AT[chosen.noise_at])
    if chosen.noise_multiplier is not None:
        what = "a slot's" if chosen.noise_at is NoiseAt.SERVER else "one report's"
        yield _line(
            "noise_multiplier",
            chosen.noise_multiplier,
            f"(choose) standard deviation of {what} noise / clip",
        )
    if chosen.local_epsilon is not None:
        yield _line("local_epsilon", chosen.local_epsilon, "(choose) what one report promises")
    if chosen.categories is not None:
        yield _line("categories", chosen.categories, "how many answers there are")
    if chosen.clip is not None:
        norm = "L1 norm" if chosen.kind is RandomizerKind.LAPLACE else "norm"
        yield _line("clip", chosen.clip, f"(choose) {norm} of one update at most")
    if chosen.grid is not None:
        yield _line("grid", chosen.grid, "reports are whole numbers of this")


def _task(campaign: Campaign) -> Iterator[str]:
    task = campaign.task
    if task is None:
        return
    yield "[task]"
    if not isinstance(task.data, DataFile):
        yield _line(
            "data", task.data, "patients, fashion-mnist, synthetic, or a table that names a file"
        )
    if task.features is not None:
        yield _line("features", str(task.features), "public, computed before learning")
    yield _line("model", task.model, 'logistic, softmax, mlp, cnn, or "module:function"')
    yield _line("local_steps", task.local_steps, "1: one gradient; more: a difference of models")
    if task.local_rate is not None:
        yield _line("local_rate", task.local_rate, "the step size of a client's own steps")
    yield _line("optimizer", _optimizer(campaign, task))
    if isinstance(task.data, DataFile):
        yield from _data(task.data)


def _optimizer(campaign: Campaign, task: Task) -> dict[str, object]:
    optimizer = task.optimizer
    table: dict[str, object] = {
        "kind": str(optimizer.kind),
        "rate": optimizer.rate,
        "minibatch": optimizer.minibatch,
    }
    if optimizer.schedule is not StepSizes.CONSTANT:
        table["schedule"] = str(optimizer.schedule)
    if optimizer.diameter is not None:
        table["diameter"] = optimizer.diameter
    if optimizer.divide_by is not None and optimizer.divide_by != (campaign.design.capacity or 1):
        table["divide_by"] = optimizer.divide_by
    if optimizer.momentum is not None:
        table["momentum"] = optimizer.momentum
    if optimizer.nesterov:
        table["nesterov"] = True
    if optimizer.arguments:
        table["arguments"] = dict(optimizer.arguments)
    return table


def _data(data: DataFile) -> Iterator[str]:
    yield ""
    yield "[task.data]"
    yield _line("file", data.file, "CSV or Parquet, one row for each example")
    yield _line("client_column", data.client_column, "whose row it is: the unit of privacy")
    yield _line("label_column", data.label_column, "what to predict")
    yield _line("features", list(data.features))
    if data.classes is not None:
        yield _line("classes", data.classes, "how many labels there are")
    if data.holdout:
        yield _line("holdout", data.holdout, "share of clients made public, to test on")
    yield ""
    yield _commented_line("[task.data.ranges]", "public constants: never read off the data")
    for feature, ends in zip(data.features, data.ranges, strict=True):
        yield _line(_key(feature), list(ends))


def _schedule(campaign: Campaign) -> Iterator[str]:
    schedule = campaign.schedule
    if schedule is None:
        return
    start = schedule.start.isoformat().removesuffix("+00:00") + "Z"
    yield "[schedule]"
    yield _commented_line(
        f"start = {start}", "when the first slot begins; a simulation does not wait"
    )
    yield _line("slot_s", schedule.slot_s, "seconds of a slot")
    yield _line("choose_s", schedule.choose_s, "seconds into it at which the choice is made")


def _line(key: str, value: object, comment: str = "") -> str:
    return _commented_line(f"{key} = {_value(value)}", comment)


def _commented_line(said: str, comment: str) -> str:
    if not comment:
        return said
    line = (
        f"{said:<{COMMENT_COLUMN}}# {comment}"
        if len(said) < COMMENT_COLUMN
        else f"{said}  # {comment}"
    )
    return line if len(line) <= WIDTH else f"# {comment}\n{said}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: object) -> str:
    """A value as TOML writes it.

    >>> _value(1e-6), _value([1, 2]), _value({"kind": "sgd", "nesterov": True})
    ('1e-6', '[1, 2]', '{ kind = "sgd", nesterov = true }')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # printable text: TOML escapes the same two
    if isinstance(value, float):
        return re.sub(r"e\+?(-?)0*", r"e\1", repr(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}"
    return str(value)
