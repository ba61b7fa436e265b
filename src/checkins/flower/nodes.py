"""How a run finds out which nodes have checked in, and exchanges messages with the chosen ones.

``OnlineNodes`` are the SuperNodes of a SuperLink. Their gates (``checkins flower-node``) decide
when they are online. ``SimulatedNodes`` are always online, so each of them gets a slot here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.flower.clock import Clock, SystemClock
from checkins.protocol.participant import (
    COIN_RANGE,
    Draw,
    DrawRecorded,
    participant_of,
    step,
)

ACTIVATION_POLL_S = 0.2
"""Seconds between two looks at a simulation whose nodes are being created."""
LONGEST_ACTIVATION_S = 30.0
"""Seconds without a further node after which a simulation is known to have too few nodes."""


class Nodes(Protocol):
    """The nodes of a run. ``real_time`` is whether the clock of the run is that of the messages."""

    real_time: bool

    def note_online(self) -> None:
        """Note which nodes are online when a slot begins."""

    def checked_in(self, slot: int) -> dict[bytes, int]:
        """Return the public key and the id of each node that has checked in to the slot."""

    def exchange(self, messages: Sequence[Message], *, until_s: float) -> Iterator[Message]:
        """Send the messages, and yield the replies that come before ``until_s``."""


@dataclass(slots=True)
class OnlineNodes:
    """The nodes of a SuperLink.

    A node has checked in if it came online between the start of a slot and its choice. A node that
    was online before has not: for example, a node that was killed in an earlier slot is called
    online for another minute.
    """

    grid: Grid
    clock: Clock
    poll_s: float
    online_before: set[tuple[int, str]] = field(default_factory=set)
    real_time: bool = True

    def note_online(self) -> None:
        nodes = self.grid.get_nodes()
        self.online_before = {(node.node_id, node.last_activated_at) for node in nodes}

    def checked_in(self, slot: int) -> dict[bytes, int]:
        return {
            bytes(node.public_key): node.node_id
            for node in self.grid.get_nodes()
            if (node.node_id, node.last_activated_at) not in self.online_before
        }

    def exchange(self, messages: Sequence[Message], *, until_s: float) -> Iterator[Message]:
        pending = set(pushed_ids(self.grid, messages))
        while pending and (now := self.clock.now()) < until_s:
            self.clock.sleep_until(min(now + self.poll_s, until_s))
            for reply in self.grid.pull_messages(pending):
                pending.discard(reply.metadata.reply_to_message_id)
                yield reply


@dataclass(slots=True)
class SimulatedNodes:
    """The ``count`` nodes of a simulation, with slots that are drawn here as by a gate.

    ``clock`` tells how long the nodes have been awaited.
    """

    grid: Grid
    campaign: Campaign
    count: int
    nodes_by_slot: dict[int, dict[bytes, int]] | None = None
    clock: Clock = field(default_factory=SystemClock)
    real_time: bool = False

    def note_online(self) -> None:
        """Draw the coin and slot of every node, once."""
        if self.nodes_by_slot is not None:
            return
        self.nodes_by_slot = {}
        for node in self._node_ids():
            participant = participant_of(self.campaign)
            draw = Draw(
                coin=secrets.randbelow(COIN_RANGE),
                pick=secrets.randbelow(len(participant.window)),
                first_open_slot=1 + secrets.randbelow(self.campaign.design.slots),
            )
            participant, _ = step(participant, draw)
            participant, _ = step(participant, DrawRecorded())
            if participant.slot is not None:
                key = str(node).encode()
                self.nodes_by_slot.setdefault(participant.slot, {})[key] = node

    def checked_in(self, slot: int) -> dict[bytes, int]:
        return (self.nodes_by_slot or {}).get(slot, {})

    def exchange(self, messages: Sequence[Message], *, until_s: float) -> Iterator[Message]:
        """Send the messages and wait for all replies: a simulated slot has no deadline."""
        if messages:
            yield from self.grid.send_and_receive(messages)

    def _node_ids(self) -> list[int]:
        """Wait until Flower, which creates the nodes while the ServerApp runs, has created all."""
        created, since_s = -1, 0.0
        while len(nodes := list(self.grid.get_node_ids())) < self.count:
            now_s = self.clock.now()
            if len(nodes) > created:
                created, since_s = len(nodes), now_s
            elif now_s - since_s >= LONGEST_ACTIVATION_S:
                expected = (
                    f"must be at most the number of nodes that Flower simulates, {created}: give"
                    f' --federation-config "num-supernodes={self.count}"'
                )
                raise InvalidValue("simulated-nodes", self.count, expected)
            self.clock.sleep_until(now_s + ACTIVATION_POLL_S)
        return nodes


def pushed_ids(grid: Grid, messages: Sequence[Message]) -> Iterable[str]:
    """Push messages, and return the ids of those that the SuperLink has accepted."""
    ids = grid.push_messages(messages) if messages else []
    return [message_id for message_id in ids if message_id is not None]
