"""Server-sent events of a run: status, state, releases and points of the learning curve."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping

from checkins.protocol.wire import ReleaseEvent
from checkins.service.runs import cached_responses
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.runner import Runner
from checkins.service.store import ledgers
from checkins.service.store.run_state import RunSnapshot

KEEP_ALIVE_S = 15.0  # seconds without an event after which a comment is sent


async def events(live_run: LiveRun, runner: Runner) -> AsyncIterator[bytes]:
    """Yield the server-sent events of a run until the service stops, and count the listener."""
    listener = _Listener(live_run, runner)
    runner.listeners += 1
    try:
        with runner.metrics.waiters.track_inprogress():
            while not runner.stopping.is_set():
                new = await listener.new_events()
                for event in new:
                    yield event
                # No other task runs between an empty ``new`` and waiting for a change.
                if not new and not await live_run.wait_for_change(timeout_s=KEEP_ALIVE_S):
                    yield b": still here\n\n"
    finally:
        runner.listeners -= 1


class _Listener:
    """A listener of a run. Its attributes record what has been sent to it."""

    def __init__(self, live_run: LiveRun, runner: Runner) -> None:
        self._live_run = live_run
        self._runner = runner
        self._status: dict[str, str | None] = {}
        self._state: Mapping[str, object] = {}
        self._slots = live_run.public.state.closed
        self._entries = live_run.public.ledger.entries
        self._points = len(live_run.public_curve)

    async def new_events(self) -> list[bytes]:
        """Return the events that have not been sent yet, in order."""
        live_run, public, new = self._live_run, self._live_run.public, []
        now = public.state.closed
        status = {"status": live_run.status, "holding": self._runner.clock_watch.holding}
        if status != self._status:
            self._status = status
            new.append(_event("status", now, {**status, "next": live_run.next_run}))
        if now > self._slots:
            for release in await self._releases(public):
                new.append(_event("release", release["slot"], release))
                self._state = {name: value for name, value in release.items() if name != "slot"}
            self._entries += now - self._slots
            self._slots = now
        if live_run.public is public:  # otherwise a newer release must be sent first
            state = cached_responses.state(live_run)
            if state != self._state:
                self._state = state
                new.append(_event("state", now, state))
        for slots, metrics in live_run.public_curve[self._points :]:
            self._points += 1
            new.append(_event("curve", now, {"slots": slots, "metrics": metrics}))
        return new

    async def _releases(self, public: RunSnapshot) -> list[ReleaseEvent]:
        """Return all releases after the last release that was sent.

        There may be several, because a slow reader falls behind. While a run is open, each slot
        adds exactly one line to the ledger, so the ledger position of a release is known.
        """
        live_run, first, closed = self._live_run, self._slots + 1, public.state.closed
        if first == closed and public.state.ending is None:
            hashes, heads = [(closed, public.model_hash)], [public.ledger.head]
        else:
            run, population, most = live_run.spec.id, live_run.spec.population, closed - first + 1
            load, after = self._runner.load, self._entries
            hashes = await load(ledgers.last_releases, run, closed=closed, most=most)
            heads = await load(ledgers.ledger_heads, population, after=after, most=most)
        return [
            cached_responses.release(
                live_run,
                slot,
                model_hash=model_hash,
                head=heads[slot - first],
                entries=self._entries + slot - first + 1,
            )
            for slot, model_hash in hashes
            if live_run.spec.rules.releases(slot)
        ]


def _event(name: str, number: int, data: Mapping[str, object]) -> bytes:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()
