"""`checkins join`: take part in a campaign as one device. The data stay on the device."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from checkins.cli import params, remote, terminal
from checkins.cli.errors import UsageError, warn
from checkins.cli.params import GivenOptions, text

if TYPE_CHECKING:
    from rich.text import Text

    from checkins.client import CampaignView, Outcome, Trainer

EVENT_WORDS = {
    "enrolled": "enrolled; drawing a slot",
    "drawn": "slot drawn",
    "checking-in": "checking in",
    "checked-in": "waiting for the selection",
    "chosen": "chosen: training on this device",
    "reporting": "sending the report",
}


@params.command(
    remote.URL,
    remote.CAMPAIGN_ID,
    text(
        "--data",
        "FILE",
        "A CSV or Parquet file with this person's rows and the columns that the campaign declares.",
    ),
    text("--client", "ID", "The client whose rows to use, if the file has several clients."),
    text(
        "--row", "N", "Use the rows of person N of the campaign's own data set. For demonstrations."
    ),
    text(
        "--state",
        "DIR",
        "Folder with the saved state of this device. Use the same folder each time.",
    ),
    *remote.ACCESS,
    remote.FOLLOW,
    params.flag("--withdraw", "Withdraw from the campaign permanently. Nothing else is done."),
    params.JSON,
)
def join(given: GivenOptions) -> None:
    """Take part in a campaign as one device.

    The rows never leave the device. The device draws one slot at random, sleeps until the slot, and
    sends at most one report. If the campaign declares noise at the client, the report contains this
    noise. After a crash or Ctrl-C the same command continues. A device that is offline at its slot
    does not take part. Exit code 0 for every outcome.
    """
    url, given = remote.addressed(given)
    withdraw, json = given.values["withdraw"], given.json
    folder = given.required("state", "a folder for this device, the same one each time")
    if not withdraw and ("data" in given) == ("row" in given):
        raise UsageError(
            "--data or --row: give exactly one of them; it has the rows that this device trains on"
        )
    if "client" in given and "data" not in given:
        raise given.invalid("client", "needs --data FILE")
    from checkins.client import Participant

    keys = remote.keys_in(given)
    with terminal.working(f"fetching the campaign from {url}", quiet=json):
        view = remote.campaign_at(url, given)
    trainer = _NoTrainer() if withdraw else _trainer(view, given, quiet=json)
    status = _Status()
    with remote.naming_options(given):
        device = Participant(
            url=url,
            campaign=view.id,
            trainer=trainer,
            state=folder,
            key=keys[0] if keys else None,
            seal=given.texts.get("seal"),
            journal=status,
        )
        if withdraw:
            _show_withdrawn(view, device.withdraw(), json=json)
            return
        if not json:
            _show_beginning(view, url)
        with _live(status, quiet=json):
            runs = list(device.follow()) if given.values["follow"] else [(view.id, device.run())]
    _show_end(view, runs, json=json)


class _NoTrainer:
    """The trainer of a device that withdraws. Its method is never called."""

    def update(self, model: Any) -> Any:
        raise UsageError("--withdraw: does not train")


def _trainer(view: CampaignView, given: GivenOptions, *, quiet: bool) -> Trainer:
    from checkins.client.trainer import DatasetClients, trainer_of_file

    task, allowed = remote.task_of(view), given.texts.get("allow_model")
    with remote.naming_options(given):
        if "data" in given:
            file, client = given.texts["data"], given.texts.get("client")
            return trainer_of_file(task, file, client=client, allow_model=allowed)
        with terminal.working("loading the data set", quiet=quiet):
            people = DatasetClients.of(task, allow_model=allowed)
        return people.trainer(given.integer("row", default=1, most=len(people)) - 1)


class _Status:
    """The current state of the device, as the terminal shows it."""

    def __init__(self) -> None:
        self._words = "starting"
        self._until: float | None = None

    def __call__(self, fields: Mapping[str, object]) -> None:
        event = str(fields["event"])
        self._until = None
        if event == "asleep":
            self._until = time.monotonic() + float(str(fields["seconds"]))
            self._words = f"asleep until slot {fields['slot']}"
        else:
            self._words = EVENT_WORDS.get(event, self._words)

    def __rich__(self) -> Text:
        from rich.text import Text

        left = "" if self._until is None else _clock(self._until - time.monotonic())
        return Text(f"{self._words}{left}")


def _clock(seconds: float) -> str:
    """Format the remaining time as hours, minutes and seconds."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f", in {hours}:{minute:02}:{second:02}"


@contextmanager
def _live(status: _Status, *, quiet: bool) -> Iterator[None]:
    console = terminal.progress_console(quiet=quiet)
    if console is None:
        yield
        return
    from rich.live import Live

    with Live(status, console=console, transient=True, refresh_per_second=2):
        yield


def _show_beginning(view: CampaignView, url: str) -> None:
    from checkins.cli.views.campaign import one_slot

    campaign, show = view.campaign, terminal.show_plain
    budget = campaign.budget
    show(f"Campaign {campaign.name} ({view.id}, run {view.run} of {campaign.repeats}) at {url}")
    terminal.show(
        one_slot(campaign),
        f"The privacy budget of all its releases is epsilon = {budget.epsilon:g}, delta ="
        f" {budget.delta:g} ({budget.adjacency}). The rows stay on this device; at most one report"
        f" leaves it. Ctrl-C stops; the same command continues.",
    )
    warning = remote.unencrypted_warning(url)
    if warning is not None:
        warn(warning)
    sys.stdout.flush()


def _show_end(view: CampaignView, runs: list[tuple[str, Outcome]], *, json: bool) -> None:
    if json:
        ended = [
            {"campaign": name, "outcome": outcome.name.lower(), "explained": str(outcome)}
            for name, outcome in runs
        ]
        terminal.show_json(
            {"name": view.campaign.name, "seal": view.seal, **ended[-1], "runs": ended}
        )
        return
    for name, outcome in runs:
        terminal.show_plain(f"{name}: {outcome}.")


def _show_withdrawn(view: CampaignView, withdrawn: bool, *, json: bool) -> None:
    if json:
        terminal.show_json({"campaign": view.id, "withdrawn": withdrawn})
    else:
        done = "withdrawn; this device no longer takes part."
        nothing = "there was nothing to withdraw; this device does not take part."
        terminal.show_plain(f"{view.id}: {done if withdrawn else nothing}")
