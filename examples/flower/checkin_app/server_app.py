"""The ServerApp: the strategy of the campaign in place of FedAvg."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from checkin_app import task
from checkins.flower.strategy import RandomCheckIns

app = ServerApp()


def evaluate(slot: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate a released model on public data."""
    tensors = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": task.accuracy(tensors)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all slots of the campaign."""
    strategy = RandomCheckIns.from_run_config(context.run_config, Path(__file__).parent)
    config = ConfigRecord({"lr": float(context.run_config["learning-rate"])})
    result = strategy.start(grid, train_config=config, evaluate_fn=evaluate)
    print("accuracy", result.evaluate_metrics_serverapp)
    print(strategy.get_privacy_spent())
