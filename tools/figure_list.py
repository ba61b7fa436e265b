"""List the stored figures: what each one measures, where its record is, where it is shown.

A figure is a table or file of measurements. Its record is the commit at which it was measured, and
digests of the measured files.
"""

from __future__ import annotations

from dataclasses import dataclass

RESULTS, RECORDS = "bench/RESULTS.md", "bench/measured.json"
ACCOUNTING = "src/checkins/accounting"


@dataclass(frozen=True, slots=True)
class Figure:
    """A table or file of measurements.

    ``sources`` are the files that run. They and the modules that they import are what is measured,
    except for the folders in ``apart``. ``kept`` is the file with the record, under the figure's
    name, or under "measured" if the file has only this figure. ``shown`` is the page that shows the
    figure. ``again`` is the command that measures it again.
    """

    name: str
    again: str
    sources: tuple[str, ...]
    kept: str = RECORDS
    shown: str = RESULTS
    apart: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of the record in the file ``kept``."""
        return self.name if self.kept == RECORDS else "measured"


def _bench(name: str, *sources: str, apart: tuple[str, ...] = ()) -> Figure:
    return Figure(name, f"python -m bench {name}", sources, apart=apart)


PEERS = tuple(f"bench/peers/{name}" for name in ("flower.py", "flower.txt", "pfl.py", "pfl.txt"))
DPSGD = ("bench/peers/dpsgd.py", "bench/peers/dpsgd.txt")
SERVICE = (
    "bench/service.py",
    "bench/bare_service.py",
    "bench/load.py",
    "src/checkins/cli/commands/serve.py",
)

TUTORIAL = ("account", "audit", "check", "join", "operators", "plan", "serve", "simulate")
"""The modules of the commands that docs/tutorial.md shows."""

FIGURES = (
    _bench("table", "bench/table.py"),
    _bench("pure", "bench/pure.py"),
    _bench("named", "bench/named.py"),
    _bench("grid", "bench/gaussian.py"),
    _bench("replace_one", "bench/gaussian.py"),
    _bench("shared_slots", "bench/gaussian.py"),
    _bench("several", "bench/gaussian.py"),
    _bench("calibration", "bench/calibration.py"),
    _bench("peer", "bench/gaussian.py"),
    _bench("accountants", "bench/accountants.py", *DPSGD),
    _bench("device_noise", "bench/device_noise.py"),
    _bench("browser_noise", "bench/browser_noise.py", "clients/js/client.js"),
    _bench("beside_bare", "bench/simulator.py", apart=(ACCOUNTING,)),
    _bench("correlated", "bench/simulator.py", apart=(ACCOUNTING,)),
    _bench("beside_peers", "bench/simulator.py", *PEERS, apart=(ACCOUNTING,)),
    _bench(
        "growth",
        *("bench/simulator.py", "src/checkins/simulation/study.py", "examples/patients.toml"),
    ),
    Figure(
        "on_device",
        "python -m bench.gpu --out DIR",
        ("bench/gpu.py",),
        kept="bench/gpu.json",
        apart=(ACCOUNTING,),
    ),
    _bench("recommendations", "bench/recommendations.py", "examples/fashion_mnist.toml"),
    Figure(
        "recommended-fashion-mnist",
        "python -m bench.trying DESIGNS.json bench/recommended/fashion-mnist.json",
        ("bench/trying.py",),
        kept="bench/recommended/fashion-mnist.json",
        apart=(ACCOUNTING,),
    ),
    _bench(
        "flower_bytes",
        *("bench/flower_bytes.py", "bench/peers/flower_bytes.py"),
        *("src/checkins/flower/trainer.py", "src/checkins/cli/commands/serve.py"),
    ),
    _bench("check_ins", *SERVICE),
    _bench("waiting", *SERVICE),
    _bench(
        "flower_slots",
        "bench/flower_slots.py",
        "bench/peers/flower_slots.py",
        "src/checkins/flower/strategy.py",
    ),
    Figure(
        "planted-leaks",
        "python tools/leak_mutants.py --save",
        (
            *(
                "tools/leak_mutants.py",
                "tools/leak_mutant_list.py",
                "src/checkins/audit/leak_tests.py",
            ),
            *("src/checkins/audit/live.py", "src/checkins/cli/commands/serve.py"),
        ),
        kept="docs/planted-leaks.json",
        shown="docs/planted-leaks.md",
    ),
    Figure(
        "patients-auc",
        "python examples/patients_auc.py --seeds 5 --out out",
        ("examples/patients_auc.py",),
        shown="docs/experiments.md",
    ),
    Figure(
        "one-check-in",
        "python examples/one_check_in.py --seeds 20 --out out/one-check-in",
        (
            "examples/one_check_in.py",
            "examples/noise_comparison/settings.py",
            "examples/noise_comparison/training.py",
        ),
        shown="docs/experiments.md",
    ),
    Figure(
        "fashion-mnist",
        "python examples/fashion_mnist.py --seeds 5 --out out/fashion-mnist",
        ("examples/fashion_mnist.py", "examples/fashion_mnist.toml"),
        shown="docs/experiments.md",
    ),
    Figure(
        "utility",
        "checkins paper utility --seeds 400 --out out",
        ("src/checkins/simulation/utility_sweep.py",),
        shown="docs/theory/utility.md",
    ),
    Figure(
        "tutorial",
        "python tools/tutorial.py --again",
        tuple(f"src/checkins/cli/commands/{name}.py" for name in TUTORIAL),
        shown="docs/tutorial.md",
    ),
)
