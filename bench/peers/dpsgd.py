"""Print the epsilons of other accountants for the same training, with processor times, as JSON.

Run this script in the environment of ``dpsgd.txt``. Opacus, jax_privacy and dp_accounting assume
Poisson sampling, and PLD-accounting that every example draws one step per epoch. The script also
trains with Opacus and draws batches with jax_privacy, and checks that in every epoch each example
takes part once, if the loader is changed as docs/coming-from says.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from functools import partial
from importlib.metadata import version

import dp_accounting
import numpy as np
import PLD_accounting
import torch
from jax_privacy import batch_selection
from jax_privacy.accounting import accountants, analysis
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from torch.utils.data import DataLoader, Sampler, TensorDataset

EXAMPLES = 1_000_000
"""Number of examples. Only the sampling rate, which is 1 / steps of an epoch, affects epsilon."""


class OneStepPerEpoch(Sampler):
    """In every epoch, every example draws one step uniformly and independently."""

    def __init__(self, examples: int, steps: int):
        self.examples, self.steps = examples, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        drawn = torch.randint(self.steps, (self.examples,))
        return ((drawn == step).nonzero().flatten().tolist() for step in range(self.steps))


def check_opacus(examples: int = 1000, steps: int = 20) -> None:
    """Train for two epochs, and check who takes part and by which number sums are divided."""
    data = TensorDataset(torch.arange(float(examples))[:, None], torch.zeros(examples).long())
    model = torch.nn.Linear(1, 2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-9),
        data_loader=DataLoader(data, batch_sampler=OneStepPerEpoch(examples, steps)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    assert optimizer.expected_batch_size == examples // steps
    for _ in range(2):
        used = []
        for x, y in loader:
            used += x.flatten().tolist()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert sorted(used) == list(range(examples))


def check_jax_privacy(examples: int = 1000, steps: int = 20) -> None:
    """Check that each call draws a new step for every example, and uses it once."""
    epoch = batch_selection.BallsInBinsSampling(iterations=steps, cycle_length=steps)
    first, second = (list(epoch.batch_iterator(examples)) for _ in range(2))
    for batches in (first, second):
        assert sorted(np.concatenate(batches)) == list(range(examples))
    assert any(len(one) != len(other) for one, other in zip(first, second, strict=True))


def by_opacus(name: str, noise: float, steps: int, epochs: int, delta: float) -> float:
    accountant = create_accountant(name)
    accountant.history = [(noise, 1.0 / steps, steps * epochs)]
    return float(accountant.get_epsilon(delta))


def by_jax_privacy(noise: float, steps: int, epochs: int, delta: float) -> float:
    accountant = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig())
    parameters = analysis.DpParams(
        noise_multipliers=noise,
        batch_size=EXAMPLES // steps,
        num_samples=EXAMPLES,
        delta=delta,
    )
    return float(accountant.compute_epsilon(steps * epochs, parameters))


def by_dp_accounting(noise: float, steps: int, epochs: int, delta: float) -> float:
    gaussian = dp_accounting.GaussianDpEvent(noise)
    event = dp_accounting.PoissonSampledDpEvent(1.0 / steps, gaussian)
    accountant = dp_accounting.pld.PLDAccountant().compose(event, steps * epochs)
    return float(accountant.get_epsilon(delta))


def by_pld_accounting(noise: float, steps: int, epochs: int, delta: float) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon."""
    upper, lower = PLD_accounting.gaussian_allocation_epsilon_range(
        sigma=noise, num_steps=steps, num_epochs=epochs, delta=delta
    )
    return lower, upper


ACCOUNTANTS = {
    f"Opacus {version('opacus')}, PRV": partial(by_opacus, "prv"),
    f"Opacus {version('opacus')}, RDP": partial(by_opacus, "rdp"),
    f"jax_privacy {version('jax_privacy')}, PLD": by_jax_privacy,
    f"dp_accounting {version('dp_accounting')}, PLD": by_dp_accounting,
    f"PLD-accounting {version('PLD_accounting')}, compiled": by_pld_accounting,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=json.loads, help="[[noise, steps, epochs, delta], ...]")
    warnings.simplefilter("ignore")
    check_opacus()
    check_jax_privacy()
    by_pld_accounting(1.0, 10, 2, 1e-5)  # compiles
    found = []
    for run in parser.parse_args().runs:
        for name, epsilon in ACCOUNTANTS.items():
            started = time.process_time()
            value = epsilon(*run)
            bounds = value if isinstance(value, tuple) else (None, value)
            found.append([name, *bounds, time.process_time() - started])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
