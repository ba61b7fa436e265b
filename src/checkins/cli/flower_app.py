"""The Flower app that `checkins join --flower` names: its trainer, and `--try`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from checkins.cli import remote, terminal
from checkins.cli.params import GivenOptions
from checkins.optional_imports import import_optional

if TYPE_CHECKING:
    from checkins.client import CampaignView
    from checkins.client.trainer import SlotTrainer

TRIED_SLOT = 1
"""The slot that `--try` tells the app as server-round."""


def trainer(view: CampaignView, given: GivenOptions, *, state: Path) -> SlotTrainer:
    """Import the app of ``--flower``, and return its trainer for a state folder."""
    from checkins.campaign.task import DEVICES

    name = given.texts["flower"]
    if remote.task_of(view).data != DEVICES:
        raise given.invalid(
            "flower", f'is for a campaign with data = "{DEVICES}", and this one has data of its own'
        )
    import_optional("flwr", value=name, setting="flower")
    from checkins.flower import ClientAppTrainer, apps

    def config(option: str) -> dict[str, Any]:
        return apps.parse_config(option, given.texts.get(option))

    with remote.errors_as_option_errors(given), prints_on_stderr(given):
        return ClientAppTrainer(
            apps.load_client_app(name),
            state=state,
            run_config=apps.read_run_config(name, config("run_config")),
            node_config=config("node_config"),
            train_config=config("train_config"),
        )


@contextmanager
def prints_on_stderr(given: GivenOptions) -> Iterator[None]:
    """Send what a Flower app prints to standard error, because the results are on the other."""
    if "flower" not in given:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def try_app(url: str, given: GivenOptions) -> None:
    """Train once on the campaign's latest model, and show the norm of the update.

    Nothing is sent. The app begins with an empty state, in a folder that is deleted afterwards.
    """
    import numpy as np

    from checkins.campaign import RandomizerKind
    from checkins.protocol.report import model_from_bytes

    view = remote.fetch_checked_campaign(url, given)
    with TemporaryDirectory() as folder:
        app = trainer(view, given, state=Path(folder))
        with remote.open_connection(url, given) as (http, _):
            model, _ = model_from_bytes(remote.fetch_latest_model(http, view.id))
        with prints_on_stderr(given):
            update = app.update_in_slot(model, run=view.id, slot=TRIED_SLOT)
    vector = np.concatenate([np.ravel(tensor) for tensor in update.values()])
    randomizer = view.campaign.randomizer
    is_laplace = randomizer.kind is RandomizerKind.LAPLACE
    norm, clip = float(np.linalg.norm(vector, 1 if is_laplace else 2)), randomizer.clip
    if given.json:
        terminal.show_json({"campaign": view.id, "finite": True, "norm": norm, "clip": clip})
        return
    shortened = clip is not None and norm > clip
    verdict = "a device shortens it to the clip" if shortened else "a device does not shorten it"
    terminal.show_plain(f"{view.id}: the app trained once. Nothing was sent or stored.")
    terminal.show_plain(f"The update is finite. Its norm is {norm:.4g}, clip = {clip}: {verdict}.")
