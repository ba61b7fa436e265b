"""Measure how many bytes a client sends and receives in one slot, and in one round of Flower.

    .venv-flower/bin/python -m bench.peers.flower_bytes [ROUNDS]

Both run in the environment of Flower on this machine, with the same model of 7,850 numbers and one
client. All connections of the client go through a proxy that counts bytes, without TLS. A client
of Flower's FedAvg trains and, unless ``fraction_evaluate`` is 0, evaluates. Bytes of a round are
the difference of a run of ROUNDS rounds and a run of one round, so that they do not contain the
download of the app. The result is printed as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tests.support.campaigns import SERVER_NOISE, campaign_text
from tests.support.postgres import free_port

PROGRAMS = Path(sys.executable).parent
CLIENTS, ROWS, CLASSES = 1, 784, 10
SLOT_S, CHOOSE_S = 150.0, 60.0

APP = f"""
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()
server = ServerApp()


def initial():
    return [np.zeros(({ROWS}, {CLASSES}), np.float32), np.zeros({CLASSES}, np.float32)]


@app.train()
def train(message, context):
    arrays = [array + np.float32(0.01) for array in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({{"num-examples": 10}})
    content = RecordDict({{"arrays": ArrayRecord(arrays), "metrics": metrics}})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({{"num-examples": 10, "loss": 0.5}})
    return Message(RecordDict({{"metrics": metrics}}), reply_to=message)


@server.main()
def main(grid, context):
    strategy = FedAvg(
        fraction_evaluate=context.run_config["fraction-evaluate"],
        min_train_nodes={CLIENTS}, min_evaluate_nodes={CLIENTS}, min_available_nodes={CLIENTS},
    )
    rounds = context.run_config["rounds"]
    strategy.start(grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=rounds)
"""
PYPROJECT = """
[project]
name = "bytes"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "bytes_app:server"
clientapp = "bytes_app:app"

[tool.flwr.app.config]
rounds = 1
fraction-evaluate = 1.0
"""


@dataclass
class CountingProxy:
    """A TCP proxy on a free port that counts the bytes which clients send and receive."""

    target: int
    port: int = 0
    sent: int = 0
    received: int = 0
    _ready: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[CountingProxy]:
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()
        yield self

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _connect(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(
            self._pipe(source, writer, "sent"), self._pipe(reader, sink, "received")
        )

    async def _pipe(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, count: str
    ) -> None:
        try:
            while chunk := await source.read(65_536):
                setattr(self, count, getattr(self, count) + len(chunk))
                sink.write(chunk)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


def write_app(folder: Path) -> Path:
    app = folder / "app"
    app.mkdir()
    (app / "bytes_app.py").write_text(APP, encoding="utf-8")
    (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    return app


def bytes_of_slot(folder: Path) -> dict[str, float]:
    """Return the bytes of a client that enrols, checks in and reports, once."""
    app = write_app(folder)
    text = campaign_text(
        slots=1,
        capacity="all",
        randomizer=SERVER_NOISE,
        data="devices",
        model="bytes_app:initial",
        optimizer=f'kind = "sgd", rate = 1.0, divide_by = {CLIENTS}',
        slot_s=SLOT_S,
        choose_s=CHOOSE_S,
    )
    (folder / "campaign.toml").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(app), "XDG_STATE_HOME": str(folder / "own")}
    words = ["serve", "campaign.toml", "--store", "sqlite:///store.db", "--start", "+10", "--json"]
    with ExitStack() as stack:
        port = free_port()
        service = subprocess.Popen(
            [PROGRAMS / "checkins", *words, "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(service.wait)
        stack.callback(service.terminate)
        assert service.stdout is not None
        service.stdout.readline()
        proxy = stack.enter_context(CountingProxy(port).running())
        url, join = f"http://127.0.0.1:{proxy.port}", (PROGRAMS / "checkins", "join", "--json")
        devices = [
            subprocess.Popen(
                [*join, url, "--flower", app, "--state", folder / f"state{each}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for each in range(CLIENTS)
        ]
        outcomes = [json.loads(device.communicate()[0])["outcome"] for device in devices]
        if outcomes != ["reported"] * CLIENTS:
            raise SystemExit(f"not every device reported: {outcomes}")
        return {"sent": proxy.sent / CLIENTS, "received": proxy.received / CLIENTS}


def bytes_of_run(folder: Path, *, rounds: int, evaluate: float) -> CountingProxy:
    """Return the proxy through which the SuperNodes took part in a run of FedAvg."""
    app, port = write_app(folder), free_port()
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    path = os.pathsep.join((str(PROGRAMS), os.environ["PATH"]))
    environment = {**os.environ, **quiet, "FLWR_HOME": str(home), "PATH": path}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))

        def start(*words: object) -> None:
            process = subprocess.Popen(
                list(map(str, words)), env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start(
            *(PROGRAMS / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port),
            "--disable-runtime-dependency-installation",
        )
        proxy = stack.enter_context(CountingProxy(port).running())
        time.sleep(15.0)
        for _ in range(CLIENTS):
            link = ("--insecure", "--superlink", f"127.0.0.1:{proxy.port}")
            start(PROGRAMS / "flower-supernode", *link, "--port", free_port())
        time.sleep(15.0)
        config = f"rounds={rounds} fraction-evaluate={evaluate}"
        words = ("run", str(app), "here", "--run-config", config, "--stream")
        subprocess.run(
            [PROGRAMS / "flwr", *words], check=True, env=environment, stdout=log, stderr=log
        )
        return proxy


def bytes_of_round(rounds: int, *, evaluate: float) -> dict[str, float]:
    """Return the bytes of a client in one round of FedAvg."""
    runs = []
    for count in (1, rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(bytes_of_run(Path(folder), rounds=count, evaluate=evaluate))
    one, several = runs
    divisor = CLIENTS * (rounds - 1)
    return {
        "sent": (several.sent - one.sent) / divisor,
        "received": (several.received - one.received) / divisor,
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    with tempfile.TemporaryDirectory() as folder:
        slot = bytes_of_slot(Path(folder))
    result = {
        "flwr": version("flwr"),
        "numbers": (ROWS + 1) * CLASSES,
        "slot": slot,
        "round": bytes_of_round(rounds, evaluate=1.0),
        "round without evaluation": bytes_of_round(rounds, evaluate=0.0),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
