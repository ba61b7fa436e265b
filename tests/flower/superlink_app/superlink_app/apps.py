"""A ServerApp on the clock of a test, and a ClientApp that notes when it trains."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from checkins.campaign import read_campaign
from checkins.flower.report_mod import report_mod
from checkins.flower.strategy import RandomCheckIns
from tests.support.file_clock import FileClock

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clock = FileClock(Path(str(config["clock"])))
    RandomCheckIns.from_run_config(config, "/", clock=clock).start(grid)


def mod(message: Message, context: Context, call_next) -> Message:
    campaign = read_campaign(str(context.run_config["campaign"])).campaign
    return report_mod(campaign)(message, context, call_next)


client = ClientApp(mods=[mod])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Note that the training begins, and wait until the test allows it to end."""
    folder, node = Path(str(context.node_config["folder"])), context.node_config["node"]
    with (folder / f"trained-{node}").open("a") as file:
        file.write("x")
    while not (folder / f"go-{node}").exists():
        time.sleep(0.1)
    arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    arrays["weights"][int(node)] -= 5.0
    content = {"arrays": ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()})}
    return Message(RecordDict(content), reply_to=message)
