"""``report.html``: one page that shows what a simulated campaign learned, and what it costs.

The input is the object that ``checkins simulate --json`` prints, one campaign's or a sweep's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkins.simulation.report import facts, numbers, sections, sweep, words
from checkins.simulation.report import html as page
from checkins.simulation.report.facts import Result

PRICE = "Privacy spent, ε"


def report_page(result: Mapping[str, Any]) -> str:
    """The whole page as HTML: self-contained, nothing is loaded from anywhere."""
    if "sweep" in result:
        return sweep.sweep_page(result)
    name = facts.campaign_name(result)
    parts = [
        _top(result),
        sections.learning(result),
        sections.privacy(result),
        sections.occupancy(result),
        sections.methods(result),
        sections.certificate(result),
        sections.again(result),
    ]
    return page.whole_page(
        title=f"{name}: a simulated campaign", body="\n".join(parts), footer=sections.footer(result)
    )


def write_report(result: Mapping[str, Any], path: str | Path) -> None:
    """Write the page to a file: readers see the old page or the new one, never half of it."""
    place = Path(path)
    descriptor, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(report_page(result))
        os.chmod(draft, 0o644)
        os.replace(draft, place)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _top(result: Result) -> str:
    return "\n".join(
        part
        for part in (
            page.paragraph("Simulated campaign", kind="eyebrow"),
            f"<h1>{page.text(facts.campaign_name(result))}</h1>",
            page.paragraph(words.subtitle(result), kind="lede"),
            page.paragraph(words.partial(result), kind="notice"),
            page.paragraph(words.over_budget(result), kind="notice"),
            page.big_figures(
                _figures(result), marked=(PRICE,) if facts.over_budget(result) else ()
            ),
            '<div class="meaning">',
            *(page.paragraph(sentence) for sentence in words.meaning(result)),
            page.paragraph(words.scenario(result)),
            *(page.paragraph(f"Mind: {note}.", kind="soft") for note in result.get("notes") or ()),
            "</div>",
        )
        if part
    )


def _figures(result: Result) -> list[tuple[str, str, str, str]]:
    """The four numbers in big type: label, number, what stands beside it, a note."""
    certificate, seeds = facts.certificate(result), facts.measured_seeds(result)
    expected = result.get("dummies_expected")
    epsilon = numbers.finite(certificate.get("epsilon"))
    price = "not bounded" if epsilon is None else f"≤ {numbers.up(epsilon)}"
    over = "over budget; " if facts.over_budget(result) else ""
    rate = numbers.short_count(result.get("client_updates_per_second"))
    return [
        _quality(result, seeds),
        (
            PRICE,
            price,
            f"at δ = {numbers.nearest(certificate.get('delta'))}",
            f"{over}{facts.said(certificate, 'adjacency')},"
            f" method {facts.said(certificate, 'method')}, rounded up",
        ),
        (
            "Check-ins",
            numbers.count(result.get("check_ins")),
            f"in {numbers.count(result.get('slots'))} slots",
            f"{rate} client updates a second on this machine",
        ),
        (
            "Dummies",
            numbers.count(result.get("dummies")),
            "" if numbers.finite(expected) is None else f"theory {numbers.count(expected)}",
            "the server's stand-ins where too few came",
        ),
    ]


def _quality(result: Result, seeds: int) -> tuple[str, str, str, str]:
    metric, values = facts.headline(result), result.get("metrics") or {}
    if metric is None and facts.diverged(result):
        return "Quality", "diverged", "", "the rate is too large for this noise"
    if metric is None:
        return "Quality", "not measured", "", "the campaign has no public holdout"
    deviation = numbers.spread(metric, (result.get("spread") or {}).get(metric))
    over = f"mean and deviation over {seeds} seeds" if deviation else "one seed"
    rest = [
        f"{numbers.metric_name(name)} {numbers.metric(name, values[name])}"
        for name in facts.metrics_of(result)[1:]
    ]
    label = numbers.metric_name(metric)
    return (
        f"{label[:1].upper()}{label[1:]}, {facts.where(result).removeprefix('the ')}",
        numbers.metric(metric, values[metric]),
        deviation,
        "; ".join([over, *rest]),
    )
