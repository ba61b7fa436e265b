// Sentences and numbers of a plan. The estimated error of the model has no unit; smaller is better.
// Epsilon is rounded up.

import { formatCount, formatDuration, finiteOrNull, roundNearest, formatSlots, roundUp } from "./numbers.js";
import { textOr } from "./words.js";

const PROTOCOL_NAMES = { fixed: "fixed window", averaged: "averaged updates", sliding: "sliding window" };
const RANDOMIZER_NAMES = { gaussian: "Gaussian", laplace: "Laplace", privunit: "PrivUnit" };
const lookUp = (texts, key) => (typeof key === "string" && Object.hasOwn(texts, key) ? texts[key] : textOr(key));

export const protocol = (name) => lookUp(PROTOCOL_NAMES, name);

export const formatShare = (value) => {
  const number = finiteOrNull(value);
  if (number === null) return "–";
  const percent = 100 * number;
  return `${percent > 0 && percent < 0.1 ? "< 0.1" : roundNearest(percent, percent < 10 ? 2 : 3)}\u00a0%`;
};

export const formatBytes = (value) => {
  const number = finiteOrNull(value);
  if (number === null) return "–";
  const units = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const [size, unit] = units.find(([item]) => number >= item) ?? [1, "B"];
  return `${roundNearest(number / size, 3)}\u00a0${unit}`;
};

export const formatCapacity = (value) => (value === "all" || value === null || value === undefined ? "all" : formatCount(value));

export const formatNoise = (design) => (finiteOrNull(design?.local_epsilon) === null
  ? `${roundNearest(design?.noise_multiplier)}\u00a0× clip` : `local ε\u00a0=\u00a0${roundNearest(design?.local_epsilon)}`);

export const errorName = (design) => (design?.proxy_kind === "theorem"
  ? "upper bound on the expected excess risk" : "effective noise of the whole run");

export const label = (design) => textOr(design?.label, `${protocol(design?.protocol)}, ${formatSlots(design?.slots)}`);

// Describes in sentences what clients and server do in a design.
export const describeDesign = (design) => {
  const participation = finiteOrNull(design.participation);
  const participationText = participation === null || participation >= 1 ? "Each client takes part" : `Each client takes part with probability ${roundNearest(participation, 3)},`;
  const window = finiteOrNull(design.window);
  const slotText = design.protocol === "sliding" && window !== null
    ? `in one of its next ${formatSlots(window)}, which it draws itself` : `in one of ${formatSlots(design.slots)}, which it draws itself`;
  const runsText = finiteOrNull(design.repeats) > 1 ? `, in each of ${formatCount(design.repeats)} runs` : "";
  const capacityText = design.protocol === "averaged" ? "A slot averages every report"
    : formatCapacity(design.capacity) === "all" ? "A slot uses every check-in"
    : `A slot uses at most ${formatCount(design.capacity)} check-in${design.capacity === 1 ? "" : "s"}, and dummy reports replace missing ones`;
  const randomizer = lookUp(RANDOMIZER_NAMES, design.randomizer);
  const whoAdds = design.noise_at === "server" ? "the server adds" : "each device adds";
  const minibatchText = finiteOrNull(design.minibatch) > 1 ? ` The model is updated every ${formatSlots(design.minibatch)}.` : "";
  const bandsText = finiteOrNull(design.bands) > 1 ? ` The noise is correlated over ${formatSlots(design.bands)}.` : "";
  return `${participationText} ${slotText}${runsText}. ${capacityText}; ${whoAdds} ${randomizer} noise (${formatNoise(design)}).${bandsText}${minibatchText}`;
};

export const designNumbers = (design) => [
  ["noise of a step", roundNearest(design.noise_per_step, 3), "× clip"],
  ["estimated error", roundNearest(design.proxy, 3)],
  ["dummies", formatShare(design.dummies_share)],
  ["duration", formatDuration(design.duration_s)],
  ["upload per client", formatBytes(design.upload_bytes_per_client)],
  ["kind of estimate", errorName(design)],
  ["noise", formatNoise(design)],
  ["ε certified", `at most ${roundUp(design.epsilon)}`],
  ["model steps", formatCount(design.steps)],
  ["clients in a step", roundNearest(design.clients_per_step, 3)],
  ["one slot", formatDuration(design.slot_s)],
  ["clients that upload", formatShare(design.share_of_clients_that_upload)],
  ["reports at the server", `${roundNearest(design.server_updates_per_s, 2)}\u00a0/s`],
];

export const describeSlotsRow = (row) =>
  `${formatSlots(row.slots)}: estimated error ${roundNearest(row.proxy, 3)}, noise of one step ${roundNearest(row.noise_per_step, 3)} × clip, dummies ${formatShare(row.dummies_share)}.`;

export const describeBudgetRow = (row) =>
  `ε = ${roundNearest(row.epsilon, 3)}: estimated error ${roundNearest(row.proxy, 3)}, noise of one step ${roundNearest(row.noise_per_step, 3)} × clip.`;

export const describeFrontDesign = (design, position) =>
  `${position}. ${label(design)}: estimated error ${roundNearest(design.proxy, 3)}, ${formatBytes(design.upload_bytes_per_client)} a client, ε ≤ ${roundUp(design.epsilon, 3)}, ${formatDuration(design.duration_s)}.`;

export const caseText = (item) => textOr(item.sentence,
  `estimated error ${roundNearest(item.proxy, 3)}, dummies ${formatShare(item.dummies_share)}, ε ≤ ${roundUp(item.epsilon)}`);

export const populationFactor = (value) => ({ 0.5: "half", 1: "as expected", 2: "twice" })[value] ?? `${roundNearest(value, 2)} times`;
