"""A strategy for Flower's ServerApp that runs a campaign: one slot is one round.

The strategy decides nothing about the protocol. The state machines of ``checkins.protocol`` do, in
``checkins.flower.server_run``. No node is asked to evaluate, and no metric of a reply is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore.privacy_accounting import PrivacySpent

from checkins.accounting import Certificate
from checkins.campaign import Campaign, read_campaign
from checkins.client.state import make_private_folder
from checkins.errors import InvalidValue, OutOfOrder, ProtocolViolation
from checkins.flower.clock import Clock, SystemClock, VirtualClock
from checkins.flower.nodes import Nodes, OnlineNodes, SimulatedNodes
from checkins.flower.records import arrays_of, numbers_of, train_content, update_of_reply
from checkins.flower.report_mod import report_in
from checkins.flower.server_run import ServerRun, open_run
from checkins.tasks.loaded_task import INITIAL_WEIGHTS_SEED, model_of
from checkins.tasks.model import Shapes, Vector, flatten

POLLS_PER_SLOT = 50
LONGEST_POLL_S = 3.0
"""The replies of a slot are pulled so often during the slot, and at least once in this time."""
ROUND_KEY = "server-round"
"""Name of the number of the round in the config that FedAvg sends."""
METHOD = "random check-ins"
CAMPAIGN_KEY, FOLDER_KEY, SIMULATED_KEY = "campaign", "folder", "simulated-nodes"
"""Keys of ``[tool.flwr.app.config]`` in an app's pyproject.toml, or of `flwr run --run-config`."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class RandomCheckIns(Strategy):  # type: ignore[misc]  # flwr is not installed where mypy runs
    """Run a campaign by random check-ins on the nodes of a SuperLink.

    ``campaign`` is the sealed description. Its slots are on this machine's clock. ``folder`` holds
    the ledger and the hashes of the keys that have taken part, and must survive a restart. Nodes
    must run behind `checkins flower-node`, and the SuperLink with --enable-supernode-auth.
    ``simulated_nodes`` is the number of nodes of a simulation, in which the strategy draws the slot
    of each node, time is virtual, and the ledger is marked as simulated. None means real nodes.
    ``legacy`` sends the records that an app with a ``client_fn`` expects. ``clock`` is None for the
    clock of the system.

    If the process is killed, start the app again with the same folder: the run continues.
    """

    def __init__(
        self,
        campaign: Campaign,
        folder: str | os.PathLike[str],
        *,
        simulated_nodes: int | None = None,
        legacy: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.campaign = campaign
        self.folder = folder
        self.certificate: Certificate | None = None
        """The certificate of the run and of all earlier campaigns in the ledger, after the end."""
        self._simulated_nodes = simulated_nodes
        self._legacy = legacy
        self._clock = clock
        self._run: ServerRun | None = None
        self._spent: PrivacySpent | None = None

    @classmethod
    def from_run_config(
        cls, config: Mapping[str, Any], app_folder: str | os.PathLike[str], **options: Any
    ) -> Self:
        """Return the strategy that the run config of an app describes.

        ``campaign`` is the path of the campaign file, relative to ``app_folder`` unless absolute.
        ``folder`` is the absolute path of the folder on the SuperLink's machine; it is created
        unless it exists. ``simulated-nodes`` is 0 for real nodes. ``options`` are further arguments
        of the constructor.
        """
        folder = Path(str(config[FOLDER_KEY])).expanduser()
        if not folder.is_absolute():
            raise InvalidValue(FOLDER_KEY, str(folder), "must be an absolute path")
        make_private_folder(folder)
        return cls(
            read_campaign(Path(app_folder) / str(config[CAMPAIGN_KEY])).campaign,
            folder,
            simulated_nodes=int(config.get(SIMULATED_KEY, 0)) or None,
            **options,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all slots of the campaign, or the rest of them after a restart; return the model.

        ``initial_arrays`` must be public; None means those that the campaign's task names.
        ``evaluate_fn`` evaluates each released model on the server, with public data.
        ``num_rounds``, ``timeout`` and ``evaluate_config`` must be None, because the campaign fixes
        the slots and their times, and nodes evaluate nothing.
        """
        for name, value in {
            "num_rounds": num_rounds,
            "timeout": timeout,
            "evaluate_config": evaluate_config,
        }.items():
            if value is not None:
                expected = "must be None: the campaign fixes its slots, and nodes evaluate nothing"
                raise InvalidValue(name, value, expected)
        model, shapes = self._initial_model(initial_arrays)
        clock = self._clock_of_run()
        simulated, result = self._simulated_nodes is not None, Result()
        with open_run(
            self.campaign, model, self.folder, now_s=clock.now(), simulated=simulated
        ) as run:
            self._run = run
            nodes = self._nodes(grid, clock)
            self.summary()
            begins_s = run.schedule.begins(run.slot)
            if not simulated and not run.is_over:
                _log_waiting(run.slot, begins_s)
            clock.sleep_until(begins_s)
            nodes.note_online()
            while not run.is_over:
                slot = run.slot
                self._run_slot(run, nodes, clock, shapes, train_config or ConfigRecord())
                result.arrays = arrays_of(run.model, shapes)
                log(INFO, "[SLOT %s/%s] released", slot, run.campaign.design.slots)
                metrics = None if evaluate_fn is None else evaluate_fn(slot, result.arrays)
                if metrics is not None:
                    result.evaluate_metrics_serverapp[slot] = metrics
            self.certificate = run.finish()
            self._spent = self.get_privacy_spent()
        self._run = None
        log(INFO, "epsilon = %s, delta = %s", self.certificate.epsilon, self.certificate.delta)
        return result

    def get_privacy_spent(self) -> PrivacySpent:
        """Return what the slots so far have cost, with all earlier campaigns of the ledger.

        Flower's accountants compose one event for each round. Here all slots together have one
        price, because a node takes part in one of them.
        """
        if self._spent is not None:
            return self._spent
        budget, run = self.campaign.budget, self._run
        closed = 0 if run is None else run.server.closed
        if self.certificate is not None:
            epsilon = self.certificate.epsilon
        else:
            epsilon = 0.0 if run is None else run.spent
        return PrivacySpent(epsilon, budget.delta, closed, METHOD)

    def summary(self) -> None:
        """Log what the campaign is."""
        design, budget = self.campaign.design, self.campaign.budget
        log(INFO, "Campaign %s, %s", self.campaign.name, self.campaign.seal)
        log(INFO, "\t├── Slots: %s", design.slots)
        log(INFO, "\t├── Capacity: %s", design.capacity or "all check-ins")
        log(INFO, "\t└── Budget: epsilon %s, delta %s", budget.epsilon, budget.delta)

    def _run_slot(
        self, run: ServerRun, nodes: Nodes, clock: Clock, shapes: Shapes, config: ConfigRecord
    ) -> None:
        """Run one slot to its scheduled end. A slot that has passed gets no reports."""
        slot = run.begin_slot()
        chooses_s, ends_s = run.schedule.chooses(slot), run.schedule.ends(slot)
        clock.sleep_until(chooses_s)
        node_ids = nodes.checked_in(slot) if clock.now() < ends_s else {}
        chosen = run.choose(node_ids)
        receipts = {node_ids[key]: receipt for receipt, key in chosen.items()}
        ttl_s = ends_s - clock.now()
        if receipts and ttl_s > 0:
            content = train_content(
                arrays_of(run.model, shapes),
                {**config, ROUND_KEY: slot},
                legacy=self._legacy,
            )
            messages = [
                Message(
                    content,
                    dst_node_id=node_id,
                    message_type=MessageType.TRAIN,
                    ttl=ttl_s if nodes.real_time else None,  # None: Flower's default, half a day
                    group_id=str(slot),
                )
                for node_id in receipts
            ]
            for reply in nodes.exchange(messages, until_s=ends_s):
                receipt = receipts.get(reply.metadata.src_node_id)
                if receipt is not None:
                    _add_reply(run, receipt, reply, shapes)
        clock.sleep_until(ends_s)
        nodes.note_online()  # first, because the next slot has begun
        run.close_slot()

    def _initial_model(self, arrays: ArrayRecord | None) -> tuple[Vector, dict[str, Any]]:
        """Return the initial model as a flat vector, rounded to float32, and its shapes."""
        if arrays is None:
            if self.campaign.task is None:
                raise InvalidValue("campaign", self.campaign.name, "needs a [task]")
            model = model_of(self.campaign.task)
            return model.start(INITIAL_WEIGHTS_SEED), dict(model.shapes)
        tensors = {name: numbers_of(name, array) for name, array in arrays.items()}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        return flatten(tensors, shapes).astype(np.float32).astype(np.float64), shapes

    def _clock_of_run(self) -> Clock:
        if self._clock is not None:
            return self._clock
        if self._simulated_nodes is None:
            return SystemClock()
        schedule = self.campaign.schedule
        return VirtualClock(0.0 if schedule is None else schedule.start.timestamp())

    def _nodes(self, grid: Grid, clock: Clock) -> Nodes:
        if self._simulated_nodes is not None:
            return SimulatedNodes(grid, self.campaign, self._simulated_nodes)
        slot_s = self.campaign.schedule.slot_s if self.campaign.schedule else LONGEST_POLL_S
        return OnlineNodes(grid, clock, min(LONGEST_POLL_S, slot_s / POLLS_PER_SLOT))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise: ``start`` sends the messages of a slot to the nodes that the campaign chose."""
        raise _only_start()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Raise: ``start`` adds up the reports of a slot on the campaign's grid."""
        raise _only_start()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: the data of the nodes are used for one report only."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return None: no node evaluates."""


def _log_waiting(slot: int, begins_s: float) -> None:
    """Log when the slot begins until which a run with real nodes waits."""
    begins = datetime.fromtimestamp(begins_s, UTC).isoformat(timespec="seconds")
    log(INFO, "Waiting for slot %s at %s; to simulate, set %s=N", slot, begins, SIMULATED_KEY)


def _only_start() -> OutOfOrder:
    return OutOfOrder("a campaign is run by start(), not round by round: do not wrap the strategy")


def _add_reply(run: ServerRun, receipt: str, reply: Message, shapes: Shapes) -> None:
    """Add the report or the update of a reply. A reply that is neither counts as missing."""
    try:
        report = report_in(reply)
        if report is None:
            run.add_update(receipt, update_of_reply(reply, run.model, shapes))
        else:
            run.add_report(receipt, report)
    except (InvalidValue, ProtocolViolation) as error:
        kind = type(error).__name__
        log(WARNING, "A reply in slot %s was refused (%s).", run.slot, kind)
