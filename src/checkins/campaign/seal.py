"""The canonical form of a campaign, and the hash that seals it (invariant 9).

Two files that mean the same have one canonical form, whatever their order, comments, spelling of
numbers or defaults left out; a campaign with any other value has another. It is JSON in UTF-8,
keys sorted, no spaces, floats as Python prints them, instants in UTC, and no key for what is
absent. The text can be read back: a ledger holds it, and needs no other file to be verified.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, NoReturn

from checkins.campaign.description import Campaign, DataFile, Schedule, Task
from checkins.campaign.file import SCHEMA, campaign_of
from checkins.campaign.toml_source import TomlSource
from checkins.errors import InvalidValue

LONGEST = 2_000_000
"""Characters of a canonical text at most; ten thousand features fit."""


def canonical(campaign: Campaign) -> str:
    """The one text that says this campaign; ``campaign_from_canonical`` reads it back."""
    return json.dumps(
        as_values(campaign),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def sealed(text: str) -> str:
    """The seal of a canonical text.

    >>> sealed("")
    'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
    """
    return f"sha256:{hashlib.sha256(text.encode('utf-8')).hexdigest()}"


def campaign_from_canonical(text: str) -> Campaign:
    """The campaign that a canonical text says; any other spelling of it is refused."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise InvalidValue("campaign", "...", f"must be a text of at most {LONGEST:,} characters")
    try:
        values = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("campaign", text[:60], "is not JSON") from error
    if not isinstance(values, dict):
        raise InvalidValue("campaign", text[:60], "must be a JSON object")
    schedule = values.get("schedule")
    if isinstance(schedule, dict) and isinstance(schedule.get("start"), str):
        schedule["start"] = _instant(schedule["start"])
    campaign = campaign_of(TomlSource("campaign", values, {}))
    if canonical(campaign) != text:
        raise InvalidValue("campaign", text[:60], "is not in canonical form")
    return campaign


def as_values(campaign: Campaign) -> dict[str, object]:
    """The campaign in plain values, by the sections and keys of its file."""
    budget, design, randomizer = campaign.budget, campaign.design, campaign.randomizer
    population = design.population
    return _present(
        schema=SCHEMA,
        name=campaign.name,
        population_id=campaign.population_id,
        budget=_present(
            epsilon=budget.epsilon,
            delta=budget.delta,
            adjacency=str(budget.adjacency),
            population=population and [int(population.fewest), int(population.most)],
        ),
        protocol=_present(
            kind=str(design.protocol),
            slots=int(design.slots),
            participation=design.participation,
            capacity=design.capacity and int(design.capacity),
            window=design.window and int(design.window),
            repeats=int(campaign.repeats),
        ),
        randomizer=_present(
            kind=str(randomizer.kind),
            noise_at=randomizer.noise_at and str(randomizer.noise_at),
            noise_multiplier=randomizer.noise_multiplier,
            local_epsilon=randomizer.local_epsilon,
            clip=randomizer.clip,
            grid=randomizer.grid,
            categories=randomizer.categories and int(randomizer.categories),
        ),
        task=campaign.task and _task(campaign.task),
        schedule=campaign.schedule and _schedule(campaign.schedule),
    )


def _task(task: Task) -> dict[str, object]:
    optimizer = task.optimizer
    return _present(
        data=_data(task.data) if isinstance(task.data, DataFile) else task.data,
        features=task.features and str(task.features),
        model=task.model,
        local_steps=int(task.local_steps),
        local_rate=task.local_rate,
        optimizer=_present(
            kind=str(optimizer.kind),
            rate=optimizer.rate,
            minibatch=int(optimizer.minibatch),
            schedule=str(optimizer.schedule),
            diameter=optimizer.diameter,
            divide_by=optimizer.divide_by and int(optimizer.divide_by),
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov or None,
            arguments=dict(optimizer.arguments) or None,
        ),
    )


def _data(data: DataFile) -> dict[str, object]:
    return _present(
        file=data.file,
        client_column=data.client_column,
        label_column=data.label_column,
        features=list(data.features),
        ranges={
            feature: list(ends) for feature, ends in zip(data.features, data.ranges, strict=True)
        },
        classes=data.classes and int(data.classes),
        holdout=data.holdout or None,
    )


def _schedule(schedule: Schedule) -> dict[str, object]:
    return {
        "start": schedule.start.isoformat().removesuffix("+00:00") + "Z",
        "slot_s": schedule.slot_s,
        "choose_s": schedule.choose_s,
    }


def _present(**values: Any) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _instant(text: str) -> object:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text  # refused with its key by the reader


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
