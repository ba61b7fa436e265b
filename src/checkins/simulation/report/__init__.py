"""``report.html``: one page about a simulated campaign or a sweep.

The page is one file, which loads no other files. If a section lacks data, the section says so.
"""

from __future__ import annotations

from pathlib import Path

from checkins import durable_file
from checkins.simulation.baselines import Baseline
from checkins.simulation.report import html as page
from checkins.simulation.report import plots, sentences, sweep
from checkins.simulation.result import BaselineResult, SimulationResult, SweepResult

__all__ = ["report_page", "write_report"]


EPSILON_LABEL = "Privacy loss, ε"


def report_page(result: SimulationResult | SweepResult) -> str:
    """Return the whole page as HTML."""
    if isinstance(result, SweepResult):
        return sweep.sweep_page(result)
    top = (_header, _learning_section, _privacy_section, _occupancy_section)
    rest = (_methods_section, _certificate_section, _repeat_section)
    body = "\n".join(section(result) for section in (*top, *rest))
    title = f"{result.campaign.name}: a simulated campaign"
    return page.page_html(title=title, body=body, footer=page.footer(result))


def write_report(result: SimulationResult | SweepResult, path: str | Path) -> None:
    """Write the page to a file, atomically."""
    durable_file.replace_content(Path(path), report_page(result).encode())


def _header(result: SimulationResult) -> str:
    highlighted = () if result.within_budget else (EPSILON_LABEL,)
    return page.join_parts(
        page.paragraph("Simulated campaign", css_class="eyebrow"),
        f"<h1>{page.escaped(result.campaign.name)}</h1>",
        page.paragraph(sentences.subtitle(result), css_class="lede"),
        page.paragraph(sentences.partial_notice(result), css_class="notice"),
        page.paragraph(sentences.over_budget_notice(result), css_class="notice"),
        page.headline_numbers(_headline_numbers(result), highlighted=highlighted),
        '<div class="meaning">',
        *(page.paragraph(sentence) for sentence in sentences.summary_sentences(result)),
        page.paragraph(sentences.scenario_sentence(result)),
        *(page.paragraph(f"Note: {note}.", css_class="soft") for note in result.notes),
        "</div>",
    )


def _headline_numbers(result: SimulationResult) -> list[tuple[str, str, str, str]]:
    """Return the four large numbers of the page: (label, number, smaller text, note)."""
    certificate, expected = result.certificate, result.dummies_expected
    epsilon = sentences.finite_or_none(certificate.epsilon)
    over_budget = "" if result.within_budget else "over budget; "
    bound = "not bounded" if epsilon is None else f"≤ {sentences.rounded_up(epsilon)}"
    delta_text = f"at δ = {sentences.rounded(certificate.delta)}"
    epsilon_note = f"{over_budget}{certificate.adjacency}, method {certificate.method}, rounded up"
    slots = f"in {sentences.count_text(result.slots)} slots"
    update_rate = f"{sentences.short_count(result.updates_per_second)} client updates per second"
    expected_text = "" if expected is None else f"theory {sentences.count_text(expected)}"
    dummies_note = "reports that the server draws in place of missing ones"
    return [
        _metric_number(result),
        (EPSILON_LABEL, bound, delta_text, epsilon_note),
        (
            "Check-ins",
            sentences.count_text(result.check_ins),
            slots,
            f"{update_rate} on this machine",
        ),
        ("Dummies", sentences.count_text(result.dummies), expected_text, dummies_note),
    ]


def _metric_number(result: SimulationResult) -> tuple[str, str, str, str]:
    metric, values = result.headline, result.metrics
    if metric is None:
        return "Quality", "diverged", "", "the rate is too large for this noise"
    deviation = sentences.spread_text(result, metric)
    seeds_note = f"mean and deviation over {len(result.seeds)} seeds" if deviation else "one seed"
    other_metrics = [
        f"{sentences.metric_name(name)} {sentences.metric_text(name, values[name])}"
        for name in result.metric_names[1:]
    ]
    if result.average_metrics:
        other_metrics.append(f"{sentences.AVERAGE} {sentences.average_with_spread(result, metric)}")
    label = sentences.metric_name(metric)
    return (
        f"{label[:1].upper()}{label[1:]}, {sentences.data_name(result).removeprefix('the ')}",
        sentences.metric_text(metric, values[metric]),
        deviation,
        "; ".join([seeds_note, *other_metrics]),
    )


def _learning_section(result: SimulationResult) -> str:
    metric, title = result.headline, "How well it learns"
    main_plot = None if metric is None else plots.learning_plot(result, metric)
    if main_plot is None:
        missing = "The model diverged, so there is no learning curve to show."
        return page.section("learning", title, page.paragraph(missing))
    curve_count = len(result.curves)
    caption = f"Line: mean of {curve_count} seeds. Band: from the worst to the best seed."
    if curve_count == 1:
        caption = "One seed, so there is no band. Run more seeds to see how much they differ."
    if result.available_baselines:
        caption += (
            " Thin lines: means of the other methods. Dotted lines: measured only at the end."
        )
    if result.average_curves:
        caption += " Dashed line: the average of the models released so far."
    others = [plots.learning_plot(result, name, small=True) for name in result.metric_names[1:]]
    return page.section(
        "learning",
        title,
        page.figure(main_plot, caption),
        page.side_by_side(*(page.figure(other) for other in others)),
    )


def _privacy_section(result: SimulationResult) -> str:
    content = page.figure(plots.epsilon_plot(result), sentences.budget_sentence(result))
    missing = page.paragraph("No bound on the ε after each slot is known.")
    return page.section("privacy", "Privacy loss", content or missing)


def _occupancy_section(result: SimulationResult) -> str:
    plot, title = plots.occupancy_plot(result), "Check-ins and dummies"
    if plot is None:
        missing = f"The check-ins per slot were not recorded. {sentences.dummies_sentence(result)}"
        return page.section("occupancy", title, page.paragraph(missing))
    caption = "Bars: measured in the simulation. Line: the distribution by theory."
    if plots.capacity_in_view(result):
        caption += (
            " Slots below the capacity are filled with dummies. Slots above it do not use the"
            " reports of some clients."
        )
    elif plots.capacity_beyond_view(result):
        capacity = sentences.count_text(result.campaign.design.capacity)
        caption += f" The capacity, {capacity}, is larger than any of these numbers."
    return page.section(
        "occupancy",
        title,
        page.paragraph(sentences.dummies_sentence(result)),
        page.figure(plot, caption),
        page.figure(plots.dummies_plot(result)),
    )


def _methods_section(result: SimulationResult) -> str:
    title, metric = "Comparison with other methods", result.headline
    if not result.baselines:
        missing = "No other method was run for comparison."
        return page.section("methods", title, page.paragraph(missing))
    plot = None if metric is None else plots.methods_plot(result, metric)
    header = ["Method", "ε", "Noise", *_metric_header(result, metric)]
    own_row = [
        f'<strong>{sentences.THIS_METHOD}</strong><span class="what">this campaign</span>',
        page.escaped(sentences.rounded_up(result.certificate.epsilon)),
        page.escaped(result.noise),
        *_metric_cells(result, metric, has_average=bool(result.average_metrics)),
    ]
    baseline_rows = [_baseline_row(baseline, result, metric) for baseline in result.baselines]
    return page.section(
        "methods",
        title,
        page.paragraph(sentences.comparison_sentence(result)),
        page.figure(plot, "Dot: mean over seeds. Line: one standard deviation to either side."),
        page.table(header, [own_row, *baseline_rows], numeric=(1, 3, 4)),
    )


def _baseline_row(
    baseline: BaselineResult, result: SimulationResult, metric: str | None
) -> list[str]:
    certificate = result.certificate
    name, unavailable = sentences.METHOD_NAMES[baseline.kind], baseline.unavailable
    description = f"not run: {unavailable}" if unavailable else baseline.description
    if not unavailable and baseline.baseline.adjacency not in (None, certificate.adjacency):
        description = f"{description}; for {baseline.baseline.adjacency} neighbours"
    epsilon = sentences.rounded_up(baseline.baseline.epsilon)
    if baseline.kind is Baseline.NON_PRIVATE:
        epsilon = "∞"
    return [
        f'{page.escaped(name)}<span class="what">{page.escaped(description)}</span>',
        page.escaped(sentences.MISSING if unavailable else epsilon),
        page.escaped(sentences.MISSING if unavailable else baseline.noise),
        *_metric_cells(baseline, metric, has_average=bool(result.average_metrics)),
    ]


def _metric_header(result: SimulationResult, metric: str | None) -> list[str]:
    if metric is None:
        return []
    name = sentences.metric_name(metric)
    return [name, f"{name}, {sentences.AVERAGE}"] if result.average_metrics else [name]


def _metric_cells(
    result: SimulationResult | BaselineResult, metric: str | None, *, has_average: bool
) -> list[str]:
    if metric is None:
        return []
    texts = [sentences.metric_with_spread(result, metric)]
    if has_average:
        texts.append(sentences.average_with_spread(result, metric))
    return [page.escaped(text) for text in texts]


def _certificate_section(result: SimulationResult) -> str:
    certificate = result.certificate
    other_methods = [
        [
            f'{page.escaped(bound.method)}<span class="what">{page.escaped(bound.note)}</span>',
            page.escaped("proof" if bound.proves else "comparison"),
            page.escaped(sentences.rounded_up(bound.epsilon)),
        ]
        for bound in certificate.alternatives
    ]
    return page.section(
        "certificate",
        "The certificate in words",
        page.paragraph(sentences.guarantee_sentence(certificate), css_class="claim"),
        page.heading("What is guaranteed"),
        page.bullets(sentences.certificate_lines(certificate)),
        page.heading("Under these assumptions"),
        page.bullets(certificate.assumptions),
        page.heading("What is not guaranteed"),
        page.bullets(sentences.limitations(result)),
        page.collapsible(
            "Epsilon of the same design by other methods",
            page.table(["Method", "Kind", "ε, rounded up"], other_methods, numeric=(2,)),
        )
        if other_methods
        else "",
    )


def _repeat_section(result: SimulationResult) -> str:
    how, title = "Save the campaign file and simulate it again", "The campaign file"
    command = result.command
    return page.repeat_section(result, command=command, instruction=how, file_title=title)
