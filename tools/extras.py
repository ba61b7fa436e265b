"""Install each extra alone in a fresh environment, and try what it is for and what it lacks.

python tools/extras.py               every extra
python tools/extras.py client sim    these extras

A command of an extra must succeed. A command that needs another extra must say in one line which
one to install, and exit with 2. Wheels are downloaded once, because pip caches them.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.environments import ROOT, Environment, Offline, build

EXAMPLES = ROOT / "examples"
BASE = "no extra"
ACCOUNT = (
    "checkins account --protocol fixed --slots 1000 --participation 1 --local-epsilon 1"
    " --delta 1e-6 --adjacency add-remove"
)
SYNTHETIC = """
schema = 1
budget = { epsilon = 100.0, delta = 1e-6, adjacency = "add-remove" }
protocol = { kind = "fixed", slots = 2, participation = 1.0, capacity = 8 }
task = { data = "synthetic", model = "logistic", optimizer = { kind = "sgd", rate = 0.5 } }
schedule = { start = 2030-01-01T00:00:00Z, slot_s = 2.0, choose_s = 0.5 }

[randomizer]
kind = "gaussian"
noise_at = "client"
noise_multiplier = 1.0
clip = 1.0
grid = 1e-6
"""
CERTIFY = """
from checkins.accounting import *
design = Design(Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0))
assert certify(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE).epsilon < 0.1267
"""
PLOT = """
from pathlib import Path
from checkins.audit import Settings, audit_campaign
from checkins.audit.report import save_trade_off_plot
from checkins.campaign import parse_campaign
campaign = parse_campaign(Path("demo.toml").read_text()).campaign
save_trade_off_plot(audit_campaign(campaign, Settings(seed=1, seconds=2.0)), Path("plot.png"))
assert Path("plot.png").stat().st_size > 10_000
"""
LOSS = """
from checkins.accounting import *
from checkins.accounting.interop import to_dp_event
design = Design(Protocol.FIXED, slots=100, participation=1.0, randomizer=LocalRandomizer(1.0))
question = {"delta": 1e-6, "adjacency": Adjacency.ADD_REMOVE}
loss = loss_distribution(design, **question, interval=1e-3)
assert to_dp_event(design)
assert 0.0 < loss.get_epsilon_for_delta(1e-6) < 1.0
"""
SIMULATE = """
from pathlib import Path
from checkins.campaign import parse_campaign
from checkins.simulation.engine.outcome import simulate
outcome = simulate(parse_campaign(Path("synthetic.toml").read_text()).campaign, seed=1)
import checkins.simulation.report.html, checkins.simulation.sweep
"""
DATA = """
import numpy, pyarrow, pyarrow.parquet
from checkins.tasks.data import patients, table
assert patients.load().clients > 10_000
columns = {"who": ["a", "b"], "x": [0.0, 1.0], "y": [0, 1]}
pyarrow.parquet.write_table(pyarrow.table(columns), "t.parquet")
assert table.column_names("t.parquet") == ["who", "x", "y"]
"""


@dataclass(frozen=True)
class Trial:
    """A command, and the extra that it must name because the environment lacks it, if any."""

    command: str
    missing: str = ""
    code: str = ""
    """What Python runs, in place of a command."""

    def problem(self, environment: Environment) -> str | None:
        """Run the command. Return what is wrong, or None."""
        words = ("python", "-c", self.code) if self.code else self.command.split()
        done = environment.run(*words)
        if not self.missing:
            return None if done.returncode == 0 else f"exit {done.returncode}: {done.stderr}"
        lines = done.stderr.strip().splitlines()
        remedy = f"pip install 'checkins[{self.missing}]'"
        if self.code:
            return None if done.returncode and remedy in lines[-1] else done.stderr
        is_right = done.returncode == 2 and len(lines) == 1 and remedy in lines[0]
        return (
            None
            if is_right
            else f"exit {done.returncode}, not one line that says {remedy}:"
            + (f" {done.stdout} {done.stderr}")
        )


NO_COMMANDS = Trial(ACCOUNT, missing="cli")
NO_ACCOUNTANT = Trial("certify", missing="accounting", code=CERTIFY)
NO_SERVICE = Trial("checkins serve demo.toml", missing="service")
NO_SIMULATION = Trial("checkins simulate demo.toml", missing="sim")
NO_CLIENT = Trial("checkins join http://127.0.0.1:9 --row 1 --state s", missing="client")
NO_PLOT = Trial("checkins paper figure2 --out figure2", missing="plot")
COMMANDS = (
    Trial(ACCOUNT),
    Trial(
        f"{ACCOUNT.replace('account', 'calibrate', 1)} --epsilon 0.1 --solve slots".replace(
            " --slots 1000", ""
        )
    ),
    Trial("checkins check demo.toml"),
    Trial("checkins paper table1"),
    Trial("checkins verify ledger"),
    Trial("checkins audit demo.toml --seconds 2"),
    Trial("checkins init --task synthetic --out new.toml"),
)
TRIALS: dict[str, tuple[Trial, ...]] = {
    BASE: (
        Trial("import", code="import checkins.campaign, checkins.randomizers, checkins.tasks"),
        NO_ACCOUNTANT,
        NO_COMMANDS,
    ),
    "accounting": (Trial("certify", code=CERTIFY), NO_COMMANDS),
    "client": (
        Trial("python -m checkins.client --help"),
        Trial("checkins join URL", missing="cli"),
        NO_ACCOUNTANT,
    ),
    "cli": (*COMMANDS, NO_SERVICE, NO_SIMULATION, NO_CLIENT, NO_PLOT),
    "plot": (Trial("plot", code=PLOT), NO_COMMANDS),
    "dp-accounting": (Trial("loss distribution", code=LOSS), NO_COMMANDS),
    "data": (Trial("read tables", code=DATA), NO_ACCOUNTANT, NO_COMMANDS),
    "service": (
        Trial(ACCOUNT),
        Trial("checkins serve synthetic.toml --start +2 --until-done --port 0"),
        NO_CLIENT,
    ),
    "sim": (Trial("simulate", code=SIMULATE), NO_COMMANDS),
    "ray": (Trial("import", code="import ray, checkins.simulation.workers"), NO_COMMANDS),
    "flower": (
        Trial("import", code=f"import flwr\nfrom checkins.flower import device\n{CERTIFY}"),
        NO_SERVICE,
        NO_SIMULATION,
    ),
    "all": (
        *COMMANDS,
        Trial("checkins simulate synthetic.toml --out simulation"),
        Trial("checkins simulate synthetic.toml --seeds 2 --ray"),
        Trial("checkins paper figure2 --out figure2"),
        Trial("loss distribution", code=LOSS),
        Trial("read tables", code=DATA),
    ),
}
"""What is tried with each extra."""


def try_extra(extra: str, wheel: Path, folder: Path) -> Iterator[str]:
    """Install an extra in ``folder`` and yield what is wrong with it."""
    environment = Environment.create(folder)
    wanted = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
    pins = "flower.txt" if extra == "flower" else "all.txt"
    environment.install(wanted, constraints=ROOT / "constraints" / pins)
    (folder / "demo.toml").write_bytes((EXAMPLES / "demo.toml").read_bytes())
    (folder / "synthetic.toml").write_text(SYNTHETIC, encoding="utf-8")
    (folder / "ledger").mkdir()
    ledger = ROOT / "tests" / "golden" / "ledgers" / "fixed.jsonl"
    (folder / "ledger" / "ledger.jsonl").write_bytes(ledger.read_bytes())
    for trial in TRIALS[extra]:
        problem = trial.problem(environment)
        if problem is not None:
            yield f"{extra}: {trial.command}: {problem}"


def main(extras: Sequence[str]) -> int:
    unknown = [extra for extra in extras if extra not in TRIALS]
    if unknown:
        print(f"no such extra: {', '.join(unknown)}; known: {', '.join(TRIALS)}", file=sys.stderr)
        return 2
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="checkins-extras-") as temporary:
        wheel = build("wheel", Path(temporary))
        for extra in extras or TRIALS:
            folder, started, cpu_s = Path(temporary) / extra, time.monotonic(), _children_cpu_s()
            try:
                problems += try_extra(extra, wheel, folder)
            except Offline as error:
                print(f"offline, so no extra can be tried: {error}", file=sys.stderr)
                return 1
            count = len(Environment(folder).packages())
            seconds, cpu_s = time.monotonic() - started, _children_cpu_s() - cpu_s
            print(f"{extra:<14}{count:>4} packages{seconds:>7.1f} s{cpu_s:>7.1f} s CPU", flush=True)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
