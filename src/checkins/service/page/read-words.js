// Sentences of the page that reads a certificate: what is guaranteed, and what attackers can learn.

import { finiteOrNull, formatCount, roundNearest, roundUp, withPowers } from "./numbers.js";
import { adjacencyShort, epsilonInterval, method, neighbours, rounding, textOr } from "./words.js";

const CASES = {
  "add-remove": "one client takes part, or does not",
  "replace-one": "the data of one client are one version or another",
};
const HUGE = 700;  // e to a larger epsilon is no finite number

const assumptionsOf = (certificate) =>
  (Array.isArray(certificate.assumptions) ? certificate.assumptions.filter((one) => typeof one === "string") : []);
const assumes = (certificate, words) => assumptionsOf(certificate).some((one) => one.includes(words));

// The largest probability of guessing right between two cases that are equally likely, as a percentage,
// rounded up: (e^ε + δ)/(1 + e^ε).
export const guessPercent = (epsilon, delta) => {
  const share = 1 / (1 + Math.exp(-epsilon)) + delta / (1 + Math.exp(Math.min(epsilon, HUGE)));
  return Math.min(100, Math.ceil(1000 * share * (1 + 1e-12)) / 10);
};

const guess = (epsilon, delta) =>
  (epsilon >= HUGE ? "may be sure" : `is right with a probability of at most ${guessPercent(epsilon, delta)}%`);

export const sentence = (certificate) => {
  const epsilon = finiteOrNull(certificate.epsilon);
  if (epsilon === null) return "No bound on ε was proven, so nothing is guaranteed.";
  return `Suppose that somebody sees every released model, and knows the data of all other clients. They guess which of two`
    + ` equally likely cases is true: ${CASES[certificate.adjacency] ?? "one client's data differ"}. They ${guess(epsilon, certificate.delta).replace("is right", "are right")}.`
    + " A guess without the models is right with a probability of 50%.";
};

const releasesOnly = (certificate) => {
  const epsilon = finiteOrNull(certificate.epsilon);
  if (epsilon === null) return "Not bounded: no ε was proven.";
  return `Bounded by the guarantee: ε ≤ ${roundUp(epsilon)} at δ = ${roundNearest(certificate.delta)} (${adjacencyShort(certificate.adjacency)}). This attacker ${guess(epsilon, certificate.delta)} when it guesses between the two cases above.`;
};

const theServer = (certificate) => {
  const given = certificate.against_server;
  if (given === null || typeof given !== "object") return "Not stated. The guarantee assumes that the server is trusted.";
  const epsilon = finiteOrNull(given.epsilon);
  const rest = "The guarantee above assumes that the server is trusted.";
  if (epsilon === null) return `It can learn everything that a client sends: ${textOr(given.note, "no bound")}. ${rest}`;
  return `It sees which clients take part, and when. What their reports reveal about their data has the bound ε ≤ ${roundUp(epsilon)} (${adjacencyShort(given.adjacency)}). With two versions of a client's data that are equally likely, the server ${guess(epsilon, certificate.delta)}. ${rest}`;
};

const theObserver = (certificate) => {
  const alternatives = Array.isArray(certificate.alternatives) ? certificate.alternatives.filter(Boolean) : [];
  const known = finiteOrNull(alternatives.find((one) => one.method === "no-amplification")?.epsilon);
  // For a smaller participation, this epsilon assumes that nobody sees who takes part.
  const everybodyTakesPart = assumes(certificate, "takes part with probability at most 1 and");
  const left = known === null || !everybodyTakesPart
    ? "The certificate states no ε for an attacker who knows this."
    : `For an attacker who also knows the slot, the releases have the bound ε ≤ ${roundUp(known)} (${adjacencyShort(certificate.adjacency)}).`;
  return `It sees which client contacts the server, and when. So it learns who takes part, and in which slot. TLS hides only the content. ${left}`;
};

const curiousClients = (certificate) => {
  const curious = finiteOrNull(certificate.curious) ?? 0;
  if (curious > 0) return `Included for up to ${formatCount(curious)} client${curious === 1 ? "" : "s"} who disclose whether they were chosen, their reports and their noise. Nothing is guaranteed if more clients disclose this.`;
  if (assumes(certificate, "is not one of the clients") || assumes(certificate, "discloses whether it was chosen")) {
    return "Not included: the guarantee assumes that no client discloses whether it was chosen, its report or its noise. If clients may do that, ask the operator for a certificate with curious clients (checkins account --curious).";
  }
  return "A client that takes part sees nothing but the released models, so it can learn no more than the attacker in the first row.";
};

// Rows of [attacker, what it can learn].
export const attackers = (certificate) => [
  ["Somebody who sees only the releases", releasesOnly(certificate)],
  ["The server", theServer(certificate)],
  ["An observer of connections", theObserver(certificate)],
  ["Clients who disclose what they see", curiousClients(certificate)],
];

export const facts = (certificate) => {
  const runs = finiteOrNull(certificate.campaigns) ?? 1;
  const variation = finiteOrNull(certificate.variation) ?? 0;
  return [
    ["Proven", epsilonInterval(certificate)],
    ["At δ", `${roundNearest(certificate.delta)}: every probability may differ by this much more.`],
    ["Protects", `${textOr(certificate.unit, "one client's whole contribution")}${runs > 1 ? `, in ${formatCount(runs)} runs together` : ""}.`],
    ["Neighbours", `${neighbours(certificate.adjacency)}. Compare two ε only if this is the same.`],
    ["Method", `${method(certificate.method)}.`],
    ["Rounding", `${rounding(certificate.rounding)}.`],
    variation > 0 ? ["Rounded noise", `Included in δ: the real noise lies on a grid, which differs from the ideal noise by at most ${roundUp(variation, 2)} (total variation).`] : null,
  ];
};

export const assumptions = (certificate) => assumptionsOf(certificate).map(withPowers);
