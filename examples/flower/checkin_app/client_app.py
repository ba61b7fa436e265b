"""A usual ClientApp. Only the mod is new, and it is optional if the server adds the noise."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from checkin_app import task
from checkins.campaign import read_campaign
from checkins.flower.report_mod import report_mod

CAMPAIGN = read_campaign(Path(__file__).with_name("campaign.toml")).campaign

app = ClientApp(mods=[report_mod(CAMPAIGN)])  # the reply has the clipped update and nothing else


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the rows of this node, and return the arrays."""
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    rows, labels = task.load(int(context.node_config["partition-id"]))
    rate = float(message.content["config"]["lr"])
    trained = task.train(received, rows, labels, rate=rate)
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in trained.items()})
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
