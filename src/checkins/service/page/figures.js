// The two figures of a run: its learning curve, and epsilon by the number of released slots.

import { showEmpty, plot } from "./chart.js";
import { byId, setChildren, element, setText, setTable } from "./dom.js";
import { formatCount, finiteOrNull, formatMetric, metricName, roundNearest, formatSlots, roundUp } from "./numbers.js";
import * as words from "./words.js";

const METRIC_ORDER = ["auc", "accuracy", "loss"];  // the first of them that was measured is shown first
const MAX_TABLE_ROWS = 24;

let chosenMetric = null;

const sorted = (map) => [...map].sort(([a], [b]) => a - b);

// Returns at most MAX_TABLE_ROWS evenly spaced rows. The last row is always one of them.
const evenlySpaced = (rows) => {
  const step = Math.ceil(rows.length / MAX_TABLE_ROWS);
  return rows.filter((_, i) => (rows.length - 1 - i) % Math.max(1, step) === 0);
};

const setHeadline = (id, text, subtitle) => {
  byId(id).replaceChildren(text, ...(subtitle ? [" ", element("small", {}, subtitle)] : []));
};

const metricNames = (curve) => {
  const names = new Set(curve.flatMap(([, metrics]) => Object.keys(metrics).filter((name) => finiteOrNull(metrics[name]) !== null)));
  return [...METRIC_ORDER.filter((name) => names.has(name)), ...[...names].filter((name) => !METRIC_ORDER.includes(name)).sort()];
};

const drawMetricButtons = (allMetrics, metric, redraw) => {
  const key = JSON.stringify([allMetrics, metric]);
  if (byId("metrics").dataset.shown === key) return;
  const hadFocus = byId("metrics").contains(document.activeElement);
  byId("metrics").dataset.shown = key;
  const buttons = allMetrics.length < 2 ? [] : allMetrics.map((name) => {
    const button = element("button", { type: "button", "aria-pressed": String(name === metric) }, metricName(name));
    button.addEventListener("click", () => {
      chosenMetric = name;
      redraw();
    });
    return button;
  });
  setChildren("metrics", buttons);
  if (hadFocus) buttons[allMetrics.indexOf(metric)]?.focus();  // the buttons were replaced, so restore the focus
};

const paddedRange = (values, isShare) => {
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const padding = 0.08 * (high - low) || Math.abs(high) * 0.1 || 1;
  return isShare ? [Math.max(0, low - padding), Math.min(1, high + padding)] : [low - padding, high + padding];
};

// If all values are equal and lie at the end of [0, 1], the padded range could be empty.
const nonEmptyRange = ([low, high]) => (high > low ? [low, high] : [low - 0.5, high + 0.5]);

export const drawLearningCurve = (feed, sealedCampaign, redraw) => {
  const curve = sorted(feed.curve);
  const allMetrics = metricNames(curve);
  const metric = allMetrics.includes(chosenMetric) ? chosenMetric : allMetrics[0];
  drawMetricButtons(allMetrics, metric, redraw);
  if (metric === undefined) {
    setHeadline("learned", words.hasNoHoldout(sealedCampaign) ? "Not measured" : "Nothing yet");
    setText("learned-note", "");
    showEmpty(byId("curve"), words.noCurve(sealedCampaign, feed.view.slots_closed), byId("curve-read"));
    setTable("curve-table", [], [], "");
    return;
  }
  const points = curve.map(([slots, metrics]) => [slots, finiteOrNull(metrics[metric])]).filter(([, y]) => y !== null);
  const [slots, value] = points.at(-1);
  setHeadline("learned", formatMetric(metric, value), metricName(metric));
  setText("learned-note", `${slots > 0 ? `After ${formatSlots(slots)}` : "Before the first slot"}, on a declared public holdout, rounded to nearest.`);
  const isShare = metric === "accuracy" || metric === "auc";
  plot(byId("curve"), {
    lines: [{ points, className: "blue", dot: true }],
    maxX: Math.max(1, finiteOrNull(feed.view.schedule?.slots) ?? 1, slots),
    range: nonEmptyRange(paddedRange(points.map(([, y]) => y), isShare)),
    format: (y) => (metric === "accuracy" ? `${roundNearest(100 * y, 3)} %` : roundNearest(Math.abs(y) < 1e-12 ? 0 : y, 3)),
    label: `${metricName(metric)} by slots released: from ${formatMetric(metric, points[0][1])} after ${formatSlots(points[0][0])} to ${formatMetric(metric, value)} after ${formatCount(slots)}`,
    describe: ([x, y]) => `After ${formatSlots(x)}: ${metricName(metric)} ${formatMetric(metric, y)}.`,
    readout: byId("curve-read"),
    caption: "Each point is a released model, evaluated on public rows.",
    xName: "slots released",
  });
  setTable("curve-table",
    [{ name: "slots", number: true }, ...allMetrics.map((name) => ({ name: metricName(name), number: true }))],
    evenlySpaced(curve).map(([x, metrics]) => [formatCount(x), ...allMetrics.map((name) => formatMetric(name, metrics[name]))]),
    "Metrics on the public holdout, rounded to nearest",
  );
};

// Epsilon was computed only for some numbers of slots. After k slots, it is at most the epsilon of the
// next larger number of slots that was computed. The curve is therefore a step function that is never
// below the true epsilon. solid: the part that was released; planned: the part that is to come.
const stepCurve = (epsilons, closed) => {
  const releasedPoints = epsilons.filter(([slots]) => slots <= closed);
  const nextPoint = epsilons.find(([slots]) => slots >= closed);
  const solid = [...releasedPoints];
  if (nextPoint !== undefined && closed > 0 && releasedPoints.at(-1)?.[0] !== closed) solid.push([closed, nextPoint[1]]);
  if (solid.length > 0 && solid[0][0] > 0) solid.unshift([0, solid[0][1]]);
  const plannedPoints = epsilons.filter(([slots]) => slots > closed);
  const lastSolid = solid.at(-1) ?? (plannedPoints.length > 0 ? [0, plannedPoints[0][1]] : undefined);
  return { solid: closed > 0 ? solid : [], planned: plannedPoints.length > 0 ? [lastSolid, ...plannedPoints] : [] };
};

export const drawPrivacyLoss = (feed) => {
  const { view } = feed;
  const isOver = words.isOver(view.status);
  const certifiedEpsilon = isOver && view.slots_closed > 0 ? finiteOrNull(view.certificate?.epsilon) : null;
  const epsilonSpent = certifiedEpsilon ?? finiteOrNull(view.spent?.epsilon);
  const budget = finiteOrNull(view.budget?.epsilon);
  const closed = finiteOrNull(view.slots_closed) ?? 0;
  if (!(epsilonSpent > 0)) setHeadline("spent", epsilonSpent === null && closed > 0 ? "–" : "Nothing yet", budget === null ? "" : `budget ε ${roundNearest(budget)}`);
  else setHeadline("spent", `ε ≤ ${roundUp(epsilonSpent)}`, budget === null ? "" : `of ${roundNearest(budget)}`);
  setText("left", !(epsilonSpent > 0) ? "" : words.remainingBudget(view, epsilonSpent));
  setText("spent-note", words.conditions(view));
  const lastSlot = isOver ? closed : finiteOrNull(view.affordable) ?? Infinity;
  const epsilons = sorted(feed.spending).filter(([slots]) => slots <= lastSlot);
  if (!isOver && !epsilons.some(([slots]) => slots > 0) && finiteOrNull(view.certificate?.epsilon) !== null && lastSlot < Infinity) {
    epsilons.push([lastSlot, view.certificate.epsilon]);  // no other epsilon is known yet, and the certificate is an upper bound for fewer slots
  }
  if (isOver && epsilonSpent !== null && closed > 0) {  // the certificate covers what was released
    if (epsilons.at(-1)?.[0] === closed) epsilons.pop();
    epsilons.push([closed, epsilonSpent]);
  }
  if (epsilons.length === 0) {
    showEmpty(byId("spending"), "No epsilon yet. It is shown from the first release on.", byId("spending-read"));
    setTable("spending-table", [], [], "");
    return;
  }
  const { solid, planned } = stepCurve(epsilons, closed);
  const largest = Math.max(budget ?? 0, ...epsilons.map(([, y]) => y)) || 1;
  const adjacency = words.adjacencyShort(view.certificate?.adjacency ?? view.budget?.adjacency);
  const caption = planned.length > 0
    ? "Solid: released slots. Dotted: slots to come. Epsilon is rounded up."
    : "Epsilon of all releases together, rounded up.";
  plot(byId("spending"), {
    lines: [
      { points: planned, className: "blue planned", steps: true },
      { points: solid, className: "blue", steps: true, dot: true, skipPointer: true },
      { points: epsilons, className: "hidden" },
    ],
    limit: budget === null ? undefined : { y: budget, text: `budget ${roundNearest(budget)}` },
    maxX: Math.max(1, finiteOrNull(view.schedule?.slots) ?? 1, epsilons.at(-1)[0]),
    range: [0, 1.06 * largest],
    format: (y) => roundNearest(y, 3),
    label: `ε by slots released, upper bounds (${adjacency}): ${!(epsilonSpent > 0) ? "nothing released yet" : `at most ${roundUp(epsilonSpent)} after ${formatSlots(closed)}`}${budget === null ? "" : `; the budget is ${roundNearest(budget)}`}`,
    describe: ([x, y]) => `After ${formatSlots(x)}: ε ≤ ${roundUp(y)} (${adjacency}, rounded up).`,
    readout: byId("spending-read"),
    caption,
    xName: "slots released",
  });
  setTable("spending-table",
    [{ name: "slots", number: true }, { name: "ε at most", number: true }, { name: "state" }],
    evenlySpaced(epsilons).map(([x, y]) => [formatCount(x), roundUp(y), x <= closed ? "released" : "to come"]),
    `ε rounded up, ${adjacency}, δ = ${roundNearest(view.budget?.delta)}`,
  );
};
