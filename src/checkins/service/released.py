"""A release of a run as bytes, with what is known of it."""

from __future__ import annotations

from checkins.protocol.encoding import model_to_bytes
from checkins.protocol.ledger.entry import hashed
from checkins.service.desk import Desk
from checkins.service.store.records import Standing
from checkins.tasks.tensors import unflatten


def released_model(desk: Desk, standing: Standing) -> bytes:
    """Named float64 tensors as safetensors; laid flat, their hash stands in the ledger."""
    return model_to_bytes(
        unflatten(standing.learner.model, desk.terms.shapes),
        {
            "seal": desk.terms.seal,
            "run": str(desk.terms.number),
            "slot": str(standing.stage.closed),
            "model_hash": hashed(standing.learner.model),
            "head": standing.ledger.head,
        },
    )
