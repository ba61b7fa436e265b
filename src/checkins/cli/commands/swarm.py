"""`checkins swarm`: run many devices in one process, to load-test a service."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from checkins.cli import params, remote, terminal
from checkins.cli.errors import FAILURE
from checkins.cli.params import GivenOptions, text

if TYPE_CHECKING:
    import asyncio

    from checkins.swarm import Swarm, Tally

MOST_CLIENTS = 10**6
SPARE_FILES = 512


@params.command(
    remote.URL,
    text("--clients", "N", "Number of devices."),
    remote.CAMPAIGN_ID,
    text(
        "--data",
        "FILE",
        "A CSV or Parquet file with the rows of many people, with the columns that the campaign"
        " declares.",
    ),
    params.flag("--reuse-clients", "Let several devices use the rows of the same person."),
    text("--state", "DIR", "Folder for the state of the devices. Default: none is stored."),
    *remote.ACCESS,
    text(
        "--journal",
        "FILE",
        "Append the events of every device to this file, as JSON lines. For tests only, because the"
        " events show the slot of each device.",
    ),
    remote.FOLLOW,
    params.JSON,
)
def swarm(given: GivenOptions) -> None:
    """Run many devices in one process.

    Every device has the rows of one person of the campaign's data set. It is a complete client with
    its own randomness, slot, token and noise. If the key file has several lines, each device uses
    its own key. Exit code 1 if any device failed, otherwise 0.
    """
    url, given = remote.addressed(given)
    with remote.naming_options(given):
        allowed = "the number of devices"
        wanted = params.integer("clients", given.required("clients", allowed), most=MOST_CLIENTS)
    keys = remote.keys_in(given)
    if 1 < len(keys) < wanted:
        raise given.invalid("key_file", f"contains {len(keys):,} keys for {wanted:,} devices")
    fetching = f"fetching the campaign from {url} and loading the data"
    with terminal.working(fetching, quiet=given.json):
        view = remote.campaign_at(url, given)
        from checkins.client.trainer import DatasetClients

        with remote.naming_options(given):
            file, model = given.texts.get("data"), given.texts.get("allow_model")
            people = DatasetClients.of(remote.task_of(view), file=file, allow_model=model)
    if wanted > len(people) and not given.values["reuse_clients"]:
        shared = "--reuse-clients lets devices share rows"
        raise given.invalid("clients", f"the data have {len(people):,} people; {shared}")
    with _journal(given) as write:

        def devices(run: str) -> Swarm:
            from checkins.swarm import Swarm

            return Swarm(
                url=url,
                campaign=run,
                seal=view.seal,
                clients=wanted,
                trainer=lambda client: people.trainer(client % len(people)),
                state=Path(given.texts["state"]) if "state" in given else None,
                key=lambda client: keys[client if len(keys) > 1 else 0] if keys else None,
                journal=write,
            )

        results = _run(devices, view.id, given)
    if given.json:
        follow = given.values["follow"]
        terminal.show_json({**results[-1], "runs": results} if follow else results[-1])
    else:
        _show(results)
    if any(result["failed"] for result in results):
        raise Exit(FAILURE)


def _run(
    devices_of: Callable[[str], Swarm], first: str, given: GivenOptions
) -> list[dict[str, Any]]:
    """Run the devices in the first run and, with ``--follow``, in the later runs."""
    import asyncio

    from checkins.swarm import Tally, next_run, raise_open_files

    results: list[dict[str, Any]] = []
    run: str | None = first
    while run is not None:
        devices, tally = devices_of(run), Tally()
        raise_open_files(devices.clients + SPARE_FILES)
        with remote.naming_options(given), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run_with_progress(devices, tally, quiet=given.json))
        results.append(_result(devices, tally))
        run = next_run(devices.url, run) if given.values["follow"] else None
    return results


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop of uvloop, or None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_with_progress(devices: Swarm, tally: Tally, *, quiet: bool) -> None:
    import asyncio

    count = "{task.completed:,.0f}/{task.total:,.0f} done"
    with terminal.progress("{task.fields[where]}", count, quiet=quiet) as bars:
        if bars is None:
            await devices.run(tally)
            return
        task = bars.add_task("", total=devices.clients, where="")

        async def update() -> None:
            while True:
                where = f"{tally.enrolled:,} enrolled, {tally.asleep:,} asleep"
                bars.update(task, completed=tally.done, where=where)
                await asyncio.sleep(0.5)

        updating = asyncio.create_task(update())
        try:
            await devices.run(tally)
        finally:
            updating.cancel()


@contextmanager
def _journal(given: GivenOptions) -> Iterator[Callable[[Mapping[str, object]], None] | None]:
    if "journal" not in given:
        yield None
        return
    try:
        file = Path(given.texts["journal"]).open("a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise given.invalid("journal", f"cannot be written: {error.strerror}") from error
    with file:

        def write(fields: Mapping[str, object]) -> None:
            file.write(json_module.dumps(fields) + "\n")
            file.flush()

        yield write


def _result(devices: Swarm, tally: Tally) -> dict[str, Any]:
    seconds, requests = tally.seconds, tally.requests
    return {
        "campaign": devices.campaign,
        "seal": devices.seal,
        "clients": devices.clients,
        "enrolled": tally.enrolled,
        "outcomes": {name: tally.outcomes.get(name, 0) for name in devices.possible},
        "failed": tally.failures.total(),
        "failures": [
            {"why": why, "clients": count} for why, count in tally.failures.most_common(10)
        ],
        "seconds": seconds,
        "requests": requests,
        "requests_per_second": requests / seconds if seconds > 0 else None,
        "cpu_ms_per_request": 1e3 * tally.cpu_s / requests if requests else None,
    }


def _show(results: list[dict[str, Any]]) -> None:
    from checkins.cli.views.certificate import plain_table
    from checkins.client import Outcome

    for result in results:
        table = plain_table("outcome", "devices", "meaning", right=("devices",))
        for name, count in result["outcomes"].items():
            table.add_row(name, f"{count:,}", str(Outcome[name.upper()]))
        for failure in result["failures"]:
            table.add_row("failed", f"{failure['clients']:,}", failure["why"])
        terminal.show(
            f"{result['clients']:,} devices in {result['campaign']}:"
            f" {result['requests']:,} requests in {result['seconds']:.1f} s.",
            table,
        )
