"""`checkins export` and `checkins backup`: copy a released model or a store to a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkins import durable_file
from checkins.cli import params, remote, terminal
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import UsageError, printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODEL_SUFFIXES = (".safetensors", ".npz")
INTEGER_METADATA = ("run", "slot", "averaged_models")
"""Names of the model's metadata that are integers. The file stores all metadata as strings."""


@params.command(
    params.argument("url_or_store", "URL|STORE"),
    *options("""
    --campaign ID  Id of a run in STORE. Default: the newest run.
    --out FILE  The file to write, named *.safetensors or *.npz. Default model.safetensors.
    --average  Save the average of the released models instead of the latest one.
    """),
    params.FORCE_OPTION,
    *remote.CONNECTION_OPTIONS,
    params.JSON_OPTION,
)
def export(given: GivenOptions) -> None:
    """Save the latest released model of a campaign.

    URL is the address of a running service, or URL/campaigns/ID. STORE is the database of a
    service, sqlite:///FILE.db or postgresql://... The written file contains named tensors and
    metadata. The command computes the hash of the model again and compares it with the metadata.

    --average needs a campaign that declares an average in [task]. The command then reads and
    verifies the campaign's ledger, and computes the average from the totals in it.
    """
    url_or_store = given.values["url_or_store"]
    path = Path(given.texts.get("out", "model.safetensors"))
    if path.suffix not in MODEL_SUFFIXES:
        raise given.invalid("out", f"must end in {' or '.join(MODEL_SUFFIXES)}")
    if path.exists() and not given.values["force"]:
        raise UsageError(f"--out {printable(str(path))}: exists already; --force overwrites it")
    if remote.is_http_url(url_or_store):
        if "campaign" in given:
            raise given.invalid(
                "campaign", "cannot be combined with the URL of a service; use URL/campaigns/ID"
            )
        with remote.connect(url_or_store, given) as (http, run):
            model_bytes = remote.fetch_latest_model(http, run)
    elif "://" in url_or_store:
        model_bytes = _model_from_store(url_or_store, given.texts.get("campaign"))
    else:
        raise UsageError(
            f"{printable(url_or_store)}: must be http://..., sqlite:///FILE.db or postgresql://..."
        )
    from checkins.protocol.report import model_from_bytes

    tensors, metadata = model_from_bytes(model_bytes)
    _check_hash(tensors, metadata)
    if given.values["average"]:
        with _ledger_lines(url_or_store, given) as lines:
            tensors, metadata, model_bytes = _averaged(tensors, metadata, lines)
    _write_model(path, model_bytes, tensors, metadata)
    result: dict[str, object] = {
        "path": str(path),
        **{
            name: int(text) if name in INTEGER_METADATA else text for name, text in metadata.items()
        },
        "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
    }
    if given.json:
        terminal.show_json(result)
        return
    model = "the average of the models up to" if given.values["average"] else "the model after"
    terminal.show_plain(f"Wrote {path}: {model} slot {metadata.get('slot', '?')}, float64.")
    terminal.show_plain(f"Hash of the model: {metadata['model_hash']}")
    terminal.show_plain(f"Seal of the campaign: {metadata.get('seal', '?')}")
    terminal.show_plain(f"Run of the campaign: {metadata.get('run', '?')}")


@contextmanager
def _ledger_lines(url_or_store: str, given: GivenOptions) -> Iterator[Iterable[bytes]]:
    """Yield the lines of the campaign's ledger, from a service or a store."""
    if not remote.is_http_url(url_or_store):
        from checkins.service.backup import stored_ledger

        yield stored_ledger(url_or_store, given.texts.get("campaign"))
        return
    with (
        remote.connect(url_or_store, given) as (http, run),
        remote.stream_ledger(http, run) as (chunks, _),
    ):
        yield remote.split_lines(chunks)


def _averaged(
    tensors: Mapping[str, NDArray[np.float64]], metadata: Mapping[str, str], lines: Iterable[bytes]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, str], bytes]:
    """Return the tensors, metadata and bytes of the average of the models of a ledger.

    ``tensors`` and ``metadata`` are those of the last model.
    """
    from checkins.ledger.entry import InvalidLedger, hash_model
    from checkins.ledger.verification import verify
    from checkins.protocol.report import model_to_bytes
    from checkins.tasks.model import unflatten

    try:
        verified = verify(lines)
    except InvalidLedger as error:
        raise UsageError(f"--average: the ledger is not valid: {error}") from error
    seal = metadata.get("seal", "")
    average = verified.averages.get(seal)
    if average is None:
        raise UsageError("--average: the campaign declares no average in [task]")
    if average.model is None:
        raise UsageError("--average: the campaign has released no model yet")
    run = next(run for run in reversed(verified.ledger.runs) if run.seal == seal)
    about = {
        **metadata,
        "run": str(run.number),
        "slot": str(run.slots_closed),
        "model_hash": hash_model(average.model),
        "head": verified.ledger.head,
        "averaged_models": str(average.models),
    }
    averaged = unflatten(average.model, {name: each.shape for name, each in tensors.items()})
    return averaged, about, model_to_bytes(averaged, about)


def _model_from_store(store: str, run: str | None) -> bytes:
    from sqlalchemy.exc import DBAPIError

    from checkins.service.backup import stored_model
    from checkins.service.settings import redacted_url

    try:
        return stored_model(store, run)
    except DBAPIError as error:
        raise UsageError(f"{redacted_url(store)}: cannot be read as a store of checkins") from error


def _check_hash(tensors: Mapping[str, NDArray[np.float64]], metadata: Mapping[str, str]) -> None:
    import numpy as np

    from checkins.ledger.entry import hash_model

    flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    if hash_model(flat) != metadata.get("model_hash"):
        raise UsageError(
            "the hash of the model differs from the hash in its metadata; run the command again"
        )


def _write_model(
    path: Path, model_bytes: bytes, tensors: Mapping[str, Any], metadata: Mapping[str, str]
) -> None:
    if path.suffix == ".safetensors":
        durable_file.replace_content(path, model_bytes)
        return
    import numpy as np

    arrays: dict[str, Any] = {**tensors}
    arrays |= {f"about_{name}": np.array(value) for name, value in metadata.items()}
    with durable_file.replacing(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


@params.command(
    *options("""
    --store URL  The store to copy: the database sqlite:///FILE.db of a coordinator. Required.
    --out FILE  The file for the copy. It must not exist. Required.
    """),
    params.JSON_OPTION,
)
def backup(given: GivenOptions) -> None:
    """Copy an SQLite store while its coordinator runs.

    The copy can be served only with --restore, which ends every campaign that was running when the
    copy was made. What these campaigns released later is unknown, so their epsilon is computed as
    if they had released all slots that their budgets allow. The progress file, which detects that a
    store was rolled back, is not copied.
    """
    store = given.required("store", "must be sqlite:///FILE.db")
    path = Path(given.required("out", "must be a file that does not exist"))
    if path.exists():
        raise UsageError(f"--out {printable(str(path))}: exists already; name another file")
    from sqlalchemy.exc import DBAPIError

    from checkins.service.backup import back_up
    from checkins.service.settings import redacted_url

    redacted = given.replacing(store=redacted_url(store))
    try:
        with redacted.errors_as_option_errors():
            epoch = back_up(store, path)
    except (sqlite3.DatabaseError, DBAPIError) as error:
        raise UsageError(f"--store {redacted_url(store)}: is not a store of checkins") from error
    if given.json:
        terminal.show_json({"path": str(path), "epoch": epoch, "bytes": path.stat().st_size})
        return
    terminal.show_plain(
        f"Wrote {path}: {path.stat().st_size:,} bytes. Starts of the coordinator so far: {epoch}."
    )
    terminal.show_plain(
        f"To use it: checkins serve --store sqlite:///{path} --progress-file FILE --restore,"
        " where FILE is the progress file of the lost store"
    )
