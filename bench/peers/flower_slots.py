"""Measure rounds of Flower's FedAvg and slots of a campaign with the same clients, and print JSON.

Run this script in the environment of `make flower`. Both run in Flower's simulation, with the same
ClientApp and about as many clients in a round. The times are from release to release.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from checkins.accounting import Adjacency, Design, GaussianNoise, NoiseAt, Protocol
from checkins.campaign import (
    Budget,
    Campaign,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    Task,
)
from checkins.flower.strategy import RandomCheckIns

FEATURES, CLASSES = 784, 10
SHAPES = {"weights": (FEATURES, CLASSES), "bias": (CLASSES,)}

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Return the arrays after a step that costs nothing."""
    arrays = {name: array.numpy() - 1e-3 for name, array in message.content["arrays"].items()}
    records = {
        "arrays": ArrayRecord({name: Array(np.asarray(one)) for name, one in arrays.items()}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(records), reply_to=message)


def initial_arrays() -> ArrayRecord:
    return ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})


def campaign(rounds: int, clients: int) -> Campaign:
    """Return a campaign whose server adds noise to the sum of all check-ins of a slot."""
    noise = GaussianNoise(1.0, NoiseAt.SERVER)
    return Campaign(
        name="bench",
        population_id=None,
        budget=Budget(1000.0, 1e-6, Adjacency.ADD_REMOVE),
        design=Design(Protocol.FIXED, slots=rounds, participation=1.0, randomizer=noise),
        repeats=1,
        randomizer=RandomizerConfig(RandomizerKind.GAUSSIAN, clip=1.0, grid=1e-6),
        task=Task("devices", "bench:arrays", Optimizer(1.0, divide_by=clients)),
        schedule=Schedule(datetime(2040, 1, 1, tzinfo=UTC), 10.0, 5.0),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["fedavg", "slots"], required=True)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients, rounds = options.clients, options.rounds
    nodes, ends, server = clients * rounds, [], ServerApp()

    def release(number: int, arrays: ArrayRecord) -> None:
        ends.append((time.perf_counter(), time.process_time()))

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        if options.way == "fedavg":
            strategy = FedAvg(
                fraction_train=1.0 / rounds,
                fraction_evaluate=0.0,
                min_train_nodes=clients,
                min_available_nodes=nodes,
            )
            strategy.start(grid, initial_arrays(), num_rounds=rounds, evaluate_fn=release)
            return
        with tempfile.TemporaryDirectory() as folder:
            strategy = RandomCheckIns(campaign(rounds, clients), folder, simulated_nodes=nodes)
            strategy.start(grid, initial_arrays(), evaluate_fn=release)

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client, nodes, backend_config=resources)
    gaps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ends[1:])]
    wall, processor = (statistics.median(part) for part in zip(*gaps, strict=True))
    numbers = sum(int(np.prod(shape)) for shape in SHAPES.values())
    about = {"flwr": version("flwr"), "numbers": numbers, "clients": clients}
    found = {**about, "wall_s": wall, "processor_s": processor}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
