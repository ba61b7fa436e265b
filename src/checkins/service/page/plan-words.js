// Sentences and numbers of a plan. A smaller proxy is better. Epsilon is rounded up.

import { count, duration, finite, nearest, slotCount, up } from "./numbers.js";
import { textOr } from "./words.js";

const PROTOCOL = { fixed: "fixed window", averaged: "averaged updates", sliding: "sliding window" };
const RANDOMIZER = { gaussian: "Gaussian", laplace: "Laplace", privunit: "PrivUnit" };
const own = (table, key) => (typeof key === "string" && Object.hasOwn(table, key) ? table[key] : textOr(key));

export const protocol = (name) => own(PROTOCOL, name);

export const share = (value) => {
  const number = finite(value);
  if (number === null) return "–";
  const percent = 100 * number;
  return `${percent > 0 && percent < 0.1 ? "< 0.1" : nearest(percent, percent < 10 ? 2 : 3)}\u00a0%`;
};

export const bytes = (value) => {
  const number = finite(value);
  if (number === null) return "–";
  const units = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const [size, unit] = units.find(([one]) => number >= one) ?? [1, "B"];
  return `${nearest(number / size, 3)}\u00a0${unit}`;
};

export const capacity = (value) => (value === "all" || value === null || value === undefined ? "all" : count(value));

export const noise = (design) => (finite(design?.local_epsilon) === null
  ? `${nearest(design?.noise_multiplier)}\u00a0× clip` : `local ε\u00a0=\u00a0${nearest(design?.local_epsilon)}`);

export const proxyName = (design) => (design?.proxy_kind === "theorem"
  ? "upper bound on the expected excess risk" : "effective noise of the whole run");

export const label = (design) => textOr(design?.label, `${protocol(design?.protocol)}, ${slotCount(design?.slots)}`);

// Describes what clients and server do.
export const inWords = (design) => {
  const rate = finite(design.participation);
  const coin = rate === null || rate >= 1 ? "Each client takes part" : `Each client takes part with probability ${nearest(rate, 3)},`;
  const window = finite(design.window);
  const draws = design.protocol === "sliding" && window !== null
    ? `in one of its next ${slotCount(window)}, which it draws itself` : `in one of ${slotCount(design.slots)}, which it draws itself`;
  const runs = finite(design.repeats) > 1 ? `, in each of ${count(design.repeats)} runs` : "";
  const uses = design.protocol === "averaged" ? "A slot averages every report"
    : capacity(design.capacity) === "all" ? "A slot uses every check-in"
    : `A slot uses at most ${count(design.capacity)} check-in${design.capacity === 1 ? "" : "s"}, and dummy reports replace missing ones`;
  const kind = own(RANDOMIZER, design.randomizer);
  const where = design.noise_at === "server" ? "the server adds" : "each device adds";
  const batch = finite(design.minibatch) > 1 ? ` The model is updated every ${slotCount(design.minibatch)}.` : "";
  return `${coin} ${draws}${runs}. ${uses}; ${where} ${kind} noise (${noise(design)}).${batch}`;
};

export const numbers = (design) => [
  ["noise of a step", nearest(design.noise_per_step, 3), "× clip"],
  ["proxy", nearest(design.proxy, 3)],
  ["dummies", share(design.dummies_share)],
  ["takes", duration(design.duration_s)],
  ["a client sends", bytes(design.upload_bytes_per_client)],
  ["proxy is", proxyName(design)],
  ["noise", noise(design)],
  ["ε certified", `at most ${up(design.epsilon)}`],
  ["model steps", count(design.steps)],
  ["clients in a step", nearest(design.clients_per_step, 3)],
  ["one slot", duration(design.slot_s)],
  ["clients that send", share(design.share_of_clients_that_upload)],
  ["server takes", `${nearest(design.server_updates_per_s, 2)}\u00a0/s`],
];

export const bySlots = (row) =>
  `${slotCount(row.slots)}: proxy ${nearest(row.proxy, 3)}, noise of one step ${nearest(row.noise_per_step, 3)} × clip, dummies ${share(row.dummies_share)}.`;

export const byBudget = (row) =>
  `ε = ${nearest(row.epsilon, 3)}: proxy ${nearest(row.proxy, 3)}, noise of one step ${nearest(row.noise_per_step, 3)} × clip.`;

export const inFront = (design, place) =>
  `${place}. ${label(design)}: proxy ${nearest(design.proxy, 3)}, ${bytes(design.upload_bytes_per_client)} a client, ε ≤ ${up(design.epsilon, 3)}, ${duration(design.duration_s)}.`;

export const case_ = (one) => textOr(one.sentence,
  `proxy ${nearest(one.proxy, 3)}, dummies ${share(one.dummies_share)}, ε ≤ ${up(one.epsilon)}`);

export const factor = (value) => ({ 0.5: "half", 1: "as expected", 2: "twice" })[value] ?? `${nearest(value, 2)} times`;
