"""The form of the quickstart with PyTorch: named arrays, and a learning rate in the message.

Batch normalization counts its batches in an integer. Numpy stands in for PyTorch.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def initial():
    return {
        "fc.weight": np.zeros((2, 3), np.float32),
        "fc.bias": np.zeros(2, np.float32),
        "bn.running_mean": np.zeros(2, np.float16),
        "bn.num_batches_tracked": np.array(0),
    }


@app.train()
def train(msg: Message, context: Context):
    received = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    rate, epochs = msg.content["config"]["lr"], context.run_config["local-epochs"]
    trained = {
        "fc.weight": received["fc.weight"] - np.float32(rate * epochs),
        "fc.bias": received["fc.bias"] - np.float32(rate * epochs),
        "bn.running_mean": np.full(2, 0.5, np.float16),
        "bn.num_batches_tracked": received["bn.num_batches_tracked"].astype(np.int64) + 32,
    }
    metrics = {"train_loss": 0.25, "num-examples": 32}
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in trained.items()})
    content = {"arrays": arrays, "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)
