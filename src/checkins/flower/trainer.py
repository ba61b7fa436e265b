"""A Flower ClientApp as a device of a coordinator: it trains, and the SDK does everything else.

The app is called in this process with a message of the type "train", as if a SuperLink had sent it.
The difference of received and returned arrays is clipped, gets noise and is reported by
``checkins.client``. Metrics and all other records of the reply stay on the device.
"""

from __future__ import annotations

import json
import os
import secrets
from base64 import b64decode, b64encode
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto

from checkins import durable_file
from checkins.client import Participant, fetch_campaign
from checkins.client.trainer import Tensors
from checkins.errors import InvalidValue, TrainingFailed, first_line
from checkins.flower.apps import check_client_app, load_client_app, read_run_config
from checkins.flower.records import (
    Config,
    InvalidReply,
    arrays_of,
    has_client_fn,
    train_content,
    train_message,
    update_of_reply,
)
from checkins.protocol import wire
from checkins.tasks.model import flatten, unflatten

SERVER_ROUND = "server-round"
"""Key of the message's config with the number of the round, which is the slot."""


def device(
    client_app: ClientApp | str,
    *,
    url: str,
    state: str | os.PathLike[str],
    campaign: str | None = None,
    run_config: Config | None = None,
    node_config: Config | None = None,
    train_config: Config | None = None,
    **options: Any,
) -> Participant:
    """Return a ``ClientApp`` as a device of the coordinator at ``url``. ``run()`` takes part.

    ``client_app`` may also be ``module:object``, or the folder of a Flower app. Then the run config
    of its pyproject.toml is the default. ``campaign`` is the id of a run; None means the run of the
    only open campaign. The configs are as in ``ClientAppTrainer``. ``options`` are arguments of
    ``Participant``, such as ``key`` and ``most_epsilon``.
    """
    app = client_app
    if isinstance(client_app, str):
        app = load_client_app(client_app)
        run_config = read_run_config(client_app, run_config or {})
    trainer = ClientAppTrainer(
        app,
        state=Path(state),
        run_config=run_config or {},
        node_config=node_config or {},
        train_config=train_config or {},
    )
    if campaign is None:
        connection = {name: options[name] for name in ("ca", "plain_http") if name in options}
        campaign = fetch_campaign(url, **connection).id
    return Participant(url=url, campaign=campaign, trainer=trainer, state=state, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedContext:
    """What the app keeps in ``context.state``, before and after its latest training.

    ``run`` is the run of this training. If the device crashed before its report was stored, the app
    is called again for the same run, with the state before.
    """

    run: str = ""
    node_id: int = field(default_factory=lambda: secrets.randbits(62))
    before: bytes = b""
    after: bytes = b""

    def state_for(self, run: str) -> bytes:
        """Return the state with which the app begins its training in this run."""
        return self.before if run == self.run else self.after

    def to_bytes(self) -> bytes:
        states = {"before": self.before, "after": self.after}
        encoded = {name: b64encode(state).decode("ascii") for name, state in states.items()}
        return json.dumps({"run": self.run, "node_id": self.node_id, **encoded}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> _SavedContext:
        values = json.loads(data)
        states = {name: b64decode(values[name], validate=True) for name in ("before", "after")}
        return cls(run=str(values["run"]), node_id=int(values["node_id"]), **states)


@dataclass(frozen=True)
class ClientAppTrainer:
    """Trains with a ClientApp (``checkins.client.trainer.SlotTrainer``).

    ``state`` is the folder of the device. What the app keeps in ``context.state`` is stored there,
    in one file for each campaign. ``run_config`` and ``node_config`` are those of the app's
    ``Context``. ``train_config`` is the config of the message, to which the round is added.
    """

    app: ClientApp
    _: KW_ONLY
    state: Path
    run_config: Config = field(default_factory=dict)
    node_config: Config = field(default_factory=dict)
    train_config: Config = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_client_app(self.app)

    def update_in_slot(self, model: Tensors, *, run: str, slot: int) -> Tensors:
        """Call the app once; return received − returned arrays.

        Raise ``TrainingFailed`` if the app raises an exception, or if its reply is an error, has
        other arrays than the model, or contains NaN or an infinity.
        """
        shapes = {name: tuple(np.shape(tensor)) for name, tensor in model.items()}
        vector = flatten(model, shapes)
        saved = self._load(run)
        context = self._context(run, saved)
        config = {**self.train_config, SERVER_ROUND: slot}
        content = train_content(arrays_of(vector, shapes), config, legacy=has_client_fn(self.app))
        message = train_message(content, run_id=context.run_id, node_id=context.node_id)
        try:
            reply = self.app(message, context)
        except (Exception, SystemExit) as error:  # an app may call sys.exit
            raise TrainingFailed(f"the Flower app raised {first_line(error)}") from error
        try:
            update = update_of_reply(reply, vector, shapes)
        except InvalidReply as error:
            raise TrainingFailed(f"the Flower app returned no model: {error}") from error
        if not np.isfinite(update).all():
            raise TrainingFailed("the Flower app returned NaN or infinity")
        self._save(run, saved, context.state)
        return unflatten(update, shapes)

    def _context(self, run: str, saved: _SavedContext) -> Context:
        kept = RecordDictProto.FromString(saved.state_for(run))
        return Context(
            run_id=int(wire.seal_digits(run), 16),
            node_id=saved.node_id,
            node_config=dict(self.node_config),
            state=recorddict_from_proto(kept),
            run_config=dict(self.run_config),
        )

    def _path(self, run: str) -> Path:
        return self.state / f"flower-{wire.seal_digits(run)}.json"

    def _load(self, run: str) -> _SavedContext:
        try:
            data = self._path(run).read_bytes()
        except FileNotFoundError:
            return _SavedContext()
        try:
            return _SavedContext.from_bytes(data)
        except (ValueError, KeyError, TypeError) as error:
            expected = "is not the saved context of a Flower app: repair it, or delete it"
            raise InvalidValue("state", str(self._path(run)), expected) from error

    def _save(self, run: str, saved: _SavedContext, state: RecordDict) -> None:
        """Store the state of the app, if it has any, before the report is stored."""
        before, after = saved.state_for(run), recorddict_to_proto(state).SerializeToString()
        if before or after:
            latest = _SavedContext(run=run, node_id=saved.node_id, before=before, after=after)
            durable_file.replace_content(self._path(run), latest.to_bytes(), mode=0o600)
