"""What is shown of a run to anyone: nothing that depends on who was there (invariant 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from checkins.formatting import up_in_full
from checkins.service.live_run import LiveRun

MOST_RELEASES = 200
OWN_SLOT = (
    "Each client draws its own slot and takes part at most once in a run; the server calls nobody"
)
UNPROTECTED = (
    "The learning curve is measured on a public holdout, whose people are not protected.",
    "Choosing rates, features or models by looking at the clients' data is not covered.",
)


def instant(moment: float) -> str:
    """A moment in UTC, to the microsecond."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def summary(desk: LiveRun) -> dict[str, Any]:
    """One line of the list of campaigns."""
    terms = desk.terms
    return {
        "id": terms.id,
        "name": terms.campaign.name,
        "status": desk.status,
        "run": terms.number,
        "repeats": terms.campaign.repeats,
        "slots": terms.rules.slots,
        "slots_closed": desk.public.stage.closed,
        "start": instant(terms.begins(1)),
        "slot_s": terms.slot_s,
    }


def view(
    desk: LiveRun, *, epoch: int, enrolment: str, holding: str | None = None
) -> dict[str, Any]:
    """Everything public about a run, but for the time."""
    terms, standing, campaign = desk.terms, desk.public, desk.terms.campaign
    budget = campaign.budget
    certificate = finite(standing.certificate)
    return {
        **summary(desk),
        "seal": terms.seal,
        "population_id": campaign.population_id,
        "campaign": campaign.canonical(),
        "schedule": {
            "start": instant(terms.begins(1)),
            "slot_s": terms.slot_s,
            "choose_s": terms.choose_s,
            "slots": terms.rules.slots,
        },
        "affordable": terms.affordable,
        "dimension": terms.dimension,
        "tensors": [{"name": name, "shape": list(shape)} for name, shape in terms.shapes.items()],
        "model_hash": standing.model_hash,
        "ledger": {"entries": standing.ledger.entries, "head": standing.ledger.head},
        "epoch": epoch,
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "adjacency": str(budget.adjacency),
        },
        "certificate": certificate,
        "spent": finite(desk.spent),
        "promises": promises(desk, certificate),
        "assumptions": [*certificate.get("assumptions", ()), *UNPROTECTED],
        "next": desk.next_run,
        "holding": None if standing.stage.ending is not None else holding,
        "enrolment": enrolment,
    }


def promises(desk: LiveRun, certificate: Mapping[str, Any]) -> list[str]:
    """The certificate in words."""
    epsilon, delta = certificate.get("epsilon"), certificate.get("delta")
    if epsilon is None:
        return ["No finite epsilon is proved for this run: it promises nothing."]
    over, rules = desk.public.stage.ending is not None, desk.terms.rules
    neighbours = (
        "whether or not they are one of the clients"
        if certificate.get("adjacency") == "add-remove"
        else "whatever their data are"
    )
    told = [
        f"Whoever sees every model that this run {'has released' if over else 'will release'}, and"
        f" all that was released before on this population, can tell about any one person,"
        f" {neighbours}, at most what epsilon = {up_in_full(float(epsilon))} and delta = {delta!r}"
        f" allow ({certificate.get('adjacency')}, {certificate.get('method')}, rounded up).",
        f"Any odds that somebody gives about that person change at most by a factor of"
        f" {up_in_full(math.exp(min(float(epsilon), 700.0)))}, but for a chance of {delta!r}.",
    ]
    if not over and not desk.is_last:
        told.append(
            "More runs follow, and cost more: all of them together stop before epsilon ="
            f" {desk.terms.campaign.budget.epsilon!r}."
        )
    if not rules.averaged:
        return [*told, f"{OWN_SLOT}, and nothing that is shown tells how many took part."]
    told.append(f"{OWN_SLOT}. Averaged updates tell how many reports a slot took in.")
    if not over:
        told.append(
            "This counts on as many contributors as the campaign declares: with fewer it costs"
            " more, and how much is known when the run is over."
        )
    return told


def state(desk: LiveRun) -> dict[str, Any]:
    """Where a run stands, for those who listen."""
    standing = desk.public
    return {
        "slots_closed": standing.stage.closed,
        "model_hash": standing.model_hash,
        "head": standing.ledger.head,
        "entries": standing.ledger.entries,
        "spent": finite(desk.spent),
    }


def release(
    desk: LiveRun, slot: int, *, model_hash: str, head: str, entries: int
) -> dict[str, Any]:
    """What is told of the release of a slot: the same whoever was in it."""
    return {
        "slot": slot,
        "slots_closed": slot,
        "model_hash": model_hash,
        "head": head,
        "entries": entries,
        "spent": finite(desk.spent_after(slot)),
    }


def progress(desk: LiveRun, releases: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """The curve, the prices, and the latest releases."""
    return {
        "curve": [{"slots": slots, "metrics": metrics} for slots, metrics in desk.shown_curve],
        "spending": [
            {"slots": slots, "epsilon": finite(epsilon)} for slots, epsilon in desk.prices
        ],
        "releases": [{"slot": slot, "model_hash": model_hash} for slot, model_hash in releases],
    }


def finite(value: Any) -> Any:
    """The same values with null for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
