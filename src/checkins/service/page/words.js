// Sentences of the page of a run. Each epsilon comes with its neighbour relation, its method and its
// rounding. view: the public description of a run, as the server sends it. sealedCampaign: the parsed
// text of the campaign, or null if it cannot be parsed.

import { formatCount, roundDown, formatDuration, finiteOrNull, roundNearest, formatSlots, roundUp } from "./numbers.js";

const OVER_STATUSES = ["completed", "stopped"];
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
// Returns a text of the server, or fallback if the value is missing or not a text.
export const textOr = (value, fallback = "–") => (typeof value === "string" && value !== "" ? value : fallback);
const lookUp = (texts, key, fallback) =>
  typeof key === "string" && Object.hasOwn(texts, key) ? texts[key] : fallback;

// The JSON of a certificate names its fields, which readers of a page do not know.
const JSON_ROUNDING = "epsilon is rounded up, epsilon_lower down";
export const rounding = (text) => {
  const rule = textOr(text, JSON_ROUNDING);
  return rule === JSON_ROUNDING ? "the upper bound is rounded up, the lower bound down" : rule;
};

const PUBLIC_DATA = ["patients", "synthetic", "fashion-mnist"];
export const isOnPublicData = (sealedCampaign) => PUBLIC_DATA.includes(sealedCampaign?.task?.data);
export const isOver = (status) => OVER_STATUSES.includes(status);
export const isOnHold = (view) => !isOver(view.status) && textOr(view.holding, "") !== "";
export const holdNotice = (view) => (isOnHold(view) ? `On hold: ${view.holding}. No slot is released meanwhile, so epsilon does not grow.` : "");
export const status = (name) => lookUp(STATUS, name, textOr(name, "Unknown"));
export const neighbours = (name) => lookUp(NEIGHBOURS, name, textOr(name, "adjacency not said"));
export const method = (name) => lookUp(METHOD, name, textOr(name, "method not said"));
export const adjacencyShort = (name) =>
  lookUp({ "add-remove": "add/remove", "replace-one": "replace" }, name, textOr(name, "adjacency not said:"));
const methodShort = (name) =>
  lookUp({ "exact-population": "exact, with the declared population" }, name, textOr(name, "method not said"));

const epsilonAtMost = (value) => `ε\u00a0≤\u00a0${roundUp(value)}`;
const delta = (value) => `δ\u00a0=\u00a0${roundNearest(value)}`;

export const introduction = (view, sealedCampaign) => {
  const slot = finiteOrNull(view.schedule?.slot_s);
  const slots = `${formatSlots(view.schedule?.slots)}${slot === null ? "" : ` of ${formatDuration(slot)}`}`;
  const data = sealedCampaign?.task?.data;
  const onData = typeof data === "string" ? ` on ${data} data` : "";
  const model = typeof sealedCampaign?.task?.model === "string" ? `a ${sealedCampaign.task.model} model` : "a model";
  return `Devices train ${model} together${onData}. Each device checks in at one of ${slots}, drawn at random,`
    + " and its data stay on the device. Each slot releases a model. This page shows the privacy loss so far.";
};

export const subtitle = (view) => {
  const runs = finiteOrNull(view.repeats);
  return "Training by random check-ins"
    + (runs !== null && runs > 1 ? ` · run ${formatCount(view.run)} of ${formatCount(runs)}` : "");
};

// The guarantee to one client in one sentence. Numbers are rounded up.
export const guarantee = (certificate) => {
  const epsilon = finiteOrNull(certificate?.epsilon);
  if (epsilon === null) return "No bound on ε is proven, so nothing is guaranteed.";
  const change = lookUp(ADJACENCY, certificate.adjacency, `A change by ${textOr(certificate.adjacency)}`);
  const factor = epsilon < 700 ? `at most a factor of ${roundUp(Math.exp(epsilon) * (1 + 1e-12))}` : "any factor";
  return `${change} changes the probability of any conclusion from all released models by ${factor},`
    + ` and by ${roundNearest(certificate.delta)} more`
    + ` (${epsilonAtMost(epsilon)}, ${delta(certificate.delta)}).`;
};

export const epsilonInterval = (certificate) => {
  const lower = finiteOrNull(certificate?.epsilon_lower);
  const upperBound = `${epsilonAtMost(certificate?.epsilon)} is proven (rounded up)`;
  return lower === null || lower === 0
    ? `${upperBound}.`
    : `${upperBound}; for ${textOr(certificate.epsilon_lower_of, "this design")}, no ε below ${roundDown(lower)} is true (rounded down).`;
};

// The guarantee if the server itself is the adversary.
export const againstServer = (certificate) => {
  const serverGuarantee = certificate?.against_server;
  if (serverGuarantee === null || typeof serverGuarantee !== "object") return "not stated.";
  const epsilon = finiteOrNull(serverGuarantee.epsilon);
  return epsilon === null
    ? `${textOr(serverGuarantee.note)}.`
    : `${epsilonAtMost(epsilon)} (${textOr(serverGuarantee.adjacency)}, rounded up) ${textOr(serverGuarantee.note)}.`;
};

export const coverage = (view) => {
  const affordable = finiteOrNull(view.affordable);
  const slots = finiteOrNull(view.schedule?.slots);
  if (isOver(view.status)) return `what was released: ${formatCount(view.slots_closed)} of ${formatCount(slots)} slots`;
  const last = affordable !== null && slots !== null && affordable < slots
    ? `to slot ${formatCount(affordable)} of ${formatCount(slots)}, the last that the budget allows`
    : `to its last slot, ${formatCount(slots)}`;
  return `the whole run, ${last}, with the privacy loss of earlier campaigns on the same population`;
};

// The conditions under which the epsilon that is shown above them holds.
export const conditions = (view) => {
  const certificate = view.certificate ?? {};
  const budget = view.budget ?? {};
  const adjacency = certificate.adjacency ?? budget.adjacency;
  return [
    "At most, rounded up (what is left is rounded down)", delta(certificate.delta ?? budget.delta),
    `${adjacencyShort(adjacency)} one client`, methodShort(certificate.method),
  ].join("; ") + ".";
};

export const remainingBudget = (view, spent) => {
  const budget = finiteOrNull(view.budget?.epsilon);
  if (budget === null) return "";
  if (spent === null) return `budget ${roundNearest(budget)}`;
  const remaining = budget - spent;
  return remaining < 0 ? "over the budget" : `at least ${roundDown(Math.max(0, remaining * (1 - 1e-12)), 3)} left`;
};

// Explains why all slots look the same.
export const explainSlots = (sealedCampaign) => {
  const countIsSecret = "The number of clients is never published.";
  const protocol = sealedCampaign?.protocol?.kind;
  if (protocol === "averaged") {
    return "Averaged updates are divided by the number of reports. The ledger shows this number, and this page does not.";
  }
  const missingReports = sealedCampaign?.randomizer?.noise_at === "server"
    ? "the server adds noise even if no client checked in."
    : "dummy reports, drawn by the server, replace missing reports.";
  const window = finiteOrNull(sealedCampaign?.protocol?.window);
  const warmUp = protocol === "sliding" && window !== null && window > 1
    ? ` The first ${formatCount(window - 1)} slots are a warm-up and release nothing.`
    : "";
  return `All slots look the same: ${missingReports} ${countIsSecret}${warmUp}`;
};

// Returns true if the data are a table without public holdout. Data sets of the package have a holdout.
export const hasNoHoldout = (sealedCampaign) => {
  const data = sealedCampaign?.task?.data;
  return data !== null && typeof data === "object" && !(finiteOrNull(data.holdout) > 0);
};

export const noCurve = (sealedCampaign, closed) => {
  if (hasNoHoldout(sealedCampaign)) return "No public holdout is declared, so the quality of the model is not measured.";
  return closed > 0
    ? "No point of the learning curve yet. It needs a declared public holdout."
    : "Nothing learned yet. The curve begins with the first releases if a public holdout is declared.";
};

export const howToJoin = (view, sealedCampaign) => {
  if (isOver(view.status)) return "This campaign is over. Nobody can take part any more.";
  if (typeof sealedCampaign?.task?.data === "string") {
    return "The data set comes with the package, so anyone can try. This command takes part as one person of the data set, at most once, in a slot that the device draws. If another device, such as one of a swarm, has the same row, this person takes part twice, so choose a row that nobody else uses:";
  }
  return "This command takes part with the data on your device, at most once, in a slot that your device draws:";
};

export const stopReason = (view) =>
  (view.slots_closed >= (finiteOrNull(view.affordable) ?? Infinity)
    ? "Stopped because the next release would exceed the budget."
    : "Stopped early. Epsilon is computed as if all slots that the budget allows were released, because the decision to stop may depend on the releases.");
