"""The form of the quickstart with numpy: an unnamed list of arrays, and no data."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def initial():
    return [np.ones((1, 1)), np.zeros(3)]


@app.train()
def train(msg: Message, context: Context):
    received = msg.content["arrays"].to_numpy_ndarrays()
    trained = [array + np.random.rand(*array.shape) for array in received]
    metrics = {"random_metric": np.random.rand(), "num-examples": 1}
    content = {"arrays": ArrayRecord(trained), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    raise AssertionError("a device is not asked to evaluate")
