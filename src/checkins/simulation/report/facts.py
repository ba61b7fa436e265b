"""What the page takes from a result: which metric speaks, the budget, the capacity, the methods."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from checkins.simulation.report.numbers import METRICS, MISSING, finite

Result = Mapping[str, Any]

METHODS = {
    "non-private": "non-private",
    "poisson": "Poisson DP-SGD",
    "shuffling": "shuffling",
    "no-amplification": "no amplification",
}
THIS = "random check-ins"


def metrics_of(result: Result) -> list[str]:
    """The metrics that have a value, the one that speaks for the model first."""
    values = result.get("metrics") or {}
    names = [*METRICS, *sorted(set(values) - set(METRICS))]
    return [name for name in names if finite(values.get(name)) is not None]


def headline(result: Result) -> str | None:
    """The metric of the page, None where there is no holdout."""
    names = metrics_of(result)
    return names[0] if names else None


def on_holdout(result: Result) -> bool:
    """Whether the metrics are of public rows; without a holdout they are of the clients' own."""
    return str(result.get("metrics_on") or "holdout") == "holdout"


def where(result: Result) -> str:
    """The rows that the metrics are measured on."""
    return "the public holdout" if on_holdout(result) else "the clients' own rows"


def measured_seeds(result: Result) -> int:
    """How many seeds the metrics are means over."""
    return sum(bool(seed.get("metrics")) for seed in result.get("seeds") or ())


def method_name(baseline: Result) -> str:
    name = str(baseline.get("name", ""))
    return METHODS.get(name, name)


def available(result: Result) -> list[Result]:
    """The baselines that were run."""
    return [one for one in result.get("baselines") or () if not one.get("unavailable")]


def baseline(result: Result, name: str) -> Result | None:
    """A baseline that was run, by its name."""
    return next((one for one in available(result) if one.get("name") == name), None)


def campaign_name(result: Result) -> str:
    return str((result.get("campaign") or {}).get("name") or "campaign")


def setting(result: Result, section: str, key: str) -> Any:
    """A value of the campaign's file; None where the file does not say it or cannot be read."""
    try:
        table = tomllib.loads(str((result.get("campaign") or {}).get("text") or ""))
    except tomllib.TOMLDecodeError:
        return None
    part = table.get(section)
    return part.get(key) if isinstance(part, dict) else None


def budget(result: Result) -> float | None:
    """The epsilon that may be spent, said in the result or else in the campaign's file."""
    stated = finite((result.get("budget") or {}).get("epsilon"))
    if stated is not None:
        return stated
    return finite(setting(result, "budget", "epsilon"))


def over_budget(result: Result) -> bool:
    """Whether the campaign costs more than it may: as the result says, else by its numbers."""
    stated = result.get("within_budget")
    if isinstance(stated, bool):
        return not stated
    epsilon, allowed = finite(certificate(result).get("epsilon")), budget(result)
    return epsilon is not None and allowed is not None and not epsilon <= allowed


def diverged(result: Result) -> bool:
    """Whether the numbers of its model grew beyond all bounds, so that it has no metric."""
    return result.get("diverged") is True


def capacity(result: Result) -> float | None:
    """How many check-ins a slot uses at most; None where it uses all."""
    return finite(setting(result, "protocol", "capacity"))


def certificate(result: Result) -> Result:
    return result.get("certificate") or {}


def same_price(result: Result, one: Result) -> bool:
    """Whether a method was given this campaign's epsilon, to a hundredth of it."""
    own = finite((result.get("certificate") or {}).get("epsilon"))
    other = finite(one.get("epsilon"))
    return own is not None and other is not None and abs(own - other) <= 0.01 * own


def said(certificate: Result, key: str) -> str:
    """A word of a certificate, or a dash."""
    return str(certificate.get(key) or MISSING)
