"""The app of examples/flower in Flower's simulation, with real actors."""

from __future__ import annotations

import os
from pathlib import Path

from checkins.ledger import lines, verify
from tests.support.program import run_python

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "examples" / "flower"
NODES = 6
SIMULATE = f"""\
import sys
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from checkin_app.client_app import app as client
from checkin_app.server_app import RandomCheckIns, evaluate
from checkins.campaign import read_campaign

server, (campaign, folder) = ServerApp(), sys.argv[1:]

@server.main()
def main(grid, context):
    strategy = RandomCheckIns(read_campaign(campaign).campaign, folder, simulated_nodes={NODES})
    config = ConfigRecord({{"lr": 0.5}})
    result = strategy.start(grid, train_config=config, evaluate_fn=evaluate)
    print("accuracies", len(result.evaluate_metrics_serverapp))

resources = {{"client_resources": {{"num_cpus": 1}}, "init_args": {{"num_cpus": 1}}}}
run_simulation(server, client, {NODES}, backend_config=resources)
"""


def test_the_example_runs_in_a_simulation_and_its_ledger_says_so(tmp_path: Path) -> None:
    text = (APP / "checkin_app" / "campaign.toml").read_text(encoding="utf-8")
    campaign = tmp_path / "campaign.toml"
    text = text.replace("slots = 20", "slots = 2").replace("epsilon = 1.0", "epsilon = 4.0")
    campaign.write_text(text, encoding="utf-8")
    variables = {"PYTHONPATH": f"{APP}:{ROOT}", "FLWR_TELEMETRY_ENABLED": "0"}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": str(tmp_path / "flwr")}
    done = run_python(
        *("-c", SIMULATE, campaign, tmp_path), env={**os.environ, **variables, **quiet}
    )
    assert done.returncode == 0, done.stderr
    assert "accuracies 2" in done.stdout
    assert "Training has failed" not in done.stderr + done.stdout
    found = verify(lines(tmp_path / "ledger.jsonl"), require_closed=True)
    assert found.simulated
    assert found.ledger.closed[0].slots_closed == 2
