"""A release of a run as bytes, with what is known of it."""

from __future__ import annotations

from checkins.protocol.report import model_to_bytes
from checkins.service.live_run import LiveRun
from checkins.service.store.records import RunSnapshot
from checkins.tasks.tensors import unflatten


def released_model(desk: LiveRun, standing: RunSnapshot) -> bytes:
    """Named float64 tensors as safetensors; laid flat, their hash stands in the ledger."""
    made = desk.models.get(standing.ledger.head)
    if made is None:
        made = _bytes(desk, standing)
        desk.models = {standing.ledger.head: made}  # the last one: everyone asks for that
    return made


def _bytes(desk: LiveRun, standing: RunSnapshot) -> bytes:
    return model_to_bytes(
        unflatten(standing.learner.model, desk.terms.shapes),
        {
            "seal": desk.terms.seal,
            "run": str(desk.terms.number),
            "slot": str(standing.stage.closed),
            "model_hash": standing.model_hash,
            "head": standing.ledger.head,
        },
    )
