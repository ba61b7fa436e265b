"""`checkins export` and `checkins backup`: copy a released model or a store to a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkins import durable_file
from checkins.cli import params, remote, terminal
from checkins.cli.errors import UsageError, missing_extra, printable
from checkins.cli.params import GivenOptions, options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = (".safetensors", ".npz")
INTEGERS = ("run", "slot")
"""Metadata of a model that are integers. The file stores all metadata as strings."""


@params.command(
    params.argument("place", "URL|STORE"),
    *options("""
    --campaign ID  Id of a run in STORE. Default: the newest run.
    --out FILE  The file to write, named *.safetensors or *.npz. Default model.safetensors.
    """),
    params.FORCE,
    params.JSON,
)
def export(given: GivenOptions) -> None:
    """Save the latest released model of a campaign.

    URL is the address of a running service, or URL/campaigns/ID. STORE is the database of a
    service, sqlite:///FILE.db or postgresql://... The file contains named tensors and metadata. The
    hash of the model is computed again and compared with the metadata.
    """
    place = given.values["place"]
    path = Path(given.texts.get("out", "model.safetensors"))
    if path.suffix not in KINDS:
        raise given.invalid("out", f"must end in {' or '.join(KINDS)}")
    if path.exists() and not given.values["force"]:
        raise UsageError(f"--out {printable(str(path))}: exists already; --force overwrites it")
    if remote.is_address(place):
        if "campaign" in given:
            raise given.invalid("campaign", "needs a store; for a service use URL/campaigns/ID")
        with remote.service(place) as (http, run):
            body = remote.latest_model(http, run)
    elif "://" in place:
        body = _stored(place, given.texts.get("campaign"))
    else:
        raise UsageError(
            f"{printable(place)}: must be http://..., sqlite:///FILE.db or postgresql://..."
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
    if given.json:
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

    from checkins.ledger.entry import hash_model

    flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    if hash_model(flat) != known.get("model_hash"):
        raise UsageError("the hash of the model does not match its metadata; fetch the model again")


def _write(path: Path, body: bytes, tensors: Mapping[str, Any], known: Mapping[str, str]) -> None:
    if path.suffix == ".safetensors":
        durable_file.replace_content(path, body)
        return
    import numpy as np

    arrays: dict[str, Any] = {**tensors}
    arrays |= {f"about_{name}": np.array(value) for name, value in known.items()}
    with durable_file.replacing(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


@params.command(
    *options("""
    --store URL  The store to copy, sqlite:///FILE.db, as for serve. Required.
    --out FILE  The file for the copy. It must not exist. Required.
    """),
    params.JSON,
)
def backup(given: GivenOptions) -> None:
    """Copy an SQLite store while its coordinator runs.

    The copy is marked as a copy and can be served only with --restore. This ends every campaign
    that was running when the copy was made. The releases after the copy are unknown, so each of
    these campaigns counts as if it had released all slots that its budget allows. The witness file
    is not copied.
    """
    place = given.required("store", "sqlite:///FILE.db")
    path = Path(given.required("out", "a file that does not exist"))
    if path.exists():
        raise UsageError(f"--out {printable(str(path))}: exists already; name another file")
    try:
        from sqlalchemy.exc import DBAPIError

        from checkins.service.backup import back_up
        from checkins.service.settings import redacted_url
    except ImportError as error:
        raise missing_extra("backup", "service", error) from error
    masked = given.replacing(store=redacted_url(place))
    try:
        with masked.naming_options():
            epoch = back_up(place, path)
    except (sqlite3.DatabaseError, DBAPIError) as error:
        raise UsageError(f"--store {redacted_url(place)}: is not a store of checkins") from error
    if given.json:
        terminal.show_json({"path": str(path), "epoch": epoch, "bytes": path.stat().st_size})
        return
    terminal.show_plain(f"Wrote {path}: a copy of epoch {epoch}, {path.stat().st_size:,} bytes.")
    terminal.show_plain(f"To use it: checkins serve --store sqlite:///{path} --restore")
