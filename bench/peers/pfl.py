"""Measure the same work in pfl-research and print client updates per second as JSON.

Run this script in the environment of ``pfl.txt``, with one process or with several by
``torch.distributed.run``. Set PYTHONSAFEPATH=1, because this file has the name of the package. The
variant ``torch`` writes the model as in pfl's examples. The variant ``closed`` computes the
gradient in closed form in numpy, in an algorithm of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from itertools import pairwise

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm, NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from pfl.stats import MappedVectorStatistics

ROWS, FEATURES, CLASSES = 60_000, 784, 10
CLIP, NOISE, RATE = 1.0, 1.0, 0.5
BLOCK = 20
"""Number of rounds in a timed block. The fastest block counts."""


class Softmax(torch.nn.Module):
    """Softmax regression that starts from zeros."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(FEATURES, CLASSES)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return self.linear(x)

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {}


class ClosedModel(Model):
    """Softmax regression whose parameters are arrays."""

    def __init__(self):
        self.weights = torch.zeros(FEATURES, CLASSES)
        self.bias = torch.zeros(CLASSES)

    def apply_model_update(self, statistics):
        self.weights -= RATE * statistics["weights"]
        self.bias -= RATE * statistics["bias"]
        return self, Metrics()


class ClosedAlgorithm(FederatedAlgorithm):
    """Compute one gradient per user in closed form."""

    def get_next_central_contexts(
        self, model, iteration, algorithm_params, model_train_params, model_eval_params=None
    ):
        if iteration == algorithm_params.central_num_iterations:
            return None, model, Metrics()
        context = CentralContext(
            current_central_iteration=iteration,
            do_evaluation=False,
            cohort_size=algorithm_params.train_cohort_size,
            population=Population.TRAIN,
            model_train_params=model_train_params,
            model_eval_params=None,
            algorithm_params=algorithm_params,
            seed=self._get_seed(),
        )
        return (context,), model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        x, y = user_dataset.raw_data
        scores = x @ model.weights.numpy() + model.bias.numpy()
        odds = np.exp(scores - scores.max())
        residuals = odds / odds.sum()
        residuals[0, y[0]] -= 1.0
        gradient = {
            "weights": torch.from_numpy(x.T * residuals),
            "bias": torch.from_numpy(residuals[0]),
        }
        return MappedVectorStatistics(gradient), Metrics()

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        statistics.average()
        return model.apply_model_update(statistics)


class Clock(TrainingProcessCallback):
    """Record the time at which each round ended."""

    def __init__(self):
        self.ends = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append(time.perf_counter())
        return False, Metrics()


def users(way: str) -> FederatedDataset:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((ROWS, FEATURES), np.float32)
    y = generator.integers(0, CLASSES, ROWS)
    if way == "torch":
        x, y = torch.from_numpy(x), torch.from_numpy(y)
    sampler = get_user_sampler("minimize_reuse", list(range(ROWS)))
    return FederatedDataset(lambda user: Dataset([x[user : user + 1], y[user : user + 1]]), sampler)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["torch", "closed"], default="torch")
    parser.add_argument("--cohort", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a gradient of 7,850 numbers is too small to share
    np.random.seed(1)

    if options.way == "torch":
        module = Softmax()
        central = torch.optim.SGD(module.parameters(), lr=1.0)
        model, algorithm = PyTorchModel(module, torch.optim.SGD, central), FederatedAveraging()
    else:
        from pfl.internal.ops import pytorch_ops
        from pfl.internal.ops.selector import set_framework_module

        set_framework_module(pytorch_ops)
        model, algorithm = ClosedModel(), ClosedAlgorithm()
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))
    data = users(options.way)
    backend = SimulatedBackend(data, data, postprocessors=[mechanism])
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=None)

    params = NNAlgorithmParams(
        central_num_iterations=(1 + options.blocks) * BLOCK,
        evaluation_frequency=10**9,
        train_cohort_size=options.cohort,
        val_cohort_size=0,
    )
    clock = Clock()
    evaluation = NNEvalHyperParams(local_batch_size=None)
    algorithm.run(
        params, backend, model, train, evaluation, [clock], send_metrics_to_platform=False
    )
    ends = clock.ends[BLOCK - 1 :: BLOCK]  # the first block warms up
    best = BLOCK * options.cohort / min(after - before for before, after in pairwise(ends))
    distributed = get_default_framework_module().distributed
    if distributed.global_rank == 0:
        print(
            json.dumps(
                {
                    "peer": "pfl-research",
                    "version": version("pfl"),
                    "torch": version("torch"),
                    "way": options.way,
                    "workers": distributed.world_size,
                    "cohort": options.cohort,
                    "client_updates_per_second": best,
                }
            )
        )
    if distributed.world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
