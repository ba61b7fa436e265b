"""`checkins export`: the latest released model of a campaign, as a file that others can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkins.cli import options, remote, screen
from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given, Texts, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Place = Annotated[str, typer.Argument(metavar="URL|STORE", show_default=False)]
Campaign = Annotated[Texts, text("--campaign", "ID", "A run of the store. Without it: the newest.")]
Out = Annotated[
    Texts, text("--out", "FILE", "model.safetensors or model.npz. Default model.safetensors.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]
KINDS = (".safetensors", ".npz")
COUNTED = ("run", "slot")
"""What is a number of all that is known of a model: its metadata are texts."""


def export(
    context: typer.Context,
    place: Place,
    campaign: Campaign = None,
    out: Out = None,
    force: Force = False,
    json: options.Json = False,
) -> None:
    """Save the latest release of a campaign: named tensors, with what is known of them.

    From a running service (its address, or URL/campaigns/ID) or from its store (sqlite:///FILE.db,
    postgresql://...). The model's hash is computed again and held against the one it came with.
    """
    given = Given.of(context)
    path = Path(given.texts.get("out", "model.safetensors"))
    if path.suffix not in KINDS:
        raise given.contradiction("out", f"must end in {' or '.join(KINDS)}")
    if path.exists() and not force:
        raise Refused(f"--out {quoted(str(path))}: exists already; --force overwrites it")
    if remote.is_address(place):
        if "campaign" in given:
            raise given.contradiction("campaign", "goes with a store: name URL/campaigns/ID")
        with remote.service(place) as (http, run):
            body = remote.latest_model(http, run)
    elif "://" in place:
        body = _stored(place, given.texts.get("campaign"))
    else:
        raise Refused(f"{quoted(place)}: must be http://..., sqlite:///FILE.db or postgresql://...")
    from checkins.protocol.report import model_from_bytes

    tensors, known = model_from_bytes(body)
    _check_hash(tensors, known)
    _write(path, body, tensors, known)
    answer: dict[str, object] = {
        "path": str(path),
        **{name: int(text) if name in COUNTED else text for name, text in known.items()},
        "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
    }
    if json:
        screen.show_json(answer)
        return
    screen.show_plain(f"Wrote {path}: the model after slot {known.get('slot', '?')}, float64.")
    screen.show_plain(f"Model {known['model_hash']}")
    screen.show_plain(f"of {known.get('seal', '?')}, run {known.get('run', '?')}")


def _stored(store: str, run: str | None) -> bytes:
    try:
        from sqlalchemy.exc import DBAPIError

        from checkins.service.backup import stored_model
        from checkins.service.settings import shown_url
    except ImportError as error:
        raise Refused(
            f"a store needs the extra service ({error.name} is missing):"
            " pip install 'checkins[service]'"
        ) from error
    try:
        return stored_model(store, run)
    except DBAPIError as error:
        raise Refused(f"{shown_url(store)}: is no store of checkins that can be read") from error


def _check_hash(tensors: Mapping[str, NDArray[np.float64]], known: Mapping[str, str]) -> None:
    import numpy as np

    from checkins.ledger.entry import hashed

    flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    if hashed(flat) != known.get("model_hash"):
        raise Refused("the model does not have the hash that it came with: fetch it again")


def _write(path: Path, body: bytes, tensors: Mapping[str, Any], known: Mapping[str, str]) -> None:
    if path.suffix == ".safetensors":
        path.write_bytes(body)
        return
    import numpy as np

    arrays: dict[str, Any] = {**tensors}
    arrays |= {f"about_{name}": np.array(value) for name, value in known.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
