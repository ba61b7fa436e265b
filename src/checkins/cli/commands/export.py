"""`checkins export`: save the latest released model of a campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkins.cli import params, remote, terminal
from checkins.cli.errors import UsageError, missing_extra, quoted
from checkins.cli.params import GivenOptions, Texts, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Place = Annotated[str, typer.Argument(metavar="URL|STORE", show_default=False)]
Campaign = Annotated[
    Texts, text("--campaign", "ID", "A run of the store. Default: the newest run.")
]
Out = Annotated[
    Texts, text("--out", "FILE", "model.safetensors or model.npz. Default model.safetensors.")
]
KINDS = (".safetensors", ".npz")
INTEGERS = ("run", "slot")
"""Metadata of a model that are integers; all metadata are stored as texts."""


def export(
    context: typer.Context,
    place: Place,
    campaign: Campaign = None,
    out: Out = None,
    force: params.Force = False,
    json: params.Json = False,
) -> None:
    """Save the latest released model of a campaign.

    The file has named tensors and their metadata. The model comes from a running service (its
    address, or URL/campaigns/ID) or from its store (sqlite:///FILE.db, postgresql://...). Its hash
    is computed again and compared.
    """
    given = GivenOptions.of(context)
    path = Path(given.texts.get("out", "model.safetensors"))
    if path.suffix not in KINDS:
        raise given.invalid("out", f"must end in {' or '.join(KINDS)}")
    if path.exists() and not force:
        raise UsageError(f"--out {quoted(str(path))}: exists already; --force overwrites it")
    if remote.is_address(place):
        if "campaign" in given:
            raise given.invalid("campaign", "goes with a store: name URL/campaigns/ID")
        with remote.service(place) as (http, run):
            body = remote.latest_model(http, run)
    elif "://" in place:
        body = _stored(place, given.texts.get("campaign"))
    else:
        raise UsageError(
            f"{quoted(place)}: must be http://..., sqlite:///FILE.db or postgresql://..."
        )
    from checkins.protocol.report import model_from_bytes

    tensors, known = model_from_bytes(body)
    _check_hash(tensors, known)
    _write(path, body, tensors, known)
    answer: dict[str, object] = {
        "path": str(path),
        **{name: int(text) if name in INTEGERS else text for name, text in known.items()},
        "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
    }
    if json:
        terminal.show_json(answer)
        return
    terminal.show_plain(f"Wrote {path}: the model after slot {known.get('slot', '?')}, float64.")
    terminal.show_plain(f"Model {known['model_hash']}")
    terminal.show_plain(f"of {known.get('seal', '?')}, run {known.get('run', '?')}")


def _stored(store: str, run: str | None) -> bytes:
    try:
        from sqlalchemy.exc import DBAPIError

        from checkins.service.backup import stored_model
        from checkins.service.settings import redacted_url
    except ImportError as error:
        raise missing_extra("a store", "service", error) from error
    try:
        return stored_model(store, run)
    except DBAPIError as error:
        raise UsageError(f"{redacted_url(store)}: is not a readable store of checkins") from error


def _check_hash(tensors: Mapping[str, NDArray[np.float64]], known: Mapping[str, str]) -> None:
    import numpy as np

    from checkins.ledger.entry import hashed

    flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    if hashed(flat) != known.get("model_hash"):
        raise UsageError("the hash of the model does not match its metadata: fetch it again")


def _write(path: Path, body: bytes, tensors: Mapping[str, Any], known: Mapping[str, str]) -> None:
    if path.suffix == ".safetensors":
        path.write_bytes(body)
        return
    import numpy as np

    arrays: dict[str, Any] = {**tensors}
    arrays |= {f"about_{name}": np.array(value) for name, value in known.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
