// Compares clients/js/client.js with the conformance vectors. Returns one line for each difference.

import * as client from "/client.js";

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const base64 = (text) => Uint8Array.from(atob(text), (unit) => unit.charCodeAt(0));
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const sha256 = async (array) => hex(new Uint8Array(await crypto.subtle.digest("SHA-256", array)));

// The generator of tools/vectors.py.
const xorshift = (seed, script = new Uint8Array()) => {
  let word = seed;
  let left = script;
  return {
    bytes(count) {
      if (left.length > 0) {
        const taken = new Uint8Array(count);
        taken.set(left.subarray(0, count));
        left = left.subarray(count);
        return taken;
      }
      const words = Uint32Array.from({ length: Math.ceil(count / 4) }, () => {
        word ^= word << 13;
        word ^= word >>> 17;
        word ^= word << 5;
        return word;
      });
      return new Uint8Array(words.buffer).slice(0, count);
    },
  };
};

const result = async (work, names) => {
  try {
    return { value: await work() };
  } catch (error) {
    return { refused: names.find((name) => error instanceof (client[name] ?? Error)) ?? `${error}` };
  }
};

const checks = {
  draws: ({ participation, slots, window, first_open_slot: first, seed, slot }) => {
    const drawn = client.drawSlot({ participation, slots, window }, first, xorshift(seed));
    return drawn === slot ? null : `${drawn} for ${slot}`;
  },

  noise: async ({ randomizer, largest_size: largest, seed, script, count, first, sha256: wanted }) => {
    const noise = client.noiseOf(randomizer);
    if (noise.largestSize !== largest) return `largest size ${noise.largestSize}`;
    const units = new Int32Array(count);
    noise.addTo(units, xorshift(seed, fromHex(script)));
    if (!same(Array.from(units.subarray(0, first.length)), first)) return `begins with ${units.subarray(0, 8)}`;
    return (await sha256(units)) === wanted ? null : "a later draw differs";
  },

  clipping: async ({ randomizer, update, units, seed, count, scale, sha256: wanted }) => {
    const words = new Uint32Array(xorshift(seed ?? 1).bytes(4 * (count ?? 0)).buffer);
    const special = { nan: NaN, inf: Infinity };
    const values = update?.map((text) => special[text] ?? Number(text)) ?? Array.from(words, (word) => ((word - 2 ** 31) / 2 ** 31) * scale);
    const clipped = client.clipToUnits(Float64Array.from(values), randomizer);
    if (update === undefined) return (await sha256(clipped)) === wanted ? null : "differs";
    return same(Array.from(clipped), units) ? null : `${clipped} for ${units}`;
  },

  encodings: ({ units, report, model, shapes, tensors }) => {
    if (units !== undefined) return same(Array.from(client.reportToBytes(Int32Array.from(units))), Array.from(base64(report))) ? null : "differs";
    try {
      const read = client.modelFromBytes(base64(model), shapes);
      if (tensors === null) return "is accepted";
      const lists = Object.fromEntries(Object.entries(read).map(([name, tensor]) => [name, Array.from(tensor)]));
      return same(lists, tensors) ? null : "differs";
    } catch (error) {
      return tensors === null ? null : `${error}`;
    }
  },

  campaigns: async ({ text, uses }) => {
    const { value, refused } = await result(async () => {
      const seal = `sha256:${await sha256(new TextEncoder().encode(text))}`;
      return client.parseCampaign(text, seal);
    }, ["CampaignRefused"]);
    if (uses === null) return refused === "CampaignRefused" ? null : `is not refused, but ${refused}`;
    if (value === undefined) return refused;
    const { noiseAt, ...randomizer } = value.randomizer;
    const view = Object.assign(Object.create(client.View.prototype), { campaign: value, run: value.repeats });
    const begin = view.begins(1);
    const found = {
      population_key: value.populationKey, budget: [value.epsilon, value.delta], slots: value.slots, window: value.window,
      participation: value.participation, randomizer: uses.randomizer, begins: [1, 2, value.slots].map((slot) => view.begins(slot)),
      first_open_slots: [-9, 3.9, 4, 25.5, 1e9].map((seconds) => view.firstOpenSlot(begin + seconds)),
    };
    const isSame = Object.entries(uses.randomizer).every(([key, wanted]) => randomizer[key] === wanted);
    return isSame && same(found, uses) ? null : JSON.stringify(found);
  },

  views: async ({ body, result: wanted }) => {
    const { value, refused } = await result(() => client.parseView(new TextEncoder().encode(body)), ["CampaignRefused"]);
    const found = value !== undefined ? "accepted" : refused === "CampaignRefused" ? "refused" : "malformed";
    return found === wanted ? null : `${found}: ${refused}`;
  },

  odometers: async ({ stored, total, mixed }) => {
    const { value, refused } = await result(() => client.Odometer.parse(JSON.stringify(stored)), ["InvalidState"]);
    if (total === null) return refused === "InvalidState" ? null : "is accepted";
    if (value === undefined) return refused;
    const found = value.total();
    const isSame = (a, b) => a === b || (mixed && Math.abs(a - b) <= 1e-14 * Math.abs(b));
    const epsilon = total.epsilon ?? Infinity;
    const agrees = isSame(found.epsilon, epsilon) && isSame(found.delta, total.delta) && found.adjacency === total.adjacency;
    return agrees && same(JSON.parse(value.text()), stored) ? null : JSON.stringify(found);
  },

  states: async ({ run, text, accepted }) => {
    const store = { load: async () => text };
    const device = new client.Device({ url: "http://127.0.0.1", run, trainer: () => ({}), store });
    const { refused } = await result(() => device.stored(), ["InvalidState"]);
    return (refused === undefined) === accepted && [undefined, "InvalidState"].includes(refused) ? null : `${refused}`;
  },

  training: ({ text, shapes, labels, weights, every, bias }) => {
    const campaign = client.parseCampaign(text, "sha256:");
    const numbers = (seed, count) => Array.from(new Uint32Array(xorshift(seed).bytes(4 * count).buffer), (word) => word / 2 ** 31 - 1);
    const [width] = shapes.weights;
    const values = numbers(11, 2 * width);
    const model = {
      weights: Float64Array.from(numbers(13, shapes.weights.reduce((a, b) => a * b))),
      bias: new Float64Array(shapes.bias.reduce((a, b) => a * b, 1)).fill(0.125),
    };
    const update = client.rowsTrainer([values.slice(0, width), values.slice(width)], labels)(model, { campaign, shapes });
    const found = [...Array.from(update.weights).filter((_, i) => i % every === 0), ...update.bias];
    const farthest = [...weights, ...bias].reduce((most, wanted, i) => Math.max(most, Math.abs(found[i] - wanted)), 0);
    return found.length === weights.length + bias.length && farthest < 1e-12 ? null : `differs by ${farthest}`;
  },
};

export const differences = async (topic, vectors) => {
  const found = [];
  for (const [number, vector] of vectors.entries()) {
    let difference;
    try {
      difference = await checks[topic](vector);
    } catch (error) {
      difference = `${error}`;
    }
    if (difference !== null) found.push(`${topic} ${number} (${vector.name ?? ""}): ${difference}`);
  }
  return found;
};
