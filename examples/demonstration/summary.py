"""Print the texts at the start and at the end of the demo."""

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
        f"{clients:,} simulated devices, each with the record of one patient, train a model that"
        f" predicts who dies during follow-up. Each device draws one of {slots:,} slots (time"
        " steps) by itself, checks in once and sends one update. The coordinator contacts no device"
        " and adds noise in every slot.",
        "",
        Text.assemble("Watch in a browser:     ", (f"{url}/", "bold cyan")),
        Text.assemble("Take part in a browser: ", (f"{url}/take-part", "bold cyan")),
        "",
        f"The demo takes about {round(seconds, -1):.0f} s. Ctrl-C ends it. The lines below show the"
        f" epsilon of all releases so far, an upper bound at delta = {budget['delta']!r}"
        f" ({budget['adjacency']}). The budget is epsilon = {budget['epsilon']:g}.",
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
    """Print the metrics, epsilon, how many devices took part, and the saved files."""
    certificate, outcomes = verified["certificate"], swarm["outcomes"]
    others = [f"{count:,} {name}" for name, count in outcomes.items() if name != "reported"]
    others = [other for other in others if not other.startswith("0 ")]
    if swarm["failed"]:
        others.append(f"{swarm['failed']:,} failed ({swarm['failures'][0]['why']})")
    table = terminal.plain_table("", "", right=())
    table.show_header = False
    metrics_text = ", ".join(
        f"{name} {metrics[key]:.3f}" for name, key in METRICS if key in metrics
    )
    table.add_row("model", f"{metrics_text} on the public holdout")
    table.add_row(
        "privacy",
        f"epsilon <= {formatting.up(certificate['epsilon'])} at delta = {certificate['delta']!r}"
        f" ({certificate['adjacency']}), proved by the method {certificate['method']}, rounded up",
    )
    table.add_row(
        "devices",
        f"{outcomes['reported']:,} of {swarm['clients']:,} devices reported"
        f"{''.join(f', {other}' for other in others)}; only the devices know these numbers, the"
        " coordinator publishes none",
    )
    verdict = "is within" if verified["within_budget"] else "exceeds"
    table.add_row(
        "verified",
        f"the ledger is intact: {verified['entries']:,} entries; every hash, model and epsilon was"
        f" computed again; the campaign {verdict} its budget, epsilon ="
        f" {view['budget']['epsilon']:g}",
    )
    terminal.show(table)
    terminal.show_plain(f"Report: {(out / 'report.html').as_posix()}")
    terminal.show_plain("In the same folder: model.safetensors, ledger.jsonl, certificate.json")
