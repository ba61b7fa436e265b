// Shows a plan: the recommended design, its curves, the Pareto front, and the next steps.

import { byId, command, setTerms, setChildren, setList, element, setText, table } from "./dom.js";
import { count, duration, finite, nearest, slotCount, up } from "./numbers.js";
import { figure } from "./plan-chart.js";
import * as planned from "./plan-words.js";
import * as words from "./words.js";

const TALL = 300;
const FLAT = 200;
const HEADLINES = 5;
const SPENDS_LESS = 0.9;

let latest = null;
let key = "";
let markSlots = () => {};
let markBudget = () => {};

const list = (value) => (Array.isArray(value) ? value.filter((one) => one !== null && typeof one === "object") : []);
const few = (value) => nearest(value, 3);

// Three numbers that stay visible below the sliders on a phone.
const drawBrief = (slots, noise, proxy) => {
  setChildren("brief", [["slots", slots], ["noise", noise], ["proxy", proxy]]
    .map(([name, value]) => element("span", {}, `${name} `, element("b", {}, value))));
};

const drawRecommended = (design, question) => {
  setText("label", planned.label(design));
  setText("budget-said", `budget ε ${nearest(question?.epsilon)}, δ ${nearest(question?.delta)}`);
  setText("in-words", planned.inWords(design));
  const all = planned.numbers(design);
  setChildren("numbers", all.slice(0, HEADLINES).map(([name, text, unit]) => element("div", {},
    element("dt", {}, name), element("dd", {}, text, ...(unit ? [element("small", {}, ` ${unit}`)] : [])))));
  setTerms("all-numbers", all.slice(HEADLINES));
  drawBrief(count(design.slots), few(design.noise_per_step), few(design.proxy));
};

const panels = (design) => [
  { of: (row) => row.proxy, name: `Proxy: ${planned.proxyName(design)}`, format: few, look: "blue" },
  { of: (row) => row.noise_per_step, name: "Noise of one step (× clipping norm)", format: few, look: "orange" },
];

const nearestRow = (rows, of, value) => (rows.length === 0 || !(value > 0) ? undefined
  : rows.reduce((best, row) => (Math.abs(Math.log(of(row) / value)) < Math.abs(Math.log(of(best) / value)) ? row : best)));

const drawSlots = (plan) => {
  const rows = list(plan.curves?.slots);
  const design = plan.recommended;
  const chosen = nearestRow(rows, (row) => row.slots, design.slots);
  setText("slots-note", "The same budget; the noise is calibrated for each number of slots. Lower is better.");
  markSlots = figure(byId("by-slots"), {
    rows, chosen, panels: panels(design), height: TALL,
    x: { of: (row) => row.slots, name: "slots", format: (x) => (x >= 10000 ? few(x / 1000) + "k" : count(x)) },
    describe: planned.bySlots, readout: byId("by-slots-read"),
    caption: chosen === undefined ? "" : `Recommended: ${planned.bySlots(chosen)}`,
    label: `Proxy and noise of one step by slots; the recommended design has ${count(design.slots)}`,
  });
  table("by-slots-table",
    [{ name: "slots", number: true }, { name: "proxy", number: true }, { name: "noise of a step", number: true }, { name: "dummies", number: true }],
    rows.map((row) => [count(row.slots), few(row.proxy), few(row.noise_per_step), planned.share(row.dummies_share)]),
    "Rounded to nearest",
  );
};

const drawBudget = (plan) => {
  const rows = list(plan.curves?.budget);
  const design = plan.recommended;
  const chosen = nearestRow(rows, (row) => row.epsilon, finite(plan.question?.epsilon));
  setText("budget-note", "The same design with other budgets. Lower is better.");
  markBudget = figure(byId("by-budget"), {
    rows, chosen, panels: panels(design), height: TALL,
    x: { of: (row) => row.epsilon, name: "ε of the budget", format: few },
    describe: planned.byBudget, readout: byId("by-budget-read"),
    caption: chosen === undefined ? "" : `Asked for: ${planned.byBudget(chosen)}`,
    label: `Proxy and noise of one step by budget; asked for ε ${nearest(plan.question?.epsilon)}`,
  });
  table("by-budget-table",
    [{ name: "ε", number: true }, { name: "proxy", number: true }, { name: "noise of a step", number: true }],
    rows.map((row) => [few(row.epsilon), few(row.proxy), few(row.noise_per_step)]),
    "Rounded to nearest",
  );
};

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

const drawFront = (plan) => {
  const designs = list(plan.front);
  const chosen = designs.find((design) => same(design, plan.recommended));
  const load = (design) => design.upload_bytes_per_client;
  const cheap = (design) => design.epsilon < SPENDS_LESS * plan.recommended?.epsilon;
  setText("front-note", "No other design is better than one of these in accuracy, duration, upload and privacy at once.");
  figure(byId("front"), {
    rows: designs, chosen, scatter: true, height: FLAT,
    panels: [{ of: (design) => design.proxy, name: "Proxy", format: few, look: (design) => (cheap(design) ? "orange" : "blue") }],
    x: { of: load, name: "mean upload per client in bytes", format: (x) => planned.bytes(x) },
    describe: (design) => planned.inFront(design, designs.indexOf(design) + 1), readout: byId("front-read"),
    caption: `Each point is a design; the filled one is recommended.${designs.some(cheap) ? " Orange: epsilon is at least 10 % lower." : ""}`,
    label: `${count(designs.length)} designs by proxy and mean upload per client`,
  });
  const rows = designs.map((design, i) => element("tr", design === chosen ? { class: "chosen" } : {},
    ...[
      [`${i + 1}. ${planned.label(design)}${design === chosen ? " (recommended)" : ""}`], [few(design.proxy), 1],
      [few(design.noise_per_step), 1], [up(design.epsilon, 3), 1], [duration(design.duration_s), 1], [planned.bytes(load(design)), 1],
    ].map(([text, number]) => element("td", number ? { class: "number" } : {}, text)),
  ));
  const heads = ["design", "proxy", "noise of a step", "ε at most", "takes", "a client sends"];
  setChildren("front-table", [element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((name, i) => element("th", { scope: "col", ...(i ? { class: "number" } : {}) }, name)))),
    element("tbody", {}, ...rows),
  )]);
};

const drawReasons = (plan) => {
  setChildren("reasons", list(plan.reasons).map((one) => element("li", {}, words.textOr(one.sentence),
    ...(typeof one.theorem === "string" && one.theorem !== "" ? [element("cite", {}, one.theorem)] : []))));
  setChildren("cases", list(plan.sensitivity).map((one) => element("li", {},
    element("b", {}, count(one.population), element("small", {}, planned.factor(one.factor))), element("span", {}, planned.case_(one)))));
};

const drawPromise = (plan) => {
  const certificate = plan.certificate ?? null;
  setText("claim", words.claim(certificate));
  setTerms("certificate", certificate === null ? [] : [
    ["Interval", words.interval(certificate)],
    ["Neighbours", `${words.neighbours(certificate.adjacency)}.`],
    ["Method", `${words.method(certificate.method)}.`],
    ["Against the server", words.againstServer(certificate)],
  ]);
  const assumed = (Array.isArray(certificate?.assumptions) ? certificate.assumptions : []).filter((one) => typeof one === "string");
  setList("assumptions", assumed.length > 0 ? assumed : ["The server states no assumption."]);
};

const OPTION = {
  availability_s: "availability", uplink_bytes_per_s: "uplink", updates_per_s: "updates-per-second", duration_s: "duration",
  repeats: "campaigns", noise_at: "noise-at",
};
const option = (name) => `--${OPTION[name] ?? name}`;
const drawNext = (plan) => {
  const texts = [...new URLSearchParams(key)].map(([name, value]) => `${option(name)} ${value}`);
  command("again", `checkins plan ${texts.join(" ")} --out campaign.toml`);
  command("check", "checkins check campaign.toml");
  setText("toml", words.textOr(plan.campaign, ""));
};

export const redraw = () => {
  if (latest === null) return;
  drawSlots(latest);
  drawBudget(latest);
  drawFront(latest);
};

export const drawPlan = (plan, asked) => {
  latest = plan;
  key = asked;
  drawRecommended(plan.recommended, plan.question);
  drawReasons(plan);
  drawPromise(plan);
  drawNext(plan);
  redraw();
};

// Interpolates a curve on logarithmic axes. Returns null outside of the curve.
const between = (rows, of, x, name) => {
  const next = rows.findIndex((row) => of(row) >= x);
  if (next < 0 || !(x > 0) || (next === 0 && of(rows[0]) !== x)) return null;
  const [a, b] = [rows[Math.max(0, next - 1)], rows[next]];
  const share = a === b ? 0 : Math.log(x / of(a)) / Math.log(of(b) / of(a));
  return a[name] * (b[name] / a[name]) ** share;
};

const preview = (place, rows, of, x, what) => {
  const [proxy, noise] = ["proxy", "noise_per_step"].map((name) => between(rows, of, x, name));
  if (proxy !== null && noise !== null) {
    drawBrief(byId("slots").value, `≈ ${few(noise)}`, `≈ ${few(proxy)}`);
    setText(place, `${what}: proxy about ${few(proxy)}, noise of one step about ${few(noise)} × clipping norm. Computing.`);
  }
};

// Until the response arrives, shows where the new question lies on the curves of the last plan.
export const markAsked = (epsilon, slots) => {
  markBudget(epsilon);
  markSlots(slots);
  if (latest === null) return;
  if (epsilon !== null && epsilon !== latest.question?.epsilon) {
    preview("by-budget-read", list(latest.curves?.budget), (row) => row.epsilon, epsilon, `ε = ${few(epsilon)}`);
  }
  if (slots !== null && slots !== latest.recommended?.slots) {
    preview("by-slots-read", list(latest.curves?.slots), (row) => row.slots, slots, slotCount(slots));
  }
};

byId("download").addEventListener("click", () => {
  if (latest === null) return;
  const address = URL.createObjectURL(new Blob([latest.campaign], { type: "application/toml" }));
  const link = element("a", { href: address, download: "campaign.toml" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
});
