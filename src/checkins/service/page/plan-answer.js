// Shows a plan: the recommended design, its curves, the Pareto front, and the next steps.

import { byId, setCommand, setTerms, setChildren, setList, element, setText, setTable } from "./dom.js";
import { formatCount, formatDuration, finiteOrNull, roundNearest, formatSlots, roundUp } from "./numbers.js";
import { figure } from "./plan-chart.js";
import * as planWords from "./plan-words.js";
import * as words from "./words.js";

const CURVES_HEIGHT_PX = 300;
const FRONT_HEIGHT_PX = 200;
const MAIN_NUMBERS = 5;  // the other numbers are in a <details> element
const LOWER_EPSILON_FACTOR = 0.9;  // a design with less than this part of the recommended epsilon is orange

let latestPlan = null;
let latestQuery = "";
let markSlots = () => {};
let markBudget = () => {};

const objectsIn = (value) => (Array.isArray(value) ? value.filter((item) => item !== null && typeof item === "object") : []);
const threeDigits = (value) => roundNearest(value, 3);

// Three numbers that stay visible below the sliders on a phone.
const drawBrief = (slots, noise, error) => {
  setChildren("brief", [["slots", slots], ["noise", noise], ["estimated error", error]]
    .map(([name, value]) => element("span", {}, `${name} `, element("b", {}, value))));
};

const drawRecommended = (design, question) => {
  setText("label", planWords.label(design));
  setText("budget-said", `budget ε ${roundNearest(question?.epsilon)}, δ ${roundNearest(question?.delta)}`);
  setText("in-words", planWords.describeDesign(design));
  const numbers = planWords.designNumbers(design);
  setChildren("numbers", numbers.slice(0, MAIN_NUMBERS).map(([name, text, unit]) => element("div", {},
    element("dt", {}, name), element("dd", {}, text, ...(unit ? [element("small", {}, ` ${unit}`)] : [])))));
  setTerms("all-numbers", numbers.slice(MAIN_NUMBERS));
  drawBrief(formatCount(design.slots), threeDigits(design.noise_per_step), threeDigits(design.proxy));
};

const panels = (design) => [
  { of: (row) => row.proxy, name: `Estimated error: ${planWords.errorName(design)}`, format: threeDigits, className: "blue" },
  { of: (row) => row.noise_per_step, name: "Noise of one step (× clipping norm)", format: threeDigits, className: "orange" },
];

const nearestRow = (rows, xOf, value) => (rows.length === 0 || !(value > 0) ? undefined
  : rows.reduce((best, row) => (Math.abs(Math.log(xOf(row) / value)) < Math.abs(Math.log(xOf(best) / value)) ? row : best)));

const drawSlots = (plan) => {
  const rows = objectsIn(plan.curves?.slots);
  const design = plan.recommended;
  const chosen = nearestRow(rows, (row) => row.slots, design.slots);
  setText("slots-note", "The same budget; the noise is calibrated for each number of slots. Lower is better.");
  markSlots = figure(byId("by-slots"), {
    rows, chosen, panels: panels(design), height: CURVES_HEIGHT_PX,
    x: { of: (row) => row.slots, name: "slots", format: (x) => (x >= 10000 ? threeDigits(x / 1000) + "k" : formatCount(x)) },
    describe: planWords.describeSlotsRow, readout: byId("by-slots-read"),
    caption: chosen === undefined ? "" : `Recommended: ${planWords.describeSlotsRow(chosen)}`,
    label: `Estimated error and noise of one step by slots; the recommended design has ${formatCount(design.slots)}`,
  });
  setTable("by-slots-table",
    [{ name: "slots", number: true }, { name: "estimated error", number: true }, { name: "noise of a step", number: true }, { name: "dummies", number: true }],
    rows.map((row) => [formatCount(row.slots), threeDigits(row.proxy), threeDigits(row.noise_per_step), planWords.formatShare(row.dummies_share)]),
    "Rounded to nearest",
  );
};

const drawBudget = (plan) => {
  const rows = objectsIn(plan.curves?.budget);
  const design = plan.recommended;
  const chosen = nearestRow(rows, (row) => row.epsilon, finiteOrNull(plan.question?.epsilon));
  setText("budget-note", "The same design with other budgets. Lower is better.");
  markBudget = figure(byId("by-budget"), {
    rows, chosen, panels: panels(design), height: CURVES_HEIGHT_PX,
    x: { of: (row) => row.epsilon, name: "ε of the budget", format: threeDigits },
    describe: planWords.describeBudgetRow, readout: byId("by-budget-read"),
    caption: chosen === undefined ? "" : `Asked for: ${planWords.describeBudgetRow(chosen)}`,
    label: `Estimated error and noise of one step by budget; asked for ε ${roundNearest(plan.question?.epsilon)}`,
  });
  setTable("by-budget-table",
    [{ name: "ε", number: true }, { name: "estimated error", number: true }, { name: "noise of a step", number: true }],
    rows.map((row) => [threeDigits(row.epsilon), threeDigits(row.proxy), threeDigits(row.noise_per_step)]),
    "Rounded to nearest",
  );
};

const isSame = (a, b) => JSON.stringify(a) === JSON.stringify(b);

const drawFront = (plan) => {
  const designs = objectsIn(plan.front);
  const chosen = designs.find((design) => isSame(design, plan.recommended));
  const uploadBytes = (design) => design.upload_bytes_per_client;
  const hasLowerEpsilon = (design) => design.epsilon < LOWER_EPSILON_FACTOR * plan.recommended?.epsilon;
  setText("front-note", "No other design is better than one of these in accuracy, duration, upload and privacy at once.");
  figure(byId("front"), {
    rows: designs, chosen, scatter: true, height: FRONT_HEIGHT_PX,
    panels: [{ of: (design) => design.proxy, name: "Estimated error", format: threeDigits, className: (design) => (hasLowerEpsilon(design) ? "orange" : "blue") }],
    x: { of: uploadBytes, name: "mean upload per client in bytes", format: (x) => planWords.formatBytes(x) },
    describe: (design) => planWords.describeFrontDesign(design, designs.indexOf(design) + 1), readout: byId("front-read"),
    caption: `Each point is a design; the filled one is recommended.${designs.some(hasLowerEpsilon) ? " Orange: epsilon is at least 10 % lower." : ""}`,
    label: `${formatCount(designs.length)} designs by estimated error and mean upload per client`,
  });
  const rows = designs.map((design, i) => element("tr", design === chosen ? { class: "chosen" } : {},
    ...[
      [`${i + 1}. ${planWords.label(design)}${design === chosen ? " (recommended)" : ""}`], [threeDigits(design.proxy), 1],
      [threeDigits(design.noise_per_step), 1], [roundUp(design.epsilon, 3), 1], [formatDuration(design.duration_s), 1], [planWords.formatBytes(uploadBytes(design)), 1],
    ].map(([text, isNumber]) => element("td", isNumber ? { class: "number" } : {}, text)),
  ));
  const columnNames = ["design", "estimated error", "noise of a step", "ε at most", "duration", "upload per client"];
  setChildren("front-table", [element("table", {},
    element("thead", {}, element("tr", {}, ...columnNames.map((name, i) => element("th", { scope: "col", ...(i ? { class: "number" } : {}) }, name)))),
    element("tbody", {}, ...rows),
  )]);
};

const drawReasons = (plan) => {
  setChildren("reasons", objectsIn(plan.reasons).map((item) => element("li", {}, words.textOr(item.sentence),
    ...(typeof item.theorem === "string" && item.theorem !== "" ? [element("cite", {}, item.theorem)] : []))));
  setChildren("cases", objectsIn(plan.sensitivity).map((item) => element("li", {},
    element("b", {}, formatCount(item.population), element("small", {}, planWords.populationFactor(item.factor))), element("span", {}, planWords.caseText(item)))));
};

const drawCertificate = (plan) => {
  const certificate = plan.certificate ?? null;
  setText("claim", words.guarantee(certificate));
  setTerms("certificate", certificate === null ? [] : [
    ["Interval", words.epsilonInterval(certificate)],
    ["Neighbours", `${words.neighbours(certificate.adjacency)}.`],
    ["Method", `${words.method(certificate.method)}.`],
    ["If the server is the adversary", words.againstServer(certificate)],
  ]);
  const assumptions = (Array.isArray(certificate?.assumptions) ? certificate.assumptions : []).filter((item) => typeof item === "string");
  setList("assumptions", assumptions.length > 0 ? assumptions : ["The server states no assumption."]);
};

const OPTION_NAMES = {
  availability_s: "availability", uplink_bytes_per_s: "uplink", updates_per_s: "updates-per-second", duration_s: "duration",
  repeats: "campaigns", noise_at: "noise-at",
};
const optionOf = (name) => `--${OPTION_NAMES[name] ?? name}`;
const drawNextSteps = (plan) => {
  const options = [...new URLSearchParams(latestQuery)].map(([name, value]) => `${optionOf(name)} ${value}`);
  setCommand("again", `checkins plan ${options.join(" ")} --out campaign.toml`);
  setCommand("check", "checkins check campaign.toml");
  setText("toml", words.textOr(plan.campaign, ""));
};

export const redraw = () => {
  if (latestPlan === null) return;
  drawSlots(latestPlan);
  drawBudget(latestPlan);
  drawFront(latestPlan);
};

export const drawPlan = (plan, query) => {
  latestPlan = plan;
  latestQuery = query;
  drawRecommended(plan.recommended, plan.question);
  drawReasons(plan);
  drawCertificate(plan);
  drawNextSteps(plan);
  redraw();
};

// Interpolates the field name of the rows at x, on logarithmic axes. Returns null outside of the curve.
const interpolate = (rows, xOf, x, name) => {
  const next = rows.findIndex((row) => xOf(row) >= x);
  if (next < 0 || !(x > 0) || (next === 0 && xOf(rows[0]) !== x)) return null;
  const [a, b] = [rows[Math.max(0, next - 1)], rows[next]];
  const share = a === b ? 0 : Math.log(x / xOf(a)) / Math.log(xOf(b) / xOf(a));
  return a[name] * (b[name] / a[name]) ** share;
};

const showPreview = (id, rows, xOf, x, text) => {
  const [error, noise] = ["proxy", "noise_per_step"].map((name) => interpolate(rows, xOf, x, name));
  if (error !== null && noise !== null) {
    drawBrief(byId("slots").value, `≈ ${threeDigits(noise)}`, `≈ ${threeDigits(error)}`);
    setText(id, `${text}: estimated error about ${threeDigits(error)}, noise of one step about ${threeDigits(noise)} × clipping norm. Computing.`);
  }
};

// Until the response arrives, shows where the new question lies on the curves of the last plan. A value
// of null hides the mark.
export const markQuestion = (epsilon, slots) => {
  markBudget(epsilon);
  markSlots(slots);
  if (latestPlan === null) return;
  if (epsilon !== null && epsilon !== latestPlan.question?.epsilon) {
    showPreview("by-budget-read", objectsIn(latestPlan.curves?.budget), (row) => row.epsilon, epsilon, `ε = ${threeDigits(epsilon)}`);
  }
  if (slots !== null && slots !== latestPlan.recommended?.slots) {
    showPreview("by-slots-read", objectsIn(latestPlan.curves?.slots), (row) => row.slots, slots, formatSlots(slots));
  }
};

byId("download").addEventListener("click", () => {
  if (latestPlan === null) return;
  const address = URL.createObjectURL(new Blob([latestPlan.campaign], { type: "application/toml" }));
  const link = element("a", { href: address, download: "campaign.toml" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
});
