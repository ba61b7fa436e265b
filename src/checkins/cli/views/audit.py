"""Print an audit: the verdict, a row per delta, a row per attack, and the audit's power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from checkins import formatting
from checkins.accounting import Adjacency
from checkins.audit import AttackResult, Audit, CertificateCheck
from checkins.audit.report import SHARE
from checkins.cli.errors import quoted
from checkins.cli.views.certificate import listed, plain_table

EVENT_WORDS = {
    Adjacency.ADD_REMOVE: ("guess: the canary is", {"remove": "present", "add": "absent"}),
    Adjacency.REPLACE_ONE: (
        "guess: the canary has",
        {"remove": "its own data", "add": "other data"},
    ),
}
"""For each neighbour relation: the column's heading, and what the attack guesses by direction."""


def audit_parts(audit: Audit, *, file: str) -> Iterator[RenderableType]:
    """Return the verdict and the tables of certified and measured epsilon."""
    yield Text.assemble((quoted(audit.campaign.name), "bold"), f" ({quoted(file)})")
    yield _verdict(audit)
    if audit.check.results:
        yield _deltas(audit.check)
        yield _attacks(audit.check)
        yield from listed(
            "Canaries", (f"{result.canary}: {result.explained}" for result in audit.check.results)
        )
        yield Text(_power(audit))
        yield ""
    if audit.machines is not None:
        yield Text(
            "The smaller campaign, run with the state machines and noise samplers of real devices:"
        )
        yield _deltas(audit.machines)
        yield _attacks(audit.machines)
    yield from listed("Notes", _notes(audit))
    simulated = f" Simulated with seed {audit.seed}." if audit.check.results else ""
    yield Text(
        f"All measured bounds hold together with confidence {audit.confidence}.{simulated}"
        " certified: upper bound on epsilon, rounded up. proved lower and measured: lower bounds on"
        " epsilon, rounded down. exact: epsilon of the attack, computed and not measured.",
        style="dim",
    )


def _verdict(audit: Audit) -> Text:
    delta, check = audit.headline, audit.check
    certificate = check.certificates[delta]
    certified = formatting.up(certificate.epsilon)
    if audit.contradicted:
        return Text(
            "Contradicted: the measured lower bound exceeds the certified epsilon. With confidence"
            f" {audit.confidence} the certificate, or the implementation that was run, is wrong.",
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


def _deltas(check: CertificateCheck) -> RenderableType:
    columns = ("delta", "certified", "proved lower", "measured", "verdict")
    table = plain_table(*columns, right=columns[:-1])
    for delta, certificate in check.certificates.items():
        contradicted = delta in check.contradicted
        table.add_row(
            f"{delta:g}",
            formatting.up(certificate.epsilon),
            formatting.down(check.known(delta)),
            formatting.down(check.measured(delta)),
            "contradicted" if contradicted else "consistent",
            style="bold red" if contradicted else "",
        )
    return table


def _attacks(check: CertificateCheck) -> RenderableType:
    delta = next(iter(check.certificates))
    heading, events = EVENT_WORDS[check.certificates[delta].adjacency]
    guessed = any("guesses" in result.at(delta).as_dict() for result in check.results)
    columns = ("canary", "runs", "exact", "measured", "result" if guessed else heading)
    table = plain_table(
        *columns,
        right=("runs", "exact", "measured"),
        title=f"Epsilon of each attack at delta = {delta:g}",
    )
    for result in check.results:
        exact = result.exact.get(delta)
        table.add_row(
            result.canary,
            f"{result.runs:,}",
            "" if exact is None else formatting.nearest(exact),
            formatting.down(result.at(delta).epsilon),
            _event(result, delta, events),
        )
    return table


def _event(result: AttackResult, delta: float, events: Mapping[str, str]) -> str:
    counts = result.at(delta).as_dict()
    if "guesses" in counts:
        return f"{counts['correct']:,} of {counts['guesses']:,} guesses right"
    words = events[str(counts["direction"])]
    return f"{words}: right in {counts['hits']:,} runs, wrong in {counts['alarms']:,}"


def _power(audit: Audit) -> str:
    """Say which share of the proved lower bound was measured, and how to measure more."""
    delta, check = audit.headline, audit.check
    known = check.known(delta)
    if known == 0.0:
        more = (
            " Without --one-run, the audit uses many runs and measures more."
            if audit.one_run
            else ""
        )
        return f"No lower bound on epsilon is proved for this design.{more}"
    share = check.measured(delta) / known
    sentence = f"The audit measured {share:.0%} of the proved lower bound on epsilon."
    if share >= SHARE:
        return sentence
    if audit.one_run:
        return f"{sentence} Without --one-run, the audit uses many runs and measures more."
    needed = check.runs_needed(delta)
    if needed is None:
        return f"{sentence} These attacks may not reach 80% of it with any number of runs."
    runs = f"{needed:,}" if needed < 10_000 else f"{float(f'{needed:.2g}'):,.0f}"
    return f"{sentence} About {runs} runs of the best attack would measure 80% of it."


def _notes(audit: Audit) -> Iterator[str]:
    yield from audit.notes
    for result in audit.check.results:
        if result.note:
            yield f"{result.canary}: {result.note}"
