"""Run a coordinator and 5,000 devices on this machine, and show the model and its epsilon.

make demo
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from demonstration import report, summary
from demonstration.processes import Failed, Interrupted, Interruption, Program, free_port
from demonstration.watching import Window, is_over, shown

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaign", type=Path, default=HERE / "demo.toml")
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--begins-in", type=float, default=25.0, help="seconds before slot 1")
    parser.add_argument("--out", type=Path, default=Path("out") / "demo")
    given = parser.parse_args()
    with Interruption().heard() as interruption, ExitStack() as programs:
        try:
            demo(given, interruption, programs)
        except Interrupted:
            print("Stopped; no program of the demo is left running.", file=sys.stderr)
            return 128 + (interruption.number or 0)
        except Failed as failure:
            print(f"demo: {failure}", file=sys.stderr)
            return 1
    return 0


def demo(given: argparse.Namespace, interruption: Interruption, programs: ExitStack) -> None:
    """Run the campaign, save its results and verify them. ``programs`` ends all processes."""
    work = Path(programs.enter_context(tempfile.TemporaryDirectory(prefix="checkins-demo-")))
    (work / "progress").mkdir()  # not in the folder of the store, so that no backup copies it
    store = ("--store", f"sqlite:///{work / 'demo.db'}")
    store += ("--progress-file", work / "progress" / "demo.progress")
    start = ("--start", f"+{given.begins_in:g}", "--json")
    start += ("--per-address", 0)  # no limit, because all devices have one address
    port = free_port()
    server = programs.enter_context(
        Program(work, "serve", given.campaign, *store, *start, "--port", port)
    )
    while not server.output.endswith("\n"):
        if server.ended and port and "--port" in str(server.failure()):  # port is taken
            port = 0
            server = programs.enter_context(
                Program(work, "serve", given.campaign, *store, *start, "--port", port)
            )
        elif server.ended:
            raise server.failure()
        interruption.pause()
    at = json.loads(server.output)
    window = programs.enter_context(Window(at["url"], at["campaign"]))
    view, progress = window.look()
    schedule = view["schedule"]
    seconds = given.begins_in + schedule["slots"] * schedule["slot_s"]
    summary.introduce(at["url"], view, clients=given.clients, seconds=seconds)
    joining = ("--clients", given.clients, "--campaign", at["campaign"], "--seal", at["seal"])
    devices = programs.enter_context(Program(work, "swarm", at["url"], *joining, "--json"))
    with shown() as show:
        while not is_over(view, progress):
            show(view, progress)
            interruption.pause(0.5)
            if server.ended or (devices.ended and not devices.output):
                raise (server if server.ended else devices).failure()
            view, progress = window.look()
    swarm = json.loads(devices.finished(interruption, within_s=30.0))
    save(given.out, window, view["certificate"])
    checking = (given.out, "--closed", "--head", view["ledger"]["head"], "--json")
    checker = programs.enter_context(Program(work, "verify", *checking))
    verified = json.loads(checker.finished(interruption, within_s=60.0) or "null")
    if verified is None:
        raise checker.failure()
    html = report.page(view, progress, swarm, verified, given.campaign.read_text(encoding="utf-8"))
    (given.out / "report.html").write_text(html, encoding="utf-8")
    summary.conclude(view, progress["curve"][-1]["metrics"], swarm, verified, out=given.out)


def save(out: Path, window: Window, certificate: dict[str, Any]) -> None:
    """Save the ledger, the last model and the certificate. They are public."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "ledger.jsonl").write_bytes(window.fetch("/ledger"))
    (out / "model.safetensors").write_bytes(window.fetch("/models/latest"))
    (out / "certificate.json").write_text(json.dumps(certificate, indent=2), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
