"""`checkins audit`: attack a simulated campaign and compare measured with certified epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkins import formatting, validate
from checkins.cli import params, terminal
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import print_failure, printable
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import TaskID
    from rich.text import Text

    from checkins.audit import AttackResult, Audit, CertificateCheck, Settings
    from checkins.campaign import CampaignFile

RESULT_FILE = "audit.json"
GUESS_TEXTS = {
    "add-remove": {
        "remove": ("present", "with the canary", "without it"),
        "add": ("absent", "without the canary", "with it"),
    },
    "replace-one": {
        "remove": ("own data", "with the canary's own data", "with other data"),
        "add": ("other data", "with other data", "with the canary's own data"),
    },
}
"""For each neighbour relation and direction: the guess, the runs in which it is right, and the runs
in which it is wrong."""

OPTIONS = (
    params.CAMPAIGN_FILE_ARGUMENT,
    *options("""
    --trials N  Number of runs with the canary, for each attack. The number of runs without it is
        the same. Default: as many as --seconds allows.
    --seconds S  Approximate duration of all attacks together, in seconds. Default 30.
    --confidence C  Confidence level: the probability that all measured bounds hold. Default 0.9999.
    --delta D  A delta at which epsilon is measured, between 0 and 1. Can be repeated: the verdict
        is over all deltas, and details are shown for the first. Default: the delta of the
        campaign, 1e-3 and 1e-2.
    --canary worst-case|data|all  The client that the attacks try to detect. worst-case: a
        client with the worst possible updates. data: a client with unusual data in real
        training. Default all.
    --one-run  Simulate a single run with many canaries. Each canary takes part with
        probability 1/2, and the attack guesses which ones did.
    --engine compiled|machines|both  The code that runs the campaign. compiled: fast array code
        that simulates the protocol. machines: the code that real devices and coordinators run,
        on a smaller campaign. Default compiled.
    --seed S  Seed of the simulated randomness. Default 1.
    --out DIR  Folder for audit.json and the plot trade-off.png. Default: nothing is saved.
    """),
    params.JSON_OPTION,
)


@params.command(*OPTIONS, repeatable=("delta",))
def audit(given: GivenOptions) -> None:
    """Measure the epsilon of a campaign by attacks on it.

    The campaign is simulated many times with one special client, the canary, and many times without
    it. An attack guesses from the released models whether the canary took part. The numbers of
    right and wrong guesses give a lower bound on epsilon.

    Exit code 0: at every delta, and for every engine, the lower bound is at most the certified
    epsilon. 1: at some delta, for some engine, it exceeds the certified epsilon, or the audit
    failed. 2: the arguments are wrong.
    """
    file, out = given.values["file"], given.path("out")
    if given.values["one_run"] and "trials" in given:
        raise given.invalid("trials", "cannot be combined with --one-run")
    if given.values["one_run"] and "canary" in given:
        raise given.invalid(
            "canary", "cannot be combined with --one-run, which uses other canaries"
        )
    if out is not None:
        terminal.check_out_folder(out)
    settings = _settings(given)
    from checkins.campaign import read_campaign

    campaign_file = read_campaign(file)
    with _progress(quiet=given.json) as show_progress:
        result = _run_audit(campaign_file, settings, given, show_progress)
    if out is not None:
        _save(result, out)
    if given.json:
        terminal.show_json(result.as_dict())
    else:
        terminal.show(*_report_sections(result, file=campaign_file.path))
        if out is not None:
            terminal.show_plain(f"Saved: {out}")
    if result.contradicted:
        raise print_failure(_contradiction_message(result))


def _settings(given: GivenOptions) -> Settings:
    from checkins.audit import (
        DEFAULT_CONFIDENCE,
        DEFAULT_SECONDS,
        MAX_RUNS,
        Attacks,
        Engine,
        Settings,
    )

    deltas = given.values["delta"] or []
    with given.errors_as_option_errors():
        return Settings(
            deltas=tuple(params.number("delta", each, validate.open_unit) for each in deltas),
            confidence=given.number("confidence", validate.open_unit, default=DEFAULT_CONFIDENCE),
            seconds=given.number("seconds", validate.positive, default=DEFAULT_SECONDS),
            runs=given.integer("trials", default=0, most=MAX_RUNS) or None,
            attacks=given.choice("canary", Attacks, default=Attacks.ALL),
            engine=given.choice("engine", Engine, default=Engine.COMPILED),
            one_run=given.values["one_run"],
            seed=given.integer("seed", default=1),
            folder=str(Path(given.values["file"]).parent),
        )


def _run_audit(
    campaign_file: CampaignFile,
    settings: Settings,
    given: GivenOptions,
    show_progress: Callable[[str, float], None] | None,
) -> Audit:
    from checkins.audit import audit_campaign

    try:
        return audit_campaign(campaign_file.campaign, settings, progress=show_progress)
    except InvalidValue as error:
        defaults = {"seconds": f"{settings.seconds:g}"}
        if error.name in given or error.name in defaults:
            raise given.refusal(error, defaults=defaults) from error
        raise campaign_file.refusal(error) from error


def _contradiction_message(result: Audit) -> str:
    checks = [("the certificate", result.check)]
    if result.machines is not None:
        checks.append(("the certificate of the smaller campaign", result.machines))
    messages = []
    for name, check in checks:
        messages += [
            f"{name} states epsilon <= {formatting.up(check.certified(delta))}"
            f" at delta = {delta!r}, but at least"
            f" {formatting.down(check.measured(delta))} was measured"
            for delta in check.contradicted_deltas
        ]
    return "; ".join(messages)


def _save(result: Audit, out: Path) -> None:
    from checkins.audit.report import PLOT_FILE_NAME, save_trade_off_plot

    out.mkdir(parents=True, exist_ok=True)
    save_trade_off_plot(result, out / PLOT_FILE_NAME)
    terminal.write_json(out / RESULT_FILE, result.as_dict())


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Yield a function that updates one bar per attack. Yield None without a terminal."""
    with terminal.progress("{task.description}", quiet=quiet) as bars:
        if bars is None:
            yield None
            return
        tasks: dict[str, TaskID] = {}

        def show_progress(canary: str, share: float) -> None:
            if canary not in tasks:
                tasks[canary] = bars.add_task(canary, total=1.0)
            bars.update(tasks[canary], completed=share)

        yield show_progress


def _report_sections(audit: Audit, *, file: str) -> Iterator[RenderableType]:
    """Yield the verdict, the tables of certified and measured epsilon, and the notes."""
    from rich.text import Text

    yield Text.assemble((printable(audit.campaign.name), "bold"), f" ({printable(file)})")
    yield _verdict(audit)
    if audit.check.results:
        yield _epsilon_table(audit.check)
        yield _attacks_table(audit.check)
        yield from terminal.bullet_list(
            "Canaries", (f"{result.canary}: {result.explained}" for result in audit.check.results)
        )
        yield _measured_share(audit)
        yield ""
    if audit.machines is not None:
        yield "Audit of a smaller campaign that runs the code of real devices and coordinators:"
        yield _epsilon_table(audit.machines)
        yield _attacks_table(audit.machines)
    yield from terminal.bullet_list("Notes", _notes(audit))
    simulated = f" Simulated with seed {audit.seed}." if audit.check.results else ""
    yield Text(
        f"With confidence {audit.confidence}, all measured lower bounds hold.{simulated} Upper"
        " bounds on epsilon are rounded up, lower bounds down.",
        style="dim",
    )


def _verdict(audit: Audit) -> Text:
    from rich.text import Text

    delta, check = audit.headline_delta, audit.check
    certificate = check.certificates[delta]
    certified = formatting.up(certificate.epsilon)
    if audit.contradicted:
        deltas = dict.fromkeys(
            delta
            for part in (check, audit.machines)
            if part is not None
            for delta in part.contradicted_deltas
        )
        contradicted_where = f"at delta = {', '.join(f'{delta:g}' for delta in deltas)},"
        return Text(
            f"Contradicted: {contradicted_where} the measured lower bound exceeds the certified"
            f" epsilon. With confidence {audit.confidence}, either the certificate or the code that"
            " was run is wrong.",
            style="bold red",
        )
    verdict = Text.assemble(("Consistent", "bold green"), ": ")
    if not check.results:
        return verdict.append("the measured lower bound is at most the certified epsilon.")
    measured = formatting.down(check.measured(delta))
    return verdict.append(
        f"epsilon is at least {measured} (measured) and at most {certified} (certified)"
        f" at delta = {delta!r}, {certificate.adjacency}."
    )


def _epsilon_table(check: CertificateCheck) -> RenderableType:
    columns = (
        "delta",
        "certified\nupper bound",
        "proved\nlower bound",
        "measured\nlower bound",
        "\nverdict",
    )
    table = terminal.plain_table(*columns, right=columns[:1])
    certificates = check.certificates
    bounds = zip(
        terminal.align_decimals([formatting.up(one.epsilon) for one in certificates.values()]),
        terminal.align_decimals(
            [formatting.down(check.known_lower_bound(d)) for d in certificates]
        ),
        terminal.align_decimals([formatting.down(check.measured(d)) for d in certificates]),
        strict=True,
    )
    for delta, epsilons in zip(certificates, bounds, strict=True):
        contradicted = delta in check.contradicted_deltas
        table.add_row(
            f"{delta:g}",
            *epsilons,
            "contradicted" if contradicted else "consistent",
            style="bold red" if contradicted else "",
        )
    return table


def _attacks_table(check: CertificateCheck) -> RenderableType:
    delta = next(iter(check.certificates))
    guesses = GUESS_TEXTS[check.certificates[delta].adjacency]
    columns = (
        "canary",
        "runs",
        "lower bound\nmeasured",
        "lower bound for\nunlimited runs",
        "\nguesses of the attack",
    )
    table = terminal.plain_table(
        *columns,
        right=columns[1:2],
        title=f"Lower bound on epsilon by each attack, at delta = {delta:g}",
    )
    measured = [formatting.down(result.at(delta).epsilon) for result in check.results]
    exact = [
        formatting.nearest(result.exact[delta]) if delta in result.exact else ""
        for result in check.results
    ]
    bounds = zip(terminal.align_decimals(measured), terminal.align_decimals(exact), strict=True)
    for result, epsilons in zip(check.results, bounds, strict=True):
        table.add_row(
            result.canary, f"{result.runs:,}", *epsilons, _guesses(result, delta, guesses)
        )
    return table


def _guesses(
    result: AttackResult, delta: float, guesses: Mapping[str, tuple[str, str, str]]
) -> str:
    counts = result.at(delta).as_dict()
    if "guesses" in counts:
        return f"{counts['correct']:,} of {counts['guesses']:,} are right"
    guess, right, wrong = guesses[str(counts["direction"])]
    return f'"{guess}" in {counts["hits"]:,} runs {right} and in {counts["alarms"]:,} {wrong}'


def _measured_share(audit: Audit) -> str:
    """Say what share of the proved lower bound was measured, and how to measure a larger share."""
    delta, check = audit.headline_delta, audit.check
    proved, advice = check.known_lower_bound(delta), ""
    if audit.one_run:
        advice = " Without --one-run, the audit uses many runs and measures a larger epsilon."
    if proved == 0.0:
        return f"No lower bound on epsilon is proved for this design.{advice}"
    share = check.measured(delta) / proved
    sentence = f"The measured epsilon is {share:.0%} of the proved lower bound on epsilon."
    from checkins.audit.report import POWERFUL_SHARE

    if share >= POWERFUL_SHARE:
        return sentence
    if audit.one_run:
        return f"{sentence}{advice}"
    needed = check.runs_needed(delta)
    if needed is None:
        return (
            f"{sentence} Even with unlimited runs, these attacks may measure less than 80% of it."
        )
    runs = f"{needed:,}" if needed < 10_000 else f"{float(f'{needed:.2g}'):,.0f}"
    return f"{sentence} With about {runs} runs, the best attack would measure 80% of this bound."


def _notes(audit: Audit) -> Iterator[str]:
    yield from audit.notes
    for result in audit.check.results:
        if result.note:
            yield f"{result.canary}: {result.note}"
