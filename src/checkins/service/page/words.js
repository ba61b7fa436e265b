// Sentences of the page. Each number with its adjacency, its method and its rounding side.

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
  "exact": "exact: computed from the releases' distributions, whoever else takes part",
  "exact-population": "exact, given the largest population (an assumption)",
  "paper": "the paper's theorem",
  "no-amplification": "the price of one report, random slots not counted",
};
const STATUS = {
  waiting: "Not begun", running: "Running", completed: "Completed", stopped: "Stopped",
};
// What the server says in words; anything else is as good as missing.
export const told = (value, otherwise = "–") => (typeof value === "string" && value !== "" ? value : otherwise);
const own = (table, key, otherwise) =>
  typeof key === "string" && Object.hasOwn(table, key) ? table[key] : otherwise;

export const isOver = (status) => OVER.includes(status);
export const isOnHold = (view) => !isOver(view.status) && told(view.holding, "") !== "";
export const holding = (view) => (isOnHold(view) ? `On hold: ${view.holding}. No budget is spent while it lasts.` : "");
export const status = (name) => own(STATUS, name, told(name, "Unknown"));
export const neighbours = (name) => own(NEIGHBOURS, name, told(name, "adjacency not said"));
export const method = (name) => own(METHOD, name, told(name, "method not said"));
export const adjacencyShort = (name) =>
  own({ "add-remove": "add/remove", "replace-one": "replace" }, name, told(name, "adjacency not said:"));
const methodShort = (name) =>
  own({ "exact-population": "exact, given the largest population" }, name, told(name, "method not said"));

const epsilonAtMost = (value) => `ε\u00a0≤\u00a0${up(value)}`;
const delta = (value) => `δ\u00a0=\u00a0${nearest(value)}`;

export const lede = (view, sealed) => {
  const slot = finite(view.schedule?.slot_s);
  const many = `${slotCount(view.schedule?.slots)}${slot === null ? "" : ` of ${duration(slot)}`}`;
  const data = sealed?.task?.data;
  const from = typeof data === "string" ? ` on ${data} data` : "";
  const model = typeof sealed?.task?.model === "string" ? `a ${sealed.task.model} model` : "a model";
  return `Devices train ${model} together${from}. Each picks at random one of ${many} to check in;`
    + " its data stays with it. Each slot releases a model, and what that costs in privacy is counted here.";
};

export const kind = (view) => {
  const runs = finite(view.repeats);
  return "Training by random check-ins"
    + (runs !== null && runs > 1 ? ` · run ${count(view.run)} of ${count(runs)}` : "");
};

// What is promised to one client, in one sentence, rounded up.
export const claim = (certificate) => {
  const epsilon = finite(certificate?.epsilon);
  if (epsilon === null) return "No ε could be bounded, so nothing is promised.";
  const change = own(ADJACENCY, certificate.adjacency, `A change by ${told(certificate.adjacency)}`);
  const factor = epsilon < 700 ? up(Math.exp(epsilon) * (1 + 1e-12)) : "any number of";
  return `${change} makes nothing that someone could conclude from all the released models more than`
    + ` ${factor} times as likely, apart from a chance of ${nearest(certificate.delta)}`
    + ` (${epsilonAtMost(epsilon)}, ${delta(certificate.delta)}).`;
};

export const interval = (certificate) => {
  const lower = finite(certificate?.epsilon_lower);
  const proven = `${epsilonAtMost(certificate?.epsilon)} is proven (rounded up)`;
  return lower === null || lower === 0
    ? `${proven}.`
    : `${proven}; for ${told(certificate.epsilon_lower_of, "this design")}, no ε below ${down(lower)} is true (rounded down).`;
};

// What holds if the server itself is the adversary.
export const againstServer = (certificate) => {
  const local = certificate?.against_server;
  if (local === null || typeof local !== "object") return "not stated.";
  const epsilon = finite(local.epsilon);
  return epsilon === null
    ? `${told(local.note)}.`
    : `${epsilonAtMost(epsilon)} (${told(local.adjacency)}, rounded up), ${told(local.note)}.`;
};

export const scope = (view) => {
  const affordable = finite(view.affordable);
  const slots = finite(view.schedule?.slots);
  if (isOver(view.status)) return `what was released: ${count(view.slots_closed)} of ${count(slots)} slots`;
  const last = affordable !== null && slots !== null && affordable < slots
    ? `to slot ${count(affordable)} of ${count(slots)}, the last that the budget pays for`
    : `to its last slot, ${count(slots)}`;
  return `the whole run, ${last}, with everything that its population spent before`;
};

// The conditions of the number above.
export const terms = (view) => {
  const certificate = view.certificate ?? {};
  const budget = view.budget ?? {};
  const neighbour = certificate.adjacency ?? budget.adjacency;
  return [
    "At most, rounded up (left: down)", delta(certificate.delta ?? budget.delta),
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

// Why no slot can be told from another.
export const alike = (sealed) => {
  const never = "How many clients came is never published.";
  const protocol = sealed?.protocol?.kind;
  if (protocol === "averaged") {
    return "Averaged updates divide by a number of reports that the ledger shows; this page does not.";
  }
  const stand = sealed?.randomizer?.noise_at === "server"
    ? "a slot gets its noise even when nobody came."
    : "dummies stand in for missing reports.";
  const window = finite(sealed?.protocol?.window);
  const warm = protocol === "sliding" && window !== null && window > 1
    ? ` Nothing is released from the first ${count(window - 1)} slots: the window fills.`
    : "";
  return `Every slot looks alike: ${stand} ${never}${warm}`;
};

// A table without a share of public clients; the package's own data sets have one.
export const hasNoHoldout = (sealed) => {
  const data = sealed?.task?.data;
  return data !== null && typeof data === "object" && !(finite(data.holdout) > 0);
};

export const noCurve = (sealed, closed) => {
  if (hasNoHoldout(sealed)) return "No public holdout is declared, so nothing here says how good the model is.";
  return closed > 0
    ? "No point of a learning curve yet. Without a declared public holdout there will be none."
    : "Nothing learned yet. The curve begins with the first releases, on the declared public holdout if there is one.";
};

export const part = (view, sealed) => {
  if (isOver(view.status)) return "This campaign is over: no slot is left to take part in.";
  if (typeof sealed?.task?.data === "string") {
    return "The data set comes with the package, so anyone can try: one command takes part as one of its people, at most once, at a slot that the device draws:";
  }
  return "With the data on your own device, one command takes part, at most once, at a slot that your device draws:";
};

export const stopped = (view) =>
  (view.slots_closed >= (finite(view.affordable) ?? Infinity)
    ? "Stopped before the release that its budget does not pay for."
    : "Stopped early. It is priced as if it had gone on as far as its budget goes: whoever stopped it may have seen the releases.");
