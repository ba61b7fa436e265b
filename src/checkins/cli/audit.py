"""`checkins audit`: attack a campaign in simulation, and hold the outcome to its certificate."""

from __future__ import annotations

import json as plain_json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkins.cli import options, places, screen
from checkins.cli.failures import Refused
from checkins.cli.options import Given, Texts, text
from checkins.cli.verify import failed

if TYPE_CHECKING:
    from checkins.audit import Audit, Settings
    from checkins.campaign import CampaignFile

RESULT = "audit.json"

File = Annotated[str, typer.Argument(metavar="CAMPAIGN.TOML", show_default=False)]
Trials = Annotated[
    Texts,
    text(
        "--trials",
        "N",
        "Runs with each canary, and as many without it. Default: what --seconds allows.",
    ),
]
Seconds = Annotated[
    Texts, text("--seconds", "S", "About how long the runs take, all together. Default 30.")
]
Confidence = Annotated[
    Texts,
    text("--confidence", "C", "Of everything the audit says, all together. Default 0.9999."),
]
Deltas = Annotated[
    Texts,
    text(
        "--delta",
        "D",
        "A delta to audit at; may be given several times, the first is the headline. Default: the"
        " campaign's own, 1e-3 and 1e-2.",
    ),
]
CanaryChoice = Annotated[
    Texts,
    text(
        "--canary",
        "worst-case|data|all",
        "Whom to look for: the worst client there could be, one of unusual data in real training,"
        " or both. Default all.",
    ),
]
OneRun = Annotated[
    bool,
    typer.Option("--one-run", help="A single run with many canaries, each there or not by a coin."),
]
EngineChoice = Annotated[
    Texts,
    text(
        "--engine",
        "compiled|machines|both",
        "Who plays: array code with the power to measure, the real machines on the campaign made"
        " small, or both. Default compiled.",
    ),
]
Seed = Annotated[Texts, text("--seed", "S", "Of the simulated randomness. Default 1.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Save trade-off.png and audit.json there.", show_default=False
    ),
]


def audit(
    context: typer.Context,
    file: File,
    trials: Trials = None,
    seconds: Seconds = None,
    confidence: Confidence = None,
    delta: Deltas = None,
    canary: CanaryChoice = None,
    one_run: OneRun = False,
    engine: EngineChoice = None,
    seed: Seed = None,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Run a campaign many times with and without a canary client, and measure its epsilon.

    What comes out is a lower bound on epsilon with exact confidence. Exit code 0: consistent with
    the certificate; 1: the certificate is contradicted; 2: usage.
    """
    given = Given.of(context, several=("delta",))
    if one_run and "trials" in given:
        raise given.contradiction("trials", "does not go with --one-run")
    if one_run and "canary" in given:
        raise given.contradiction(
            "canary", "does not go with --one-run: it has canaries of its own"
        )
    if out is not None:
        places.check_folder(out)
    settings = _settings(given, delta or [], one_run=one_run, folder=str(Path(file).parent))
    from checkins.campaign import read_campaign

    found = read_campaign(file)
    with _progress(quiet=json) as told:
        result = _audited(found, settings, given, told)
    if out is not None:
        _save(result, out)
    if json:
        screen.show_json(result.as_dict())
    else:
        from checkins.cli import audit_words

        screen.show(*audit_words.parts(result, file=found.path))
        if out is not None:
            screen.show_plain(f"Saved: {out}")
    if result.contradicted:
        raise failed(_contradiction(result))


def _settings(given: Given, deltas: list[str], *, one_run: bool, folder: str) -> Settings:
    from checkins import validate
    from checkins.audit.audit import CONFIDENCE, MOST_RUNS, SECONDS, Attacks, Engine, Settings
    from checkins.cli import values

    texts = given.texts
    with given.in_own_words():
        return Settings(
            deltas=tuple(values.real("delta", one, validate.open_unit) for one in deltas),
            confidence=values.real(
                "confidence", texts.get("confidence", str(CONFIDENCE)), validate.open_unit
            ),
            seconds=values.real("seconds", texts.get("seconds", str(SECONDS)), validate.positive),
            runs=values.whole("trials", texts["trials"], most=MOST_RUNS)
            if "trials" in texts
            else None,
            attacks=values.one_of("canary", texts.get("canary", str(Attacks.ALL)), Attacks),
            engine=values.one_of("engine", texts.get("engine", str(Engine.COMPILED)), Engine),
            one_run=one_run,
            seed=values.whole("seed", texts.get("seed", "1")),
            folder=folder,
        )


def _audited(
    found: CampaignFile, settings: Settings, given: Given, told: Callable[[str, float], None] | None
) -> Audit:
    from checkins.audit import audit_campaign
    from checkins.errors import InvalidValue

    try:
        return audit_campaign(found.campaign, settings, progress=told)
    except InvalidValue as error:
        if error.name in given:
            raise given.refusal(error) from error
        if error.name == "seconds":
            raise Refused(
                f"--seconds {settings.seconds:g} (the default): {error.expected}"
            ) from error
        raise found.refusal(error) from error


def _contradiction(result: Audit) -> str:
    from checkins.cli import digits

    parts = [("the certificate", result.check)]
    if result.machines is not None:
        parts.append(("the certificate of the campaign made small", result.machines))
    told = []
    for what, promise in parts:
        told += [
            f"{what} says epsilon <= {digits.up(promise.certified(delta))} at delta = {delta!r},"
            f" and at least {digits.down(promise.measured(delta))} was measured"
            for delta in promise.contradicted
        ]
    return "; ".join(told)


def _save(result: Audit, out: Path) -> None:
    from checkins.audit.plot import NAME, draw_trade_off

    out.mkdir(parents=True, exist_ok=True)
    draw_trade_off(result, out / NAME)
    text = plain_json.dumps(screen.finite(result.as_dict()), indent=2, allow_nan=False)
    (out / RESULT).write_text(text + "\n", encoding="utf-8")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, float], None] | None]:
    """One bar for each attack on standard error, for people at a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        bars: dict[str, TaskID] = {}

        def told(canary: str, share: float) -> None:
            if canary not in bars:
                bars[canary] = progress.add_task(canary, total=1.0)
            progress.update(bars[canary], completed=share)

        yield told
