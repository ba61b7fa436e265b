"""The form of the quickstarts before Flower 1.21: a NumPyClient, made by a client_fn."""

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context


class FlowerClient(NumPyClient):
    def __init__(self, rate):
        self.rate = rate

    def fit(self, parameters, config):
        return [array + self.rate for array in parameters], 10, {"loss": 0.5}

    def evaluate(self, parameters, config):
        raise AssertionError("a device is not asked to evaluate")


def initial():
    return [np.zeros((2, 2)), np.zeros(1)]


def client_fn(context: Context):
    return FlowerClient(context.run_config["learning-rate"]).to_client()


app = ClientApp(client_fn=client_fn)
