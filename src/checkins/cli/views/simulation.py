"""The progress bars, tables and saved files of a simulation."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from checkins import durable_file, formatting
from checkins.accounting import METHODS
from checkins.cli import terminal
from checkins.cli.terminal import bullet_list, plain_table

if TYPE_CHECKING:
    from checkins.simulation.engine.outcome import Outcome
    from checkins.simulation.result import SimulationResult, SweepResult
    from checkins.simulation.study import PreparedStudy

MAX_BARS = 10
"""If there are more jobs than this, one bar shows the progress of all of them."""
NOT_PRIVATE = (
    "The randomness of a simulation comes from a seed and gives no privacy. If you choose settings"
    " by these metrics, the certificate does not cover that choice."
)
METRICS = {"auc": "AUC", "accuracy": "accuracy", "loss": "loss"}
"""Maps the name of a metric in the result to its label. The first metric is the main one."""


@contextmanager
def progress_bars(prepared: PreparedStudy, *, quiet: bool) -> Iterator[Callable[..., None] | None]:
    """Yield a function that updates the bar of a job. Yield None if there is no terminal.

    A job is one training run, of a campaign or a baseline with one seed.
    """
    count = "{task.completed:,.0f}/{task.total:,.0f} slots{task.fields[metrics]}"
    with terminal.progress("{task.description}", count, quiet=quiet) as bars:
        if bars is None:
            yield None
            return
        jobs, labels = prepared.jobs, prepared.labels
        if is_one_bar := len(jobs) > MAX_BARS:
            total = sum(job.slots for job in jobs)
            tasks = [bars.add_task(f"{len(jobs)} jobs", total=total, metrics="")] * len(jobs)
        else:
            tasks = [
                bars.add_task(label, total=job.slots, metrics="")
                for job, label in zip(jobs, labels, strict=True)
            ]
        slots_by_job: dict[int, int] = {}

        def watch(number: int, slots: int, metrics: Mapping[str, float]) -> None:
            slots_by_job[number] = slots
            epsilon = prepared.epsilon_so_far(number, slots)
            text = f" loss {metrics['loss']:.3f}" if "loss" in metrics else ""
            text += f" eps {formatting.up(epsilon, 3)}" if epsilon is not None else ""
            completed = sum(slots_by_job.values()) if is_one_bar else slots
            bars.update(tasks[number], completed=completed, metrics=text)

        yield watch


def result_parts(result: Mapping[str, Any], *, file: str) -> list[RenderableType]:
    """Return the tables of a simulation or a sweep."""
    if "sweep" in result:
        return _sweep_parts(result["sweep"])
    return [*_headline_parts(result, file), *_methods_parts(result), *_closing_parts(result)]


def _metrics_source(result: Mapping[str, Any], *, complete: bool) -> str:
    """Return a text: on which rows the metrics are computed, and over how many seeds."""
    source = "on the public holdout"
    if result["metrics_on"] != "holdout":
        source = "on the clients' own rows"
    count = len(result["seeds"])
    seeds = "" if count == 1 else f": mean ± standard deviation over {count} seeds"
    return f"{source}{'' if complete else ', so far'}{seeds}."


def count_text(count: int, singular: str) -> str:
    """Format a count with its noun.

    >>> count_text(1, "slot"), count_text(2000, "slot")
    ('1 slot', '2,000 slots')
    """
    return f"{count:,} {singular}{'' if count == 1 else 's'}"


def _headline_parts(result: Mapping[str, Any], file: str) -> list[RenderableType]:
    name, expected_dummies = result["campaign"]["name"], result["dummies_expected"]
    expectation = "" if expected_dummies is None else f" (expected: {expected_dummies:,.0f})"
    parts: list[RenderableType] = [
        Text.assemble(
            ("Simulated", "bold"),
            f" the campaign {name}: {count_text(result['slots'], 'slot')},"
            f" {count_text(result['check_ins'], 'check-in')} of"
            f" {count_text(result['scenario']['clients'], 'client')},"
            f" {count_text(result['client_updates'], 'report')} used,"
            f" {count_text(result['dummies'], 'dummy report')} drawn by the server{expectation}.",
        ),
        Text.assemble(
            (_metrics_text(result), "bold green"),
            f" {_metrics_source(result, complete=result['complete'])}",
        ),
        *_average_parts(result),
        _guarantee_sentence(result["certificate"]),
    ]
    if not result["within_budget"]:
        budget = result["budget"]["epsilon"]
        parts.append(
            Text(
                f"The campaign exceeds its budget, epsilon = {budget:g}. With real devices it would"
                f" stop early; checkins check {shlex.quote(file)} shows after how many slots.",
                style="bold red",
            )
        )
    return parts


def _average_parts(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return a line on the average of the released models; none without an average."""
    if not result["average_metrics"]:
        return []
    averages = {"metrics": result["average_metrics"], "spread": result["average_spread"]}
    return [Text.assemble((_metrics_text(averages), "bold green"), " for the average of models.")]


def _metrics_text(result: Mapping[str, Any]) -> str:
    metrics = result["metrics"]
    return ", ".join(
        f"{label} {_value_and_spread(result, name)}"
        for name, label in METRICS.items()
        if name in metrics
    )


def _epsilon_text(value: float | None) -> str:
    return formatting.up(math.inf if value is None else value)


def _guarantee_sentence(certificate: Mapping[str, Any]) -> Text:
    runs = certificate["campaigns"]
    repeated = f", {runs:,} runs together" if runs > 1 else ""
    method = METHODS[certificate["method"]].partition(":")[0]
    return Text.assemble(
        (f"epsilon <= {_epsilon_text(certificate['epsilon'])}", "bold green"),
        f" at delta = {certificate['delta']!r} ({certificate['adjacency']}{repeated}) for the same"
        f" campaign with real devices, proved by {method}, rounded up.",
    )


def _methods_parts(result: Mapping[str, Any]) -> list[RenderableType]:
    if not result["baselines"]:
        return []
    names = [name for name in METRICS if name in result["metrics"]][:1]
    table = plain_table(
        "method", *(METRICS[name] for name in names), "epsilon", "noise", right=("epsilon",)
    )
    certificate = result["certificate"]
    adjacency = certificate["adjacency"]
    table.add_row(
        "check-ins",
        *(_value_and_spread(result, name) for name in names),
        _epsilon_text(certificate["epsilon"]),
        result["noise"],
        style="bold",
    )
    for baseline in result["baselines"]:
        if baseline["unavailable"]:
            table.add_row(
                baseline["name"], *("" for _ in names), "", baseline["unavailable"], style="dim"
            )
            continue
        table.add_row(
            baseline["name"],
            *(_value_and_spread(baseline, name) for name in names),
            _epsilon_text(baseline["epsilon"]),
            baseline["noise"],
        )
    descriptions = [
        f"{baseline['name']}: {baseline['what']}"
        + (f" ({baseline['adjacency']})" if baseline["adjacency"] not in (None, adjacency) else "")
        for baseline in result["baselines"]
    ]
    unit = "noise: standard deviation of Gaussian noise, or local epsilon.\n"
    return [
        "",
        table,
        Text(unit, style="dim"),
        *bullet_list("Baselines, all at the same delta", descriptions),
    ]


def _value_and_spread(result: Mapping[str, Any], name: str) -> str:
    if name not in result["metrics"]:
        return ""
    spread, value = result["spread"] or {}, result["metrics"][name]
    deviation = f" ± {spread[name]:.2g}" if name in spread else ""
    number = f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"  # shortens a loss that diverged
    return f"{number}{deviation}"


def _closing_parts(result: Mapping[str, Any]) -> list[RenderableType]:
    rate = result["client_updates_per_second"]
    duration = f"{result['seconds']:.1f} s of computation"
    speed = f"{duration}, {rate:,.0f} client updates/s after compilation. "
    return [*bullet_list("Notes", result["notes"]), Text(speed + NOT_PRIVATE, style="dim")]


def _sweep_parts(results: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    first = results[0]
    keys = list(first["settings"])
    baselines = [baseline["name"] for baseline in first["baselines"]]
    with_metrics = next((result for result in results if result["metrics"]), first)
    names = [name for name in METRICS if name in with_metrics["metrics"]] or ["loss"]
    names = names[:1] if baselines or len(keys) > 2 else names
    table = plain_table(
        *(key.rpartition(".")[2] for key in keys),
        *(METRICS[name] for name in names),
        "epsilon",
        *baselines,
        right=("epsilon",),
    )
    for result in results:
        table.add_row(
            *(str(result["settings"][key]) for key in keys),
            *(_value_and_spread(result, name) or "diverged" for name in names),
            _epsilon_text(result["certificate"]["epsilon"])
            + ("" if result["within_budget"] else " !"),
            *(_value_and_spread(baseline, names[0]) or "-" for baseline in result["baselines"]),
        )
    complete = all(result["complete"] for result in results)
    head = Text.assemble(
        ("Simulated", "bold"),
        f" the campaign {first['campaign']['name']} with {count_text(len(results), 'setting')}."
        f" Metrics are {_metrics_source(first, complete=complete)}",
    )
    deltas = {
        f"{each['delta']!r} ({each['adjacency']})" for each in (r["certificate"] for r in results)
    }
    legend = f"epsilon is rounded up, at delta = {' or '.join(sorted(deltas))}."
    if not all(result["within_budget"] for result in results):
        legend += " !: epsilon exceeds the budget in the file."
    if baselines:
        legend += f" The columns of baselines show {METRICS[names[0]]} at the epsilon of the row."
        if any(not each["metrics"] for result in results for each in result["baselines"]):
            legend += " -: the baseline cannot be run, or its model diverged."
    notes = list(dict.fromkeys(note for result in results for note in result["notes"]))
    legend_parts = [legend, *bullet_list("Notes", notes), Text(NOT_PRIVATE, style="dim")]
    return [head, "", table, *legend_parts]


def save(
    result: SimulationResult | SweepResult,
    prepared: PreparedStudy,
    outcomes: Sequence[Outcome | None],
    out: Path,
) -> Path:
    """Write report.html, result.json and the models of all seeds. Return the path of report.html.

    In a sweep, the models of the n-th combination of values have names that begin with model-n.
    """
    from checkins.simulation.report import write_report
    from checkins.simulation.workers import load_task
    from checkins.tasks.model import unflatten

    terminal.write_json(out / "result.json", result.as_json(), indent=1)
    remaining = iter(outcomes)
    for number, entry in enumerate(prepared.campaigns, 1):
        entry_outcomes = [next(remaining) for group in entry.groups for _ in group.jobs]
        prefix = "model" if len(prepared.campaigns) == 1 else f"model-{number}"
        for job, outcome in zip(entry.groups[0].jobs, entry_outcomes, strict=False):
            if outcome is None:
                continue
            shapes, name = load_task(job.task, job.folder).model.shapes, f"{prefix}-seed-{job.seed}"
            for flat, suffix in ((outcome.model, ""), (outcome.average_model, "-average")):
                if flat is not None:
                    with durable_file.replacing(out / f"{name}{suffix}.npz") as file:
                        np.savez(file, allow_pickle=False, **unflatten(flat, shapes))
    write_report(result, out / "report.html")
    return out / "report.html"
