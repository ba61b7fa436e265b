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

KEEP_ALIVE_S = 15.0  # seconds without an event after which a comment keeps the stream open


async def events(live_run: LiveRun, runner: Runner) -> AsyncIterator[bytes]:
    """Yield the server-sent events of a run until the service stops.

    ``runner.listeners`` counts the open streams.
    """
    listener = _Listener(live_run, runner)
    runner.listeners += 1
    try:
        with runner.metrics.waiters.track_inprogress():
            while not runner.stopping.is_set():
                unsent = await listener.new_events()
                for event in unsent:
                    yield event
                # If ``unsent`` is empty, no other task has run since, so no change is missed.
                if not unsent and not await live_run.wait_for_change(timeout_s=KEEP_ALIVE_S):
                    yield b": still here\n\n"
    finally:
        runner.listeners -= 1


class _Listener:
    """One listener to the events of a run, with a record of what was already sent to it."""

    def __init__(self, live_run: LiveRun, runner: Runner) -> None:
        self._live_run = live_run
        self._runner = runner
        self._sent_status: dict[str, str | None] = {}
        self._sent_state: Mapping[str, object] = {}
        self._sent_slots = live_run.public_snapshot.state.closed
        self._sent_entries = live_run.public_snapshot.ledger.entries
        self._sent_points = len(live_run.public_curve)

    async def new_events(self) -> list[bytes]:
        """Return the events that have not been sent yet, in order, and record them as sent."""
        live_run, public, unsent = self._live_run, self._live_run.public_snapshot, []
        closed = public.state.closed
        status = {"status": live_run.status, "holding": self._runner.clock_jumps.holding_reason}
        if status != self._sent_status:
            self._sent_status = status
            unsent.append(_encode_event("status", closed, {**status, "next": live_run.next_run}))
        if closed > self._sent_slots:
            for release in await self._releases(public):
                unsent.append(_encode_event("release", release["slot"], release))
                self._sent_state = {
                    name: value for name, value in release.items() if name != "slot"
                }
            self._sent_entries += closed - self._sent_slots
            self._sent_slots = closed
        if live_run.public_snapshot is public:  # otherwise a newer release must be sent first
            state = cached_responses.state_event(live_run)
            if state != self._sent_state:
                self._sent_state = state
                unsent.append(_encode_event("state", closed, state))
        for slots, metrics in live_run.public_curve[self._sent_points :]:
            self._sent_points += 1
            unsent.append(_encode_event("curve", closed, {"slots": slots, "metrics": metrics}))
        return unsent

    async def _releases(self, public: RunSnapshot) -> list[ReleaseEvent]:
        """Return all releases after the last release that was sent.

        There may be several, because a slow reader falls behind. While a run is open, each slot
        adds exactly one line to the ledger, so the position of each release in the ledger follows.
        """
        live_run, first, closed = self._live_run, self._sent_slots + 1, public.state.closed
        if first == closed and public.state.ending is None:
            hashes, heads = [(closed, public.model_hash)], [public.ledger.head]
        else:
            run, population, count = live_run.spec.id, live_run.spec.population, closed - first + 1
            read_store, after = self._runner.read_store, self._sent_entries
            hashes = await read_store(ledgers.last_releases, run, last_slot=closed, slots=count)
            heads = await read_store(ledgers.ledger_heads, population, after=after, limit=count)
        return [
            cached_responses.release_event(
                live_run,
                slot,
                model_hash=model_hash,
                head=heads[slot - first],
                entries=self._sent_entries + slot - first + 1,
            )
            for slot, model_hash in hashes
            if live_run.spec.rules.releases_model(slot)
        ]


def _encode_event(name: str, event_id: int, data: Mapping[str, object]) -> bytes:
    return f"event: {name}\nid: {event_id}\ndata: {json.dumps(data)}\n\n".encode()
