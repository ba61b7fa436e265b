"""Print the texts at the beginning and at the end of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from checkins import formatting
from checkins.cli import terminal

METRICS = (("AUC", "auc"), ("accuracy", "accuracy"))


def introduce(url: str, view: dict[str, Any], *, clients: int, seconds: float) -> None:
    """Print what the demo will do, and where to watch it."""
    slots, budget = view["schedule"]["slots"], view["budget"]
    terminal.show(
        f"{clients:,} devices, each with the record of one patient, train a model of who dies"
        f" during follow-up. Each draws one of {slots:,} slots by itself, drops in once and sends"
        " one update. The coordinator calls nobody and adds noise to every slot.",
        "",
        Text.assemble("Open the page now:  ", (f"{url}/", "bold cyan")),
        "",
        f"Takes about {round(seconds, -1):.0f} s; Ctrl-C ends all of it. Epsilon: what is spent so"
        f" far, an upper bound at delta = {budget['delta']!r}, {budget['adjacency']}; the budget is"
        f" {budget['epsilon']:g}.",
        "",
    )


def conclude(
    view: dict[str, Any],
    metrics: dict[str, float],
    swarm: dict[str, Any],
    verified: dict[str, Any],
    *,
    out: Path,
) -> None:
    """Print the metrics, the epsilon, how many devices took part, and the saved files."""
    certificate, outcomes = verified["certificate"], swarm["outcomes"]
    others = [f"{count:,} {name}" for name, count in outcomes.items() if name != "reported"]
    others = [other for other in others if not other.startswith("0 ")]
    if swarm["failed"]:
        others.append(f"{swarm['failed']:,} failed ({swarm['failures'][0]['why']})")
    table = terminal.plain_table("", "", right=())
    table.show_header = False
    measured = ", ".join(f"{name} {metrics[key]:.3f}" for name, key in METRICS if key in metrics)
    table.add_row("learned", f"{measured} on the public holdout")
    table.add_row(
        "cost",
        f"epsilon <= {formatting.up(certificate['epsilon'])} at delta = {certificate['delta']!r}"
        f" ({certificate['adjacency']}, {certificate['method']} accountant, rounded up)",
    )
    table.add_row(
        "took part",
        f"{outcomes['reported']:,} of {swarm['clients']:,} devices reported"
        f"{''.join(f', {other}' for other in others)}: as the devices know it, the coordinator"
        " tells nobody",
    )
    kept = "kept" if verified["within_budget"] else "exceeded"
    table.add_row(
        "verified",
        f"the ledger is whole: {verified['entries']:,} entries, every hash, model and price"
        f" computed again; the budget, epsilon = {view['budget']['epsilon']:g}, is {kept}",
    )
    terminal.show(table)
    terminal.show_plain(f"Report: {(out / 'report.html').as_posix()}")
    terminal.show_plain("Beside it: model.safetensors, ledger.jsonl, certificate.json")
