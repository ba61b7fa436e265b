// Sentences of the page. Each epsilon comes with its neighbours, its method and its rounding.

import { count, down, duration, finite, nearest, slotCount, up } from "./numbers.js";

const OVER = ["completed", "stopped"];
const ADJACENCY = {
  "add-remove": "Adding any one client, or taking one away,",
  "replace-one": "Changing all of any one client's data",
};
const NEIGHBOURS = {
  "add-remove": "add/remove: one client more or less",
  "replace-one": "replace-one: one client's data changed",
};
const METHOD = {
  "exact": "exact: computed from the distributions of the releases, for any set of other clients",
  "exact-population": "exact, if the population is at most as large as declared (an assumption)",
  "paper": "the theorem of the paper (arXiv:2007.06605)",
  "no-amplification": "the epsilon of one report, without amplification by random slots",
};
const STATUS = {
  waiting: "Not begun", running: "Running", completed: "Completed", stopped: "Stopped",
};
// Returns a text of the server, or ``otherwise`` if it is missing or no text.
export const textOr = (value, otherwise = "–") => (typeof value === "string" && value !== "" ? value : otherwise);
const own = (table, key, otherwise) =>
  typeof key === "string" && Object.hasOwn(table, key) ? table[key] : otherwise;

export const isOver = (status) => OVER.includes(status);
export const isOnHold = (view) => !isOver(view.status) && textOr(view.holding, "") !== "";
export const holding = (view) => (isOnHold(view) ? `On hold: ${view.holding}. No slot is released meanwhile, so epsilon does not grow.` : "");
export const status = (name) => own(STATUS, name, textOr(name, "Unknown"));
export const neighbours = (name) => own(NEIGHBOURS, name, textOr(name, "adjacency not said"));
export const method = (name) => own(METHOD, name, textOr(name, "method not said"));
export const adjacencyShort = (name) =>
  own({ "add-remove": "add/remove", "replace-one": "replace" }, name, textOr(name, "adjacency not said:"));
const methodShort = (name) =>
  own({ "exact-population": "exact, with the declared population" }, name, textOr(name, "method not said"));

const epsilonAtMost = (value) => `ε\u00a0≤\u00a0${up(value)}`;
const delta = (value) => `δ\u00a0=\u00a0${nearest(value)}`;

export const lede = (view, sealed) => {
  const slot = finite(view.schedule?.slot_s);
  const many = `${slotCount(view.schedule?.slots)}${slot === null ? "" : ` of ${duration(slot)}`}`;
  const data = sealed?.task?.data;
  const from = typeof data === "string" ? ` on ${data} data` : "";
  const model = typeof sealed?.task?.model === "string" ? `a ${sealed.task.model} model` : "a model";
  return `Devices train ${model} together${from}. Each device checks in at one of ${many}, drawn at random,`
    + " and its data stay on the device. Each slot releases a model. This page shows the privacy loss so far.";
};

export const kind = (view) => {
  const runs = finite(view.repeats);
  return "Training by random check-ins"
    + (runs !== null && runs > 1 ? ` · run ${count(view.run)} of ${count(runs)}` : "");
};

// The guarantee to one client in one sentence. Numbers are rounded up.
export const claim = (certificate) => {
  const epsilon = finite(certificate?.epsilon);
  if (epsilon === null) return "No bound on ε is proven, so nothing is guaranteed.";
  const change = own(ADJACENCY, certificate.adjacency, `A change by ${textOr(certificate.adjacency)}`);
  const factor = epsilon < 700 ? up(Math.exp(epsilon) * (1 + 1e-12)) : "any number of";
  return `${change} makes nothing that someone could conclude from all the released models more than`
    + ` ${factor} times as likely, except with probability ${nearest(certificate.delta)}`
    + ` (${epsilonAtMost(epsilon)}, ${delta(certificate.delta)}).`;
};

export const interval = (certificate) => {
  const lower = finite(certificate?.epsilon_lower);
  const proven = `${epsilonAtMost(certificate?.epsilon)} is proven (rounded up)`;
  return lower === null || lower === 0
    ? `${proven}.`
    : `${proven}; for ${textOr(certificate.epsilon_lower_of, "this design")}, no ε below ${down(lower)} is true (rounded down).`;
};

// The guarantee if the server itself is the adversary.
export const againstServer = (certificate) => {
  const local = certificate?.against_server;
  if (local === null || typeof local !== "object") return "not stated.";
  const epsilon = finite(local.epsilon);
  return epsilon === null
    ? `${textOr(local.note)}.`
    : `${epsilonAtMost(epsilon)} (${textOr(local.adjacency)}, rounded up), ${textOr(local.note)}.`;
};

export const scope = (view) => {
  const affordable = finite(view.affordable);
  const slots = finite(view.schedule?.slots);
  if (isOver(view.status)) return `what was released: ${count(view.slots_closed)} of ${count(slots)} slots`;
  const last = affordable !== null && slots !== null && affordable < slots
    ? `to slot ${count(affordable)} of ${count(slots)}, the last that the budget allows`
    : `to its last slot, ${count(slots)}`;
  return `the whole run, ${last}, with the privacy loss of earlier campaigns on the same population`;
};

// The conditions of the epsilon that is shown above them.
export const terms = (view) => {
  const certificate = view.certificate ?? {};
  const budget = view.budget ?? {};
  const neighbour = certificate.adjacency ?? budget.adjacency;
  return [
    "At most, rounded up (what is left is rounded down)", delta(certificate.delta ?? budget.delta),
    `${adjacencyShort(neighbour)} one client`, methodShort(certificate.method),
  ].join("; ") + ".";
};

export const left = (view, spent) => {
  const budget = finite(view.budget?.epsilon);
  if (budget === null) return "";
  if (spent === null) return `budget ${nearest(budget)}`;
  const rest = budget - spent;
  return rest < 0 ? "over the budget" : `at least ${down(Math.max(0, rest * (1 - 1e-12)), 3)} left`;
};

// Explains why all slots look the same.
export const alike = (sealed) => {
  const never = "The number of clients is never published.";
  const protocol = sealed?.protocol?.kind;
  if (protocol === "averaged") {
    return "Averaged updates are divided by the number of reports. The ledger shows this number, and this page does not.";
  }
  const stand = sealed?.randomizer?.noise_at === "server"
    ? "the server adds noise even if no client checked in."
    : "dummy reports, drawn by the server, replace missing reports.";
  const window = finite(sealed?.protocol?.window);
  const warm = protocol === "sliding" && window !== null && window > 1
    ? ` The first ${count(window - 1)} slots are a warm-up and release nothing.`
    : "";
  return `All slots look the same: ${stand} ${never}${warm}`;
};

// Returns true for a table without public holdout. The data sets of the package have a holdout.
export const hasNoHoldout = (sealed) => {
  const data = sealed?.task?.data;
  return data !== null && typeof data === "object" && !(finite(data.holdout) > 0);
};

export const noCurve = (sealed, closed) => {
  if (hasNoHoldout(sealed)) return "No public holdout is declared, so the quality of the model is not measured.";
  return closed > 0
    ? "No point of the learning curve yet. It needs a declared public holdout."
    : "Nothing learned yet. The curve begins with the first releases if a public holdout is declared.";
};

export const part = (view, sealed) => {
  if (isOver(view.status)) return "This campaign is over. Nobody can take part any more.";
  if (typeof sealed?.task?.data === "string") {
    return "The data set comes with the package, so anyone can try. This command takes part as one person of the data set, at most once, in a slot that the device draws:";
  }
  return "This command takes part with the data on your device, at most once, in a slot that your device draws:";
};

export const stopped = (view) =>
  (view.slots_closed >= (finite(view.affordable) ?? Infinity)
    ? "Stopped because the next release would exceed the budget."
    : "Stopped early. Epsilon is computed as if all slots that the budget allows were released, because the decision to stop may depend on the releases.");
