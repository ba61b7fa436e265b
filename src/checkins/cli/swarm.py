"""`checkins swarm`: many devices in one process, to try a service with."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkins.cli import joining, options, screen
from checkins.cli.failures import FAILURE
from checkins.cli.joining import told
from checkins.cli.options import Given, Texts, text

if TYPE_CHECKING:
    from checkins.client import CampaignView
    from checkins.client.trainer import DatasetClients
    from checkins.swarm import Swarm, Tally

MOST_CLIENTS = 10**6
SPARE_FILES = 512

Clients = Annotated[Texts, text("--clients", "N", "How many devices.")]
Data = Annotated[Texts, text("--data", "FILE", "A CSV or Parquet file of many people, as sealed.")]
State = Annotated[
    Texts, text("--state", "DIR", "Keep what each device drew; without it nothing outlives this.")
]
Reuse = Annotated[
    bool, typer.Option("--reuse-clients", help="Let several devices hold the same person's rows.")
]
Journal = Annotated[
    Texts,
    text(
        "--journal",
        "FILE",
        "Append what every device did, as JSON lines. For tests only: it links devices and slots.",
    ),
]


def swarm(
    context: typer.Context,
    url: joining.Url,
    clients: Clients = None,
    campaign: joining.CampaignId = None,
    data: Data = None,
    reuse_clients: Reuse = False,
    state: State = None,
    key_file: joining.KeyFile = None,
    seal: joining.Seal = None,
    allow_model: joining.AllowModel = None,
    journal: Journal = None,
    follow: joining.Follow = False,
    json: options.Json = False,
) -> None:
    """Let many devices take part, each a person of the campaign's data set, to try a service.

    Each is a client like any other: its own coin, slot, token and noise. A key file with several
    lines gives each device one of its own. Exit code 0 however it ended for them, 1 if any failed.
    """
    url, given = joining.addressed(url, Given.of(context))
    from checkins.cli.values import whole

    with told(given):
        wanted = whole("clients", given.need("clients", "how many devices"), most=MOST_CLIENTS)
    keys = joining.keys_in(given)
    if 1 < len(keys) < wanted:
        raise given.contradiction("key_file", f"holds {len(keys):,} keys for {wanted:,} devices")
    with screen.working(f"looking at {url} and loading the data", quiet=json):
        view = joining.campaign_at(url, given)
        people = _people(view, given)
    if wanted > len(people) and not reuse_clients:
        raise given.contradiction(
            "clients",
            f"the data hold {len(people):,} people; --reuse-clients lets devices share rows",
        )
    with _journal(given) as write:
        results = _run(view, people, given, wanted, keys, write, url=url, follow=follow, json=json)
    last = results[-1]
    if json:
        screen.show_json({**last, "runs": results} if follow else last)
    else:
        _show(results)
    if any(result["failed"] for result in results):
        raise typer.Exit(FAILURE)


def _people(view: CampaignView, given: Given) -> DatasetClients:
    from checkins.client.trainer import DatasetClients

    with told(given):
        return DatasetClients.of(
            joining.task_of(view),
            file=given.texts.get("data"),
            allow_model=given.texts.get("allow_model"),
        )


def _run(
    view: CampaignView,
    people: DatasetClients,
    given: Given,
    wanted: int,
    keys: list[str],
    write: Callable[[Mapping[str, object]], None] | None,
    *,
    url: str,
    follow: bool,
    json: bool,
) -> list[dict[str, Any]]:
    from checkins.swarm import Swarm, Tally, next_run, raise_open_files

    raise_open_files(wanted + SPARE_FILES)
    results: list[dict[str, Any]] = []
    here: str | None = view.id
    while here is not None:
        crowd = Swarm(
            url=url,
            campaign=here,
            seal=view.seal,
            clients=wanted,
            trainer=lambda client: people.trainer(client % len(people)),
            state=Path(given.texts["state"]) if "state" in given else None,
            key=lambda client: keys[client if len(keys) > 1 else 0] if keys else None,
            journal=write,
        )
        tally = Tally()
        with told(given), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_watched(crowd, tally, quiet=json))
        results.append(_result(crowd, tally))
        here = next_run(url, here) if follow else None
    return results


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A faster event loop where one is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _watched(crowd: Swarm, tally: Tally, *, quiet: bool) -> None:
    async with _progress(crowd, tally, quiet=quiet):
        await crowd.run(tally)


@asynccontextmanager
async def _progress(crowd: Swarm, tally: Tally, *, quiet: bool) -> AsyncIterator[None]:
    """A bar on standard error, for people at a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[where]}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} done"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        bar = progress.add_task("", total=crowd.clients, where="")

        async def follow() -> None:
            while True:
                where = f"{tally.enrolled:,} enrolled, {tally.asleep:,} asleep"
                progress.update(bar, completed=tally.done, where=where)
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(follow())
        try:
            yield
        finally:
            watching.cancel()


@contextmanager
def _journal(given: Given) -> Iterator[Callable[[Mapping[str, object]], None] | None]:
    if "journal" not in given:
        yield None
        return
    try:
        file = Path(given.texts["journal"]).open("a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise given.contradiction("journal", f"cannot be written: {error.strerror}") from error
    with file:

        def write(story: Mapping[str, object]) -> None:
            file.write(json_module.dumps(story) + "\n")
            file.flush()

        yield write


def _result(crowd: Swarm, tally: Tally) -> dict[str, Any]:
    seconds, requests = tally.seconds, tally.requests
    return {
        "campaign": crowd.campaign,
        "seal": crowd.seal,
        "clients": crowd.clients,
        "enrolled": tally.enrolled,
        "outcomes": {name: tally.outcomes.get(name, 0) for name in crowd.possible},
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
    from checkins.cli.tables import plain_table
    from checkins.client import Outcome

    for result in results:
        table = plain_table("outcome", "devices", "meaning", right=("devices",))
        for name, count in result["outcomes"].items():
            table.add_row(name, f"{count:,}", str(Outcome[name.upper()]))
        for failure in result["failures"]:
            table.add_row("failed", f"{failure['clients']:,}", failure["why"])
        screen.show(
            f"{result['clients']:,} devices in {result['campaign']}:"
            f" {result['requests']:,} requests in {result['seconds']:.1f} s.",
            table,
        )
