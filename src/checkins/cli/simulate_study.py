"""From the options of `checkins simulate` to the study that they ask for, or a refusal by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.errors import InvalidValue
    from checkins.simulation.study import Study

MOST_SEEDS = 10_000


def study_of(given: Given, file: str, axes: list[str], *, reuse: bool) -> Study:
    """The study that the options ask for."""
    from checkins.campaign import read_campaign
    from checkins.errors import InvalidValue
    from checkins.simulation.population import parse_availability
    from checkins.simulation.study import ScenarioOptions, Study
    from checkins.simulation.sweep import Axis, changed, label, settings

    found = read_campaign(file)
    notes: list[str] = []
    campaign, folder = found.campaign, str(Path(file).parent)
    if "data" in given:
        campaign, notes = _own_data(given, campaign)
        folder = "."
    else:
        for name in ("client_column", "label_column", "holdout"):
            if name in given:
                raise given.contradiction(name, "goes with --data FILE")
    first, count = whole(given, "seed", default=1), whole(given, "seeds", default=1)
    if count > MOST_SEEDS:
        raise given.contradiction("seeds", f"must be at most {MOST_SEEDS:,}")
    with given.in_own_words():
        world = ScenarioOptions(
            whole(given, "clients", default=0) or None,
            reuse,
            parse_availability(given.texts.get("availability", "always")),
            number(given, "dropout", default=0.0),
        )
        campaigns = [
            (setting, changed(campaign, setting))
            for setting in settings(Axis.parse(axis) for axis in axes)
        ]
        study = Study(
            tuple(campaigns),
            folder,
            world,
            tuple(range(first, first + count)),
            _baselines(given),
            whole(given, "evaluations", default=50, least=0),
            tuple(notes),
        )
    for setting, each in campaigns:
        try:
            study.check(each)
        except InvalidValue as error:
            if (of_data := _of_data(error, each)) is not None:
                raise of_data from error
            if setting and error.name not in ("clients", "population"):
                refused = f"{error.name.replace('_', ' ')} {error.expected}"
                raise Refused(f"--sweep {label(setting)}: {refused}") from error
            if error.name in given.texts or error.name == "clients":
                raise given.refusal(error) from error
            raise found.refusal(error) from error
    return study


def _of_data(error: InvalidValue, campaign: Campaign) -> Refused | None:
    """A refusal of the user's table, which is a file of its own: a cell of it, or all of it."""
    data = None if campaign.task is None else campaign.task.data
    if data is None or isinstance(data, str):
        return None
    if error.name == "file":
        return Refused(f"{quoted(error.value)}: {error.expected}")
    if error.name.startswith(("column ", "row ")):
        return Refused(
            f"{quoted(data.file)}: {error.name} = {quoted(error.value)}: {error.expected}"
        )
    return None


def _own_data(given: Given, campaign: Campaign) -> tuple[Campaign, list[str]]:
    """The campaign with the user's own table in place of its data."""
    from checkins.errors import InvalidValue
    from checkins.tasks.data import table

    if campaign.task is None:
        raise Refused("--data: the campaign has no [task] that could learn from it")
    client = given.need("client_column", "the column that says whose a row is")
    label = given.need("label_column", "the column of labels")
    path = given.texts["data"]
    try:
        source, read_off = table.described(
            path,
            client_column=client,
            label_column=label,
            like=campaign.task.data,
            holdout=number(given, "holdout", default=0.0),
        )
    except InvalidValue as error:
        if error.name.startswith(("column ", "row ")):
            cell = f"{error.name} = {quoted(error.value)}: {error.expected}"
            raise given.contradiction("data", cell) from error
        if error.name == "file":
            raise given.contradiction("data", error.expected) from error
        raise given.refusal(error) from error
    notes = []
    if read_off:
        notes.append(
            "the ranges of the features were read off the data: good enough to try a design, not"
            " covered by the certificate; a real campaign states public ranges in [task.data]"
        )
    return replace(campaign, task=replace(campaign.task, data=source, features=None)), notes


def _baselines(given: Given) -> tuple[Any, ...]:
    from checkins.simulation.baselines import Baseline

    if "baselines" not in given:
        return ()
    words = [word.strip() for word in given.texts["baselines"].split(",")]
    if words == ["all"]:
        return tuple(Baseline)
    unknown = [word for word in words if word not in list(Baseline)]
    if unknown:
        raise given.contradiction("baselines", f"must be all, or of {', '.join(Baseline)}")
    return tuple(dict.fromkeys(Baseline(word) for word in words))


def whole(given: Given, name: str, *, default: int, least: int = 1) -> int:
    """The whole number that an option says; ``1e6`` is one too."""
    from checkins.cli import values

    if name not in given:
        return default
    text = given.texts[name].replace(",", "").replace("_", "")
    try:
        value = int(text)
    except ValueError:
        with given.in_own_words():
            value = values.whole(name, text)
    if value < least:
        raise given.contradiction(name, f"must be at least {least}")
    return value


def number(given: Given, name: str, *, default: float) -> float:
    """The number that an option says."""
    if name not in given:
        return default
    try:
        return float(given.texts[name])
    except ValueError:
        raise given.contradiction(name, "must be a number") from None
