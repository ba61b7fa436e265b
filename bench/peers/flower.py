"""Measure the same work in Flower's simulation and print client updates per second as JSON.

Run this script in the environment of ``flower.txt``. The variant ``grid`` has a server that handles
the messages itself, which is the fastest way in Flower. The variant ``strategy`` uses NumPyClient
and FedAvg, as in Flower's tutorials. Clients clip gradients; the server adds noise to the sum.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import time
from importlib.metadata import version
from itertools import pairwise

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

ROWS, FEATURES, CLASSES = 60_000, 784, 10
CLIP, NOISE, RATE = 1.0, 1.0, 0.5
BLOCK = 5
"""Number of rounds in a timed block. The fastest block counts."""


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    """Return the rows. Each worker process draws them once."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((ROWS, FEATURES), np.float32)
    return rows, generator.integers(0, CLASSES, ROWS)


def update(arrays: list[np.ndarray], row: int) -> list[np.ndarray]:
    """Return the clipped gradient at one row."""
    weights, bias = arrays
    rows, labels = data()
    x = rows[row]
    scores = x @ weights + bias
    odds = np.exp(scores - scores.max())
    residuals = odds / odds.sum()
    residuals[labels[row]] -= 1.0
    norm = float(np.sqrt((residuals @ residuals) * (x @ x + 1.0)))
    residuals = (residuals * min(1.0, CLIP / norm)).astype(np.float32)
    return [np.outer(x, residuals), residuals]


class Model:
    """The model on the server."""

    def __init__(self) -> None:
        self.arrays = [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]
        self.generator = np.random.default_rng(2)

    def step(self, updates: list[list[np.ndarray]]) -> None:
        for place, array in enumerate(self.arrays):
            total = sum(one[place] for one in updates)
            total = total + NOISE * CLIP * self.generator.standard_normal(array.shape, np.float32)
            self.arrays[place] = array - np.float32(RATE / len(updates)) * total


grid_client = ClientApp()


@grid_client.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content["model"].to_numpy_ndarrays()
    found = update(arrays, message.content["row"]["row"])
    return Message(RecordDict({"update": ArrayRecord(found)}), reply_to=message)


def by_grid(cohort: int, rounds: int, ends: list[float]) -> tuple[ServerApp, ClientApp]:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model, generator = Model(), np.random.default_rng(3)
        while len(nodes := list(grid.get_node_ids())) < cohort:
            time.sleep(0.1)
        grid.pull_interval = 0.002
        for _ in range(rounds):
            record = ArrayRecord(model.arrays)
            rows = generator.choice(ROWS, cohort, replace=False).tolist()
            contents = [
                RecordDict({"model": record, "row": ConfigRecord({"row": row})}) for row in rows
            ]
            messages = [
                Message(content, node, "train")
                for content, node in zip(contents, nodes, strict=True)
            ]
            replies = grid.send_and_receive(messages)
            model.step([reply.content["update"].to_numpy_ndarrays() for reply in replies])
            ends.append(time.perf_counter())

    return server, grid_client


class Client(NumPyClient):
    def fit(self, parameters, config):
        return update(parameters, config["row"]), 1, {}


def new_client(context: Context):
    return Client().to_client()


def by_strategy(cohort: int, rounds: int, ends: list[float]) -> tuple[ServerApp, ClientApp]:
    model = Model()

    class Noisy(FedAvg):
        def configure_fit(self, server_round, parameters, client_manager):
            fits = super().configure_fit(server_round, parameters, client_manager)
            rows = np.random.default_rng(server_round).choice(ROWS, cohort, replace=False)
            for (_, fit), row in zip(fits, rows.tolist(), strict=True):
                fit.config = {"row": row}
            return fits

        def aggregate_fit(self, server_round, results, failures):
            model.step([parameters_to_ndarrays(fit.parameters) for _, fit in results])
            ends.append(time.perf_counter())
            return ndarrays_to_parameters(model.arrays), {}

    def components(context: Context) -> ServerAppComponents:
        strategy = Noisy(
            fraction_evaluate=0.0,
            min_fit_clients=cohort,
            min_available_clients=cohort,
            initial_parameters=ndarrays_to_parameters(model.arrays),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    return ServerApp(server_fn=components), ClientApp(new_client)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["grid", "strategy"], default="grid")
    parser.add_argument("--cohort", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends: list[float] = []
    make = by_grid if options.way == "grid" else by_strategy
    server, client = make(options.cohort, (1 + options.blocks) * BLOCK, ends)
    run_simulation(
        server,
        client,
        num_supernodes=options.cohort,
        backend_config={
            "init_args": {"num_cpus": options.workers},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    blocks = ends[BLOCK - 1 :: BLOCK]  # the first block warms up
    best = BLOCK * options.cohort / min(after - before for before, after in pairwise(blocks))
    print(
        json.dumps(
            {
                "peer": "Flower",
                "version": version("flwr"),
                "ray": version("ray"),
                "way": options.way,
                "workers": options.workers,
                "cohort": options.cohort,
                "client_updates_per_second": best,
            }
        )
    )


if __name__ == "__main__":
    import flower  # by its own name: workers then import clients instead of unpickling their code

    flower.main()
