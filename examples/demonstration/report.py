"""The report of the demo: one HTML file without scripts and external resources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from checkins import formatting

WIDE, HIGH, LEFT, BELOW, ABOVE, RIGHT = 680, 240, 56, 40, 14, 18

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #171a1e; --soft: #5a636e; --rule: #e2e6ea;
  --blue: #0072b2; --orange: #b84f00; }
@media (prefers-color-scheme: dark) { :root { --paper: #13161a; --ink: #e9ebee; --soft: #a0a9b4;
  --rule: #2b3139; --blue: #4aa8e0; --orange: #f08a45; } }
body { margin: 0 auto; max-width: 46rem; padding: 3rem 1.5rem; background: var(--paper);
  color: var(--ink); font: 17px/1.6 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 2.2rem; line-height: 1.15; margin: 0 0 .6rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .4rem; }
p, li { margin: 0 0 .7rem; } .soft, dt, figcaption { color: var(--soft); font-size: .92rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1.4rem; }
dd { margin: 0; } dd b { display: block; font-size: 2rem; line-height: 1.2; font-weight: 640; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; } svg text { fill: var(--soft);
  font-size: 13px; } svg line { stroke: var(--rule); } svg path { fill: none; stroke-width: 2.5; }
code, pre { font-size: .82rem; } pre { overflow-x: auto; padding: .8rem; border: 1px solid
  var(--rule); }
"""


def page(
    view: dict[str, Any],
    progress: dict[str, Any],
    swarm: dict[str, Any],
    verified: dict[str, Any],
    campaign_file: str,
) -> str:
    """Return the page: what ran, the model's metrics, its epsilon, and how to verify it."""
    certificate, metrics = view["certificate"], progress["curve"][-1]["metrics"]
    slots, epsilon = view["schedule"]["slots"], formatting.up(certificate["epsilon"])
    bound = f"at delta = {certificate['delta']!r}, {certificate['adjacency']}"
    reported = swarm["outcomes"]["reported"]
    learned = [(point["slots"], point["metrics"]["auc"]) for point in progress["curve"]]
    spending = _steps([(point["slots"], point["epsilon"]) for point in progress["spending"]])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>checkins demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body>
<h1>{swarm["clients"]:,} devices trained one model</h1>
<p>Each device had the record of one patient and drew one of {slots:,} slots (time steps) by itself.
In its slot the device checked in, fetched the model and sent one clipped update. The coordinator
contacted no device. After every slot it released a model that predicts who dies during
follow-up.</p>
<dl>
{_figure("AUC on the public holdout", f"{metrics['auc']:.3f}", "0.5: a guess, 1: a perfect model")}
{_figure("Accuracy on the holdout", f"{metrics['accuracy']:.3f}", "most patients survive")}
{_figure("Epsilon of all releases", f"epsilon ≤ {epsilon}", bound)}
{_figure("Devices that reported", f"{reported:,}", "only the devices know this number")}
</dl>
<h2>The model</h2>
{_chart(learned, "AUC", colour="blue")}
<h2>Its privacy</h2>
{_chart(spending, "epsilon", colour="orange")}
<p class="soft">Epsilon of all releases so far, an upper bound {escape(bound)}.</p>
{_listed(view["promises"])}
<h2>What the guarantee assumes</h2>
{_listed(view["assumptions"])}
<h2>How to check it</h2>
<p>The ledger, a file in the same folder as this page, records every release. <code>checkins
verify</code> computed each hash, model and epsilon of its {verified["entries"]:,} entries again;
all were correct. The hash of its last entry is <code>{escape(view["ledger"]["head"])}</code></p>
<p>To check it: <code>checkins verify . --closed --head {escape(view["ledger"]["head"])}</code></p>
<h2>The campaign</h2>
<p class="soft">Run {escape(view["id"])}, sealed as <code>{escape(view["seal"])}</code>, first slot
at {escape(view["schedule"]["start"])}.</p>
<pre>{escape(campaign_file)}</pre>
<h2>Outcomes of the devices</h2>
<p class="soft">Only the devices know these numbers; the coordinator publishes no counts.</p>
<pre>{escape(json.dumps(swarm["outcomes"], indent=2))}</pre>
</body></html>
"""


def _figure(what: str, value: str, note: str) -> str:
    return (
        f"<div><dt>{escape(what)}</dt><dd><b>{escape(value)}</b>"
        f'<span class="soft">{escape(note)}</span></dd></div>'
    )


def _listed(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _steps(spending: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a step function: up to each computed number of slots, epsilon is at most its value."""
    points, before = [(0.0, 0.0)], 0.0
    for slots, epsilon in spending:
        points += [(before, epsilon), (slots, epsilon)]
        before = slots
    return points


def _chart(points: Sequence[tuple[float, float]], what: str, *, colour: str) -> str:
    """Draw one line over slots, with three labels on the y axis and two on the x axis."""
    last = max(1.0, points[-1][0])
    values = [value for _, value in points]
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def place(slots: float, value: float) -> tuple[float, float]:
        across = LEFT + (WIDE - LEFT - RIGHT) * slots / last
        return across, HIGH - BELOW - (HIGH - BELOW - ABOVE) * (value - low) / span

    marks = []
    for value in (low, low + span / 2, low + span):
        _, y = place(0, value)
        marks.append(f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for slots in (0.0, last):
        x, _ = place(slots, low)
        marks.append(f'<text x="{x:.1f}" y="{HIGH - 18}" text-anchor="middle">{slots:g}</text>')
    path = " L".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    label = f"{what} from {points[0][1]:.3g} to {points[-1][1]:.3g} over {last:g} slots"
    return (
        f'<figure><svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(label)}">'
        f'{"".join(marks)}<path d="M{path}" stroke="var(--{colour})"/></svg>'
        f"<figcaption>{escape(what)} after each slot</figcaption></figure>"
    )
