"""Print the tables of docs/comparison.md and docs/coming-from, from the measurements that are kept.

python tools/comparison.py accountant     also simulator, coordinator, device, accuracy, failures
python tools/comparison.py Opacus         the epsilons of one library beside those of checkins

Nothing is measured here: all numbers come from bench/RESULTS.md and docs/experiments.md, and `make
check` fails if a table differs from them. A row where checkins is behind is shown like any other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figures import by_name, record_of
from tools.measured import ROOT

Row = dict[str, str]
HERE = "checkins"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
POISSON = "the server samples every client for every slot"


def rows_of(figure: str) -> list[Row]:
    """Return the rows of the table that is kept for a figure, by column."""
    page = (ROOT / by_name(figure).shown).read_text(encoding="utf-8")
    before, found, _ = page.partition(f"<!-- figure: {figure} -->")
    if not found:
        raise KeyError(f"{by_name(figure).shown} does not show {figure}")
    lines = [line for line in before.rpartition("\n|")[0].splitlines() if line]
    lines.append("|" + before.rpartition("\n|")[2].splitlines()[0])
    table: list[str] = []
    for line in reversed(lines):
        if not line.startswith("|"):
            break
        table.insert(0, line)
    header, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    return [dict(zip(header, cells, strict=True)) for cells in body]


def number(cell: str, place: int = -1) -> float:
    """Return a number of a cell, by default the last, which is the upper end of an interval.

    >>> number("0.1266 to 0.1487"), number("4,896"), number("56.8 million")
    (0.1487, 4896.0, 56.8)
    """
    return float(NUMBER.findall(cell)[place].replace(",", ""))


def better(ours: float, theirs: float, peer: str, *, smaller: bool) -> str:
    """Say who has the better number, and by how much.

    >>> better(1.0, 1.5, "Opacus", smaller=True), better(2.0, 1.0, "a loop", smaller=True)
    ('checkins, 1.50 times', 'a loop, 2.00 times')
    """
    if ours == theirs:
        return "equal"
    ahead = (ours < theirs) == smaller
    ratio = max(ours, theirs) / min(ours, theirs)
    digits = 3 if ratio < 1.1 else 2 if ratio < 10 else 0
    return f"{HERE if ahead else peer}, {ratio:,.{digits}f} times"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def measured(figure: str) -> str:
    """Return the sentence that says when, at which commit and how the figure was measured."""
    record, again = record_of(by_name(figure)), by_name(figure).again
    if not record.date:
        raise ValueError(f"{figure} has no date in its record: run `{again}`")
    when = "Kept since" if record.kept_since else "Measured on"
    return f"{when} {record.date}, at commit {record.mark}, by `{again}`.\n"


def accountant() -> Iterator[str]:
    """Yield the comparisons of epsilons, and of the time to compute them."""
    yield "**Accountants of DP-SGD, add/remove, δ = 10⁻⁵.**"
    yield (
        "checkins assumes that every example draws one step per epoch. Opacus, jax_privacy and"
        " dp_accounting assume Poisson sampling, so the ε of these rows are of two different ways"
        " to draw. PLD-accounting assumes the same as checkins."
    )
    yield table(
        (
            "training",
            "accountant",
            "its ε",
            "checkins",
            "smaller ε",
            "its time",
            "checkins",
            "less time",
        ),
        [
            (
                theirs["training"],
                peer,
                theirs["epsilon"],
                ours["epsilon"],
                better(number(ours["epsilon"]), number(theirs["epsilon"]), short, smaller=True),
                theirs["processor time"],
                ours["processor time"],
                better(
                    number(ours["processor time"]),
                    number(theirs["processor time"]),
                    short,
                    smaller=True,
                ),
            )
            for theirs, ours in _dpsgd_pairs()
            for peer in [theirs["accountant"]]
            for short in [_short(peer)]
        ],
    )
    yield measured("accountants")
    yield "**Random allocation by PLD-accounting 2.0, σ = 1, δ = 10⁻⁶.**"
    yield table(
        ("steps", "checkins", "PLD-accounting", "less time", "narrower"),
        [
            (
                row["slots"],
                row["checkins"],
                row["PLD-accounting"],
                better(
                    number(row["checkins"]),
                    number(row["PLD-accounting"]),
                    "PLD-accounting",
                    smaller=True,
                ),
                better(
                    _width(row["checkins"]),
                    _width(row["PLD-accounting"]),
                    "PLD-accounting",
                    smaller=True,
                ),
            )
            for row in rows_of("peer")
        ],
    )
    yield measured("peer")
    yield "**Noise for a target ε, δ = 10⁻⁶: checkins for check-ins, dp_accounting for Poisson.**"
    yield table(
        ("slots", "ε", "checkins", "dp_accounting", "less noise", "less time"),
        [
            (
                row["slots"],
                row["epsilon"],
                ours,
                theirs,
                better(number(ours, 0), number(theirs, 0), "Poisson sampling", smaller=True),
                better(number(ours), number(theirs), "dp_accounting", smaller=True),
            )
            for row in rows_of("calibration")
            for ours, theirs in [
                (row["noise, checkins"], row["noise, Poisson by dp_accounting"]),
            ]
        ],
    )
    yield measured("calibration")
    yield (
        "**Check-ins, Poisson sampling and shuffling: 1,000 slots, δ = 10⁻⁶.** Poisson sampling"
        f" means that {POISSON}, with one report per slot on average (add/remove). Shuffling means"
        " one shuffle of all reports of all slots, with every client there at once (replace-one)."
    )
    yield table(
        (
            "local ε",
            "reports per slot",
            "randomizer",
            "check-ins",
            "Poisson",
            "smaller",
            "check-ins",
            "shuffling",
            "smaller",
        ),
        [
            (
                row["local epsilon"],
                row["capacity"],
                row["randomizer"],
                f"{number(add):g}",
                row["Poisson, add/remove"] if row["capacity"] == "1" else "–",
                better(number(add), number(row["Poisson, add/remove"]), "Poisson", smaller=True)
                if row["capacity"] == "1"
                else "–",
                f"{number(replace):g}",
                row["shuffling"],
                better(number(replace), number(row["shuffling"]), "shuffling", smaller=True),
            )
            for row in rows_of("named")
            for add, replace in [(row["add/remove"], row["replace-one"])]
        ],
    )
    yield measured("named")
    yield "**The bounds of the paper on random check-ins, replace-one, δ = 10⁻⁶.**"
    yield table(
        ("randomizer", "slots", "paper", "checkins", "smaller"),
        [
            (
                row["randomizer"],
                row["slots"],
                row["paper"],
                f"{number(exact, 0):g}",
                better(number(exact, 0), number(row["paper"]), "paper", smaller=True),
            )
            for row in rows_of("table")
            for exact in [row["replace-one / lower"]]
            if row["paper"] != "-"
        ],
    )
    yield measured("table")


def _dpsgd_pairs() -> Iterator[tuple[Row, Row]]:
    """Yield every row of another accountant, with the row of checkins for the same training."""
    rows = rows_of("accountants")
    ours = {
        row["training"]: row
        for row in rows
        if row["accountant"] == "checkins, add-remove"
        and row["how examples draw steps"] == "one per epoch"
    }
    for row in rows:
        if not row["accountant"].startswith((HERE, "any")):
            yield row, ours[row["training"]]


def _short(accountant_name: str) -> str:
    """Return the name of an accountant without its version.

    >>> _short("Opacus 1.6.0, PRV"), _short("PLD-accounting 2.0, compiled")
    ('Opacus PRV', 'PLD-accounting')
    """
    name = re.sub(r" [\d.]+,", "", accountant_name)
    return name.removesuffix(" compiled").removesuffix(" PLD")


def _width(interval: str) -> float:
    return number(interval, 1) - number(interval, 0)


def simulator() -> Iterator[str]:
    """Yield the comparisons of client updates per second."""
    yield "**Other simulators: softmax regression of 784 x 10, 64 clients per round, 2 cores.**"
    rows = rows_of("beside_peers")
    (ours,) = (row for row in rows if row["simulator"] == HERE)
    speed = "client updates a second"
    yield table(
        ("simulator", "written as", "processes", speed, "checkins", "faster"),
        [
            (
                row["simulator"],
                row["written as"],
                row["processes"],
                row[speed],
                ours[speed],
                better(number(ours[speed]), number(row[speed]), row["simulator"], smaller=False),
            )
            for row in rows
            if row is not ours
        ],
    )
    yield measured("beside_peers")
    yield "**Loops that were written by hand for this task only.**"
    rows = rows_of("beside_bare")
    yield table(
        ("clients per slot", "loop", speed, "checkins", "faster"),
        [
            (
                row["clients a slot"],
                row["loop"],
                row[speed],
                mine[speed],
                better(number(mine[speed]), number(row[speed]), "the loop", smaller=False),
            )
            for row in rows
            for mine in rows
            if mine["loop"] == "**checkins**"
            and mine["clients a slot"] == row["clients a slot"]
            and mine is not row
        ],
    )
    yield measured("beside_bare")
    yield "**The fastest loop by hand on one NVIDIA H200.**"
    yield table(
        ("clients per slot", "loop", speed, "checkins", "faster"),
        [
            (
                row["clients a slot"],
                row["bare loop"].partition(" ")[2].strip("()"),
                row["bare loop"].partition(" ")[0],
                row["checkins, updates a second"],
                better(
                    number(row["checkins, updates a second"]),
                    number(row["bare loop"].partition(" ")[0]),
                    "the loop",
                    smaller=False,
                ),
            )
            for row in rows_of("on_device")
        ],
    )
    yield measured("on_device")


def coordinator() -> Iterator[str]:
    """Yield the comparison of requests per second."""
    yield "**Durable check-ins per second: one worker, 256 connections.**"
    rows = rows_of("check_ins")
    speed = "requests a second"
    yield table(
        ("coordinator", speed, "compared with", speed, "faster"),
        [
            (
                ours["service"].replace("**", ""),
                ours[speed],
                theirs["service"],
                theirs[speed],
                better(number(ours[speed]), number(theirs[speed]), "the other", smaller=False),
            )
            for ours in rows
            if HERE in ours["service"]
            for theirs in rows
            if HERE not in theirs["service"]
        ],
    )
    yield measured("check_ins")


def device() -> Iterator[str]:
    """Yield the comparison of exact samplers."""
    yield "**Exact noise on a grid, coordinates per second on one core.**"
    yield table(
        ("noise", "scale in steps", "checkins", "OpenDP", "faster"),
        [
            (
                row["noise"],
                row["scale in steps"],
                row["noise alone"],
                row["OpenDP, noise"],
                better(
                    number(row["noise alone"]),
                    number(row["OpenDP, noise"]),
                    "OpenDP",
                    smaller=False,
                ),
            )
            for row in rows_of("device_noise")
        ],
    )
    yield measured("device_noise")


def accuracy() -> Iterator[str]:
    """Yield the comparisons of accuracy at the same budget."""
    yield "**Fashion-MNIST, 60,000 clients in 40 runs, δ = 10⁻⁵, add/remove.**"
    yield table(
        ("method", "test accuracy", "ε"),
        [(row[""], row["test accuracy"], row["ε"]) for row in rows_of("fashion-mnist")],
    )
    yield measured("fashion-mnist")
    yield "**Fashion-MNIST, every client checks in once, δ = 10⁻⁵, add/remove.**"
    poisson = "Poisson-sampled DP-SGD"
    yield table(
        ("budget", "method of checkins", "accuracy", poisson, "higher, in points"),
        [
            (
                row[""],
                method,
                row[method],
                row[poisson],
                _points(number(row[method], 0), number(row[poisson], 0), "Poisson sampling"),
            )
            for row in rows_of("one-check-in")
            for method in ("correlated noise", "independent noise")
        ],
    )
    yield measured("one-check-in")
    yield (
        "**Patients, one report from each client, δ = 10⁻⁶: AUC, and share of what learning"
        " without privacy gains.** Averaged updates (\\*) are for replace-one."
    )
    rows = rows_of("patients-auc")
    yield table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    yield measured("patients-auc")
    yield (
        "**The planner's recommended designs, compared with the best similar design.** Differences"
        " within three standard errors may be chance."
    )
    yield table(
        ("task", "recommended", "best similar design", "its mean", "better"), list(_planned())
    )
    yield measured("recommendations")


def _points(ours: float, theirs: float, peer: str) -> str:
    return f"{HERE if ours > theirs else peer}, {abs(ours - theirs):.2f}"


def _planned() -> Iterator[tuple[str, ...]]:
    """Yield for each task the recommended design, and the similar design with the best mean."""
    tasks: dict[str, list[Row]] = {}
    for row in rows_of("recommendations"):
        tasks.setdefault(f"{row['task']} {row['budget']}", []).append(row)
    for task, (recommended, *others) in tasks.items():
        gaps = [float(row["behind the recommended"].split(" ")[0]) for row in others]
        least = min(gaps)
        best = others[gaps.index(least)]
        who = "equal" if least == 0 else "the planner" if least > 0 else "the similar design"
        gap = best["behind the recommended"].lstrip("+-")
        metric = recommended["metric"]
        yield (
            task,
            f"{metric} {recommended['mean']}",
            best["design"],
            best["mean"],
            f"{who}, {gap}" if least else who,
        )


def failures() -> Iterator[str]:
    """Yield the promises in bench/RESULTS.md that do not hold."""
    text = (ROOT / "bench/RESULTS.md").read_text(encoding="utf-8")
    found = False
    for section in text.split("\n## ")[1:]:
        promise = section.split("\n")[2]
        if "**FAILS.**" in promise:
            found = True
            yield f"- **{section.splitlines()[0]}.** {promise.replace(' **FAILS.**', '')}"
    if not found:
        yield "All promises hold at the moment."


def side_by_side(library: str) -> str:
    """Return the epsilons of one library and of checkins for the same trainings."""
    header = ("training", "accountant", "its ε, if it samples", "ε of checkins, one step per epoch",
              "shuffled batches of a fixed size")  # fmt: skip
    shuffled = {
        row["training"]: row["epsilon"]
        for row in rows_of("accountants")
        if row["how examples draw steps"] == "shuffled, fixed sizes"
    }
    rows = [
        (
            theirs["training"],
            theirs["accountant"],
            theirs["epsilon"],
            ours["epsilon"],
            shuffled[ours["training"]],
        )
        for theirs, ours in _dpsgd_pairs()
        if theirs["accountant"].startswith(library)
    ]
    if not rows:
        raise KeyError(f"no accountant {library} in bench/RESULTS.md")
    return f"{table(header, rows)}\n{measured('accountants')}"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    section.__name__: section
    for section in (accountant, simulator, coordinator, device, accuracy, failures)
}


def main() -> None:
    (name,) = sys.argv[1:]
    if name in SECTIONS:
        print("\n\n".join(part.strip("\n") for part in SECTIONS[name]()))
    else:
        print(side_by_side(name))


if __name__ == "__main__":
    main()
