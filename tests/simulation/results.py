"""Results as a simulation would give them, made up to look at the report and to test it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

Result = dict[str, Any]

CLIENTS, SLOTS, CAPACITY, SEEDS = 17_549, 200, 96, 5
WIDTH = 3
TEXT = (
    (Path(__file__).resolve().parents[2] / "examples" / "patients.toml")
    .read_text("utf-8")
    .replace("capacity = 176", f"capacity = {CAPACITY}")
)


def patients(*, seeds: int = SEEDS, slots: int = SLOTS) -> Result:
    """A whole campaign with every piece that a page can show."""
    dice = np.random.default_rng(7)
    runs = [_seed(seed, slots, dice) for seed in range(1, seeds + 1)]
    end = [run["metrics"] for run in runs]
    found = {
        "simulated": True,
        "complete": True,
        "campaign": {"name": "patients", "seal": "5f1d0c9a" * 8, "text": TEXT},
        "model": {"name": "logistic", "dimension": 21},
        "data": {
            "name": "patients",
            "clients": CLIENTS,
            "rows": CLIENTS,
            "classes": 2,
            "holdout_rows": 3_510,
        },
        "scenario": {
            "clients": CLIENTS,
            "reused": False,
            "availability": "always",
            "dropout": 0.0,
        },
        "metrics": {name: float(np.mean([one[name] for one in end])) for name in end[0]},
        "spread": {
            name: float(np.std([one[name] for one in end], ddof=1)) if seeds > 1 else None
            for name in end[0]
        },
        "certificate": certificate(),
        "slots": slots,
        "check_ins": runs[0]["check_ins"],
        "dummies": runs[0]["dummies"],
        "client_updates": runs[0]["client_updates"],
        "seconds": 2.31,
        "client_updates_per_second": 36_614.7,
        "seeds": runs,
        "spent": _spent(slots),
        "occupancy": _occupancy(slots, dice),
        "dummies_expected": _expected_dummies(slots),
        "baselines": baselines(seeds, slots, dice),
        "versions": {"python": "3.11.7", "checkins": "0.1.0", "jax": "0.10.2"},
    }
    return copy.deepcopy(found)


def without_holdout() -> Result:
    """Nothing to measure a model on, and nothing to compare it with."""
    result = patients()
    result |= {"metrics": {}, "spread": {}, "baselines": []}
    result["data"]["holdout_rows"] = 0
    for seed in result["seeds"]:
        seed |= {"metrics": {}, "curve": {"slots": [], "loss": [], "accuracy": [], "auc": []}}
    return result


def stopped() -> Result:
    """What Ctrl-C leaves: two seeds done, the third on its way."""
    result = patients(seeds=3)
    result["complete"] = False
    last = result["seeds"][-1]
    last |= {"complete": False, "slots_done": 80, "metrics": {}}
    last["curve"] = {name: values[:9] for name, values in last["curve"].items()}
    return result


def sweep(key: str = "protocol.slots", values: tuple[Any, ...] = (50, 100, 200, 400)) -> Result:
    """A campaign at several settings."""
    runs = []
    for place, value in enumerate(values):
        slots = value if key == "protocol.slots" else SLOTS
        run = patients(seeds=3, slots=slots)
        run["settings"] = {key: value}
        run["certificate"]["epsilon"] *= 1.0 + 0.2 * place
        run["metrics"]["auc"] += 0.004 * place - 0.002 * place**2
        runs.append(run)
    return {"sweep": runs}


def over_budget(budget: float = 0.2) -> Result:
    """A campaign that costs more than it may."""
    result = patients()
    result |= {"within_budget": False, "noise": "Gaussian, 0.1 clips on each report, 0.98 on a sum"}
    result["budget"] = {"epsilon": budget, "delta": 1e-6, "adjacency": "add-remove"}
    return result


def sweep_over_budget(over: tuple[int, ...] = (1,), diverged: tuple[int, ...] = ()) -> Result:
    """A sweep whose settings at some places cost too much, or have no model in the end."""
    result = sweep()
    for place, run in enumerate(result["sweep"]):
        run |= {"within_budget": place not in over, "diverged": place in diverged}
        if place in diverged:
            run |= {"metrics": {}, "spread": {}}
    return result


def certificate() -> Result:
    return {
        "epsilon": 0.2505022389725925,
        "epsilon_lower": 0.2502631852099479,
        "delta": 1e-06,
        "adjacency": "add-remove",
        "unit": "one client's whole contribution",
        "method": "exact-population",
        "rounding": "epsilon is rounded up, epsilon_lower down",
        "campaigns": 1,
        "variation": 1.1e-26,
        "assumptions": [
            "the server is trusted, clients are honest, their channels hidden; every release is"
            " seen",
            "each client takes part with probability at most 1 and draws its slot uniformly from"
            " 200, independently of all else",
            "updates are clipped; noise is Gaussian, exact on the device's grid",
            "every slot sums exactly 96 reports, dummies included",
            "clients do not disclose whether they were chosen",
            "at most 20,000 clients exist, each of which checks in to any one slot with probability"
            " at most 1.0/200",
        ],
        "alternatives": [
            {
                "method": "exact",
                "epsilon": 2.6237897294840318,
                "note": "needs neither the population nor the model",
                "proves": True,
            },
            {
                "method": "poisson",
                "epsilon": 0.28314619581400474,
                "note": "a server samples each client with probability 0.005 in each of 200 steps",
                "proves": False,
            },
        ],
        "seconds": 0.465,
        "versions": {"python": "3.11.7", "checkins": "0.1.0"},
    }


def baselines(seeds: int, slots: int, dice: np.random.Generator) -> list[Result]:
    """Three that ran, and one that could not."""
    ran = (
        ("non-private", "the same steps without clipping or noise", None, "none", 0.868, 0.0012),
        (
            "poisson",
            "the server samples clients, and adds the noise",
            0.2505,
            "1.21 × clip at the server",
            0.846,
            0.0035,
        ),
        (
            "no-amplification",
            "each client pays for its report alone",
            0.2505,
            "1.92 × clip at the client",
            0.701,
            0.016,
        ),
    )
    found: list[Result] = []
    for name, what, epsilon, noise, level, jitter in ran:
        curves = [_curve(slots, level, jitter, dice) for _ in range(seeds)]
        ends = {key: [curve[key][-1] for curve in curves] for key in ("auc", "accuracy", "loss")}
        found.append(
            {
                "name": name,
                "what": what,
                "epsilon": epsilon,
                "delta": None if epsilon is None else 1e-6,
                "adjacency": "add-remove",
                "noise": noise,
                "metrics": {key: float(np.mean(values)) for key, values in ends.items()},
                "spread": {
                    key: float(np.std(values, ddof=1)) if seeds > 1 else None
                    for key, values in ends.items()
                },
                "curves": curves,
                "unavailable": None,
            }
        )
    found.append(
        {
            "name": "shuffling",
            "what": "a trusted shuffler mixes one report of each client",
            "epsilon": None,
            "delta": None,
            "adjacency": "add-remove",
            "noise": "",
            "metrics": {},
            "spread": {},
            "curves": [],
            "unavailable": "its bound needs replace-one neighbours",
        }
    )
    return found


def _seed(seed: int, slots: int, dice: np.random.Generator) -> Result:
    curve = _curve(slots, 0.841, 0.010, dice)
    counts = dice.multinomial(CLIENTS, [1.0 / slots] * slots)
    used = int(np.minimum(counts, CAPACITY).sum())
    return {
        "seed": seed,
        "metrics": {name: curve[name][-1] for name in ("accuracy", "auc", "loss")},
        "check_ins": CLIENTS,
        "dummies": slots * CAPACITY - used,
        "client_updates": used,
        "slots_done": slots,
        "complete": True,
        "seconds": 0.46,
        "curve": curve,
    }


def _curve(slots: int, level: float, jitter: float, dice: np.random.Generator) -> Result:
    """A rise from chance to ``level`` that shakes less and less."""
    at = np.unique(np.linspace(0, slots, 21).round().astype(int))
    rise = 1.0 - np.exp(-at / (0.18 * slots))
    own = level + dice.normal(0.0, jitter)
    auc = 0.5 + (own - 0.5) * rise + dice.normal(0.0, jitter, at.size) * (1.0 - 0.6 * rise)
    accuracy = 0.60 + 0.9 * (auc - 0.5)
    loss = 0.693 - 0.95 * (auc - 0.5)
    return {
        "slots": at.tolist(),
        "auc": auc.tolist(),
        "accuracy": accuracy.tolist(),
        "loss": loss.tolist(),
    }


def _spent(slots: int) -> Result:
    at = np.unique(np.linspace(1, slots, 40).round().astype(int))
    epsilon = certificate()["epsilon"] * (at / slots) ** 0.56
    return {"slots": at.tolist(), "epsilon": epsilon.tolist()}


def _occupancy(slots: int, dice: np.random.Generator) -> Result:
    law = binom(CLIENTS, 1.0 / slots)
    low, high = int(law.ppf(1e-4)), int(law.ppf(1.0 - 1e-4))
    edges = np.arange(low, high + WIDTH + 1, WIDTH)
    counts = dice.multinomial(CLIENTS, [1.0 / slots] * slots)
    measured = np.histogram(counts, edges)[0] / slots
    expected = np.diff(law.cdf(edges - 1))
    return {
        "check_ins": edges[:-1].tolist(),
        "width": WIDTH,
        "measured": measured.tolist(),
        "expected": expected.tolist(),
    }


def _expected_dummies(slots: int) -> float:
    counts = np.arange(CAPACITY + 1)
    return float(slots * ((CAPACITY - counts) * binom(CLIENTS, 1.0 / slots).pmf(counts)).sum())
