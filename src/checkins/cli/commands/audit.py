"""`checkins audit`: attack a simulated campaign and compare measured with certified epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.errors import failed
from checkins.cli.params import GivenOptions, flag, text
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    from rich.progress import TaskID

    from checkins.audit import Audit, Settings
    from checkins.campaign import CampaignFile

RESULT = "audit.json"

OPTIONS = (
    params.CAMPAIGN_FILE,
    text(
        "--trials",
        "N",
        "Number of runs with each canary. The same number is run without it. Default: as many as"
        " fit in --seconds.",
    ),
    text("--seconds", "S", "Approximate time of all runs together, in seconds. Default 30."),
    text(
        "--confidence",
        "C",
        "Probability with which all measured bounds hold together. Default 0.9999.",
    ),
    text(
        "--delta",
        "D",
        "A delta at which epsilon is measured. It may be given several times; the first is reported"
        " first. Default: the delta of the campaign, 1e-3 and 1e-2.",
    ),
    text(
        "--canary",
        "worst-case|data|all",
        "The client that the attacks try to detect. worst-case: a client with the worst possible"
        " updates. data: a client with unusual data in real training. Default all.",
    ),
    flag("--one-run", "Use a single run with many canaries, each included with probability 1/2."),
    text(
        "--engine",
        "compiled|machines|both",
        "The code that runs the campaign. compiled: fast array code that simulates the protocol."
        " machines: the state machines that real devices and coordinators use, on a smaller"
        " campaign. Default compiled.",
    ),
    text("--seed", "S", "Seed of the simulated randomness. Default 1."),
    params.folder("--out", "Folder in which trade-off.png and audit.json are saved."),
    params.JSON,
)


@params.command(*OPTIONS, several=("delta",))
def audit(given: GivenOptions) -> None:
    """Measure the epsilon of a campaign by attacks on it.

    The campaign is simulated many times with and many times without one client, the canary. Attacks
    try to tell the two cases apart, which gives a lower bound on epsilon at the given confidence.
    Exit code 0: the bound is consistent with the certificate. 1: it contradicts the certificate.
    2: the arguments are wrong.
    """
    file, out = given.values["file"], given.values["out"]
    if given.values["one_run"] and "trials" in given:
        raise given.invalid("trials", "cannot be combined with --one-run")
    if given.values["one_run"] and "canary" in given:
        raise given.invalid(
            "canary", "cannot be combined with --one-run, which has its own canaries"
        )
    if out is not None:
        terminal.check_folder(out)
    settings = _settings(given)
    from checkins.campaign import read_campaign

    found = read_campaign(file)
    with _progress(quiet=given.json) as show_share:
        result = _audited(found, settings, given, show_share)
    if out is not None:
        _save(result, out)
    if given.json:
        terminal.show_json(result.as_dict())
    else:
        from checkins.cli.views.audit import audit_parts

        terminal.show(*audit_parts(result, file=found.path))
        if out is not None:
            terminal.show_plain(f"Saved: {out}")
    if result.contradicted:
        raise failed(_contradiction(result))


def _settings(given: GivenOptions) -> Settings:
    from checkins.audit.audit import CONFIDENCE, MOST_RUNS, SECONDS, Attacks, Engine, Settings

    deltas = given.values["delta"] or []
    with given.naming_options():
        return Settings(
            deltas=tuple(params.number("delta", each, validate.open_unit) for each in deltas),
            confidence=given.number("confidence", validate.open_unit, default=CONFIDENCE),
            seconds=given.number("seconds", validate.positive, default=SECONDS),
            runs=given.integer("trials", default=0, most=MOST_RUNS) or None,
            attacks=given.choice("canary", Attacks, default=Attacks.ALL),
            engine=given.choice("engine", Engine, default=Engine.COMPILED),
            one_run=given.values["one_run"],
            seed=given.integer("seed", default=1),
            folder=str(Path(given.values["file"]).parent),
        )


def _audited(
    found: CampaignFile,
    settings: Settings,
    given: GivenOptions,
    show_share: Callable[[str, float], None] | None,
) -> Audit:
    from checkins.audit import audit_campaign

    try:
        return audit_campaign(found.campaign, settings, progress=show_share)
    except InvalidValue as error:
        defaults = {"seconds": f"{settings.seconds:g}"}
        if error.name in given or error.name in defaults:
            raise given.refusal(error, defaults=defaults) from error
        raise found.refusal(error) from error


def _contradiction(result: Audit) -> str:
    from checkins import formatting

    parts = [("the certificate", result.check)]
    if result.machines is not None:
        parts.append(("the certificate of the smaller campaign", result.machines))
    lines = []
    for what, check in parts:
        lines += [
            f"{what} states epsilon <= {formatting.up(check.certified(delta))}"
            f" at delta = {delta!r}, but at least"
            f" {formatting.down(check.measured(delta))} was measured"
            for delta in check.contradicted
        ]
    return "; ".join(lines)


def _save(result: Audit, out: Path) -> None:
    from checkins.audit.plot import NAME, draw_trade_off

    out.mkdir(parents=True, exist_ok=True)
    draw_trade_off(result, out / NAME)
    terminal.write_json(out / RESULT, result.as_dict())


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Yield a function that updates one bar per attack. Yield None without a terminal."""
    with terminal.progress("{task.description}", quiet=quiet) as bars:
        if bars is None:
            yield None
            return
        tasks: dict[str, TaskID] = {}

        def show_share(canary: str, share: float) -> None:
            if canary not in tasks:
                tasks[canary] = bars.add_task(canary, total=1.0)
            bars.update(tasks[canary], completed=share)

        yield show_share
