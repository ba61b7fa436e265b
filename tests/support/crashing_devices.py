"""Devices that crash: each is a process that is killed with SIGKILL at a step and started again.

    python -m tests.support.crashing_devices URL CAMPAIGN --clients N \\
        --journal FILE --state DIR

A device dies in its first lives at the steps that ``deaths`` gives it, then it lives. It is forked
from a process that has loaded everything, so it is back within milliseconds, still in its slot.
Some have clocks that are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from checkins.client import CampaignRefused, ServiceFailed, fetch_campaign
from checkins.client.clock_and_randomness import DeviceRandomness, monotonic_s
from checkins.client.drivers import HEADERS, Driver
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.state import StateFile, make_private_folder
from tests.support.crowd import Recognisable

TOLD = ("enrolled", "drawn", "asleep", "checking-in", "checked-in", "chosen", "trained")
TOLD += ("reporting", "acknowledged", "done")
ROUTES = ("GET campaigns", "POST enrolments", "POST check-ins", "GET check-ins", "GET model")
ROUTES += ("PUT report",)
SAVES = range(1, 5)
NAMES = {route.split()[1] for route in ROUTES}
STEPS = (
    *(f"told {event}" for event in TOLD),
    *(f"before {route}" for route in ROUTES),
    *(f"after {route}" for route in ROUTES),
    *(f"before save {count}" for count in SAVES),
    *(f"after save {count}" for count in SAVES),
)
"""Every step at which a device can crash: between two effects, and inside of each."""

CLOCKS: tuple[Callable[[float], float], ...] = (
    lambda monotonic: monotonic,
    lambda monotonic: monotonic + 86_400.0,
    lambda monotonic: monotonic * 1.01,  # ten seconds fast in a quarter of an hour
    lambda monotonic: monotonic * 0.99,
)


CALENDAR_S = (0.0, 86_400.0, -3.0)
"""Errors of the calendars of devices, in seconds; no result may depend on them."""


def deaths(client: int) -> tuple[str, ...]:
    """Return the steps at which a device crashes in its first and its second process."""
    first = client % len(STEPS)
    second = (7 * client + client // len(STEPS)) % len(STEPS)
    return STEPS[first], STEPS[second]


@dataclass(frozen=True, slots=True)
class Device:
    """One process of one device, which crashes at the step ``death``; None: it does not crash."""

    url: str
    campaign: str
    client: int
    journal: Path
    state: Path
    death: str | None

    def live(self) -> None:
        """Take part in the campaign until the end or the crash."""
        calendar, off_s = time.time, CALENDAR_S[self.client % len(CALENDAR_S)]
        time.time = lambda: calendar() + off_s  # this process is this device's alone
        folder = make_private_folder(self.state / f"{self.client:06}")
        file = CrashingFile(folder / "device.json", self)
        clock = CLOCKS[self.client % len(CLOCKS)]
        transport = CrashingTransport(self)
        with httpx.Client(base_url=self.url, headers=HEADERS, transport=transport) as http:
            driver = Driver(http, file, journal=self._tell, monotonic=lambda: clock(monotonic_s()))
            plan = ParticipationConfig(
                self.url, self.campaign, Recognisable(self.client, self._trained)
            )
            kept = file.load()
            driver.drive(
                Participation(
                    plan, kept, monotonic=driver.monotonic, randomness=DeviceRandomness()
                ).flow()
            )

    def _tell(self, fields: Mapping[str, object]) -> None:
        self._write(json.dumps({**fields, "client": self.client}) + "\n")
        self.at(f"told {fields['event']}")

    def _trained(self, line: str) -> None:
        self._write(line)
        self.at("told trained")

    def _write(self, line: str) -> None:
        with self.journal.open("ab", buffering=0) as file:  # one write: many append
            file.write(line.encode())

    def at(self, step: str) -> None:
        """Crash if this is the step to crash at."""
        if step == self.death:
            os.kill(os.getpid(), signal.SIGKILL)


class CrashingFile(StateFile):
    """A state file whose device may crash before or after a write."""

    __slots__ = ("_count", "_device")

    def __init__(self, path: Path, device: Device) -> None:
        super().__init__(path)
        self._device, self._count = device, 0

    def save(self, state: bytes) -> None:
        self._count += 1
        self._device.at(f"before save {self._count}")
        super().save(state)
        self._device.at(f"after save {self._count}")


class CrashingTransport(httpx.HTTPTransport):
    """A transport whose device may crash before a request or after its response.

    Devices that crash at the request for a model do not ask for it together with the outcome.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(verify=False)  # there is no certificate, and loading ours takes long
        self._device = device

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "GET model" in str(self._device.death):
            request.url = request.url.copy_remove_param("model")
        names = [part for part in request.url.path.split("/") if part in NAMES]
        self._device.at(f"before {request.method} {names[-1]}")
        answer = super().handle_request(request)
        answer.read()
        self._device.at(f"after {request.method} {names[-1]}")
        return answer


class DeviceForker:
    """Forks devices, and forks them again after a crash."""

    def __init__(self, make: Callable[[int, str | None], Device], clients: int) -> None:
        self._make = make
        self._clients = clients
        self._lives: Counter[int] = Counter()
        self.died: Counter[str] = Counter()
        self.failed: list[int] = []
        self._living: dict[int, int] = {}

    def run_all(self) -> None:
        for client in range(self._clients):
            self._fork(client)
        while self._living:
            process, status = os.wait()
            client = self._living.pop(process)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self.died[self._death(client, self._lives[client] - 1) or "?"] += 1
                self._fork(client)
            elif os.waitstatus_to_exitcode(status) != 0:
                self.failed.append(client)

    def _death(self, client: int, life: int) -> str | None:
        planned = deaths(client)
        return planned[life] if life < len(planned) else None

    def _fork(self, client: int) -> None:
        device = self._make(client, self._death(client, self._lives[client]))
        self._lives[client] += 1
        process = os.fork()
        if process:
            self._living[process] = client
            return
        code = 1
        try:
            device.live()
            code = 0
        except (CampaignRefused, ServiceFailed) as refused:
            code = 0 if " is over" in str(refused) else 1  # it came only after the last slot
            print(refused, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("campaign")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    given = parser.parse_args()
    make_private_folder(given.state)

    def make(client: int, death: str | None) -> Device:
        return Device(given.url, given.campaign, client, given.journal, given.state, death)

    view = fetch_campaign(given.url, given.campaign, retry_timeout_s=60.0)
    view.sampler().dummy()  # what is slow to make is there before anyone is forked
    forker = DeviceForker(make, given.clients)
    forker.run_all()
    print(json.dumps({"died": forker.died, "failed": forker.failed}))


if __name__ == "__main__":
    main()
