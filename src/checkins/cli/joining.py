"""What `checkins join` and `checkins swarm` share: the campaign at an address, keys, rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given, Texts, option, text
from checkins.cli.remote import parted
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    from checkins.campaign import Task
    from checkins.client import CampaignView

Url = Annotated[str, typer.Argument(metavar="URL", show_default=False)]
CampaignId = Annotated[
    Texts, text("--campaign", "ID", "The run to join. Without it: the one that is open.")
]
Seal = Annotated[
    Texts, text("--seal", "SHA256", "Join only the campaign with this seal, sha256:...")
]
KeyFile = Annotated[
    Texts, text("--key-file", "FILE", "A file with the key that the service asks for.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on with the runs that follow, with fresh coins.")
]
AllowModel = Annotated[
    Texts,
    text(
        "--allow-model",
        "MODULE:FUNCTION",
        "Import this code if the campaign names it as its model; without it no code is imported.",
    ),
]

LOCAL = ("localhost", "127.0.0.1", "::1")


def addressed(url: str, given: Given) -> tuple[str, Given]:
    """The service at ``url``; the address of a campaign says --campaign too."""
    base, run = parted(url)
    if run is None:
        return url, given
    if given.texts.get("campaign", run) != run:
        raise given.contradiction("campaign", f"the address names {run}")
    return base, Given({**given.texts, "campaign": run})


def campaign_at(url: str, given: Given) -> CampaignView:
    """The campaign that is asked for, its seal checked."""
    from checkins.client import fetch_campaign
    from checkins.tasks.optional_import import package

    for name in ("httpx", "safetensors"):
        package(name, extra="client", wanted_by=url, setting="url")
    with told(given):
        view = fetch_campaign(url, given.texts.get("campaign"))
        view.check(seal=given.texts.get("seal"))
    return view


def task_of(view: CampaignView) -> Task:
    """What the campaign learns."""
    if view.campaign.task is None:
        raise Refused(f"campaign {view.id}: learns nothing that a device could train")
    return view.campaign.task


def keys_in(given: Given) -> list[str]:
    """The keys in a file, one a line; none without the option."""
    if "key_file" not in given:
        return []
    path = Path(given.texts["key_file"])
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise given.contradiction("key_file", f"cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise given.contradiction("key_file", "holds no key; write one on a line")
    return keys


def in_clear(url: str) -> str | None:
    """A warning if others on the way can read what is sent."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname in LOCAL:
        return None
    return "The connection is not encrypted: whoever is on the way sees when this device reports."


@contextmanager
def told(given: Given) -> Iterator[None]:
    """Name the option that is refused, where one is."""
    try:
        yield
    except InvalidValue as error:
        if error.name == "key":
            what = f" {quoted(given.texts['key_file'])}" if "key_file" in given else ""
            raise Refused(f"--key-file{what}: {error.expected}") from error
        if error.name == "file" or error.name.startswith(("column ", "row ")):
            cell = "" if error.name == "file" else f"{error.name} = {quoted(error.value)}: "
            raise Refused(f"{given.shown('data')}: {cell}{error.expected}") from error
        if error.name in given.texts:
            raise Refused(f"{given.shown(error.name)}: {error.expected}") from error
        if error.value is None:
            raise Refused(f"{option(error.name)}: {error.expected}") from error
        raise
