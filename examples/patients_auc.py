"""Compare the AUC of each protocol at epsilon 0.5, 1 and 2 with the non-private AUC (patients).

Logistic regression is trained on one report from each of 15,329 clients and measured on a public
holdout. The noise is calibrated so that the certificate has at most this epsilon at delta 1e-6. The
settings were chosen by the holdout AUC of other seeds, and no certificate covers this choice.

    python examples/patients_auc.py --seeds 5 --out out
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from checkins.accounting import Calibration, Parameter, calibrate
from checkins.campaign import Campaign, campaign_text, parse_campaign
from checkins.simulation.baselines import train_pooled
from checkins.simulation.engine.outcome import simulate
from checkins.tasks.loaded_task import LoadedTask

FILE = """schema = 1
name = "{name}"
budget = {{ epsilon = {epsilon}, delta = 1e-6, adjacency = "{adjacency}", population = 15329 }}
protocol = {{ kind = "{kind}", participation = 1, {protocol} }}
randomizer = {{ {randomizer} }}
task = {{ data = "patients", model = "logistic", optimizer = {{ kind = "sgd", {optimizer} }} }}
"""
PURE = 'kind = "privunit", local_epsilon = 1, clip = 1'  # calibration replaces local_epsilon
SERVER = 'kind = "gaussian", noise_at = "server", noise_multiplier = 1, clip = 2'  # calibrated too
CLIENT = SERVER.replace("server", "client")
SUM = "rate = 3, divide_by = 153"
ROWS = {
    "fixed, PrivUnit": ("slots = 4000, capacity = 4", PURE, "rate = 0.04"),
    "fixed, server Gaussian": ("slots = 100", SERVER, SUM),
    "fixed, client Gaussian": ("slots = 100, capacity = 240", CLIENT, SUM),
    "sliding, PrivUnit": ("slots = 8000, window = 2000, capacity = 2", PURE, "rate = 0.015"),
    "sliding, server Gaussian": ("slots = 100, window = 20", SERVER, SUM),
    "averaged, PrivUnit": ("slots = 1000", PURE, "rate = 0.2"),
    "averaged, client Gaussian": ("slots = 100", CLIENT, "rate = 0.0125"),
}


def calibrated(name: str, epsilon: float) -> tuple[Campaign, Calibration]:
    """Return the campaign of a row with the least noise that its budget allows."""
    kind = name.partition(",")[0]
    asked = dict(zip(("protocol", "randomizer", "optimizer"), ROWS[name], strict=True))
    adjacency = "replace-one" if kind == "averaged" else "add-remove"  # it needs replace-one
    text = FILE.format(name=name, epsilon=epsilon, adjacency=adjacency, kind=kind, **asked)
    campaign = parse_campaign(text).campaign
    knob = Parameter.LOCAL_EPSILON if "PrivUnit" in name else Parameter.NOISE_MULTIPLIER
    promise = {"delta": campaign.budget.delta, "adjacency": campaign.budget.adjacency}
    found = calibrate(campaign.design, parameter=knob, epsilon=epsilon, **promise)
    return replace(campaign, design=found.design), found


def said(auc: list[float]) -> str:
    """Return the mean and the standard deviation over seeds as text."""
    spread = f"±{statistics.stdev(auc):.3f}".replace("0.", ".") if len(auc) > 1 else ""
    return f"{statistics.fmean(auc):.3f}{spread:5}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--rows", default="", help="only those whose name holds this text")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    lesson = LoadedTask.of(calibrated("fixed, PrivUnit", 1.0)[0].task)
    best = [train_pooled(lesson, seed=seed).metrics["auc"] for seed in seeds]
    table = [[f"non-private: {said(best)}", *(f"ε ≤ {e:<11g}" for e in options.epsilon)]]
    table.append(["-" * len(cell) for cell in [" " * 26, *table[0][1:]]])
    cells = []
    for name in (name for name in ROWS if options.rows in name):
        table.append([name.replace("averaged", "averaged*")])
        for epsilon in options.epsilon:
            campaign, found = calibrated(name, epsilon)
            runs = [simulate(campaign, loaded=lesson, seed=s, evaluations=0) for s in seeds]
            auc = [run.metrics["auc"] for run in runs]
            share = (statistics.fmean(auc) - 0.5) / (statistics.fmean(best) - 0.5)
            table[-1].append(f"{said(auc)} {share:4.0%}")
            about = {"row": name, "epsilon_at_most": epsilon, "auc": auc, "share": share}
            cells.append({**about, **found.as_dict(), "campaign": campaign_text(campaign)})
    text = "".join(f"{' | '.join([f'{row[0]:26}', *row[1:]]).rstrip()}\n" for row in table)
    print(f"{text}* neighbours replace one; else add-remove. Saved: {options.out}/patients-auc.*")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "patients-auc.md").write_text(text, encoding="utf-8")
    found = {"non_private": best, "cells": cells}
    (options.out / "patients-auc.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
