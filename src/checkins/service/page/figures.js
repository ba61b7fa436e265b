// The two figures of a run: learning curve and epsilon.

import { empty, plot } from "./chart.js";
import { byId, setChildren, element, setText, table } from "./dom.js";
import { count, finite, metric, metricName, nearest, slotCount, up } from "./numbers.js";
import * as words from "./words.js";

const FIRST = ["auc", "accuracy", "loss"];  // the metric that is shown first
const MOST_ROWS = 24;

let chosenMetric = null;

const sorted = (map) => [...map].sort(([a], [b]) => a - b);

// Returns at most MOST_ROWS evenly spaced rows, with the last row.
const evenlySpaced = (rows) => {
  const step = Math.ceil(rows.length / MOST_ROWS);
  return rows.filter((_, i) => (rows.length - 1 - i) % Math.max(1, step) === 0);
};

const setHeadline = (id, text, small) => {
  byId(id).replaceChildren(text, ...(small ? [" ", element("small", {}, small)] : []));
};

const metricNames = (curve) => {
  const found = new Set(curve.flatMap(([, metrics]) => Object.keys(metrics).filter((name) => finite(metrics[name]) !== null)));
  return [...FIRST.filter((name) => found.has(name)), ...[...found].filter((name) => !FIRST.includes(name)).sort()];
};

const drawMetricButtons = (all, chosen, redraw) => {
  const key = JSON.stringify([all, chosen]);
  if (byId("metrics").dataset.shown === key) return;
  const focused = byId("metrics").contains(document.activeElement);
  byId("metrics").dataset.shown = key;
  const buttons = all.length < 2 ? [] : all.map((name) => {
    const button = element("button", { type: "button", "aria-pressed": String(name === chosen) }, metricName(name));
    button.addEventListener("click", () => {
      chosenMetric = name;
      redraw();
    });
    return button;
  });
  setChildren("metrics", buttons);
  if (focused) buttons[all.indexOf(chosen)]?.focus();  // the buttons were replaced, so restore the focus
};

const paddedRange = (values, bounded) => {
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const room = 0.08 * (high - low) || Math.abs(high) * 0.1 || 1;
  return bounded ? [Math.max(0, low - room), Math.min(1, high + room)] : [low - room, high + room];
};

// A stretched range of one point that lies on its end would have no height.
const nonEmpty = ([low, high]) => (high > low ? [low, high] : [low - 0.5, high + 0.5]);

export const drawLearned = (feed, sealed, redraw) => {
  const curve = sorted(feed.curve);
  const all = metricNames(curve);
  const chosen = all.includes(chosenMetric) ? chosenMetric : all[0];
  drawMetricButtons(all, chosen, redraw);
  if (chosen === undefined) {
    setHeadline("learned", words.hasNoHoldout(sealed) ? "Not measured" : "Nothing yet");
    setText("learned-note", "");
    empty(byId("curve"), words.noCurve(sealed, feed.view.slots_closed), byId("curve-read"));
    table("curve-table", [], [], "");
    return;
  }
  const points = curve.map(([slots, metrics]) => [slots, finite(metrics[chosen])]).filter(([, y]) => y !== null);
  const [slots, value] = points.at(-1);
  setHeadline("learned", metric(chosen, value), metricName(chosen));
  setText("learned-note", `${slots > 0 ? `After ${slotCount(slots)}` : "Before the first slot"}, on a declared public holdout, rounded to nearest.`);
  const share = chosen === "accuracy" || chosen === "auc";
  plot(byId("curve"), {
    lines: [{ points, look: "blue", dot: true }],
    most: Math.max(1, finite(feed.view.schedule?.slots) ?? 1, slots),
    range: nonEmpty(paddedRange(points.map(([, y]) => y), share)),
    format: (y) => (chosen === "accuracy" ? `${nearest(100 * y, 3)} %` : nearest(Math.abs(y) < 1e-12 ? 0 : y, 3)),
    label: `${metricName(chosen)} by slots released: from ${metric(chosen, points[0][1])} after ${slotCount(points[0][0])} to ${metric(chosen, value)} after ${count(slots)}`,
    describe: ([x, y]) => `After ${slotCount(x)}: ${metricName(chosen)} ${metric(chosen, y)}.`,
    readout: byId("curve-read"),
    caption: "Each point is a released model, evaluated on public rows.",
    xName: "slots released",
  });
  table("curve-table",
    [{ name: "slots", number: true }, ...all.map((name) => ({ name: metricName(name), number: true }))],
    evenlySpaced(curve).map(([x, metrics]) => [count(x), ...all.map((name) => metric(name, metrics[name]))]),
    "Metrics on the public holdout, rounded to nearest",
  );
};

// Epsilon is known for some numbers of slots only. After k slots it is at most the epsilon of the next
// larger of these numbers, so the curve is a step function that is never below the true epsilon.
const stepCurve = (epsilons, closed) => {
  const past = epsilons.filter(([slots]) => slots <= closed);
  const reached = epsilons.find(([slots]) => slots >= closed);
  const solid = [...past];
  if (reached !== undefined && closed > 0 && past.at(-1)?.[0] !== closed) solid.push([closed, reached[1]]);
  if (solid.length > 0 && solid[0][0] > 0) solid.unshift([0, solid[0][1]]);
  const ahead = epsilons.filter(([slots]) => slots > closed);
  const from = solid.at(-1) ?? (ahead.length > 0 ? [0, ahead[0][1]] : undefined);
  return { solid: closed > 0 ? solid : [], planned: ahead.length > 0 ? [from, ...ahead] : [] };
};

export const drawSpent = (feed) => {
  const { view } = feed;
  const over = words.isOver(view.status);
  const stated = over && view.slots_closed > 0 ? finite(view.certificate?.epsilon) : null;
  const spent = stated ?? finite(view.spent?.epsilon);
  const budget = finite(view.budget?.epsilon);
  const closed = finite(view.slots_closed) ?? 0;
  if (!(spent > 0)) setHeadline("spent", spent === null && closed > 0 ? "–" : "Nothing yet", budget === null ? "" : `budget ε ${nearest(budget)}`);
  else setHeadline("spent", `ε ≤ ${up(spent)}`, budget === null ? "" : `of ${nearest(budget)}`);
  setText("left", !(spent > 0) ? "" : words.left(view, spent));
  setText("spent-note", words.terms(view));
  const last = over ? closed : finite(view.affordable) ?? Infinity;
  const epsilons = sorted(feed.spending).filter(([slots]) => slots <= last);
  if (!over && !epsilons.some(([slots]) => slots > 0) && finite(view.certificate?.epsilon) !== null && last < Infinity) {
    epsilons.push([last, view.certificate.epsilon]);  // no epsilon of fewer slots is known yet: the certificate is an upper bound
  }
  if (over && spent !== null && closed > 0) {  // the certificate covers what was released
    if (epsilons.at(-1)?.[0] === closed) epsilons.pop();
    epsilons.push([closed, spent]);
  }
  if (epsilons.length === 0) {
    empty(byId("spending"), "No epsilon yet. It is shown from the first release on.", byId("spending-read"));
    table("spending-table", [], [], "");
    return;
  }
  const { solid, planned } = stepCurve(epsilons, closed);
  const top = Math.max(budget ?? 0, ...epsilons.map(([, y]) => y)) || 1;
  const adjacency = words.adjacencyShort(view.certificate?.adjacency ?? view.budget?.adjacency);
  const caption = planned.length > 0
    ? "Solid: released slots. Dashed: slots to come. Epsilon is rounded up."
    : "Epsilon of all releases together, rounded up.";
  plot(byId("spending"), {
    lines: [
      { points: planned, look: "blue planned", steps: true },
      { points: solid, look: "blue", steps: true, dot: true, mute: true },
      { points: epsilons, look: "hidden" },
    ],
    limit: budget === null ? undefined : { y: budget, text: `budget ${nearest(budget)}` },
    most: Math.max(1, finite(view.schedule?.slots) ?? 1, epsilons.at(-1)[0]),
    range: [0, 1.06 * top],
    format: (y) => nearest(y, 3),
    label: `ε by slots released, upper bounds (${adjacency}): ${!(spent > 0) ? "nothing released yet" : `at most ${up(spent)} after ${slotCount(closed)}`}${budget === null ? "" : `; the budget is ${nearest(budget)}`}`,
    describe: ([x, y]) => `After ${slotCount(x)}: ε ≤ ${up(y)} (${adjacency}, rounded up).`,
    readout: byId("spending-read"),
    caption,
    xName: "slots released",
  });
  table("spending-table",
    [{ name: "slots", number: true }, { name: "ε at most", number: true }, { name: "state" }],
    evenlySpaced(epsilons).map(([x, y]) => [count(x), up(y), x <= closed ? "released" : "to come"]),
    `ε rounded up, ${adjacency}, δ = ${nearest(view.budget?.delta)}`,
  );
};
