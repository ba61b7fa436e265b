"""The sections of a campaign's page, each of which says what it has not got."""

from __future__ import annotations

from checkins.simulation.report import dots, facts, numbers, plots, words
from checkins.simulation.report import html as page
from checkins.simulation.report.curves import seed_curves
from checkins.simulation.report.facts import Result


def learning(result: Result) -> str:
    metric, title = facts.headline(result), "How well it learns"
    main = None if metric is None else plots.learning(result, metric)
    if metric is None or main is None:
        missing = "There is no public holdout, so there is no learning curve to show."
        if facts.diverged(result):
            missing = "The model diverged, so there is no learning curve to show."
        elif metric is not None:
            missing = "No learning curve was recorded."
        return page.section("learning", title, page.paragraph(missing))
    counted = len(seed_curves(result))
    said = f"Line: mean of {counted} seeds; band: from the worst to the best of them."
    if counted == 1:
        said = "One seed, so there is no band: run more to see how much chance decides."
    if facts.available(result):
        said += (
            " Thin lines: the other methods, mean over their seeds; dotted: measured at the end."
        )
    others = [plots.learning(result, name, small=True) for name in facts.metrics_of(result)[1:]]
    return page.section(
        "learning",
        title,
        page.figure(main, said),
        page.side_by_side(*(page.figure(other) for other in others)),
    )


def privacy(result: Result) -> str:
    plot, title = plots.spent(result), "What it costs in privacy"
    if plot is None:
        return page.section(
            "privacy", title, page.paragraph("What is spent over slots could not be bounded.")
        )
    return page.section("privacy", title, page.figure(plot, words.spent(result)))


def occupancy(result: Result) -> str:
    plot, title = plots.occupancy(result), "Who came, and who stood in"
    if plot is None:
        missing = f"Occupancy was not recorded. {words.dummies(result)}"
        return page.section("occupancy", title, page.paragraph(missing))
    said = "Bars: slots of the simulation. Line: what the protocol's coins make of this population."
    if plots.within_sight(result):
        said += " Left of the capacity dummies fill up; right of it some clients are sent home."
    elif plots.beyond(result):
        said += f" The capacity, {numbers.count(facts.capacity(result))}, is beyond all of them."
    return page.section(
        "occupancy",
        title,
        page.paragraph(words.dummies(result)),
        page.figure(plot, said),
        page.figure(plots.dummies(result)),
    )


def methods(result: Result) -> str:
    title, metric = "Against other methods", facts.headline(result)
    listed = list(result.get("baselines") or ())
    if not listed:
        missing = "No other method was run beside this one."
        return page.section("methods", title, page.paragraph(missing))
    plot = None if metric is None else dots.methods(result, metric)
    heads = ["Method", "ε", "Noise"] + ([numbers.metric_name(metric)] if metric else [])
    adjacency = facts.certificate(result).get("adjacency")
    rows = [_method_row(facts.THIS, _own(result), metric, adjacency)]
    rows += [_method_row(facts.method_name(one), one, metric, adjacency) for one in listed]
    return page.section(
        "methods",
        title,
        page.paragraph(words.comparison(result)),
        page.figure(plot, "Dot: mean over seeds; line: one standard deviation to either side.")
        if plot
        else "",
        page.table(heads, rows, numeric=(1, 3)),
    )


def _own(result: Result) -> Result:
    """This campaign as a row among the methods."""
    noise = numbers.finite(facts.setting(result, "randomizer", "noise_multiplier"))
    local = numbers.finite(facts.setting(result, "randomizer", "local_epsilon"))
    said = numbers.MISSING
    if result.get("noise"):  # in the words of the baselines, so that rows can be compared
        said = str(result["noise"])
    elif noise is not None:
        where = facts.setting(result, "randomizer", "noise_at")
        said = f"{numbers.nearest(noise)} × clip at the {where}"
    elif local is not None:
        said = f"each report {numbers.nearest(local)}-DP"
    return {
        "what": "this campaign",
        "epsilon": facts.certificate(result).get("epsilon"),
        "noise": said,
        "metrics": result.get("metrics"),
        "spread": result.get("spread"),
    }


def _method_row(name: str, one: Result, metric: str | None, adjacency: object) -> list[str]:
    why = one.get("unavailable")
    what = f"not run: {why}" if why else one.get("what") or ""
    if not why and one.get("adjacency") not in (None, adjacency):
        what = f"{what}; for {one['adjacency']} neighbours"
    epsilon = numbers.finite(one.get("epsilon"))
    price = "∞" if one.get("name") == "non-private" else numbers.up(epsilon)
    title = f"<strong>{page.text(name)}</strong>" if name == facts.THIS else page.text(name)
    cells = [
        f'{title}<span class="what">{page.text(what)}</span>',
        page.text(numbers.MISSING if why else price),
        page.text(numbers.MISSING if why else one.get("noise") or numbers.MISSING),
    ]
    if metric is not None:
        value = (one.get("metrics") or {}).get(metric)
        deviation = numbers.spread(metric, (one.get("spread") or {}).get(metric))
        cells.append(page.text(f"{numbers.metric(metric, value)} {deviation}".strip()))
    return cells


def certificate(result: Result) -> str:
    certificate = facts.certificate(result)
    others = [
        [
            f'{page.text(one.get("method"))}<span class="what">{page.text(one.get("note"))}</span>',
            page.text("proof" if one.get("proves") else "comparison"),
            page.text(numbers.up(one.get("epsilon"))),
        ]
        for one in certificate.get("alternatives") or ()
    ]
    return page.section(
        "certificate",
        "The certificate in words",
        page.paragraph(words.promise(result), kind="claim"),
        page.heading("What is promised"),
        page.bullets(words.promised(result)),
        page.heading("If these hold"),
        page.bullets([str(line) for line in certificate.get("assumptions") or ()]),
        page.heading("What is not promised"),
        page.bullets(words.not_promised(result)),
        page.folded(
            "The same design by other methods",
            page.table(["Method", "Kind", "ε, rounded up"], others, numeric=(2,)),
        )
        if others
        else "",
    )


def again(result: Result) -> str:
    seeds = max(1, len(result.get("seeds") or ()))
    campaign = result.get("campaign") or {}
    return page.section(
        "again",
        "Repeat it",
        page.paragraph(
            "Save the campaign's file and run it again; on the same versions the same seeds give"
            " the same numbers."
        ),
        page.listing(result.get("command") or f"checkins simulate campaign.toml --seeds {seeds}"),
        page.folded("The campaign's file", page.listing(str(campaign.get("text") or ""))),
    )


def footer(result: Result) -> str:
    """What made the page."""
    versions = ", ".join(
        f"{name} {version}" for name, version in (result.get("versions") or {}).items()
    )
    seal = (result.get("campaign") or {}).get("seal")
    return page.paragraph(
        " ".join(
            part
            for part in (
                "Made by checkins simulate.",
                f"Campaign sealed as {seal}." if seal else "",
                f"Versions: {versions}." if versions else "",
                "This page is one file and loads nothing.",
            )
            if part
        )
    )
