"""`checkins join` runs one device of a campaign; `checkins swarm` runs many, as a load test."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from checkins import validate
from checkins.cli import flower_app, params, remote, terminal
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import EXIT_FAILURE, UsageError

if TYPE_CHECKING:
    import asyncio

    from rich.text import Text

    from checkins.client import CampaignView, Outcome, PrivacyLoss, Trainer
    from checkins.client.trainer import SlotTrainer
    from checkins.swarm import Swarm, Tally

MAX_CLIENTS = 10**6
"""Largest number of devices in one process."""
SPARE_OPEN_FILES = 512
"""Number of files that the process may open in addition to one connection per device."""
STATUS_TEXTS = {
    "enrolled": "enrolled; drawing a slot",
    "drawn": "slot drawn",
    "checking-in": "checking in",
    "checked-in": "waiting for the selection",
    "chosen": "chosen: training on this device",
    "reporting": "sending the report",
}


@params.command(
    remote.URL_ARGUMENT,
    remote.RUN_ID_OPTION,
    *options("""
    --data FILE  CSV or Parquet file with the rows of this person. It needs the columns that the
        campaign declares. Give this option, --row or --flower.
    --client ID  The client whose rows are used, if --data has several clients.
    --row N  Use the rows of one person in the campaign's own data set: the N-th person, from 1.
        For demonstrations.
    --flower APP  Train with a ClientApp of Flower: module:object, or the folder of a Flower app,
        such as ".". Only for a campaign with data = "devices".
    --run-config CONFIG  Values of the app's run config, as for `flwr run`: "key=1 name='a'", or
        a TOML file. Default: the values in the pyproject.toml of the app.
    --node-config CONFIG  The app's node config, as for `flower-supernode`, such as
        "partition-id=0 num-partitions=10". Default: empty.
    --train-config CONFIG  The config of the message that asks the app to train, such as "lr=0.1".
        Default: only the number of the slot, as server-round.
    --try  With --flower: train once on the campaign's latest model, print the norm of the update,
        and do nothing else. Nothing is sent, and no state is read or changed.
    --state DIR  Folder for the saved state of this device. Use the same folder each time. Required,
        except with --try.
    """),
    *remote.JOIN_OPTIONS,
    remote.FOLLOW_OPTION,
    *options("""
    --most-epsilon E  Take part only if all participations with this --state folder have at most
        epsilon E together, this campaign included. Default: no limit.
    --withdraw  Withdraw this device from the campaign, permanently, and do nothing else.
    """),
    *remote.CONNECTION_OPTIONS,
    params.JSON_OPTION,
)
def join(given: GivenOptions) -> None:
    """Take part in a campaign as one device.

    The device draws one slot at random, sleeps until that slot, and sends at most one report. Its
    rows never leave the device. If the campaign adds noise at the clients, the device adds it to
    its report. After a crash or Ctrl-C, the same command continues. A device that is offline during
    its slot does not take part.

    Exit code 0: the participation ended, with or without a report. There is no report if the device
    decided at random not to take part, or was offline, refused, not chosen or late. 1: the
    service failed, or training failed and the device reported noise alone. 2: the campaign, the key
    or an option is wrong.
    """
    url, given = remote.split_run_from_url(given)
    withdraw, json = given.values["withdraw"], given.json
    is_trial = given.values["try"]
    if is_trial and ("flower" not in given or withdraw):
        raise UsageError("--try: needs --flower APP, and no --withdraw")
    expected = "must be a folder for the saved state of the device"
    folder = "" if is_trial else given.required("state", expected)
    if not withdraw and sum(name in given for name in ("data", "row", "flower")) != 1:
        raise UsageError(
            "--data, --row or --flower: give exactly one of these options; it names the rows to"
            " train on, or a Flower app that has them"
        )
    if "client" in given and "data" not in given:
        raise given.invalid("client", "needs --data FILE")
    for name in ("run_config", "node_config", "train_config"):
        if name in given and "flower" not in given:
            raise given.invalid(name, "needs --flower APP")
    if is_trial:
        flower_app.try_app(url, given)
        return
    from checkins.client import Participant

    keys = remote.read_keys(given)
    with terminal.spinner(f"fetching the campaign from {url}", quiet=json):
        view = remote.fetch_checked_campaign(url, given)
    trainer = _NoTrainer() if withdraw else _trainer(view, given, quiet=json)
    status, most_epsilon = _Status(), None
    with remote.errors_as_option_errors(given):
        if "most_epsilon" in given:
            most_epsilon = given.number("most_epsilon", validate.non_negative)
        device = Participant(
            url=url,
            campaign=view.id,
            trainer=trainer,
            state=folder,
            key=keys[0] if keys else None,
            seal=given.texts.get("seal"),
            journal=status,
            most_epsilon=most_epsilon,
            **remote.connection_arguments(given),
        )
        if withdraw:
            _show_withdrawn(view, device.withdraw(), json=json)
            return
        if not json:
            _show_campaign(view, url, flower="flower" in given)
        with _show_live(status, quiet=json), flower_app.prints_on_stderr(given):
            runs = list(device.follow()) if given.values["follow"] else [(view.id, device.run())]
    _show_outcomes(view, runs, device.spent, json=json)


class _NoTrainer:
    """The trainer of a device that only withdraws. It refuses to train."""

    def update(self, model: Any) -> Any:
        raise UsageError("--withdraw: the device withdraws and does not train")


def _trainer(view: CampaignView, given: GivenOptions, *, quiet: bool) -> Trainer | SlotTrainer:
    from checkins.client.trainer import DatasetClients, trainer_of_file

    if "flower" in given:
        return flower_app.trainer(view, given, state=Path(given.texts["state"]))
    task, allowed_model = remote.task_of(view), given.texts.get("allow_model")
    with remote.errors_as_option_errors(given):
        if "data" in given:
            file, client = given.texts["data"], given.texts.get("client")
            return trainer_of_file(task, file, client=client, allow_model=allowed_model)
        with terminal.spinner("loading the data set", quiet=quiet):
            people = DatasetClients.load(task, allow_model=allowed_model)
        return people.trainer(given.integer("row", default=1, most=len(people)) - 1)


class _Status:
    """The line of text that shows the state of the device in the terminal.

    ``Participant`` calls the object with each event of the device.
    """

    def __init__(self) -> None:
        self._text = "starting"
        self._wake_s: float | None = None

    def __call__(self, fields: Mapping[str, object]) -> None:
        event = str(fields["event"])
        self._wake_s = None
        if event == "asleep":
            self._wake_s = time.monotonic() + float(str(fields["seconds"]))
            self._text = f"asleep until slot {fields['slot']}"
        else:
            self._text = STATUS_TEXTS.get(event, self._text)

    def __rich__(self) -> Text:
        from rich.text import Text

        countdown = "" if self._wake_s is None else _countdown(self._wake_s - time.monotonic())
        return Text(f"{self._text}{countdown}")


def _countdown(seconds: float) -> str:
    """Return the remaining time as hours, minutes and seconds."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f", in {hours}:{minute:02}:{second:02}"


@contextmanager
def _show_live(status: _Status, *, quiet: bool) -> Iterator[None]:
    console = terminal.progress_console(quiet=quiet)
    if console is None:
        yield
        return
    from rich.live import Live

    with Live(status, console=console, transient=True, refresh_per_second=2):
        yield


def _show_campaign(view: CampaignView, url: str, *, flower: bool) -> None:
    from checkins.cli.views.certificate import slot_description
    from checkins.protocol.wire import format_time

    campaign, show = view.campaign, terminal.show_plain
    budget = campaign.budget
    show(f"Campaign {campaign.name} ({view.id}, run {view.run} of {campaign.repeats}) at {url}")
    show(f"First slot at {format_time(view.run_schedule.begins(1))}")
    rows = (
        "The app that you named sees your rows; checkins sends only its clipped update."
        if flower
        else "The rows stay on this device; it sends at most one report."
    )
    terminal.show(
        slot_description(campaign),
        f"The privacy budget of all its releases is epsilon = {budget.epsilon:g}, delta ="
        f" {budget.delta:g} ({budget.adjacency}). {rows}"
        " Ctrl-C stops the device; the same command continues.",
    )
    sys.stdout.flush()


def _show_outcomes(
    view: CampaignView, runs: list[tuple[str, Outcome]], spent: PrivacyLoss, *, json: bool
) -> None:
    if json:
        ended = [
            {"campaign": name, "outcome": outcome.name.lower(), "explained": str(outcome)}
            for name, outcome in runs
        ]
        about = {"name": view.campaign.name, "seal": view.seal, **ended[-1], "runs": ended}
        terminal.show_json({**about, "spent": spent.as_json()})
        return
    for name, outcome in runs:
        terminal.show_plain(f"{name}: {outcome}.")
    from checkins.client.joining import spent_sentence

    terminal.show_plain(spent_sentence(spent))


def _show_withdrawn(view: CampaignView, withdrawn: bool, *, json: bool) -> None:
    if json:
        terminal.show_json({"campaign": view.id, "withdrawn": withdrawn})
    else:
        done = "withdrawn; this device no longer takes part."
        nothing = "not withdrawn, because this device does not take part."
        terminal.show_plain(f"{view.id}: {done if withdrawn else nothing}")


@params.command(
    remote.URL_ARGUMENT,
    *options("""
    --clients N  Number of simulated devices. Required.
    """),
    remote.RUN_ID_OPTION,
    *options("""
    --data FILE  CSV or Parquet file with the rows of many people and the columns that the
        campaign declares. Default: the data of the campaign.
    --reuse-clients  Let several devices use the rows of the same person.
    --state DIR  Folder for the saved state of the devices. Default: no state is saved.
    """),
    *remote.JOIN_OPTIONS,
    *options("""
    --journal FILE  File to which the events of all devices are appended, as JSON lines. For
        tests only, because the events contain the slot of each device.
    """),
    remote.FOLLOW_OPTION,
    *remote.CONNECTION_OPTIONS,
    params.JSON_OPTION,
)
def swarm(given: GivenOptions) -> None:
    """Run many devices in one process, as a load test.

    Each device has the rows of one person, and its own randomness, slot, token and noise. If the
    key file has several lines, each device uses a different line. Exit code 1 if any device failed,
    otherwise 0.
    """
    url, given = remote.split_run_from_url(given)
    with remote.errors_as_option_errors(given):
        expected = params.range_text(MAX_CLIENTS)
        clients = params.integer("clients", given.required("clients", expected), most=MAX_CLIENTS)
    keys = remote.read_keys(given)
    if 1 < len(keys) < clients:
        raise given.invalid("key_file", f"contains {len(keys):,} keys for {clients:,} devices")
    fetching = f"fetching the campaign from {url} and loading the data"
    with terminal.spinner(fetching, quiet=given.json):
        view = remote.fetch_checked_campaign(url, given)
        from checkins.client.trainer import DatasetClients

        with remote.errors_as_option_errors(given):
            file, allowed_model = given.texts.get("data"), given.texts.get("allow_model")
            people = DatasetClients.load(remote.task_of(view), file=file, allow_model=allowed_model)
    if clients > len(people) and not given.values["reuse_clients"]:
        advice = "--reuse-clients lets several devices use the same rows"
        raise given.invalid("clients", f"the data have only {len(people):,} people; {advice}")
    with _open_journal(given) as write_event:

        def swarm_of(run: str) -> Swarm:
            from checkins.swarm import Swarm

            return Swarm(
                url=url,
                campaign=run,
                seal=view.seal,
                clients=clients,
                trainer=lambda client: people.trainer(client % len(people)),
                state=Path(given.texts["state"]) if "state" in given else None,
                key=lambda client: keys[client if len(keys) > 1 else 0] if keys else None,
                journal=write_event,
                **remote.connection_arguments(given),
            )

        results = _run_devices(swarm_of, view.id, given)
    if given.json:
        follow = given.values["follow"]
        terminal.show_json({**results[-1], "runs": results} if follow else results[-1])
    else:
        _show_results(results)
    if any(result["failed"] for result in results):
        raise Exit(EXIT_FAILURE)


def _run_devices(
    swarm_of: Callable[[str], Swarm], first_run: str, given: GivenOptions
) -> list[dict[str, Any]]:
    """Run the devices in the first run and, with ``--follow``, in later runs."""
    import asyncio

    from checkins.swarm import Tally, next_run, raise_open_file_limit

    results: list[dict[str, Any]] = []
    run: str | None = first_run
    while run is not None:
        devices, tally = swarm_of(run), Tally()
        raise_open_file_limit(devices.clients + SPARE_OPEN_FILES)
        loop = _loop_factory()
        with remote.errors_as_option_errors(given), asyncio.Runner(loop_factory=loop) as runner:
            runner.run(_run_with_progress(devices, tally, quiet=given.json))
        results.append(_result_numbers(devices, tally))
        run = next_run(devices.url, run, ca=devices.ca) if given.values["follow"] else None
    return results


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop of uvloop, or None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_with_progress(devices: Swarm, tally: Tally, *, quiet: bool) -> None:
    import asyncio

    count = "{task.completed:,.0f}/{task.total:,.0f} done"
    with terminal.progress("{task.fields[counts]}", count, quiet=quiet) as bars:
        if bars is None:
            await devices.run(tally)
            return
        task = bars.add_task("", total=devices.clients, counts="")

        async def update() -> None:
            while True:
                counts = f"{tally.enrolled:,} enrolled, {tally.asleep:,} asleep"
                bars.update(task, completed=tally.done, counts=counts)
                await asyncio.sleep(0.5)

        updating = asyncio.create_task(update())
        try:
            await devices.run(tally)
        finally:
            updating.cancel()


@contextmanager
def _open_journal(given: GivenOptions) -> Iterator[Callable[[Mapping[str, object]], None] | None]:
    if "journal" not in given:
        yield None
        return
    try:
        file = Path(given.texts["journal"]).open("a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise given.invalid("journal", f"cannot be written: {error.strerror}") from error
    with file:

        def write_event(fields: Mapping[str, object]) -> None:
            file.write(json_module.dumps(fields) + "\n")
            file.flush()

        yield write_event


def _result_numbers(devices: Swarm, tally: Tally) -> dict[str, Any]:
    seconds, requests = tally.seconds, tally.requests
    return {
        "campaign": devices.campaign,
        "seal": devices.seal,
        "clients": devices.clients,
        "enrolled": tally.enrolled,
        "outcomes": {name: tally.outcomes.get(name, 0) for name in devices.outcome_names},
        "failed": tally.failures.total(),
        "failures": [
            {"why": why, "clients": count} for why, count in tally.failures.most_common(10)
        ],
        "seconds": seconds,
        "requests": requests,
        "requests_per_second": requests / seconds if seconds > 0 else None,
        "cpu_ms_per_request": 1e3 * tally.cpu_s / requests if requests else None,
    }


def _show_results(results: list[dict[str, Any]]) -> None:
    from checkins.client import Outcome

    for result in results:
        table = terminal.plain_table("outcome", "devices", "meaning", right=("devices",))
        for name, count in result["outcomes"].items():
            table.add_row(name, f"{count:,}", str(Outcome[name.upper()]))
        for failure in result["failures"]:
            table.add_row("failed", f"{failure['clients']:,}", failure["why"])
        terminal.show(
            f"{result['clients']:,} devices in {result['campaign']}:"
            f" {result['requests']:,} requests in {result['seconds']:.1f} s.",
            table,
        )
