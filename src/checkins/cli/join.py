"""`checkins join`: one device takes part in a campaign with rows that stay on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkins.cli import joining, options, screen
from checkins.cli.failures import Refused
from checkins.cli.joining import told
from checkins.cli.options import Given, Texts, text

if TYPE_CHECKING:
    from rich.text import Text

    from checkins.client import CampaignView, Outcome, Trainer

Data = Annotated[
    Texts, text("--data", "FILE", "A CSV or Parquet file with this person's rows, as sealed.")
]
Client = Annotated[
    Texts, text("--client", "ID", "Whose rows of the file, where it has several people's.")
]
Row = Annotated[
    Texts, text("--row", "N", "Person N of the campaign's own data set: for demonstrations.")
]
State = Annotated[
    Texts, text("--state", "DIR", "Where the device keeps what it drew. Always the same one.")
]
Withdraw = Annotated[
    bool, typer.Option("--withdraw", help="Leave the campaign for good, and do nothing else.")
]

HINTS = {
    "enrolled": "enrolled; drawing a slot",
    "drawn": "a slot is drawn",
    "checking-in": "checking in",
    "checked-in": "waiting for the choice",
    "chosen": "chosen: training on this device",
    "reporting": "sending the report",
}


def join(
    context: typer.Context,
    url: joining.Url,
    campaign: joining.CampaignId = None,
    data: Data = None,
    client: Client = None,
    row: Row = None,
    state: State = None,
    key_file: joining.KeyFile = None,
    seal: joining.Seal = None,
    allow_model: joining.AllowModel = None,
    follow: joining.Follow = False,
    withdraw: Withdraw = False,
    json: options.Json = False,
) -> None:
    """Take part in a campaign as one device: its rows never leave it.

    It draws one slot at random, sleeps until then, and reports at most once, with noise as the
    campaign is sealed. After a crash or Ctrl-C the same command goes on; offline at its slot means
    that it does not take part. Exit code 0 however it ended.
    """
    url, given = joining.addressed(url, Given.of(context))
    folder = given.need("state", "a folder of this device's own, the same one each time")
    if not withdraw and ("data" in given) == ("row" in given):
        raise Refused("--data or --row: one of them says which rows this device trains on")
    if "client" in given and "data" not in given:
        raise given.contradiction("client", "goes with --data FILE")
    from checkins.client import Participant

    keys = joining.keys_in(given)
    with screen.working(f"looking at {url}", quiet=json):
        view = joining.campaign_at(url, given)
    trainer = _Nothing() if withdraw else _trainer(view, given, quiet=json)
    watch = _Watch()
    with told(given):
        device = Participant(
            url=url,
            campaign=view.id,
            trainer=trainer,
            state=folder,
            key=keys[0] if keys else None,
            seal=given.texts.get("seal"),
            journal=watch,
        )
        if withdraw:
            _show_withdrawn(view, device.withdraw(), json=json)
            return
        if not json:
            _show_beginning(view, url)
        with _live(watch, quiet=json):
            runs = list(device.follow()) if follow else [(view.id, device.run())]
    _show_end(view, runs, json=json)


class _Nothing:
    """A trainer that is never asked."""

    def update(self, model: Any) -> Any:
        raise Refused("--withdraw: trains nothing")


def _trainer(view: CampaignView, given: Given, *, quiet: bool) -> Trainer:
    from checkins.cli.values import whole
    from checkins.client.trainer import DatasetClients, trainer_of_file

    task, allowed = joining.task_of(view), given.texts.get("allow_model")
    with told(given):
        if "data" in given:
            file, client = given.texts["data"], given.texts.get("client")
            return trainer_of_file(task, file, client=client, allow_model=allowed)
        with screen.working("loading the data set", quiet=quiet):
            people = DatasetClients.of(task, allow_model=allowed)
        return people.trainer(whole("row", given.texts["row"], most=len(people)) - 1)


class _Watch:
    """What the device is doing, for its owner at the terminal; nothing of it is kept."""

    def __init__(self) -> None:
        self._says = "beginning"
        self._until: float | None = None

    def __call__(self, story: Mapping[str, object]) -> None:
        event = str(story["event"])
        self._until = None
        if event == "asleep":
            self._until = time.monotonic() + float(str(story["seconds"]))
            self._says = f"asleep until slot {story['slot']}"
        else:
            self._says = HINTS.get(event, self._says)

    def __rich__(self) -> Text:
        from rich.text import Text

        left = "" if self._until is None else _clock(self._until - time.monotonic())
        return Text(f"{self._says}{left}")


def _clock(seconds: float) -> str:
    """Time left, as a clock shows it."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f", in {hours}:{minute:02}:{second:02}"


@contextmanager
def _live(watch: _Watch, *, quiet: bool) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield
        return
    with Live(watch, console=console, transient=True, refresh_per_second=2):
        yield


def _show_beginning(view: CampaignView, url: str) -> None:
    from checkins.cli.campaign_words import one_slot

    campaign, show = view.campaign, screen.show_plain
    budget = campaign.budget
    show(f"Campaign {campaign.name} ({view.id}, run {view.run} of {campaign.repeats}) at {url}")
    screen.show(
        one_slot(campaign),
        f"All that it releases is to cost a person at most epsilon = {budget.epsilon:g}, delta ="
        f" {budget.delta:g} ({budget.adjacency}). The rows stay on this device; one report leaves"
        f" it at most. Ctrl-C stops; the same command goes on.",
    )
    warning = joining.in_clear(url)
    if warning is not None:
        print(f"checkins: {warning}", file=sys.stderr)
    sys.stdout.flush()


def _show_end(view: CampaignView, runs: list[tuple[str, Outcome]], *, json: bool) -> None:
    if json:
        ended = [{"campaign": name, **_told(outcome)} for name, outcome in runs]
        screen.show_json(
            {"name": view.campaign.name, "seal": view.seal, **ended[-1], "runs": ended}
        )
        return
    for name, outcome in runs:
        screen.show_plain(f"{name}: {_told(outcome)['explained']}.")


def _told(outcome: Outcome) -> dict[str, str]:
    return {"outcome": outcome.name.lower(), "explained": str(outcome)}


def _show_withdrawn(view: CampaignView, withdrawn: bool, *, json: bool) -> None:
    if json:
        screen.show_json({"campaign": view.id, "withdrawn": withdrawn})
    elif withdrawn:
        screen.show_plain(f"{view.id}: withdrawn; this device takes no part in it any more.")
    else:
        screen.show_plain(f"{view.id}: nothing was there to withdraw; this device takes no part.")
