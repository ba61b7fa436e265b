"""Progress bars, tables and files of a simulation."""

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
from checkins.cli import terminal
from checkins.cli.terminal import listed, plain_table

if TYPE_CHECKING:
    from checkins.simulation.engine.outcome import Outcome
    from checkins.simulation.result import SimulationResult, SweepResult
    from checkins.simulation.study import PreparedStudy

MOST_BARS = 10
NOT_PRIVATE = (
    "The randomness comes from a seed and gives no privacy. The certificate does not cover a choice"
    " of settings by these metrics."
)
METRICS = {"auc": "AUC", "accuracy": "accuracy", "loss": "loss"}


@contextmanager
def progress_bars(prepared: PreparedStudy, *, quiet: bool) -> Iterator[Callable[..., None] | None]:
    """Yield a function that updates one bar per job. Yield None without a terminal."""
    count = "{task.completed:,.0f}/{task.total:,.0f} slots{task.fields[metrics]}"
    with terminal.progress("{task.description}", count, quiet=quiet) as bars:
        if bars is None:
            yield None
            return
        jobs, labels = prepared.jobs, prepared.labels
        if together := len(jobs) > MOST_BARS:
            total = sum(job.slots for job in jobs)
            tasks = [bars.add_task(f"{len(jobs)} jobs", total=total, metrics="")] * len(jobs)
        else:
            tasks = [
                bars.add_task(label, total=job.slots, metrics="")
                for job, label in zip(jobs, labels, strict=True)
            ]
        done: dict[int, int] = {}

        def watch(number: int, slots: int, metrics: Mapping[str, float]) -> None:
            done[number] = slots
            epsilon = prepared.epsilon_so_far(number, slots)
            text = f" loss {metrics['loss']:.3f}" if "loss" in metrics else ""
            text += f" eps {formatting.up(epsilon, 3)}" if epsilon is not None else ""
            completed = sum(done.values()) if together else slots
            bars.update(tasks[number], completed=completed, metrics=text)

        yield watch


def result_parts(result: Mapping[str, Any], *, file: str) -> list[RenderableType]:
    """Return the tables of a simulation or a sweep."""
    if "sweep" in result:
        return _sweep_parts(result["sweep"])
    return [*_headline(result, file), *_methods(result), *_foot(result)]


def _where(result: Mapping[str, Any], *, complete: bool) -> str:
    """Say on which rows the metrics are computed, and over how many seeds."""
    found = "on the public holdout"
    if result["metrics_on"] != "holdout":
        found = "on the clients' own rows"
    count = len(result["seeds"])
    seeds = "" if count == 1 else f": mean ± standard deviation over {count} seeds"
    return f"{found}{'' if complete else ', so far'}{seeds}."


def counted(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun.

    >>> counted(1, "slot"), counted(2000, "slot"), counted(1, "dummy", "dummies")
    ('1 slot', '2,000 slots', '1 dummy')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _headline(result: Mapping[str, Any], file: str) -> list[RenderableType]:
    name, due = result["campaign"]["name"], result["dummies_expected"]
    expected = "" if due is None else f" (expected: {due:,.0f})"
    parts: list[RenderableType] = [
        Text.assemble(
            ("Simulated", "bold"),
            f" {name}: {counted(result['slots'], 'slot')},"
            f" {counted(result['check_ins'], 'check-in')} of"
            f" {counted(result['scenario']['clients'], 'client')},"
            f" {counted(result['client_updates'], 'report')} used,"
            f" {counted(result['dummies'], 'dummy', 'dummies')}{expected}.",
        ),
        Text.assemble(
            (_metrics(result), "bold green"), f" {_where(result, complete=result['complete'])}"
        ),
        _guarantee(result["certificate"]),
    ]
    if not result["within_budget"]:
        budget = result["budget"]["epsilon"]
        parts.append(
            Text(
                f"The campaign exceeds its budget, epsilon = {budget:g}. On real devices it would"
                f" stop early: checkins check {shlex.quote(file)} says after how many slots.",
                style="bold red",
            )
        )
    return parts


def _metrics(result: Mapping[str, Any]) -> str:
    found = result["metrics"]
    return ", ".join(
        f"{word} {_with_spread(result, name)}" for name, word in METRICS.items() if name in found
    )


def _epsilon(value: float | None) -> str:
    return formatting.up(math.inf if value is None else value)


def _guarantee(certificate: Mapping[str, Any]) -> Text:
    runs = certificate["campaigns"]
    repeated = f", {runs:,} campaigns" if runs > 1 else ""
    return Text.assemble(
        (f"epsilon <= {_epsilon(certificate['epsilon'])}", "bold green"),
        f" at delta = {certificate['delta']!r} ({certificate['adjacency']}{repeated}) for the same"
        f" campaign on real devices, proved by the method {certificate['method']} and rounded up.",
    )


def _methods(result: Mapping[str, Any]) -> list[RenderableType]:
    if not result["baselines"]:
        return []
    names = [name for name in METRICS if name in result["metrics"]][:1]
    table = plain_table(
        "method", *(METRICS[name] for name in names), "epsilon", "noise", right=("epsilon",)
    )
    certificate = result["certificate"]
    ours = certificate["adjacency"]
    table.add_row(
        "check-ins",
        *(_with_spread(result, name) for name in names),
        _epsilon(certificate["epsilon"]),
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
            *(_with_spread(baseline, name) for name in names),
            _epsilon(baseline["epsilon"]),
            baseline["noise"],
        )
    compared = [
        f"{other['name']}: {other['what']}"
        + (f" ({other['adjacency']})" if other["adjacency"] not in (None, ours) else "")
        for other in result["baselines"]
    ]
    return ["", table, *listed("Methods, all at the same delta", compared)]


def _with_spread(found: Mapping[str, Any], name: str) -> str:
    if name not in found["metrics"]:
        return ""
    spread, value = found["spread"] or {}, found["metrics"][name]
    more = f" ± {spread[name]:.2g}" if name in spread else ""
    number = f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"  # a loss that diverged
    return f"{number}{more}"


def _foot(result: Mapping[str, Any]) -> list[RenderableType]:
    rate = result["client_updates_per_second"]
    speed = (
        f"{result['seconds']:.1f} s of computation, {rate:,.0f} client updates/s once compiled. "
    )
    return [*listed("Notes", result["notes"]), Text(speed + NOT_PRIVATE, style="dim")]


def _sweep_parts(results: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    first = results[0]
    keys = list(first["settings"])
    baselines = [baseline["name"] for baseline in first["baselines"]]
    measured = next((result for result in results if result["metrics"]), first)
    names = [name for name in METRICS if name in measured["metrics"]] or ["loss"]
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
            *(_with_spread(result, name) or "diverged" for name in names),
            _epsilon(result["certificate"]["epsilon"]) + ("" if result["within_budget"] else " !"),
            *(_with_spread(baseline, names[0]) or "-" for baseline in result["baselines"]),
        )
    complete = all(result["complete"] for result in results)
    head = Text.assemble(
        ("Simulated", "bold"),
        f" {first['campaign']['name']}, {counted(len(results), 'setting')}; metrics are"
        f" {_where(first, complete=complete)}",
    )
    at = {
        f"{each['delta']!r} ({each['adjacency']})" for each in (r["certificate"] for r in results)
    }
    legend = f"epsilon, rounded up, is at delta = {' or '.join(sorted(at))}."
    if not all(result["within_budget"] for result in results):
        legend += " !: epsilon exceeds the budget of the file."
    if baselines:
        legend += f" Columns of baselines: {METRICS[names[0]]} at the epsilon of the row."
    notes = list(dict.fromkeys(note for result in results for note in result["notes"]))
    foot = [legend, *listed("Notes", notes), Text(NOT_PRIVATE, style="dim")]
    return [head, "", table, *foot]


def save(
    result: SimulationResult | SweepResult,
    prepared: PreparedStudy,
    outcomes: Sequence[Outcome | None],
    out: Path,
) -> Path:
    """Write report.html, result.json and the models of all seeds. Return the report's path.

    In a sweep, the file names of the n-th combination begin with model-n.
    """
    from checkins.simulation.report import write_report
    from checkins.simulation.workers import load_task
    from checkins.tasks.model import unflatten

    terminal.write_json(out / "result.json", result.as_json(), indent=1)
    left = iter(outcomes)
    for number, entry in enumerate(prepared.campaigns, 1):
        done = [next(left) for group in entry.groups for _ in group.jobs]
        first = "model" if len(prepared.campaigns) == 1 else f"model-{number}"
        for job, outcome in zip(entry.groups[0].jobs, done, strict=False):
            if outcome is not None:
                shapes = load_task(job.task, job.folder).model.shapes
                path = out / f"{first}-seed-{job.seed}.npz"
                with durable_file.replacing(path) as file:
                    np.savez(file, allow_pickle=False, **unflatten(outcome.model, shapes))
    write_report(result, out / "report.html")
    return out / "report.html"
