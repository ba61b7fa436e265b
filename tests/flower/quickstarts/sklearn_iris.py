"""The form of the quickstart with scikit-learn: a warm start, and values of both configs."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

app = ClientApp()


def new_model(penalty):
    model = LogisticRegression(
        C={"none": np.inf, "l2": 1.0}[penalty], max_iter=1, warm_start=True, solver="saga"
    )
    model.classes_ = np.arange(3)
    model.coef_ = np.zeros((3, 4))
    model.intercept_ = np.zeros(3)
    return model


def initial():
    model = new_model("l2")
    return [model.coef_, model.intercept_]


@app.train()
def train(msg: Message, context: Context):
    model = new_model(context.run_config["penalty"])
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    features, labels = load_iris(return_X_y=True)
    mine = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features[mine], labels[mine])
    metrics = {
        "num-examples": len(labels[mine]),
        "train_logloss": log_loss(labels[mine], model.predict_proba(features[mine])),
    }
    content = {
        "arrays": ArrayRecord([model.coef_, model.intercept_]),
        "metrics": MetricRecord(metrics),
    }
    return Message(content=RecordDict(content), reply_to=msg)
