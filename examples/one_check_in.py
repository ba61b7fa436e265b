"""Fashion-MNIST with one check-in of each client: correlated noise compared with independent noise.

60,000 clients check in once, and every model is trained in one pass over their updates. Three
methods have the same (epsilon, 1e-5)-DP for add-remove neighbours: check-ins with noise that the
server correlates across slots, check-ins with independent noise, and Poisson-sampled DP-SGD.
All use the same features, clip and momentum, and the average of the models. Slots, bands and rate
were tuned alike for each method and epsilon, on the test pictures with even numbers and on seeds
that are not used again. The accuracy is of the pictures with odd numbers, which chose none of them.

    python examples/one_check_in.py --seeds 20 --out out/one-check-in
    python examples/one_check_in.py --tune --out out/one-check-in    # how the settings were chosen

It needs the four files of Fashion-MNIST (docs/data.md), and takes some minutes on two cores. --tune
takes a quarter of an hour, and also compares strategies for the average of the models alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noise_comparison.settings import CORRELATED, INDEPENDENT, TUNED
from noise_comparison.training import ODD, accuracy, calibrated, loss_of_average_strategy, tune


def compare(seeds: Sequence[int], epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each epsilon and method, with the accuracies on odd pictures by seed."""
    rows = []
    for epsilon, method in itertools.product(epsilons, TUNED):
        setting = TUNED[method][epsilon]
        mechanism, certified = calibrated(method, setting.slots, setting.bands, epsilon)
        noise = mechanism.noise_description
        accuracies = [accuracy(method, setting, epsilon, seed=seed, pictures=ODD) for seed in seeds]
        row = {"epsilon_at_most": epsilon, "method": method, **setting._asdict()}
        rows.append(row | {"epsilon": certified, "noise": noise, "accuracy": accuracies})
        print(f"{epsilon:<5g}{method:18}{described(accuracies)}, {noise}", flush=True)
    return rows


def described(values: Sequence[float]) -> str:
    """Return the mean in per cent and its standard error as text."""
    if len(values) < 2:
        return f"{statistics.fmean(values):.2%}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.2%} ± {error:.2%}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the accuracies of all methods, and the gain of correlated noise, as Markdown."""
    lines = [
        f"| epsilon | {' | '.join(TUNED)} | correlated − independent |",
        f"|---{'|---' * len(TUNED)}|---|",
    ]
    for epsilon in dict.fromkeys(row["epsilon_at_most"] for row in rows):
        found = {
            row["method"]: row["accuracy"] for row in rows if row["epsilon_at_most"] == epsilon
        }
        pairs = zip(found[CORRELATED], found[INDEPENDENT], strict=True)
        gain = described([correlated - independent for correlated, independent in pairs])
        cells = [described(found[method]) for method in TUNED]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} | {gain} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 1.35, 2.7])
    parser.add_argument("--tune", action="store_true", help="choose the settings first")
    parser.add_argument("--out", type=Path, default=Path("out/one-check-in"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tune:
        for epsilon, method in itertools.product(options.epsilon, TUNED):
            TUNED[method][epsilon] = tune(method, epsilon)
            print(f"{method}, epsilon {epsilon:g}: {TUNED[method][epsilon]}", flush=True)
        for epsilon in options.epsilon:
            loss = loss_of_average_strategy(TUNED[CORRELATED][epsilon], epsilon)
            print(f"strategy for all models, gain at epsilon {epsilon:g}: {described(loss)}")
    rows = compare(range(1, options.seeds + 1), options.epsilon)
    text = table(rows)
    print(text, end="")
    (options.out / "table.md").write_text(text, encoding="utf-8")
    (options.out / "result.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
