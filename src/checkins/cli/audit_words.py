"""An audit for people: the verdict in a sentence, every delta, every attack, what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from checkins.accounting import Adjacency
from checkins.audit import AttackResult, Audit, CertificateCheck
from checkins.audit.report import SHARE
from checkins.cli import digits, tables
from checkins.cli.failures import quoted

LOOKS = {
    Adjacency.ADD_REMOVE: ("looks like it is", {"remove": "there", "add": "missing"}),
    Adjacency.REPLACE_ONE: ("looks like its", {"remove": "first data", "add": "other data"}),
}
"""What an event takes the canary for."""


def parts(audit: Audit, *, file: str) -> Iterator[RenderableType]:
    """What was certified, what was measured, and whether both can be true."""
    yield Text.assemble((quoted(audit.campaign.name), "bold"), f" ({quoted(file)})")
    yield _verdict(audit)
    if audit.check.results:
        yield _deltas(audit.check)
        yield _attacks(audit.check)
        yield from tables.listed(
            "Canaries",
            (f"{result.canary}: {result.explained}" for result in audit.check.results),
        )
        yield Text(_power(audit))
        yield ""
    if audit.machines is not None:
        yield Text("The campaign made small, run by the real machines and samplers:")
        yield _deltas(audit.machines)
        yield _attacks(audit.machines)
    yield from tables.listed("Notes", _notes(audit))
    simulated = f" Simulated with seed {audit.seed}." if audit.check.results else ""
    yield Text(
        f"All of this holds together with confidence {audit.confidence}.{simulated}"
        " Rounding: certified up, measured down.",
        style="dim",
    )


def _verdict(audit: Audit) -> Text:
    delta, check = audit.headline, audit.check
    certificate = check.certificates[delta]
    certified = digits.up(certificate.epsilon)
    if audit.contradicted:
        return Text(
            "Contradicted: more was measured than is certified. One of the two is wrong, and with"
            f" confidence {audit.confidence} it is the certificate, or what was run.",
            style="bold red",
        )
    said = Text.assemble(("Consistent", "bold green"), ": ")
    if not check.results:
        return said.append("the machines measured no more than is certified.")
    measured = digits.down(check.measured(delta))
    return said.append(
        f"epsilon is at least {measured}, measured, and at most {certified}, certified"
        f" (delta = {delta!r}, {certificate.adjacency})."
    )


def _deltas(check: CertificateCheck) -> RenderableType:
    columns = ("delta", "certified", "true at least", "measured", "verdict")
    table = tables.plain_table(*columns, right=columns[:-1])
    for delta, certificate in check.certificates.items():
        beaten = delta in check.contradicted
        table.add_row(
            f"{delta:g}",
            digits.up(certificate.epsilon),
            digits.down(check.known(delta)),
            digits.down(check.measured(delta)),
            "contradicted" if beaten else "consistent",
            style="bold red" if beaten else "",
        )
    return table


def _attacks(check: CertificateCheck) -> RenderableType:
    delta = next(iter(check.certificates))
    looks, events = LOOKS[check.certificates[delta].adjacency]
    guessed = any("guesses" in result.at(delta).as_dict() for result in check.results)
    columns = ("canary", "runs", "exact", "measured", "by" if guessed else looks)
    table = tables.plain_table(
        *columns, right=("runs", "exact", "measured"), title=f"Attacks at delta = {delta:g}"
    )
    for result in check.results:
        exact = result.exact.get(delta)
        table.add_row(
            result.canary,
            f"{result.runs:,}",
            "" if exact is None else digits.nearest(exact),
            digits.down(result.at(delta).epsilon),
            _event(result, delta, events),
        )
    return table


def _event(result: AttackResult, delta: float, events: Mapping[str, str]) -> str:
    told = result.at(delta).as_dict()
    if "guesses" in told:
        return f"{told['correct']:,} of {told['guesses']:,} guesses right"
    words = events[str(told["direction"])]
    return f"{words}: {told['hits']:,} true, {told['alarms']:,} false positives"


def _power(audit: Audit) -> str:
    """Whether the audit could have measured more."""
    delta, check = audit.headline, audit.check
    known = check.known(delta)
    if known == 0.0:
        more = " Many runs measure more: leave out --one-run." if audit.one_run else ""
        return f"No lower bound on epsilon is known for this design.{more}"
    share = check.measured(delta) / known
    if share >= SHARE:
        return f"It measured {share:.0%} of what is known to be true at least."
    if audit.one_run:
        return (
            f"One run measured {share:.0%} of what is known to be true at least. Many runs measure"
            " more: leave out --one-run."
        )
    needed = check.runs_needed(delta)
    sentence = f"It measured {share:.0%} of what is known to be true at least."
    if needed is None:
        return f"{sentence} No number of runs of these attacks can be named that would measure 80%."
    return (
        f"{sentence} More runs measure more: about {_rounded(needed)} of the best attack for 80%."
    )


def _rounded(runs: int) -> str:
    return f"{runs:,}" if runs < 10_000 else f"{float(f'{runs:.2g}'):,.0f}"


def _notes(audit: Audit) -> Iterator[str]:
    yield from audit.notes
    for result in audit.check.results:
        if result.note:
            yield f"{result.canary}: {result.note}"
