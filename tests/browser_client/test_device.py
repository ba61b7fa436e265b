"""The device for browsers against a service of the test: crashes, retries, refusals, storage.

The clock is virtual. A crash ends a device before or after a message or a write. Its disk remains.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_service import START_S, FakeService, Reply, campaign, problem
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.browser import Browser, Page

ENDED = {"ABSTAINED", "MISSED", "REFUSED", "DISMISSED", "LATE", "REPORTED"}


@dataclass
class World:
    """One device in the page, and its service."""

    page: Page
    service: FakeService = field(default_factory=FakeService)
    sent: list[tuple[str, str, bytes]] = field(default_factory=list)
    lost: int = 0
    """Number of the next responses that do not arrive."""
    server_s: float = START_S

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        self.server_s = request["s"]
        self.service.now_s = lambda: self.server_s
        self.service.wait = self._wait
        body, path = b64decode(request["body"]), request["path"]
        self.sent.append((request["method"], path, body))
        reply = self.service.handle(request["method"], path, request["headers"], body)
        if self.lost and request["method"] != "GET":
            self.lost -= 1
            reply = Reply(0)
        content = b64encode(reply.body).decode()
        return {
            "s": self.server_s,
            "status": reply.status,
            "content": content,
            "headers": reply.headers,
        }

    def _wait(self, most_s: float, done: Any) -> None:
        until = self.server_s + most_s
        while not done() and self.server_s < until:
            self.server_s = min(until, self.server_s + 0.05)

    def begin(self, begins_s: float = -30.0) -> None:
        """Begin a new world: an empty disk, and so many seconds before the first slot."""
        self.sent.clear()
        self._call("begin", START_S + begins_s)

    def live(self, **options: Any) -> dict[str, Any]:
        """Start the device, or start it again; return what happened."""
        return dict(self._call("live", {"run": self.service.id, **options}))

    def disk(self) -> dict[str, Any]:
        """All that is stored, decoded."""
        return {key: json.loads(text) for key, text in self._call("disks").items()}

    def _call(self, name: str, *arguments: object) -> Any:
        script = "async ([name, given]) => (await import('/world.js'))[name](...given)"
        WORLDS[0] = self
        return self.page.evaluate(script, [name, list(arguments)])

    def paths(self, method: str) -> list[str]:
        return [path for how, path, _ in self.sent if how == method]


WORLDS: list[Any] = [None]


@pytest.fixture(scope="module")
def served(page: Page) -> Page:
    """The page, whose devices reach the service of the current test."""
    page.expose_function("serve", lambda request: WORLDS[0].serve(request))
    return page


@pytest.fixture
def world(served: Page) -> World:
    made = World(served)
    made.begin()
    return made


def with_service(world: World, service: FakeService) -> World:
    world.service = service
    return world


@pytest.mark.parametrize("noise_at", ["client", "server"])
def test_a_device_takes_part_once(world: World, noise_at: str) -> None:
    with_service(world, FakeService(campaign(noise_at=noise_at)))
    assert world.live(slot=2)["outcome"] == "REPORTED"
    assert [slot for slot, _ in world.service.reports] == [2]
    contacts = len(world.sent)
    assert world.live()["outcome"] == "REPORTED"
    assert len(world.sent) == contacts
    assert world.disk()[world.service.id] == {
        "schema": 1,
        "campaign": world.service.id,
        "ended": "REPORTED",
    }


def test_a_report_without_noise_is_the_clipped_update(world: World) -> None:
    with_service(world, FakeService(campaign(noise_at="server")))
    world.live(slot=1)
    [report] = world.service.reports.values()
    checks = world.service.campaign
    sampler_units = _encoded(checks, world.service)
    assert report[-4 * len(sampler_units) :] == sampler_units.tobytes()


def _encoded(described: Any, service: FakeService) -> Any:
    from checkins.protocol.rules import sampler_of

    return sampler_of(described, dimension=14).encode(service.model + 0.1).units


def test_a_crash_at_any_step_never_draws_again_and_never_changes_a_report(world: World) -> None:
    steps = world.live(slot=3)["steps"]
    assert steps > 20
    for crash_at in range(1, steps + 1):
        world.begin()
        with_service(world, FakeService())
        first = world.live(slot=3, crashAt=crash_at)
        assert first["crashed"]
        stored = world.disk().get(world.service.id, {})
        again = world.live(slot=4 if "phase" in stored else 3)  # it must not be drawn again
        assert again["outcome"] in ENDED, (crash_at, again)
        drawn = [
            event["slot"]
            for life in (first, again)
            for event in life["told"]
            if event["event"] in ("drawn", "restarted")
        ]
        assert set(drawn) == {3} or not drawn, crash_at
        bodies = {body for method, _, body in world.sent if method == "PUT"}
        assert len(bodies) == 1, (crash_at, first, again)  # FakeService refuses another report too
        assert len(world.service.check_ins) == 1, crash_at
        assert len(world.service.tokens) == 1, crash_at


def test_a_draw_is_durable_before_the_check_in_and_charged_before_it_is_saved(world: World) -> None:
    steps = world.live(slot=2)["steps"]
    for crash_at in range(1, steps + 1):
        world.begin()
        with_service(world, FakeService())
        world.live(slot=2, crashAt=crash_at)
        disk = world.disk()
        stored = disk.get(world.service.id, {})
        if any("check-ins" in path for path in world.paths("POST")):
            assert stored.get("slot") == 2 or stored.get("ended"), crash_at
        if world.paths("PUT"):
            assert stored.get("report") or stored.get("ended"), crash_at
        if "phase" in stored or "ended" in stored:
            assert [charge["runs"] for charge in disk["odometer"]["charges"]] == [
                [world.service.id]
            ], crash_at


def test_a_retry_sends_the_same_bytes_with_noise_drawn_once(world: World) -> None:
    world.lost = 0
    world.live(slot=1)
    for lost in (1, 2, 3, 4):
        world.begin()
        with_service(world, FakeService())
        world.lost = lost
        happened = world.live(slot=1)
        assert happened["outcome"] == "REPORTED"
        assert happened["trained"] == 1
    world.begin()
    with_service(world, FakeService())

    def late(method: str, *_: Any) -> Reply | None:
        return problem(429, "too-many") if method == "PUT" and len(world.paths("PUT")) < 4 else None

    world.service.override = late
    assert world.live(slot=1)["outcome"] == "REPORTED"
    bodies = [body for method, _, body in world.sent if method == "PUT"]
    assert (len(bodies), len(set(bodies))) == (4, 1)


@pytest.mark.parametrize("noise_at", ["client", "server"])
def test_a_device_whose_training_fails_sends_a_dummy(world: World, noise_at: str) -> None:
    with_service(world, FakeService(campaign(noise_at=noise_at)))
    happened = world.live(slot=1, fails=True)
    assert (happened["outcome"], happened["error"]) == (None, "RangeError")
    [report] = world.service.reports.values()
    assert any(report[-4 * 14 :]) == (noise_at == "client")  # noise alone, or zero
    assert world.disk()[world.service.id]["ended"] == "REPORTED"
    assert world.live()["outcome"] == "REPORTED"


def test_a_device_that_comes_too_late_sends_nothing(world: World) -> None:
    world.live(slot=2, crashAt=12)  # somewhere after its draw, before its slot
    stored = world.disk()[world.service.id]
    assert (stored["phase"], stored["slot"]) == ("DRAWN", 2)
    world.page.evaluate("async () => (await import('/world.js')).sleepFor(45)")
    contacts = len(world.sent)
    assert world.live()["outcome"] == "MISSED"
    assert [method for method, _, _ in world.sent[contacts:]] == ["GET"] * (
        len(world.sent) - contacts
    )
    assert not world.service.check_ins


def test_a_rolled_back_service_gets_neither_check_in_nor_report(world: World) -> None:
    world.live(slot=2, crashAt=12)
    world.service.epoch = 0
    happened = world.live()
    assert (happened["error"], world.service.check_ins) == ("ServiceFailed", {})
    world.service.epoch, world.service.forked_after = 1, 0
    happened = world.live()
    assert (happened["error"], world.service.check_ins) == ("ServiceFailed", {})
    assert "rolled back" in happened["message"]


def test_a_campaign_beyond_the_limit_is_refused_before_enrolment(world: World) -> None:
    happened = world.live(slot=1, options={"mostEpsilon": 7.9})
    assert (happened["error"], world.paths("POST")) == ("CampaignRefused", [])
    assert world.live(slot=1, options={"mostEpsilon": 8.0})["outcome"] == "REPORTED"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seal": "sha256:" + "0" * 64}, "seal"),
        ({"url": "http://192.0.2.1"}, "not encrypted"),
        ({"url": "http://127.0.0.1.example.com"}, "not encrypted"),
    ],
)
def test_what_the_owner_does_not_accept_is_refused(
    world: World, options: dict[str, str], why: str
) -> None:
    script = """async (given) => {
      try { return await (await import("/world.js")).live(given); }
      catch (error) { return { error: error.constructor.name, message: error.message }; }
    }"""
    WORLDS[0] = world
    happened = world.page.evaluate(script, {"run": world.service.id, "options": options})
    assert happened["error"] == "CampaignRefused"
    assert why in happened["message"]
    assert world.paths("POST") == []


def test_a_device_waits_for_what_its_owner_decides(world: World) -> None:
    happened = world.live(slot=1, declines=True)
    assert (happened["error"], happened["message"]) == ("CampaignRefused", "declined")
    assert (world.paths("POST"), world.disk()) == ([], {})


def test_a_monotonic_clock_that_stands_still_in_sleep_is_noticed(world: World) -> None:
    """The computer sleeps for 20 of the 60 seconds until the slot of the device."""
    happened = world.live(slot=4, suspendedS=20.0)
    assert happened["outcome"] == "REPORTED"
    assert [slot for slot, _ in world.service.reports] == [4]


def test_a_device_that_leaves_is_erased_and_never_returns(world: World) -> None:
    world.live(slot=3, crashAt=12)
    assert world.disk()[world.service.id]["phase"] == "DRAWN"
    assert world.live(withdraws=True)["outcome"] is True
    assert len(world.service.withdrawn) == 1
    stored = {"schema": 1, "campaign": world.service.id, "ended": "WITHDRAWN"}
    assert world.disk()[world.service.id] == stored
    contacts = len(world.sent)
    assert world.live(withdraws=True)["outcome"] is False
    assert world.live()["error"] == "CampaignRefused"
    assert len(world.sent) == contacts


def test_a_device_that_is_not_chosen_is_dismissed(world: World) -> None:
    with_service(world, FakeService(choose=lambda receipt: False))
    assert world.live(slot=1)["outcome"] == "DISMISSED"
    assert world.service.reports == {}


@pytest.mark.parametrize("kind", ["older", "large"])
def test_a_model_that_is_not_in_the_outcome_is_fetched(world: World, kind: str) -> None:
    world.service.is_older, world.service.model_is_large = kind == "older", kind == "large"
    assert world.live(slot=4)["outcome"] == "REPORTED"
    assert [path for path in world.paths("GET") if path.endswith("/model")]


STORE = """async ([name, work]) => {
  const { IndexedDbStore, InvalidState } = await import("/client.js");
  const store = new IndexedDbStore(name);
  if (work === "save") return store.save("a", "kept");
  if (work === "load") return [await store.load("a"), await store.load("b"), await store.keys()];
  if (work === "hold") {
    return new Promise((held) => store.lock("run", () => {
      held(true);
      return new Promise(() => {});
    }));
  }
  try {
    return await store.lock("run", async () => "free");
  } catch (error) {
    return error instanceof InvalidState ? "in use" : String(error);
  }
}"""


def test_the_store_survives_a_reload_and_a_second_tab_is_refused(
    browser: Browser, origin: str
) -> None:
    context = browser.new_context()
    try:
        first, second = context.new_page(), context.new_page()
        for tab in (first, second):
            tab.goto(f"{origin}/")
        first.evaluate(STORE, ["a device", "save"])
        first.reload()
        for tab in (first, second):
            assert tab.evaluate(STORE, ["a device", "load"]) == ["kept", None, ["a"]]
        assert second.evaluate(STORE, ["another device", "load"]) == [None, None, []]
        first.evaluate(STORE, ["a device", "hold"])
        assert second.evaluate(STORE, ["a device", "try"]) == "in use"
        assert second.evaluate(STORE, ["another device", "try"]) == "free"
        first.close()
        wait_until(lambda: second.evaluate(STORE, ["a device", "try"]) == "free", "it is free")
    finally:
        context.close()
