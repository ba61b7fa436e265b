"""A result as plain values: the keys that were promised, finite numbers, true counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from checkins.simulation import report
from checkins.simulation.baselines import Baseline
from checkins.simulation.engine.evaluation import CurvePoint
from checkins.simulation.result import BaselineResult, DataSummary, SimulationResult, SweepResult
from checkins.simulation.study import Study
from tests.simulation import results, tiny

PROMISED = {
    "simulated": bool,
    "complete": bool,
    "campaign": {"name": str, "seal": str, "text": str},
    "model": {"name": str, "dimension": int},
    "data": {"name": str, "clients": int, "rows": int, "classes": int, "holdout_rows": int},
    "scenario": {"clients": int, "reused": bool, "availability": str, "dropout": float},
    "metrics": {"accuracy": float, "auc": float, "loss": float},
    "certificate": {"epsilon": float, "delta": float, "method": str, "assumptions": list},
    "slots": int,
    "check_ins": int,
    "dummies": int,
    "client_updates": int,
    "seconds": float,
    "client_updates_per_second": float,
    "seeds": list,
    "spent": {"slots": list, "epsilon": list},
    "occupancy": {"check_ins": list, "width": int, "measured": list, "expected": list},
    "dummies_expected": float,
    "baselines": list,
    "versions": {"checkins": str, "jax": str, "numpy": str},
}


def holds(found: Any, promised: Any) -> None:
    if isinstance(promised, dict):
        for key, inner in promised.items():
            holds(found[key], inner)
    else:
        assert isinstance(found, promised)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("result")
    tiny.write(folder, tiny.text())
    study = Study(
        (({}, tiny.campaign()),),
        str(folder),
        seeds=(1, 2),
        baselines=(Baseline.NON_PRIVATE, Baseline.NO_AMPLIFICATION),
        evaluations=3,
        notes=("mind this",),
    )
    prepared = study.prepare()
    try:
        result = prepared.result(prepared.run())
    finally:
        prepared.close()
    assert isinstance(result, SimulationResult)
    return result.as_json()


def test_every_promised_key_is_there_with_its_type(found: dict[str, Any]) -> None:
    holds(found, PROMISED)
    for seed in found["seeds"]:
        holds(
            seed,
            {
                "seed": int,
                "metrics": {"loss": float},
                "check_ins": int,
                "dummies": int,
                "client_updates": int,
                "slots_done": int,
                "complete": bool,
                "seconds": float,
                "curve": {"slots": list, "loss": list, "accuracy": list, "auc": list},
            },
        )


def test_the_json_of_a_result_is_finite(found: dict[str, Any]) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_counts_and_shares_add_up(found: dict[str, Any]) -> None:
    assert found["complete"]
    assert found["notes"] == ["mind this"]
    assert found["check_ins"] == tiny.CLIENTS  # participation 1, always online
    assert found["client_updates"] + found["dummies"] == tiny.SLOTS * 12
    assert found["data"]["rows"] == 2 * tiny.CLIENTS
    assert found["seconds"] == pytest.approx(sum(seed["seconds"] for seed in found["seeds"]))
    bins = found["occupancy"]
    assert len(bins["check_ins"]) == len(bins["measured"]) == len(bins["expected"]) <= 60
    assert sum(bins["measured"]) == pytest.approx(1.0)
    assert sum(bins["expected"]) == pytest.approx(1.0, abs=1e-4)
    assert found["spent"]["slots"] == [1, 2, 3, 4, 5, 6]
    assert found["spent"]["epsilon"] == sorted(found["spent"]["epsilon"])
    assert found["spent"]["epsilon"][-1] == pytest.approx(found["certificate"]["epsilon"])


def test_metrics_are_means_over_seeds_and_the_spread_is_theirs(found: dict[str, Any]) -> None:
    for name in ("loss", "accuracy", "auc"):
        values = [seed["metrics"][name] for seed in found["seeds"]]
        assert found["metrics"][name] == fmean(values)
        assert found["spread"][name] == stdev(values)
    assert found["metrics_on"] == "clients"  # the table has no holdout


def test_an_average_has_metrics_and_curves_of_its_own(found: dict[str, Any]) -> None:
    averaged = results.averaged().as_json()
    seeds = [seed["average_metrics"]["auc"] for seed in averaged["seeds"]]
    assert averaged["average_metrics"]["auc"] == pytest.approx(fmean(seeds))
    assert averaged["average_spread"]["auc"] == pytest.approx(stdev(seeds))
    assert averaged["average_metrics"]["auc"] == pytest.approx(averaged["metrics"]["auc"] + 0.05)
    assert all(
        seed["average_curve"]["auc"][-1] == auc
        for seed, auc in zip(averaged["seeds"], seeds, strict=True)
    )
    assert (found["average_metrics"], found["average_spread"]) == ({}, None)
    assert found["seeds"][0]["average_curve"] == {"slots": []}


def test_baselines_have_a_curve_for_each_seed(found: dict[str, Any]) -> None:
    free, known = found["baselines"]
    assert (free["name"], known["name"]) == ("non-private", "no-amplification")
    assert (free["epsilon"], free["adjacency"], free["noise"]) == (None, None, "none")
    assert known["epsilon"] == found["certificate"]["epsilon"]
    assert known["noise"].startswith("Gaussian")
    for baseline in (free, known):
        assert baseline["unavailable"] is None
        assert len(baseline["curves"]) == 2
        assert set(baseline["metrics"]) == set(found["metrics"])
    assert free["metrics"]["auc"] > found["metrics"]["auc"]


def test_the_campaigns_text_is_a_file_that_can_be_simulated(
    found: dict[str, Any], tmp_path: Path
) -> None:
    again = tiny.campaign(found["campaign"]["text"])
    assert again == tiny.campaign()
    assert again.seal == found["campaign"]["seal"]


@pytest.mark.parametrize("kind", [SimulationResult, SweepResult, BaselineResult, DataSummary])
def test_a_result_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen


def test_the_report_takes_results_and_reads_no_json() -> None:
    for path in Path(report.__file__).parent.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert '.get("' not in source, path.name
        assert "Mapping[str, Any]" not in source, path.name


def test_the_json_of_a_sweep_is_a_list_with_the_settings_and_the_command() -> None:
    sweep = replace(results.sweep(), command="checkins simulate a.toml")
    found = sweep.as_json()
    assert list(found) == ["sweep", "command"]
    assert [one["settings"]["protocol.slots"] for one in found["sweep"]] == [50, 100, 200, 400]
    assert "command" not in found["sweep"][0]


def test_one_seed_has_no_spread() -> None:
    [one, other] = results.patients(seeds=2).seeds
    one, other = (
        replace(seed, curve=(CurvePoint(1, {"loss": loss}),))
        for seed, loss in ((one, 1.0), (other, 3.0))
    )
    whole = results.patients().baselines[0]
    for seeds, mean, spread in (
        ((), {}, None),
        ((one,), {"loss": 1.0}, None),
        ((one, other), {"loss": 2.0}, {"loss": pytest.approx(2**0.5)}),
        ((one, replace(other, curve=())), {}, None),  # one of them diverged
    ):
        found = replace(whole, seeds=seeds)
        assert (found.metrics, found.spread) == (mean, spread)
