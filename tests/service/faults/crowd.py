"""Clients in a process of their own: the SDK's swarm, with a trainer that can be recognised.

    python -m tests.service.faults.crowd URL CAMPAIGN --clients N --journal FILE [--state DIR]

Client k has learned the whole clip in the coordinate of its number. All that it does is noted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkins.client import fetch_campaign
from checkins.ledger.entry import hashed
from checkins.swarm import Swarm, Tally
from tests.forks import Forked
from tests.service.faults.campaigns import update_of
from tests.service.faults.journal import Event, Note


@dataclass(frozen=True, slots=True)
class Crowd:
    """``clients`` clients with the numbers from ``first``, and where they note what they do."""

    url: str
    campaign: str
    clients: int
    journal: Path
    first: int = 0
    state: Path | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Forked]:
        """Its process; it ends by itself when every client has come to its end."""
        process = self.start()
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()

    def start(self) -> Forked:
        command = [self.url, self.campaign]
        command += ["--clients", str(self.clients), "--first", str(self.first)]
        command += ["--journal", str(self.journal)]
        if self.state is not None:
            command += ["--state", str(self.state)]
        with self.complaints.open("ab") as errors:
            return Forked(command, module=__spec__.name, stderr=errors)

    @property
    def complaints(self) -> Path:
        """What it wrote to its standard error."""
        return self.journal.with_suffix(".err")


def finished(crowd: Crowd, process: Forked, *, timeout_s: float) -> dict[str, int]:
    """How it ended for the clients of a crowd; one that failed fails the test.

    A client that came to be enrolled only after the last slot has not failed.
    """
    said = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, crowd.complaints.read_text()[-3000:]
    result: dict[str, dict[str, int]] = json.loads(said)
    outcomes = result["outcomes"]
    for why, count in result["failures"].items():
        assert " is over" in why, result
        outcomes["too late to enrol"] = outcomes.get("too late to enrol", 0) + count
    return outcomes


class Recognisable:
    """A trainer whose update tells who it is; notes which model it was given."""

    def __init__(self, client: int, note: Any) -> None:
        self._client = client
        self._note = note

    def update(self, model: Mapping[str, Any]) -> Mapping[str, Any]:
        told = hashed(np.asarray(model["weights"], dtype=np.float64))
        self._note(Note(self._client, Event.TRAINED, model_hash=told).line())
        return {"weights": update_of(self._client)}


async def _run(crowd: Crowd, *, patience_s: float) -> dict[str, Any]:
    view = fetch_campaign(crowd.url, crowd.campaign, patience_s=patience_s)
    tally = Tally()
    with crowd.journal.open("a", encoding="utf-8") as file:

        def write(line: str) -> None:
            file.write(line)  # one write: threads train, and lines must not mix
            file.flush()

        def note(fields: Mapping[str, object]) -> None:
            write(json.dumps({**fields, "client": crowd.first + int(str(fields["client"]))}) + "\n")

        swarm = Swarm(
            url=crowd.url,
            campaign=crowd.campaign,
            seal=view.seal,
            clients=crowd.clients,
            trainer=lambda client: Recognisable(crowd.first + client, write),
            state=crowd.state,
            journal=note,
            patience_s=patience_s,
        )
        await swarm.run(tally)
    return {
        "outcomes": dict(tally.outcomes),
        "failures": dict(tally.failures),
        "requests": tally.requests,
        "seconds": tally.seconds,
        "cpu_s": tally.cpu_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("campaign")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--patience", type=float, default=600.0)
    given = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    crowd = Crowd(given.url, given.campaign, given.clients, given.journal, given.first, given.state)
    print(json.dumps(asyncio.run(_run(crowd, patience_s=given.patience))))


if __name__ == "__main__":
    main()
