"""Record what the code answers now: ``python -m tests.golden.record``.

A recording is made before the code is rearranged and holds afterwards bit for bit. It is made again
only for a change that is meant to move a number, which CHANGELOG.md then names under Guarantees.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy import special, stats

from checkins.accounting import Adjacency, Protocol
from checkins.campaign import Campaign, parse_campaign
from checkins.campaign.file import Template, template_text
from checkins.cli.main import run
from checkins.protocol.report import report_to_bytes
from checkins.protocol.rules import sampler_of
from checkins.randomizers import device
from tests.golden.questions import questions
from tests.ledger.ledgers import Book, campaign
from tests.randomizers.sources import Seeded

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
DIMENSION = 24


def arithmetic() -> str:
    """Return a hash of floating-point results whose last bits differ between processors.

    The mathematical libraries pick their code by the processor that they run on. Two processors
    with the same instruction set may still get other kernels.
    """
    points = np.linspace(0.01, 30.0, 4096)
    results = [
        *(function(points) for function in (np.exp, np.log, np.log1p, np.sqrt, np.sin, np.tanh)),
        np.expm1(-points),
        np.power(points, 1.7),
        np.fft.irfft(np.fft.rfft(points) * np.fft.rfft(np.cos(points))),
        points.reshape(64, 64) @ np.cos(points).reshape(64, 64),
        np.array([points @ np.cos(points), points.sum()]),
        *(function(points) for function in (special.ndtr, special.log_ndtr, special.gammaln)),
        stats.binom.logpmf(np.arange(100), 1000, 0.03),
        np.array([math.exp(x) + math.log(x) + math.lgamma(x) for x in points]),
    ]
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(r).tobytes() for r in results))
    return f"numpy {np.__version__}, scipy {scipy.__version__}, {digest.hexdigest()[:16]}"


def answer(arguments: list[str]) -> dict[str, Any]:
    """Run a command in this process and return its JSON."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*arguments, "--json"])
    if code == 2:
        return {"refused": True}
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def numbers(certificate: dict[str, Any]) -> dict[str, Any]:
    """What a certificate says, without its prose, its versions and its duration."""
    if "refused" in certificate:
        return certificate
    return {
        "epsilon": certificate["epsilon"],
        "epsilon_lower": certificate["epsilon_lower"],
        "method": certificate["method"],
        "assumptions": len(certificate["assumptions"]),
        "alternatives": [[a["method"], a["epsilon"]] for a in certificate["alternatives"]],
    }


def certificate(question: str) -> dict[str, Any]:
    return numbers(answer(["account", *question.split()]))


def campaign_texts() -> Iterator[tuple[str, str]]:
    """Campaign files: the templates and the examples."""
    for template in Template:
        yield f"template {template}", template_text(template)
    for file in sorted(EXAMPLES.glob("*.toml")):
        yield file.name, file.read_text(encoding="utf-8")


def seals() -> dict[str, str]:
    found = {name: parse_campaign(text).campaign.seal for name, text in campaign_texts()}
    return found | {name: run.seal for name, run in runs().items()}


def runs() -> dict[str, Campaign]:
    """Small campaigns whose ledgers are recorded."""
    return {
        "fixed": campaign(),
        "sliding": campaign(Protocol.SLIDING, slots=5, window=3),
        "averaged": campaign(Protocol.AVERAGED, epsilon=9.0),
        "minibatches": campaign(minibatch=3, slots=8, adjacency=Adjacency.ADD_REMOVE),
        "projected": campaign(diameter=2.0),
        "repeated": campaign(repeats=3, epsilon=30.0, population_id=None),
    }


def ledger(run: Campaign) -> bytes:
    """The ledger of one run, as a file."""
    return b"".join(Book().run(run).close().lines)


def reports() -> dict[str, str]:
    """Hashes of the bytes that a device sends, for each randomizer that has a device sampler."""
    update = np.linspace(-0.4, 0.6, DIMENSION)
    found = {}
    for name, described in _reporting():
        sampler = sampler_of(described, dimension=DIMENSION)
        device._RANDOMNESS = Seeded(7)  # type: ignore[assignment]
        for kind, made in (("report", sampler.privatize(update)), ("dummy", sampler.dummy())):
            found[f"{name} {kind}"] = hashlib.sha256(report_to_bytes(made.units)).hexdigest()
    return found


def _reporting() -> Iterator[tuple[str, Campaign]]:
    """Gaussian noise from the examples, Laplace noise from the small campaign."""
    for file in sorted(EXAMPLES.glob("*.toml")):
        yield file.name, parse_campaign(file.read_text(encoding="utf-8")).campaign
    yield "laplace", runs()["fixed"]


def simulated() -> dict[str, Any]:
    """One simulated result; its float32 arithmetic is the compiler's."""
    text = template_text(Template.SYNTHETIC)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "golden.toml"
        file.write_text(text, encoding="utf-8")
        found = answer(["simulate", str(file), "--seeds", "1"])
    return {key: found[key] for key in ("metrics", "slots", "check_ins", "dummies")}


def main() -> None:
    """Write every recording."""
    recorded: dict[str, Any] = {
        "arithmetic": arithmetic(),
        "certificates": {question: certificate(question) for question in questions()},
        "seals": seals(),
        "reports": reports(),
        "simulated": simulated(),
    }
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (HERE / "recorded.json").write_text(text + "\n", encoding="utf-8")
    (HERE / "ledgers").mkdir(exist_ok=True)
    for name, run_ in runs().items():
        (HERE / "ledgers" / f"{name}.jsonl").write_bytes(ledger(run_))
    print(f"{len(recorded['certificates'])} certificates")


if __name__ == "__main__":
    main()
