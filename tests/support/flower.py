"""A grid in this process in place of a SuperLink, and campaigns for Flower's own server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from checkins.campaign import Campaign
from tests.support.campaigns import CHOOSE_S, SERVER_NOISE, SLOT_S, START, campaign

DIMENSION = 3
INITIAL = {"weights": np.zeros(2, np.float32), "bias": np.zeros((), np.float32)}
START_S = START.timestamp()

Reply = Callable[[Message], Message | None]


def flower_campaign(**given: Any) -> Campaign:
    """A campaign of two slots whose server adds noise to the sum of at most two reports."""
    values = {"slots": 2, "capacity": 2, "randomizer": SERVER_NOISE, "data": "devices"}
    return campaign(**{**values, "model": "tests.support.flower:initial", **given})


def initial() -> dict[str, np.ndarray]:
    """The public initial arrays that ``flower_campaign`` names."""
    return INITIAL


@dataclass
class GridClock:
    """A clock that stops at each time at which something happens on the grid."""

    now_s: float = START_S - 5.0
    at: dict[float, Callable[[], None]] = field(default_factory=dict)

    def now(self) -> float:
        return self.now_s

    def sleep_until(self, moment_s: float) -> None:
        for when in sorted(when for when in self.at if when <= moment_s):
            self.now_s = max(self.now_s, when)
            self.at.pop(when)()
        self.now_s = max(self.now_s, moment_s)


@dataclass
class FakeGrid(Grid):
    """A grid whose nodes come and go by hand, and answer messages in this process."""

    apps: dict[int, ClientApp | Reply] = field(default_factory=dict)
    online: dict[int, str] = field(default_factory=dict)
    pushed: list[Message] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)
    activations: Iterable[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1

    def join(self, node: int, app: ClientApp | Reply) -> None:
        """A node comes online."""
        self.apps[node] = app
        self.online[node] = f"activation {next(iter(self.activations))}"

    def leave(self, node: int) -> None:
        del self.online[node]

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=f"key {node}".encode(), last_activated_at=at)
            for node, at in self.online.items()
        ]

    def get_node_ids(self) -> list[int]:
        return list(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.pushed)}"
            self.pushed.append(message)
            ids.append(message.metadata.message_id)
            reply = self._reply(message)
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    @property
    def sent_to(self) -> list[int]:
        return [message.metadata.dst_node_id for message in self.pushed]

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def _reply(self, message: Message) -> Message | None:
        app = self.apps[message.metadata.dst_node_id]
        if isinstance(app, ClientApp):
            node = message.metadata.dst_node_id
            return app(message, Context(7, node, {}, RecordDict(), {}))
        return app(message)


def in_slot(slot: int, *, after_s: float = 1.0) -> float:
    """A moment before the choice of a slot."""
    assert after_s < CHOOSE_S
    return START_S + (slot - 1) * SLOT_S + after_s


def replying(tensors: dict[str, np.ndarray], **metrics: float) -> Reply:
    """A node that replies with the arrays that it received, plus ``tensors``."""

    def reply(message: Message) -> Message:
        received = message.content["arrays"]
        arrays = {
            name: Array(np.asarray(received[name].numpy() + tensors.get(name, 0.0), np.float32))
            for name in received
        }
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"loss": 1.0, **metrics})}
        return Message(RecordDict(content), reply_to=message)

    return reply
