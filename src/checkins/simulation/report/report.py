"""``report.html``: one page about a simulated campaign or a sweep.

The page is one file that loads nothing. If a section lacks data, the section says so.
"""

from __future__ import annotations

from pathlib import Path

from checkins import durable_file
from checkins.accounting import Certificate
from checkins.simulation.baselines import Baseline
from checkins.simulation.report import html as page
from checkins.simulation.report import plots, sweep, words
from checkins.simulation.result import BaselineResult, SimulationResult, SweepResult

EPSILON = "Privacy loss, ε"


def report_page(result: SimulationResult | SweepResult) -> str:
    """Return the whole page as HTML."""
    if isinstance(result, SweepResult):
        return sweep.sweep_page(result)
    sections = (_top, _learning, _privacy, _occupancy, _methods, _certificate, _repeat)
    body = "\n".join(section(result) for section in sections)
    title = f"{result.campaign.name}: a simulated campaign"
    return page.whole_page(title=title, body=body, footer=page.footer(result))


def write_report(result: SimulationResult | SweepResult, path: str | Path) -> None:
    """Write the page to a file, atomically."""
    durable_file.replace_content(Path(path), report_page(result).encode())


def _top(result: SimulationResult) -> str:
    return page.joined(
        page.paragraph("Simulated campaign", kind="eyebrow"),
        f"<h1>{page.text(result.campaign.name)}</h1>",
        page.paragraph(words.subtitle(result), kind="lede"),
        page.paragraph(words.partial(result), kind="notice"),
        page.paragraph(words.over_budget(result), kind="notice"),
        page.big_figures(_figures(result), marked=() if result.within_budget else (EPSILON,)),
        '<div class="meaning">',
        *(page.paragraph(sentence) for sentence in words.summary(result)),
        page.paragraph(words.scenario(result)),
        *(page.paragraph(f"Mind: {note}.", kind="soft") for note in result.notes),
        "</div>",
    )


def _figures(result: SimulationResult) -> list[tuple[str, str, str, str]]:
    """Return the four large numbers, as tuples (label, number, smaller text, note)."""
    certificate, expected = result.certificate, result.dummies_expected
    epsilon = words.finite(certificate.epsilon)
    over = "" if result.within_budget else "over budget; "
    bound = "not bounded" if epsilon is None else f"≤ {words.up(epsilon)}"
    at = f"at δ = {words.nearest(certificate.delta)}"
    how = f"{over}{certificate.adjacency}, method {certificate.method}, rounded up"
    slots = f"in {words.count(result.slots)} slots"
    rate = f"{words.short_count(result.updates_per_second)} client updates per second"
    theory = "" if expected is None else f"theory {words.count(expected)}"
    dummies = "reports that the server draws in place of missing ones"
    return [
        _quality(result),
        (EPSILON, bound, at, how),
        ("Check-ins", words.count(result.check_ins), slots, f"{rate} on this machine"),
        ("Dummies", words.count(result.dummies), theory, dummies),
    ]


def _quality(result: SimulationResult) -> tuple[str, str, str, str]:
    metric, values = result.headline, result.metrics
    if metric is None:
        return "Quality", "diverged", "", "the rate is too large for this noise"
    deviation = words.spread(result, metric)
    over = f"mean and deviation over {len(result.seeds)} seeds" if deviation else "one seed"
    rest = [
        f"{words.metric_name(name)} {words.metric_value(name, values[name])}"
        for name in result.metric_names[1:]
    ]
    label = words.metric_name(metric)
    return (
        f"{label[:1].upper()}{label[1:]}, {words.measured_on(result).removeprefix('the ')}",
        words.metric_value(metric, values[metric]),
        deviation,
        "; ".join([over, *rest]),
    )


def _learning(result: SimulationResult) -> str:
    metric, title = result.headline, "How well it learns"
    main = None if metric is None else plots.learning(result, metric)
    if main is None:
        missing = "The model diverged, so there is no learning curve to show."
        return page.section("learning", title, page.paragraph(missing))
    counted = len(result.curves)
    caption = f"Line: mean of {counted} seeds. Band: from the worst to the best seed."
    if counted == 1:
        caption = "One seed, so there is no band. Run more seeds to see how much they differ."
    if result.available_baselines:
        caption += (
            " Thin lines: means of the other methods. Dotted lines: measured only at the end."
        )
    others = [plots.learning(result, name, small=True) for name in result.metric_names[1:]]
    return page.section(
        "learning",
        title,
        page.figure(main, caption),
        page.side_by_side(*(page.figure(other) for other in others)),
    )


def _privacy(result: SimulationResult) -> str:
    content = page.figure(plots.spent(result), words.spent(result))
    missing = page.paragraph("The ε after each slot could not be bounded.")
    return page.section("privacy", "Privacy loss", content or missing)


def _occupancy(result: SimulationResult) -> str:
    plot, title = plots.occupancy(result), "Check-ins and dummies"
    if plot is None:
        missing = f"The check-ins per slot were not recorded. {words.dummies(result)}"
        return page.section("occupancy", title, page.paragraph(missing))
    caption = "Bars: measured in the simulation. Line: the distribution by theory."
    if plots.capacity_in_view(result):
        caption += (
            " Slots below the capacity are filled with dummies. Slots above it do not use the"
            " reports of some clients."
        )
    elif plots.capacity_beyond_view(result):
        capacity = words.count(result.campaign.design.capacity)
        caption += f" The capacity, {capacity}, is larger than any of these numbers."
    return page.section(
        "occupancy",
        title,
        page.paragraph(words.dummies(result)),
        page.figure(plot, caption),
        page.figure(plots.dummies(result)),
    )


def _methods(result: SimulationResult) -> str:
    title, metric = "Comparison with other methods", result.headline
    if not result.baselines:
        missing = "No other method was run for comparison."
        return page.section("methods", title, page.paragraph(missing))
    plot = None if metric is None else plots.methods(result, metric)
    heads = ["Method", "ε", "Noise"] + ([words.metric_name(metric)] if metric else [])
    own = [
        f'<strong>{words.THIS}</strong><span class="what">this campaign</span>',
        page.text(words.up(result.certificate.epsilon)),
        page.text(result.noise),
        *_metric_cell(result, metric),
    ]
    rows = [own, *(_baseline_row(one, metric, result.certificate) for one in result.baselines)]
    return page.section(
        "methods",
        title,
        page.paragraph(words.comparison(result)),
        page.figure(plot, "Dot: mean over seeds. Line: one standard deviation to either side."),
        page.table(heads, rows, numeric=(1, 3)),
    )


def _baseline_row(one: BaselineResult, metric: str | None, certificate: Certificate) -> list[str]:
    name, why = words.METHOD_NAMES[one.kind], one.unavailable
    what = f"not run: {why}" if why else one.description
    if not why and one.baseline.adjacency not in (None, certificate.adjacency):
        what = f"{what}; for {one.baseline.adjacency} neighbours"
    epsilon = "∞" if one.kind is Baseline.NON_PRIVATE else words.up(one.baseline.epsilon)
    return [
        f'{page.text(name)}<span class="what">{page.text(what)}</span>',
        page.text(words.MISSING if why else epsilon),
        page.text(words.MISSING if why else one.noise),
        *_metric_cell(one, metric),
    ]


def _metric_cell(one: SimulationResult | BaselineResult, metric: str | None) -> list[str]:
    return [] if metric is None else [page.text(words.measured(one, metric))]


def _certificate(result: SimulationResult) -> str:
    certificate = result.certificate
    others = [
        [
            f'{page.text(one.method)}<span class="what">{page.text(one.note)}</span>',
            page.text("proof" if one.proves else "comparison"),
            page.text(words.up(one.epsilon)),
        ]
        for one in certificate.alternatives
    ]
    return page.section(
        "certificate",
        "The certificate in words",
        page.paragraph(words.guarantee(certificate), kind="claim"),
        page.heading("What is guaranteed"),
        page.bullets(words.certificate_lines(certificate)),
        page.heading("Under these assumptions"),
        page.bullets(certificate.assumptions),
        page.heading("What is not guaranteed"),
        page.bullets(words.not_guaranteed(result)),
        page.folded(
            "Epsilon of the same design by other methods",
            page.table(["Method", "Kind", "ε, rounded up"], others, numeric=(2,)),
        )
        if others
        else "",
    )


def _repeat(result: SimulationResult) -> str:
    how, file = "Save the campaign file and simulate it again", "The campaign file"
    return page.repeat_section(result, command=result.command, how=how, file=file)
