"""Responses about a run: its view (all public facts as JSON), model, progress and events.

The view and the model are cached until the run changes. Everything here is public, and nothing
depends on which clients took part (invariant 7).
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, cast

from checkins.campaign import Campaign, DataFile
from checkins.campaign.task import DataSet
from checkins.formatting import up_in_full
from checkins.protocol import wire
from checkins.protocol.report import model_to_bytes
from checkins.service.runs.live_run import LiveRun
from checkins.service.store.run_state import RunSnapshot, RunSpec
from checkins.tasks.model import unflatten

MAX_RELEASES_SHOWN = 200  # ``progress`` shows the releases of this many latest slots
OWN_SLOT_PROMISE = (
    "Each client draws its own slot and takes part at most once in a run; the server contacts"
    " no client"
)
"""The beginning of a sentence of ``promises``."""
HOLDOUT_NOTE = "The learning curve is measured on a public holdout, whose people are not protected."
"""What the view adds to the assumptions of the certificate if the campaign has a holdout."""
CHOICES_NOTE = "Choosing rates, features or models by looking at the clients' data is not covered."
"""What the view adds to the assumptions of every certificate."""


def summary(live_run: LiveRun) -> wire.Summary:
    """Return the entry of a run in the list of campaigns."""
    spec = live_run.spec
    return {
        "id": spec.id,
        "name": spec.campaign.name,
        "status": live_run.status,
        "run": spec.number,
        "repeats": spec.campaign.repeats,
        "slots": spec.rules.slots,
        "slots_closed": live_run.public_snapshot.state.closed,
        "start": wire.format_time(spec.run_schedule.begins(1)),
        "slot_s": spec.run_schedule.slot_s,
    }


def view(
    live_run: LiveRun,
    *,
    epoch: int,
    enrolment: str,
    holding: str | None = None,
    signing_key: str | None = None,
) -> wire.RunView:
    """Return everything that is public about a run, except the server's time.

    ``epoch`` counts the starts on the store, and ``enrolment`` says who may enrol. ``holding`` is
    the reason why no slot closes now, or None if slots close on time. ``signing_key`` is the public
    key that signs heads of the ledger, or None.
    """
    spec, snapshot, campaign = live_run.spec, live_run.public_snapshot, live_run.spec.campaign
    budget = campaign.budget
    certificate = replace_nonfinite(snapshot.certificate)
    return {
        **summary(live_run),
        "seal": spec.seal,
        "population_id": campaign.population_id,
        "campaign": campaign.canonical(),
        "schedule": {
            "start": wire.format_time(spec.run_schedule.begins(1)),
            "slot_s": spec.run_schedule.slot_s,
            "choose_s": spec.run_schedule.choose_s,
            "slots": spec.rules.slots,
        },
        "affordable": spec.affordable,
        "dimension": spec.dimension,
        "tensors": [{"name": name, "shape": list(shape)} for name, shape in spec.shapes.items()],
        "model_hash": snapshot.model_hash,
        "ledger": {"entries": snapshot.ledger.entries, "head": snapshot.ledger.head},
        "epoch": epoch,
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "adjacency": cast(Any, str(budget.adjacency)),
        },
        "certificate": certificate,
        "spent": replace_nonfinite(live_run.spent),
        "promises": promises(live_run, certificate),
        "assumptions": [*certificate.get("assumptions", ()), *not_protected_notes(campaign)],
        "next": live_run.next_run,
        "holding": None if snapshot.state.ending is not None else holding,
        "signing_key": signing_key,
        "enrolment": cast(Any, enrolment),
    }


def not_protected_notes(campaign: Campaign) -> tuple[str, ...]:
    """Return what no certificate of this campaign covers, in words."""
    data = None if campaign.task is None else campaign.task.data
    has_holdout = data.holdout > 0.0 if isinstance(data, DataFile) else data in list(DataSet)
    return (HOLDOUT_NOTE, CHOICES_NOTE) if has_holdout else (CHOICES_NOTE,)


def promises(live_run: LiveRun, certificate: Mapping[str, Any]) -> list[str]:
    """Return the guarantee of a certificate in words, for the web page."""
    epsilon, delta = certificate.get("epsilon"), certificate.get("delta")
    if epsilon is None:
        return ["No finite epsilon is proved for this run, so it gives no guarantee."]
    is_over, rules = live_run.public_snapshot.state.ending is not None, live_run.spec.rules
    neighbour_clause = (
        "whether or not they are one of the clients"
        if certificate.get("adjacency") == "add-remove"
        else "whatever their data are"
    )
    sentences = [
        f"All models that this run {'has released' if is_over else 'will release'}, together with"
        f" all earlier releases on this population, reveal about any one person,"
        f" {neighbour_clause}, at most epsilon = {up_in_full(float(epsilon))} with delta ="
        f" {delta!r} ({certificate.get('adjacency')}, {certificate.get('method')}, rounded up).",
        f"Between these cases, the probability of anything that the models may show differs by at"
        f" most a factor of {up_in_full(math.exp(min(float(epsilon), 700.0)))}, and by {delta!r}"
        " more.",
    ]
    if not is_over and not live_run.is_last:
        sentences.append(
            "More runs follow, and epsilon grows with each. No run releases a model that would"
            f" bring the total above epsilon = {live_run.spec.campaign.budget.epsilon!r}."
        )
    if not rules.is_averaged:
        return [*sentences, f"{OWN_SLOT_PROMISE}, and nothing public reveals how many took part."]
    sentences.append(f"{OWN_SLOT_PROMISE}. Averaged updates reveal how many reports a slot used.")
    least_reports = rules.least_reports
    if least_reports > 1:
        sentences.append(f"A slot with fewer than {least_reports:,} reports changes no model.")
    elif not is_over:
        sentences.append(
            "This assumes as many contributors as the campaign declares. With fewer, epsilon is"
            " larger, and the certificate at the end of the run states it."
        )
    return sentences


def state_event(live_run: LiveRun) -> wire.StateEvent:
    """Return the data of a server-sent event ``state``."""
    snapshot = live_run.public_snapshot
    return {
        "slots_closed": snapshot.state.closed,
        "model_hash": snapshot.model_hash,
        "head": snapshot.ledger.head,
        "entries": snapshot.ledger.entries,
        "spent": replace_nonfinite(live_run.spent),
    }


def release_event(
    live_run: LiveRun, slot: int, *, model_hash: str, head: str, entries: int
) -> wire.ReleaseEvent:
    """Return the data of a server-sent event ``release``.

    ``head`` and ``entries`` are the hash and the position of the slot's line in the ledger.
    """
    return {
        "slot": slot,
        "slots_closed": slot,
        "model_hash": model_hash,
        "head": head,
        "entries": entries,
        "spent": replace_nonfinite(live_run.spent_after(slot)),
    }


def progress(live_run: LiveRun, releases: Sequence[tuple[int, str]]) -> wire.Progress:
    """Return the learning curve, the epsilons computed so far, and the latest releases."""
    return {
        "curve": [{"slots": slots, "metrics": metrics} for slots, metrics in live_run.public_curve],
        "spending": [
            {"slots": slots, "epsilon": replace_nonfinite(epsilon)}
            for slots, epsilon in live_run.epsilons
        ],
        "releases": [{"slot": slot, "model_hash": model_hash} for slot, model_hash in releases],
    }


def replace_nonfinite(value: Any) -> Any:
    """Return a JSON value in which None replaces every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return value


def cached_view(live_run: LiveRun, *, now: float, **facts: Any) -> bytes:
    """Return the view and the server's time as JSON. The view is cached until the run changes.

    ``facts`` are the keyword arguments of ``view``.
    """
    if live_run.cached_view is None:
        content = view(live_run, **facts)
        live_run.cached_view = json.dumps(content).encode()
    return live_run.cached_view[:-1] + b', "server_time": "%b"}' % wire.format_time(now).encode()


def cached_model(live_run: LiveRun, snapshot: RunSnapshot) -> bytes:
    """Return the model of a snapshot as safetensors. Only the last model is cached."""
    head = snapshot.ledger.head
    if head not in live_run.cached_models:
        live_run.cached_models = {head: model_bytes(live_run.spec, snapshot)}
    return live_run.cached_models[head]


def outcome_with_model(
    live_run: LiveRun, slot: int, outcome: wire.OutcomeName, *, receipt: str
) -> bytes:
    """Return an ``OutcomeWithModel`` as JSON, with the model only if the outcome is ``chosen``.

    All clients with the same outcome share all of it except for the receipt, so that is cached.
    ``LiveRun.outcome`` returns ``chosen`` only for a choice that is durable (invariant 4).
    """
    head = live_run.snapshot.ledger.head
    key = (slot, outcome, head)
    if key not in live_run.cached_outcomes:
        model = None
        if outcome == "chosen" and live_run.snapshot.state.slot == slot:
            encoded = cached_model(live_run, live_run.snapshot)
            if len(encoded) <= wire.MAX_INLINE_MODEL_BYTES:
                model = b64encode(encoded).decode("ascii")
        shared = wire.to_json(
            {
                "slot": slot,
                "outcome": outcome,
                "ends": wire.format_time(live_run.spec.run_schedule.ends(slot)),
                "model": model,
            }
        )
        others = live_run.cached_outcomes.items()
        live_run.cached_outcomes = {k: body for k, body in others if k[2] == head} | {key: shared}
    return b'{"receipt":"%b",%b' % (receipt.encode(), live_run.cached_outcomes[key][1:])


def model_bytes(spec: RunSpec, snapshot: RunSnapshot) -> bytes:
    """Return the model of a snapshot as safetensors with named float64 tensors.

    ``model_hash`` in the metadata is the hash of the flattened model, as in the ledger.
    """
    return model_to_bytes(
        unflatten(snapshot.learner.model, spec.shapes),
        {
            "seal": spec.seal,
            "run": str(spec.number),
            "slot": str(snapshot.state.closed),
            "model_hash": snapshot.model_hash,
            "head": snapshot.ledger.head,
        },
    )
