// @ts-check
// A device of a campaign of random check-ins, in a browser: it enrols, draws its slot, trains, clips,
// adds exact noise, reports, and survives reloads and kills. It follows the rules of the Python package
// checkins.client, and conformance vectors (tests/vectors) compare the two bit for bit.
//
//   import { Device, openRun, rowsTrainer } from "/client.js";
//   const { run } = await openRun(url);
//   const outcome = await new Device({ url, run, trainer: rowsTrainer([features], [label]) }).run();
//
// The parts of this file, in order: errors, exact numbers, randomness, exact noise, clipping, the bytes
// of reports and models, the sealed campaign, the view of a run, the odometer, storage, requests, the
// device, training.

/**
 * @typedef {{ bytes(count: number): Uint8Array }} ByteSource A source of random bytes.
 * @typedef {{ numerator: bigint, denominator: bigint }} Fraction An exact number, in lowest terms.
 * @typedef {Record<string, Float64Array>} Tensors Tensors by name, each flat in row-major order.
 * @typedef {Record<string, number[]>} Shapes The shape of each tensor by name, in the order of the flat vector.
 * @typedef {(model: Tensors, view: View) => Record<string, ArrayLike<number>> | Promise<Record<string, ArrayLike<number>>>} Trainer
 *   Computes an update of the model from the data of this device. It may be any function. Its result
 *   need not be bounded, because the device clips it. If it throws, the device sends a dummy report, and
 *   throws the error when its participation has ended.
 * @typedef {"ABSTAINED" | "MISSED" | "REFUSED" | "DISMISSED" | "LATE" | "REPORTED"} Outcome
 * @typedef {"add-remove" | "replace-one"} Adjacency
 * @typedef {{ population: string, adjacency: Adjacency, epsilon: number, delta: number, entries: number, head: string, runs: string[] }} Charge
 * @typedef {{ epsilon: number, delta: number, adjacency: Adjacency }} PrivacyLoss
 * @typedef {{ campaign: string, seal?: string, key?: string, token?: string, epoch: number, slots_closed: number, entries: number, head?: string, phase?: "DRAWN" | "PRIVATIZED", slot?: number, receipt?: string, report?: string, ended?: string }} SavedState
 * @typedef {{ load(key: string): Promise<string | null>, save(key: string, text: string): Promise<void>, keys(): Promise<string[]>, lock<Result>(name: string, work: () => Promise<Result>): Promise<Result> }} Store
 *   What a device keeps. save returns once the text is durable. lock excludes all other users of the
 *   same store, and throws InvalidState if one of them keeps the lock.
 * @typedef {{ method?: string, path: string, headers?: Record<string, string>, body?: Uint8Array, timeoutS?: number, maxBytes?: number }} Request
 * @typedef {{ status: number, body: Uint8Array, sentS: number, receivedS: number, retryAfterS: number }} Response
 * @typedef {{ fetch: typeof fetch, monotonicS(): number, calendarS(): number, sleep(seconds: number): Promise<unknown>, source: ByteSource }} Platform
 *   The effects of a device. Tests replace them.
 * @typedef {{ url: string, run: string, trainer: Trainer, store?: Store, key?: string, seal?: string, mostEpsilon?: number, accept?: (campaign: Campaign) => unknown, onEvent?: (event: Record<string, unknown>) => unknown, retryTimeoutS?: number, plainHttp?: boolean, platform?: Platform }} Options
 */

// ---------------------------------------------------------------------------------------------- errors

/** The device does not take part in this campaign, and sends nothing more for it. */
export class CampaignRefused extends Error {}

/** The service cannot be reached, responds incorrectly, or was rolled back. The stored state remains. */
export class ServiceFailed extends Error {}

/** The stored state is damaged, or in use by another tab. */
export class InvalidState extends Error {}

/** A response is not what was asked for: another service responded, or it was damaged on the way. */
class Malformed extends Error {}

// --------------------------------------------------------------------------------------- exact numbers

const FLOAT = new Float64Array(1);
const FLOAT_BITS = new BigInt64Array(FLOAT.buffer);

/** Returns the next float above x, which must not be negative. @param {number} x */
const nextUp = (x) => {
  if (x === Infinity) return x;
  FLOAT[0] = x;
  FLOAT_BITS[0] += 1n;
  return FLOAT[0];
};

/** Returns the quotient, rounded down. @param {bigint} a @param {bigint} b positive */
const floorDiv = (a, b) => (a >= 0n || a % b === 0n ? a / b : a / b - 1n);

/** @param {bigint} a @param {bigint} b positive */
const ceilDiv = (a, b) => -floorDiv(-a, b);

/** @param {bigint} number */
const bitLength = (number) => (number === 0n ? 0 : number.toString(2).length);

/** @param {bigint} numerator @param {bigint} denominator @returns {Fraction} */
const fraction = (numerator, denominator) => {
  let [a, b] = [numerator, denominator];
  while (b !== 0n) [a, b] = [b, a % b];
  return { numerator: numerator / a, denominator: denominator / a };
};

/** Returns the exact value of a finite float that is not negative. @param {number} x @returns {Fraction} */
const exactly = (x) => {
  let denominator = 1n;
  for (; !Number.isInteger(x); x *= 2) denominator *= 2n;
  return { numerator: BigInt(x), denominator };
};

/** @param {Fraction} a @param {Fraction} b */
const times = (a, b) => fraction(a.numerator * b.numerator, a.denominator * b.denominator);

/** @param {Fraction} a @param {Fraction} b */
const over = (a, b) => fraction(a.numerator * b.denominator, a.denominator * b.numerator);

/** Returns the sum of floats that are not negative, rounded up. @param {number[]} terms */
const sumUp = (terms) => {
  if (terms.some((term) => term === Infinity)) return Infinity;
  const exact = terms.map(exactly);
  const bits = Math.max(0, ...exact.map(({ denominator }) => bitLength(denominator) - 1));
  const scale = 1n << BigInt(bits);
  const sum = exact.reduce((sofar, { numerator, denominator }) => sofar + numerator * (scale / denominator), 0n);
  const dropped = BigInt(Math.max(0, bitLength(sum) - 128));
  const isExact = (sum >> dropped) << dropped === sum;
  let total = Number(((sum >> dropped) << 1n) | (isExact ? 0n : 1n)); // the last bit decides ties
  for (let left = bits + 1 - Number(dropped); left !== 0;) {
    const step = Math.max(-512, Math.min(left, 512));
    total /= 2 ** step;
    left -= step;
  }
  return terms.length < 2 ? total : nextUp(total);
};

// ------------------------------------------------------------------------------------------ randomness

const MOST_RANDOM_BYTES = 65536; // of one call of getRandomValues

/** Random bytes of the operating system. They are never seeded, stored or used twice. @type {ByteSource} */
export const systemBytes = {
  bytes(count) {
    const drawn = new Uint8Array(count);
    for (let start = 0; start < count; start += MOST_RANDOM_BYTES) {
      crypto.getRandomValues(drawn.subarray(start, start + MOST_RANDOM_BYTES));
    }
    return drawn;
  },
};

/**
 * Returns an exactly uniform integer in [0, count). Numbers that are too large are drawn again, so no
 * remainder makes small results more likely.
 * @param {bigint} count @param {ByteSource} source
 */
export const randomBelow = (count, source) => {
  const bits = bitLength(count);
  const size = Math.ceil(bits / 8);
  for (;;) {
    const drawn = source.bytes(size).reduce((number, byte) => (number << 8n) | BigInt(byte), 0n);
    const result = drawn >> BigInt(8 * size - bits);
    if (result < count) return result;
  }
};

const COIN_RANGE = 1n << 64n;

/**
 * Returns the slot of a device, or null if its coin decides against taking part. Both numbers are drawn
 * in any case.
 * @param {Campaign} campaign @param {number} firstOpenSlot @param {ByteSource} source
 */
export const drawSlot = (campaign, firstOpenSlot, source) => {
  const coin = randomBelow(COIN_RANGE, source);
  const pick = Number(randomBelow(BigInt(campaign.window ?? campaign.slots), source));
  const { numerator, denominator } = exactly(campaign.participation);
  if (coin >= (numerator * COIN_RANGE) / denominator) return null;
  return campaign.window === null ? 1 + pick : firstOpenSlot + pick;
};

/** Returns a number uniform on [0, 1), which spreads the requests of devices. @param {ByteSource} source */
const jitter = (source) => Number(randomBelow(1n << 53n, source)) / 2 ** 53;

// ----------------------------------------------------------------------------------------- exact noise
//
// Proofs: docs/theory/grid.md. A probability is an integer in units of 2^-288, a weight in units of
// 2^-140. Noise is drawn as a size from a table of weights, and a sign.

const FRACTION_BITS = 288n;
const ONE = 1n << FRACTION_BITS;
const MASS_ERROR = 1n << 26n;
const COLUMNS = 4096;
const THRESHOLD_BITS = 128n;
const WEIGHT_BITS = 140n;
const TOTAL_WEIGHT = 1n << WEIGHT_BITS;
const LAST_BITS = 108n; // the digits of a threshold that only ties need
const LAST_MASK = (1n << LAST_BITS) - 1n;
const LAST_BYTES = 14;
const SCALE_BITS = 32n;
const WEIGHT_SHIFT = FRACTION_BITS - WEIGHT_BITS + SCALE_BITS;
const CHUNK = 1 << 15;

/** Returns exp(-numerator / denominator) in units. @param {bigint} numerator @param {bigint} denominator */
const expMinus = (numerator, denominator) => {
  if (numerator >= denominator << 10n) return 0n;
  const halvings = BigInt(Math.max(0, bitLength(numerator) - bitLength(denominator) + 9));
  const argument = (numerator << FRACTION_BITS) / (denominator << halvings);
  let [total, term] = [ONE, ONE];
  for (let count = 1n; term !== 0n; count += 1n) {
    term = ((term * argument) >> FRACTION_BITS) / count;
    total += count & 1n ? -term : term;
  }
  for (let i = 0n; i < halvings; i += 1n) total = (total * total) >> FRACTION_BITS;
  return total;
};

/** Returns the largest integer whose square is at most number. @param {bigint} number */
const squareRoot = (number) => {
  let root = 1n << BigInt(Math.ceil(bitLength(number) / 2));
  for (;;) {
    const better = (root + number / root) >> 1n;
    if (better >= root) return root;
    root = better;
  }
};

/** Returns arctan(1 / x) in units of 2^-bits. @param {bigint} x @param {bigint} bits */
const arctangentOfInverse = (x, bits) => {
  let term = (1n << bits) / x;
  let total = term;
  for (let n = 1n; term !== 0n;) {
    term /= x * x;
    n += 2n;
    total += n % 4n === 1n ? term / n : -(term / n);
  }
  return total;
};

/** 1 / sqrt(2 pi) in units, or 0 before it is needed. */
let inverseRootTwoPi = 0n;

const densityAtZero = () => {
  if (inverseRootTwoPi === 0n) {
    const bits = FRACTION_BITS + 32n;
    const pi = 4n * (4n * arctangentOfInverse(5n, bits) - arctangentOfInverse(239n, bits));
    inverseRootTwoPi = squareRoot((1n << (2n * FRACTION_BITS + bits)) / (2n * pi));
  }
  return inverseRootTwoPi;
};

/** Returns how many terms of the series of a mass are enough. @param {bigint} scale */
const seriesLength = (scale) => {
  let n = 0;
  for (let inverse = 1n; inverse >> (2n * FRACTION_BITS + 2n) === 0n;) {
    n += 1;
    inverse *= BigInt(n) * 4n * scale * scale;
  }
  return BigInt(n + (n % 2) + 1);
};

/** The distribution of round(N(0, scale^2)). */
class RoundedNormal {
  /** @param {Fraction} scale */
  constructor({ numerator: a, denominator: b }) {
    this.a = a;
    this.b = b;
    this.rr = ((b * b) << FRACTION_BITS) / (4n * a * a);
    this.length = seriesLength(a / b);
    this.density = densityAtZero();
  }

  /** Returns P(round(Y) = k) in units, within MASS_ERROR. @param {bigint} k not negative */
  mass(k) {
    const { a, b, rr } = this;
    const density = (this.density * expMinus(k * k * b * b, 2n * a * a)) >> FRACTION_BITS;
    const xr = ((k * b * b) << FRACTION_BITS) / (2n * a * a);
    let [total, even, odd] = [ONE, ONE, xr];
    for (let n = 2n; n < this.length; n += 2n) {
      even = floorDiv(((xr * odd) >> FRACTION_BITS) - ((rr * even) >> FRACTION_BITS), n);
      total += floorDiv(even, n + 1n);
      odd = floorDiv(((xr * even) >> FRACTION_BITS) - ((rr * odd) >> FRACTION_BITS), n + 1n);
    }
    return (((density * total) >> FRACTION_BITS) * b) / a;
  }
}

/** @param {ByteSource} source @param {number} count */
const randomWords = (source, count) => new Uint32Array(source.bytes(4 * count).slice().buffer);

/** Returns a number of random bytes, the first of which counts least. @param {ByteSource} source @param {number} count */
const littleEndian = (source, count) => source.bytes(count).reduceRight((number, byte) => (number << 8n) | BigInt(byte), 0n);

/** Returns the positions of an array at which a condition holds. @param {ArrayLike<number>} array @param {(value: number) => boolean} holds */
const positions = (array, holds) => {
  const found = [];
  for (let i = 0; i < array.length; i += 1) if (holds(array[i])) found.push(i);
  return found;
};

/** A distribution on at most 4,096 entries with exact weights (Walker's alias method). */
class AliasTable {
  /** @param {bigint[]} weights integers with the sum TOTAL_WEIGHT */
  constructor(weights) {
    const column = 1n << THRESHOLD_BITS;
    const remaining = [...weights, .../** @type {bigint[]} */ (Array(COLUMNS - weights.length).fill(0n))];
    const sum = remaining.reduce((a, b) => a + b);
    if (remaining.length !== COLUMNS || remaining.some((weight) => weight < 0n) || sum !== TOTAL_WEIGHT) {
      throw new RangeError("weights must be at most 4096 integers that sum to TOTAL_WEIGHT");
    }
    const entries = remaining.map((_, entry) => entry);
    const small = entries.filter((entry) => remaining[entry] < column);
    const large = entries.filter((entry) => remaining[entry] >= column);
    this.thresholds = /** @type {bigint[]} */ (Array(COLUMNS).fill(0n));
    this.others = Uint32Array.from(entries);
    for (let entry = small.pop(); entry !== undefined; entry = small.pop()) {
      const donor = large[large.length - 1];
      this.thresholds[entry] = remaining[entry];
      this.others[entry] = donor;
      remaining[donor] -= column - remaining[entry];
      if (remaining[donor] < column) small.push(/** @type {number} */ (large.pop()));
    }
    this.firstWords = Uint32Array.from(this.thresholds, (threshold, entry) => entry * 2 ** 20 + Number(threshold >> LAST_BITS));
  }

  /** Returns independent entries. @param {number} count @param {ByteSource} source */
  draw(count, source) {
    const words = randomWords(source, count);
    const { firstWords, others } = this;
    const entries = new Uint32Array(count);
    /** @type {number[]} */
    const ties = [];
    for (let i = 0; i < count; i += 1) {
      const word = words[i];
      const column = word >>> 20;
      const first = firstWords[column];
      entries[i] = word < first ? column : others[column];
      if (word === first) ties.push(i);
    }
    for (const i of ties) {
      const column = words[i] >>> 20;
      const isBelow = (littleEndian(source, LAST_BYTES) & LAST_MASK) < (this.thresholds[column] & LAST_MASK);
      entries[i] = isBelow ? column : others[column];
    }
    return entries;
  }
}

/** Sizes whose digits are independent: sizes of few values, and the sizes of Laplace noise. */
class DigitwiseSizes {
  /** @param {AliasTable} first @param {number} firstValues @param {[number, AliasTable][]} later bits and distribution of each later digit */
  constructor(first, firstValues, later) {
    this.first = first;
    this.firstValues = firstValues;
    this.later = later;
  }

  /** @param {number} count @param {ByteSource} source */
  draw(count, source) {
    const first = this.first.draw(count, source);
    const sizes = first.slice();
    for (const [bits, digit] of this.later) {
      const drawn = digit.draw(count, source);
      for (let i = 0; i < count; i += 1) sizes[i] = (sizes[i] << bits) + drawn[i];
    }
    for (let i = 0; i < count; i += 1) sizes[i] = first[i] === this.firstValues ? 0 : sizes[i] + 1;
    return sizes;
  }
}

/** Sizes of wide Gaussian noise: cells of 2^offsetBits sizes, each with a flat and a wedge. */
class Staircase {
  /** @param {Fraction} scale @param {number} offsetBits @param {number} cells */
  constructor(scale, offsetBits, cells) {
    const width = 1n << BigInt(offsetBits);
    this.normal = new RoundedNormal(scale);
    this.offsetBits = offsetBits;
    this.cells = cells;
    const masses = Array.from({ length: cells + 1 }, (_, cell) => this.normal.mass(BigInt(cell) * width));
    /** @param {bigint} weightScale @returns {[bigint[], bigint[]]} a lower and an upper bound of the weights of each cell */
    const bounds = (weightScale) => [
      masses.slice(1).map((mass) => (mass > MASS_ERROR ? (2n * (mass - MASS_ERROR) * weightScale) >> WEIGHT_SHIFT : 0n)),
      masses.slice(0, -1).map((mass) => -((-2n * (mass + MASS_ERROR) * weightScale) >> WEIGHT_SHIFT)),
    ];
    const [, first] = bounds(1n << SCALE_BITS);
    const sum = first.reduce((a, b) => a + b);
    this.weightScale = (TOTAL_WEIGHT << SCALE_BITS) / (width * sum + first[0] / 2n + 1n) - 1n;
    const [floors, tops] = bounds(this.weightScale);
    this.floors = floors;
    this.rises = tops.map((top, cell) => top - floors[cell]);
    const weights = [...floors, ...this.rises].map((weight) => width * weight);
    weights.push(((masses[0] - MASS_ERROR) * this.weightScale) >> WEIGHT_SHIFT);
    weights.push(TOTAL_WEIGHT - weights.reduce((a, b) => a + b));
    this.margins = Float64Array.from(tops, (top, cell) => Number(this.margin(scale, width, BigInt(cell), top)));
    this.table = new AliasTable(weights);
  }

  /**
   * Returns the largest distance of the weights of a cell from a straight line, in 2^-32 rises, rounded up.
   * @param {Fraction} scale @param {bigint} width @param {bigint} cell @param {bigint} top
   */
  margin({ numerator: a, denominator: b }, width, cell, top) {
    const one = 1n << 32n;
    const rise = this.rises[Number(cell)];
    if (rise === 0n) return one;
    const edge = (2n * (cell + 1n) * width + 1n) * b; // the largest x of the cell is edge / (2 a)
    const [square, unit] = edge > 2n * a ? [edge * edge, 4n * a * a] : [1n, 1n];
    const [numerator, denominator] = [5n * width * width * b * b * square * top, 32n * a * a * unit];
    const margin = ceilDiv((numerator + 2n * denominator) * one, denominator * rise);
    return margin < one ? margin : one;
  }

  /** @param {number} count @param {ByteSource} source @returns {Uint32Array} */
  draw(count, source) {
    const entries = this.table.draw(count, source);
    const low = this.lowBits(count, source);
    const { cells, offsetBits } = this;
    const sizes = new Uint32Array(count);
    /** @type {number[]} */
    const notFlat = [];
    for (let i = 0; i < count; i += 1) {
      sizes[i] = (entries[i] << offsetBits) + low[i] + 1;
      if (entries[i] >= cells) notFlat.push(i);
    }
    if (notFlat.length > 0) {
      const drawn = this.drawNotFlat(notFlat.map((i) => entries[i]), notFlat.map((i) => low[i]), source);
      notFlat.forEach((place, i) => { sizes[place] = drawn[i]; });
    }
    return sizes;
  }

  /** @param {number} count @param {ByteSource} source */
  lowBits(count, source) {
    const size = this.offsetBits <= 8 ? 1 : this.offsetBits <= 16 ? 2 : 4;
    const { buffer } = source.bytes(size * count).slice();
    const drawn = size === 1 ? new Uint8Array(buffer) : size === 2 ? new Uint16Array(buffer) : new Uint32Array(buffer);
    const shift = 8 * size - this.offsetBits;
    for (let i = 0; i < count; i += 1) drawn[i] >>>= shift;
    return drawn;
  }

  /** Returns the sizes of draws that are a wedge, zero or "draw again". @param {number[]} entries @param {number[]} low @param {ByteSource} source */
  drawNotFlat(entries, low, source) {
    const [zero, again] = [2 * this.cells, 2 * this.cells + 1];
    const sizes = new Uint32Array(entries.length);
    const wedges = positions(entries, (entry) => entry < zero);
    const accepted = this.accepts(wedges.map((i) => entries[i] - this.cells), wedges.map((i) => low[i]), source);
    const mustRedraw = entries.map((entry) => entry === again);
    wedges.forEach((place, i) => {
      sizes[place] = (entries[place] - this.cells) * 2 ** this.offsetBits + low[place] + 1;
      mustRedraw[place] = !accepted[i];
    });
    const redrawn = positions(mustRedraw.map(Number), (must) => must === 1);
    if (redrawn.length > 0) {
      const drawn = this.draw(redrawn.length, source);
      redrawn.forEach((place, i) => { sizes[place] = drawn[i]; });
    }
    return sizes;
  }

  /** Returns for each wedge whether it is accepted. All sums are integers below 2^53. @param {number[]} cells @param {number[]} offsets @param {ByteSource} source */
  accepts(cells, offsets, source) {
    const first = randomWords(source, cells.length);
    const width = 2 ** this.offsetBits;
    const accepted = cells.map((cell, i) => (first[i] + this.margins[cell] + 1) * width <= (width - 1 - offsets[i]) * 2 ** 32);
    cells.forEach((cell, i) => {
      const isOpen = first[i] * width < (width - 1 - offsets[i]) * 2 ** 32 + this.margins[cell] * width;
      if (!accepted[i] && isOpen) accepted[i] = this.acceptsExactly(cell, offsets[i], first[i], source);
    });
    return accepted;
  }

  /** Decides a wedge from its mass and 96 more digits. @param {number} cell @param {number} offset @param {number} first @param {ByteSource} source */
  acceptsExactly(cell, offset, first, source) {
    const last = littleEndian(source, 12);
    const mass = this.normal.mass((BigInt(cell) << BigInt(this.offsetBits)) + BigInt(offset) + 1n);
    const aboveFloor = 2n * (mass - MASS_ERROR) * this.weightScale - (this.floors[cell] << WEIGHT_SHIFT);
    const u = (BigInt(first) << 96n) | last;
    return (u * this.rises[cell]) << WEIGHT_SHIFT < aboveFloor << 128n;
  }
}

/** Noise with a size and a uniform sign. */
export class Noise {
  /** @param {DigitwiseSizes | Staircase} sizes @param {number} largestSize */
  constructor(sizes, largestSize) {
    this.sizes = sizes;
    this.largestSize = largestSize;
  }

  /** Adds an independent draw to each integer. @param {Int32Array} units @param {ByteSource} [source] */
  addTo(units, source = systemBytes) {
    for (let start = 0; start < units.length; start += CHUNK) {
      const count = Math.min(CHUNK, units.length - start);
      const noise = this.sizes.draw(count, source);
      const signs = source.bytes(Math.ceil(count / 8));
      for (let i = 0; i < count; i += 1) {
        units[start + i] += (signs[i >> 3] >> (7 - (i & 7))) & 1 ? -noise[i] : noise[i];
      }
    }
  }
}

/**
 * Divides the sizes 1, ..., largest into cells of 2^bits sizes. Returns bits and the number of cells.
 * @param {bigint} largest @param {bigint} mostCells @returns {[number, number]}
 */
const divideIntoCells = (largest, mostCells) => {
  const bits = bitLength(ceilDiv(largest, mostCells) - 1n);
  return [bits, Number(ceilDiv(largest, 1n << BigInt(bits)))];
};

/** Returns noise with the distribution of round(N(0, scale^2)). @param {Fraction} scale at least 3 */
const roundedGaussian = (scale) => {
  const largest = ceilDiv(27n * scale.numerator, 2n * scale.denominator);
  if (largest >= BigInt(COLUMNS)) {
    const [bits, cells] = divideIntoCells(largest, BigInt(COLUMNS / 2 - 1));
    return new Noise(new Staircase(scale, bits, cells), cells * 2 ** bits);
  }
  const normal = new RoundedNormal(scale);
  const weights = Array.from({ length: Number(largest) }, (_, i) => {
    const mass = normal.mass(BigInt(i + 1));
    return mass > MASS_ERROR ? (2n * (mass - MASS_ERROR)) >> (FRACTION_BITS - WEIGHT_BITS) : 0n;
  });
  weights.push(TOTAL_WEIGHT - weights.reduce((a, b) => a + b));
  return new Noise(new DigitwiseSizes(new AliasTable(weights), Number(largest), []), Number(largest));
};

/** Returns noise with the distribution of round(Laplace(scale)). @param {Fraction} scale */
const roundedLaplace = ({ numerator: a, denominator: b }) => {
  const largest = ceilDiv(91n * a, b);
  let [lowBits, firstValues] = divideIntoCells(largest, BigInt(COLUMNS - 1));
  const largestSize = firstValues * 2 ** lowBits;
  /** @param {bigint} numerator @param {number} count @param {bigint} total weights proportional to exp(-digit numerator / a) */
  const geometric = (numerator, count, total) => {
    const loss = fraction(numerator, a);
    const terms = Array.from({ length: count }, (_, digit) => expMinus(BigInt(digit) * loss.numerator, loss.denominator));
    const sum = terms.reduce((x, y) => x + y);
    return terms.map((term) => (total * term) / sum);
  };
  const nonzero = (TOTAL_WEIGHT * expMinus(b, 2n * a)) >> FRACTION_BITS;
  const weights = geometric(b << BigInt(lowBits), firstValues, nonzero);
  const first = new AliasTable([...weights, TOTAL_WEIGHT - weights.reduce((x, y) => x + y)]);
  /** @type {[number, AliasTable][]} */
  const later = [];
  while (lowBits > 0) {
    const bits = Math.min(12, lowBits);
    lowBits -= bits;
    const digits = geometric(b << BigInt(lowBits), 2 ** bits, TOTAL_WEIGHT);
    digits[0] += TOTAL_WEIGHT - digits.reduce((x, y) => x + y);
    later.push([bits, new AliasTable(digits)]);
  }
  return new Noise(new DigitwiseSizes(first, firstValues, later), largestSize);
};

/** @type {Map<string, Noise>} */
const noiseByKey = new Map();

/** Returns the noise of a randomizer on its grid. Its table is made once. @param {Randomizer} randomizer */
export const noiseOf = (randomizer) => {
  const key = JSON.stringify(randomizer);
  const known = noiseByKey.get(key);
  if (known !== undefined) return known;
  const scale = noiseScale(randomizer);
  const noise = randomizer.kind === "gaussian" ? roundedGaussian(scale) : roundedLaplace(scale);
  noiseByKey.set(key, noise);
  return noise;
};

// -------------------------------------------------------------------------------------------- clipping

const MOST_CLIP_UNITS = 1n << 30n;
const MOST_UNITS = (1n << 31n) - 1n;
const MOST_SHRINKS = 52;

/**
 * @typedef {{ kind: "gaussian", noiseAt: "client" | "server", noiseMultiplier: number, clip: number, grid: number }} Gaussian
 * @typedef {{ kind: "laplace", localEpsilon: number, clip: number, grid: number }} Laplace
 * @typedef {Gaussian | Laplace} Randomizer
 */

/** Returns the scale of the noise in units of the grid. Throws if the grid is too fine or too coarse. @param {Randomizer} randomizer */
const noiseScale = (randomizer) => {
  const clip = over(exactly(randomizer.clip), exactly(randomizer.grid));
  if (clip.numerator < clip.denominator || clip.numerator > MOST_CLIP_UNITS * clip.denominator) {
    throw new CampaignRefused(`the grid ${randomizer.grid} does not fit the clip ${randomizer.clip}`);
  }
  const isGaussian = randomizer.kind === "gaussian";
  const scale = isGaussian
    ? times(exactly(randomizer.noiseMultiplier), clip)
    : over(times({ numerator: 2n, denominator: 1n }, clip), exactly(randomizer.localEpsilon));
  if (isGaussian && scale.numerator < 3n * scale.denominator) {
    throw new CampaignRefused(`the grid ${randomizer.grid} is too coarse for the noise`);
  }
  const cut = isGaussian ? fraction(27n, 2n) : fraction(91n, 1n);
  const noise = times(times(cut, scale), fraction(513n, 512n));
  // clip + noise + 2 must fit 32 bits
  const largest = clip.numerator * noise.denominator + noise.numerator * clip.denominator;
  if (largest > (MOST_UNITS - 2n) * clip.denominator * noise.denominator) {
    throw new CampaignRefused(`the grid ${randomizer.grid} is too fine: reports must fit 32 bits`);
  }
  return scale;
};

/** Returns the sum of an array as numpy computes it, in a tree of partial sums. @param {Float64Array} x @param {number} start @param {number} end @returns {number} */
const pairwiseSum = (x, start, end) => {
  const count = end - start;
  if (count < 8) {
    let sum = 0;
    for (let i = start; i < end; i += 1) sum += x[i];
    return sum;
  }
  if (count > 128) {
    const half = (count >> 1) - ((count >> 1) % 8);
    return pairwiseSum(x, start, start + half) + pairwiseSum(x, start + half, end);
  }
  const r = x.slice(start, start + 8);
  let i = start + 8;
  for (; i < end - (count % 8); i += 8) for (let j = 0; j < 8; j += 1) r[j] += x[i + j];
  let sum = r[0] + r[1] + (r[2] + r[3]) + (r[4] + r[5] + (r[6] + r[7]));
  for (; i < end; i += 1) sum += x[i];
  return sum;
};

/** Returns value / step, rounded toward zero, exact below 2^50. @param {number} value @param {number} step */
const divideTowardZero = (value, step) => {
  const quotient = value / step;
  const truncated = Math.trunc(quotient);
  if (truncated !== quotient || truncated === 0) return truncated;
  return Math.round((value - (value % step)) / step); // the remainder is exact
};

/** Returns the exact sum of |k| (order 1) or k^2 (order 2). @param {Int32Array} units @param {1 | 2} order */
const sumOfPowers = (units, order) => {
  let total = 0n;
  for (let start = 0; start < units.length; start += CHUNK) {
    let [squares, mixed, low] = [0, 0, 0]; // each stays below 2^53 in a chunk
    for (const unit of units.subarray(start, start + CHUNK)) {
      const size = Math.abs(unit);
      const [high, rest] = [Math.floor(size / 65536), size % 65536];
      if (order === 1) low += size;
      else {
        squares += high * high;
        mixed += high * rest;
        low += rest * rest;
      }
    }
    total += (BigInt(squares) << 32n) + (BigInt(mixed) << 17n) + BigInt(low);
  }
  return total;
};

/**
 * Shrinks an update to a norm of at most the clip, and rounds it toward zero to the grid. The norm is
 * decided on the integers. An update with a NaN or an infinity becomes zero.
 * @param {Float64Array} update @param {Randomizer} randomizer
 */
export const clipToUnits = (update, { kind, clip, grid: step }) => {
  const order = kind === "gaussian" ? 2 : 1;
  const exact = over(exactly(clip), exactly(step));
  const bound = exact.numerator ** BigInt(order) / exact.denominator ** BigInt(order);
  const zero = new Int32Array(update.length);
  let largest = 0;
  for (const value of update) {
    const size = Math.abs(value);
    if (!(size < Infinity)) return zero;
    if (size > largest) largest = size;
  }
  if (largest === 0) return zero;
  let powers = 0;
  for (let start = 0; start < update.length; start += CHUNK) {
    const terms = update.slice(start, start + CHUNK).map((value) => (order === 2 ? (value / largest) * (value / largest) : Math.abs(value / largest)));
    powers += pairwiseSum(terms, 0, terms.length);
  }
  let target = clip / (order === 2 ? Math.sqrt(powers) : powers);
  const units = new Int32Array(update.length);
  const fits = () => sumOfPowers(units, order) <= bound;
  if (largest <= nextUp(target * (1 + 2 ** -20))) {
    for (let i = 0; i < update.length; i += 1) units[i] = divideTowardZero(update[i], step);
    if (fits()) return units;
  }
  for (let shrink = 0; shrink < MOST_SHRINKS; shrink += 1) {
    for (let i = 0; i < update.length; i += 1) {
      const size = Math.abs(update[i]);
      const shrunk = Math.min((size / largest) * target, size);
      units[i] = divideTowardZero(update[i] < 0 ? -shrunk : shrunk, step);
    }
    if (fits()) return units;
    target *= 1 - 2 ** (shrink - MOST_SHRINKS);
  }
  return zero;
};

/** Returns the report of an update: clipped, and with noise unless the server adds it. @param {Float64Array} update @param {Randomizer} randomizer @param {ByteSource} source */
export const makeReport = (update, randomizer, source) => {
  const units = clipToUnits(update, randomizer);
  const isServer = randomizer.kind === "gaussian" && randomizer.noiseAt === "server";
  if (!isServer) noiseOf(randomizer).addTo(units, source);
  return units;
};

// -------------------------------------------------------------------------------- reports and models

/** Returns the bytes of a report: safetensors with one flat tensor of 32-bit integers. @param {Int32Array} units */
export const reportToBytes = (units) => {
  const bytes = 4 * units.length;
  const tensor = { dtype: "I32", shape: [units.length], data_offsets: [0, bytes] };
  const json = JSON.stringify({ report: tensor });
  const header = new TextEncoder().encode(json.padEnd(Math.ceil(json.length / 8) * 8));
  const report = new Uint8Array(8 + header.length + bytes);
  const view = new DataView(report.buffer);
  view.setBigUint64(0, BigInt(header.length), true);
  report.set(header, 8);
  units.forEach((unit, i) => view.setInt32(8 + header.length + 4 * i, unit, true));
  return report;
};

/** Returns the tensors of a model. Throws Malformed if the bytes are no model with these shapes. @param {Uint8Array} bytes @param {Shapes} shapes @returns {Tensors} */
export const modelFromBytes = (bytes, shapes) => {
  try {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const start = 8 + Number(view.getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, start)));
    /** @type {Tensors} */
    const tensors = Object.create(null);
    let read = 0;
    for (const [name, shape] of Object.entries(shapes)) {
      const { dtype, shape: sent, data_offsets: [from, to] } = header[name];
      const count = size(shape);
      if (dtype !== "F64" || JSON.stringify(sent) !== JSON.stringify(shape) || to - from !== 8 * count) throw new Malformed(name);
      tensors[name] = Float64Array.from({ length: count }, (_, i) => view.getFloat64(start + from + 8 * i, true));
      read += to - from;
    }
    const names = Object.keys(header).filter((name) => name !== "__metadata__");
    if (names.length !== Object.keys(shapes).length || start + read !== bytes.length) throw new Malformed("other tensors");
    return tensors;
  } catch (error) {
    throw new Malformed(`not a model of this campaign: ${error}`);
  }
};

/** Returns the number of elements of a tensor. @param {number[]} shape */
const size = (shape) => shape.reduce((product, length) => product * length, 1);

/** Returns an update as one vector, in the order of the shapes. @param {Record<string, ArrayLike<number>>} tensors @param {Shapes} shapes */
const flatten = (tensors, shapes) => {
  const names = Object.keys(shapes);
  if (Object.keys(tensors).length !== names.length) throw new TypeError(`an update has the tensors ${names.join(", ")}`);
  const parts = names.map((name) => Float64Array.from(tensors[name] ?? []));
  names.forEach((name, i) => {
    if (parts[i].length !== size(shapes[name])) throw new TypeError(`${name} must have ${size(shapes[name])} numbers`);
  });
  const flat = new Float64Array(parts.reduce((sum, part) => sum + part.length, 0));
  let start = 0;
  for (const part of parts) {
    flat.set(part, start);
    start += part.length;
  }
  return flat;
};

/** @param {Uint8Array} bytes */
const toBase64 = (bytes) => {
  let text = "";
  for (let start = 0; start < bytes.length; start += CHUNK) text += String.fromCharCode(...bytes.subarray(start, start + CHUNK));
  return btoa(text);
};

/** @param {string} text */
const fromBase64 = (text) => Uint8Array.from(atob(text), (unit) => unit.charCodeAt(0));

/** @param {Uint8Array} bytes */
const sha256 = async (bytes) => {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (bytes)));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
};

// -------------------------------------------------------------------------------- the sealed campaign
//
// The sealed text is canonical JSON: sorted keys, no spaces, numbers as Python prints them. Any other
// spelling and any unknown key is refused, because this version would not know what it means.

/** A number that the text writes with a point or an exponent. */
class Float {
  /** @param {number} value */
  constructor(value) {
    this.value = value;
  }
}

/** Returns a float that is not negative as Python prints it, such as 1e-06. @param {number} x */
const pythonFloat = (x) => {
  if (x === 0) return "0.0";
  const [mantissa, exponent] = x.toExponential().split("e");
  const power = Number(exponent);
  if (power < -4 || power >= 16) return `${mantissa}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  const plain = String(x);
  return plain.includes(".") ? plain : `${plain}.0`;
};

/** Parses canonical JSON. Floats become instances of Float. @param {string} text @returns {any} */
export const parseCanonical = (text) => {
  let at = 0;
  /** @param {string} problem @returns {never} */
  const refuse = (problem) => {
    throw new CampaignRefused(`the campaign is not in canonical form: ${problem} at column ${at + 1}`);
  };
  /** @param {RegExp} pattern sticky */
  const match = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found !== null) at += found[0].length;
    return found === null ? null : found[0];
  };
  const string = () => {
    const found = match(/"(?:[^"\\\x00-\x1f]|\\.)*"/y) ?? refuse("expected a text");
    const value = JSON.parse(found);
    return JSON.stringify(value) === found ? value : refuse("unusual escape");
  };
  /** @param {number} depth @returns {any} */
  const value = (depth) => {
    if (depth > 16) refuse("nested too deeply");
    if (text[at] === '"') return string();
    if (match(/\{/y)) {
      /** @type {Record<string, any>} */
      const table = Object.create(null);
      let last = null;
      while (!match(/\}/y)) {
        if (last !== null && !match(/,/y)) refuse("expected a comma");
        const key = string();
        if (last !== null && !isBefore(last, key)) refuse("keys out of order");
        if (!match(/:/y)) refuse("expected a colon");
        table[key] = value(depth + 1);
        last = key;
      }
      return table;
    }
    if (match(/\[/y)) {
      const list = [];
      while (!match(/\]/y)) {
        if (list.length > 0 && !match(/,/y)) refuse("expected a comma");
        list.push(value(depth + 1));
      }
      return list;
    }
    const word = match(/true|false/y);
    if (word !== null) return word === "true";
    const number = match(/-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[+-]\d+)?/y) ?? refuse("expected a value");
    const parsed = Number(number);
    const isInteger = /^-?\d+$/.test(number);
    const sign = number.startsWith("-") ? "-" : "";
    const spelled = isInteger ? String(parsed) : sign + pythonFloat(Math.abs(parsed));
    if (spelled !== number || (isInteger && !Number.isSafeInteger(parsed))) refuse("unusual number");
    return isInteger ? parsed : new Float(parsed);
  };
  const parsed = value(0);
  return at === text.length ? parsed : refuse("text after the end");
};

/** Compares by code points, as Python does. @param {string} a @param {string} b */
const isBefore = (a, b) => {
  const [first, second] = [Array.from(a), Array.from(b)];
  const place = first.findIndex((point, i) => point !== second[i]);
  if (place < 0) return first.length < second.length;
  return place < second.length && Number(first[place].codePointAt(0)) < Number(second[place].codePointAt(0));
};

const KEYS = /** @type {Record<string, Record<string, "text" | "float" | "integer" | "flag" | "table" | "list" | "any">>} */ ({
  "": { schema: "integer", name: "text", population_id: "text", budget: "table", protocol: "table", randomizer: "table", task: "table", schedule: "table" },
  budget: { epsilon: "float", delta: "float", adjacency: "text", population: "list", arrivals: "integer" },
  protocol: { kind: "text", slots: "integer", participation: "float", window: "integer", capacity: "integer", least_reports: "integer", wake_times: "text", repeats: "integer" },
  randomizer: { kind: "text", noise_at: "text", noise_multiplier: "float", local_epsilon: "float", categories: "integer", dimension: "integer", clip: "float", grid: "float", noise: "table" },
  "randomizer.noise": { bits: "integer", numerators: "list" },
  task: { data: "any", features: "text", model: "text", local_steps: "integer", local_rate: "float", average: "float", optimizer: "table" },
  "task.optimizer": { kind: "text", rate: "float", minibatch: "integer", schedule: "text", diameter: "float", divide_by: "integer", momentum: "float", nesterov: "flag", arguments: "table" },
  "task.data": { file: "text", client_column: "text", label_column: "text", features: "list", classes: "integer", holdout: "float", ranges: "table" },
  schedule: { start: "text", slot_s: "float", choose_s: "float" },
});

/** @param {any} value @param {string} kind */
const isOfKind = (value, kind) => {
  if (kind === "text") return typeof value === "string";
  if (kind === "float") return value instanceof Float && Number.isFinite(value.value) && value.value >= 0;
  if (kind === "integer") return typeof value === "number" && value >= 0;
  if (kind === "flag") return typeof value === "boolean";
  if (kind === "list") return Array.isArray(value);
  return kind === "any" || (typeof value === "object" && !Array.isArray(value) && !(value instanceof Float));
};

/** Returns the values of a table. Unknown keys and values of another kind are refused. @param {any} table @param {string} section @returns {Record<string, any>} */
const checkedTable = (table, section) => {
  /** @type {Record<string, any>} */
  const values = {};
  for (const [key, value] of Object.entries(table)) {
    const path = section === "" ? key : `${section}.${key}`;
    const kind = Object.hasOwn(KEYS[section], key) ? KEYS[section][key] : undefined;
    if (kind === undefined) throw new CampaignRefused(`the campaign has the key ${path}, which this device does not know`);
    if (!isOfKind(value, kind)) throw new CampaignRefused(`the campaign has a wrong value for ${path}`);
    const isTable = value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof Float);
    values[key] = value instanceof Float ? value.value : isTable && path in KEYS ? checkedTable(value, path) : value;
  }
  return values;
};

/** Returns seconds since 1970, or null. @param {any} text a time to microseconds, with its offset from UTC */
const timeOrNull = (text) => {
  const found = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)$/.exec(String(text));
  const seconds = found === null ? NaN : Date.parse(found[1] + found[3]) / 1000;
  if (found === null || !Number.isFinite(seconds)) return null;
  return (seconds * 1e6 + Number((found[2] ?? "").padEnd(6, "0"))) / 1e6;
};

/** @param {any} text */
const parseTime = (text) => {
  const seconds = timeOrNull(text);
  if (seconds === null) throw new Malformed(`not a time: ${text}`);
  return seconds;
};

/**
 * @typedef {{
 *   text: string, seal: string, name: string, populationKey: string, epsilon: number, delta: number,
 *   adjacency: Adjacency, protocol: string, slots: number, participation: number, window: number | null,
 *   leastReports: number | null, repeats: number, randomizer: Randomizer, startS: number, slotS: number,
 *   chooseS: number, task: { data: any, features: string | null, model: string, localSteps: number, localRate: number },
 * }} Campaign The sealed parameters that a device uses.
 */

/** Returns the campaign of a sealed text. Throws CampaignRefused if a device cannot join it. @param {string} text @param {string} seal the hash of the text @returns {Campaign} */
export const parseCampaign = (text, seal) => {
  const table = parseCanonical(text);
  if (table?.schema !== 1) throw new CampaignRefused(`the campaign has the schema ${table?.schema}, and this device knows schema 1`);
  const { budget, protocol, randomizer, task, schedule, ...top } = checkedTable(table, "");
  if (!budget || !protocol || !randomizer) throw new CampaignRefused("the campaign has no budget, protocol or randomizer");
  /** @param {boolean} holds @param {string} what */
  const require = (holds, what) => {
    if (!holds) throw new CampaignRefused(`clients cannot join the campaign: ${what}`);
  };
  const { kind, clip, grid } = randomizer;
  const isGaussian = kind === "gaussian";
  require(isGaussian || kind === "laplace", `devices have no exact sampler for the randomizer ${kind}`);
  require(clip > 0 && grid > 0, "it has no clip or no grid");
  require(task !== undefined && schedule !== undefined, "it has no task or no schedule");
  require(task.optimizer?.kind === "sgd", 'its optimizer is not "sgd"');
  require(isGaussian ? randomizer.noise_multiplier > 0 && ["client", "server"].includes(randomizer.noise_at) : randomizer.local_epsilon > 0, "its noise is incomplete");
  require(["fixed", "sliding", "averaged"].includes(protocol.kind), `its protocol is ${protocol.kind}`);
  require((protocol.kind === "sliding") === (protocol.window !== undefined), "a window is for the sliding protocol");
  const { slots, window = null, participation, repeats } = protocol;
  require(slots >= 1 && repeats >= 1 && participation <= 1 && (window === null || (window >= 1 && window <= slots)), "its protocol has values out of range");
  require(budget.epsilon > 0 && budget.delta > 0 && budget.delta < 1 && ["add-remove", "replace-one"].includes(budget.adjacency), "its budget has values out of range");
  require(schedule.choose_s > 0 && schedule.choose_s < schedule.slot_s, "its schedule has values out of range");
  require(task.local_steps >= 1 && typeof task.model === "string" && task.data !== undefined, "its task is incomplete");
  const startS = timeOrNull(schedule.start);
  if (startS === null) throw new CampaignRefused(`the campaign has no start that is a time: ${schedule.start}`);
  /** @type {Randomizer} */
  const noise = isGaussian
    ? { kind, noiseAt: randomizer.noise_at, noiseMultiplier: randomizer.noise_multiplier, clip, grid }
    : { kind, localEpsilon: randomizer.local_epsilon, clip, grid };
  noiseScale(noise);
  return {
    text, seal, name: top.name, populationKey: top.population_id === undefined ? `seal ${seal}` : `population ${top.population_id}`,
    epsilon: budget.epsilon, delta: budget.delta, adjacency: budget.adjacency, protocol: protocol.kind, slots, participation, window,
    leastReports: protocol.least_reports ?? null, repeats, randomizer: noise,
    startS, slotS: schedule.slot_s, chooseS: schedule.choose_s,
    task: { data: task.data, features: task.features ?? null, model: task.model, localSteps: task.local_steps, localRate: task.local_rate ?? 1 },
  };
};

// -------------------------------------------------------------------------------------- view of a run

const MOST_NUMBERS = 2 ** 24;
const SHA256 = /^[0-9a-f]{64}$/;
const FINISHED = ["completed", "stopped"];

/** The public description of a run that the service sends, checked against the sealed text. */
export class View {
  /** @param {Campaign} campaign @param {any} fields */
  constructor(campaign, fields) {
    this.campaign = campaign;
    this.id = /** @type {string} */ (fields.id);
    this.run = integer(fields.run);
    this.status = /** @type {string} */ (fields.status);
    this.epoch = integer(fields.epoch);
    this.slotsClosed = integer(fields.slots_closed);
    this.entries = integer(fields.ledger.entries);
    this.head = /** @type {string} */ (fields.ledger.head);
    this.enrolment = /** @type {string} */ (fields.enrolment);
    this.serverTimeS = parseTime(fields.server_time);
    /** @type {Shapes} */
    this.shapes = Object.fromEntries(fields.tensors.map((/** @type {any} */ tensor) => [String(tensor.name), tensor.shape.map(integer)]));
    this.dimension = Object.values(this.shapes).reduce((sum, shape) => sum + size(shape), 0);
  }

  get isOver() {
    return FINISHED.includes(this.status);
  }

  /** When a slot begins, in seconds since 1970 on the server's clock. @param {number} slot */
  begins(slot) {
    return this.campaign.startS + ((this.run - 1) * this.campaign.slots + slot - 1) * this.campaign.slotS;
  }

  /** When the check-ins of a slot end. @param {number} slot */
  chooses(slot) {
    return this.begins(slot) + this.campaign.chooseS;
  }

  /** @param {number} slot */
  ends(slot) {
    return this.begins(slot + 1);
  }

  /** Returns the first slot that accepts check-ins at a time. @param {number} momentS */
  firstOpenSlot(momentS) {
    const slot = Math.max(1, Math.floor((momentS - this.begins(1)) / this.campaign.slotS) + 1);
    return momentS < this.chooses(slot) ? slot : slot + 1;
  }
}

/** @param {any} value */
const integer = (value) => {
  if (!Number.isSafeInteger(value) || value < 0) throw new Malformed(`not an integer: ${value}`);
  return /** @type {number} */ (value);
};

/** Parses a view. Throws Malformed if it is none, and CampaignRefused if it contradicts the sealed text. @param {Uint8Array} body @returns {Promise<View>} */
export const parseView = async (body) => {
  let fields;
  try {
    fields = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch (error) {
    throw new Malformed(`not JSON: ${error}`);
  }
  const { campaign: text, seal } = fields ?? {};
  if (typeof text !== "string" || typeof seal !== "string") throw new Malformed("not a campaign view");
  const hash = `sha256:${await sha256(new TextEncoder().encode(text))}`;
  if (hash !== seal) throw new CampaignRefused(`the seal ${seal} is not the hash of the campaign, ${hash}`);
  const campaign = parseCampaign(text, seal);
  let view;
  let isConsistent;
  try {
    view = new View(campaign, fields);
    const { schedule } = fields;
    if (!SHA256.test(view.head) || typeof view.status !== "string") throw new Malformed("no head or status");
    isConsistent = view.id === `${hash.slice(7, 19)}-${view.run}`
      && view.run >= 1 && view.run <= campaign.repeats && fields.dimension === view.dimension
      && schedule.slot_s === campaign.slotS && schedule.choose_s === campaign.chooseS && schedule.slots === campaign.slots
      && Math.abs(parseTime(schedule.start) - view.begins(1)) < 1e-3;
  } catch (error) {
    throw new Malformed(`not a campaign view: ${error}`);
  }
  if (!isConsistent) throw new CampaignRefused("the view does not agree with the sealed text");
  const isSmall = view.dimension >= 1 && view.dimension <= MOST_NUMBERS && Object.values(view.shapes).every((shape) => shape.every((length) => length >= 1));
  if (!isSmall) throw new CampaignRefused(`the tensors must hold 1 to ${MOST_NUMBERS} numbers`);
  // Objects of JavaScript have keys such as "2" before all others, in ascending order.
  const names = Object.keys(view.shapes);
  const isInOrder = fields.tensors.length === names.length && names.every((name, i) => name === String(fields.tensors[i].name));
  if (!isInOrder) throw new CampaignRefused("this device cannot keep the order of tensors with these names");
  return view;
};

// ------------------------------------------------------------------------------------------- odometer

/** @param {unknown} value a text or a list may also be compared with 0 */
const isAmount = (value) => typeof value === "number" && value >= 0;

/**
 * An upper bound on the privacy loss of all participations of this device
 * (docs/theory/device-odometer.md).
 */
export class Odometer {
  /** @param {Charge[]} charges */
  constructor(charges = []) {
    this.charges = charges;
  }

  /** @param {string | null} text */
  static parse(text) {
    if (text === null) return new Odometer();
    try {
      const { schema, charges } = JSON.parse(text);
      if (schema !== 1) throw new TypeError("the odometer has another schema");
      for (const charge of charges) {
        const isValid = (charge.epsilon === null || isAmount(charge.epsilon)) && isAmount(charge.delta) && Array.isArray(charge.runs)
          && ["add-remove", "replace-one"].includes(charge.adjacency) && typeof charge.head === "string" && typeof charge.population === "string";
        if (!isValid) throw new TypeError("a charge is damaged");
      }
      return new Odometer(charges.map((/** @type {Charge} */ charge) => ({ ...charge, epsilon: charge.epsilon ?? Infinity })));
    } catch (error) {
      throw new InvalidState(`the odometer of this device is damaged, so what it has spent is unknown (${error})`);
    }
  }

  /** An infinite epsilon is stored as null. */
  text() {
    const charges = this.charges.map((charge) => ({ ...charge, epsilon: charge.epsilon === Infinity ? null : charge.epsilon }));
    return JSON.stringify({ schema: 1, charges });
  }

  /** Returns the charge of a campaign, as if it had a ledger of its own. @param {View} view @returns {Charge} */
  static chargeOf({ campaign, entries, head, id }) {
    const isBounded = campaign.protocol !== "averaged" || campaign.leastReports !== null;
    return {
      population: campaign.populationKey, adjacency: campaign.adjacency, epsilon: isBounded ? campaign.epsilon : Infinity,
      delta: campaign.delta, entries, head, runs: [id],
    };
  }

  /**
   * Returns the odometer with the charge of a campaign. A run is charged once.
   * @param {View} view @param {Set<string>} sameLedger heads that the ledger of the campaign contains
   */
  charged(view, sameLedger) {
    const added = Odometer.chargeOf(view);
    const place = this.charges.findIndex((old) => {
      const isSame = sameLedger.has(old.head) || old.head === added.head || old.runs.includes(view.id);
      return isSame && old.population === added.population && old.adjacency === added.adjacency && old.epsilon >= added.epsilon && old.delta >= added.delta;
    });
    if (place < 0) return new Odometer([...this.charges, added]);
    const old = this.charges[place];
    const merged = { ...old, entries: added.entries, head: added.head, runs: [...new Set([...old.runs, view.id])] };
    return new Odometer(this.charges.map((charge, i) => (i === place ? merged : charge)));
  }

  /** The sum of all charges, rounded up. @returns {PrivacyLoss} */
  total() {
    const isMixed = this.charges.some(({ adjacency }) => adjacency === "replace-one");
    const losses = this.charges.map(({ adjacency, epsilon, delta }) => {
      if (!isMixed || adjacency === "replace-one") return { epsilon, delta };
      const factor = epsilon > 700 ? Infinity : 1 + Math.exp(epsilon);
      return { epsilon: 2 * epsilon, delta: delta * factor * (1 + 1e-12) }; // more than all rounding errors
    });
    return {
      epsilon: sumUp(losses.map(({ epsilon }) => epsilon)),
      delta: Math.min(1, sumUp(losses.map(({ delta }) => delta))),
      adjacency: isMixed ? "replace-one" : "add-remove",
    };
  }
}

// -------------------------------------------------------------------------------------------- storage

const LOCK_TIMEOUT_S = 5; // a tab that is reloaded may hold its locks for a moment
const ODOMETER = "odometer";
const RUN = /^[0-9a-f]{12}-\d{1,7}$/;

/** Keeps the state of one device in IndexedDB. All tabs of an origin with the same name are one device. @implements {Store} */
export class IndexedDbStore {
  /** @param {string} [name] */
  constructor(name = "checkins") {
    this.name = name;
  }

  /**
   * @template Result
   * @param {IDBTransactionMode} mode @param {(states: IDBObjectStore) => IDBRequest<Result>} work @returns {Promise<Result>}
   */
  async transact(mode, work) {
    const database = await new Promise((/** @type {(database: IDBDatabase) => void} */ resolve, reject) => {
      const opening = indexedDB.open(this.name, 1);
      opening.onupgradeneeded = () => { opening.result.createObjectStore("states"); };
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = () => reject(opening.error);
    });
    try {
      return await new Promise((resolve, reject) => {
        const transaction = database.transaction("states", mode, { durability: "strict" });
        const request = work(transaction.objectStore("states"));
        transaction.oncomplete = () => resolve(request.result);
        // The error is null if the browser itself ends the transaction, as when storage is cleared.
        transaction.onabort = () => reject(transaction.error ?? new InvalidState("the browser has closed the storage of this device"));
      });
    } finally {
      database.close();
    }
  }

  /** @param {string} key @returns {Promise<string | null>} */
  async load(key) {
    return (await this.transact("readonly", (states) => states.get(key))) ?? null;
  }

  /** Replaces a text. It is durable when the promise resolves. @param {string} key @param {string} text */
  async save(key, text) {
    await this.transact("readwrite", (states) => states.put(text, key));
  }

  async keys() {
    return (await this.transact("readonly", (states) => states.getAllKeys())).map(String);
  }

  /**
   * @template Result
   * @param {string} name @param {() => Promise<Result>} work @returns {Promise<Result>}
   */
  async lock(name, work) {
    if (!navigator.locks) throw new InvalidState("this browser has no Web Locks, so two tabs could take part twice: open the page over HTTPS");
    const waiting = new AbortController();
    const timer = setTimeout(() => waiting.abort(), 1000 * LOCK_TIMEOUT_S);
    let isHeld = false;
    try {
      return await navigator.locks.request(`${this.name}: ${name}`, { signal: waiting.signal }, () => {
        isHeld = true;
        clearTimeout(timer);
        return work();
      });
    } catch (error) {
      if (isHeld || !waiting.signal.aborted) throw error;
      throw new InvalidState("the state of this device is in use by another tab");
    }
  }
}

const PHASES = [undefined, "DRAWN", "PRIVATIZED"];
/** @type {Outcome[]} */
const OUTCOMES = ["ABSTAINED", "MISSED", "REFUSED", "DISMISSED", "LATE", "REPORTED"];
const WITHDRAWN = "WITHDRAWN";

/** Returns the stored state of a run. A damaged state is never replaced, because the device could take part twice. @param {string | null} text @param {string} run @returns {SavedState} */
const parseState = (text, run) => {
  if (text === null) return { campaign: run, epoch: 0, slots_closed: 0, entries: 0 };
  try {
    const { schema, ...state } = JSON.parse(text);
    const isWhole = state.phase !== "PRIVATIZED" || [state.slot, state.receipt, state.report].every((value) => value !== undefined);
    const isKnown = schema === 1 && state.campaign === run && PHASES.includes(state.phase) && isWhole;
    const isEnded = state.ended === undefined || state.ended === WITHDRAWN || OUTCOMES.includes(state.ended);
    if (!isKnown || !isEnded) throw new TypeError("its schema or its values are unknown");
    return { epoch: 0, slots_closed: 0, entries: 0, ...state };
  } catch (error) {
    throw new InvalidState(`the stored state of this device is damaged (${error})`);
  }
};

// ------------------------------------------------------------------------------------------- requests

const RESPONSE_TIMEOUT_S = 20;
const MOST_SHORT_BYTES = 64 * 1024;
const MOST_VIEW_BYTES = 8 * 2 ** 20;
const MOST_LISTING_BYTES = 16 * 2 ** 20;
const MOST_OUTCOME_BYTES = 2 ** 17;
const FIRST_BACKOFF_S = 0.25;
const LONGEST_BACKOFF_S = 15;
const ROLLBACK_CHECKS = 5;
const RETRYABLE = ["too-many", "too-slow", "too-early"];
const NOTHING_SENT = "this device neither checks in nor reports";
const MOST_SLEEP_S = 30;
const MOST_CLOCK_DRIFT = 2e-4;
const SAFE_SECRET = /^[\w.~+/=-]{1,512}$/;

/** The effects of a real device. Neither the calendar, which its owner can set, nor Math.random decides anything. @type {Platform} */
const browserPlatform = {
  fetch: (...request) => fetch(...request),
  monotonicS: () => performance.now() / 1000,
  calendarS: () => Date.now() / 1000,
  sleep: (seconds) => new Promise((resolve) => { setTimeout(resolve, 1000 * seconds); }),
  source: systemBytes,
};

/** @param {Response} response @returns {any} the JSON object in a body, or an empty one */
const objectIn = ({ body }) => {
  try {
    const parsed = JSON.parse(new TextDecoder().decode(body));
    return parsed !== null && typeof parsed === "object" ? parsed : {};
  } catch {
    return {};
  }
};

/** Returns the type of a problem document, or null. @param {Response | null} response */
const problemOf = (response) => {
  const type = response !== null && response.status >= 400 && response.status < 500 ? String(objectIn(response).type) : "";
  return type.startsWith("urn:checkins:") ? type.slice("urn:checkins:".length) : null;
};

/** Whether a retry cannot change a response. @param {Response | null} response */
const isFinal = (response) => {
  const problem = problemOf(response);
  return problem !== null && !RETRYABLE.includes(problem);
};

/** @param {unknown} secret */
const safeSecret = (secret) => (typeof secret === "string" && SAFE_SECRET.test(secret) ? secret : null);

/** @param {string} credential */
const bearer = (credential) => ({ Authorization: `Bearer ${credential}` });

/** Sends the requests of a device, with retries, and estimates the server's clock. */
class Service {
  /** @param {string} url @param {string} run @param {Platform} platform @param {number} retryTimeoutS */
  constructor(url, run, platform, retryTimeoutS) {
    this.url = url.replace(/\/$/, "");
    this.run = run;
    this.platform = platform;
    this.retryTimeoutS = retryTimeoutS;
    this.attempts = 0;
    /** @type {{ offsetS: number, errorS: number, atS: number } | null} */
    this.clock = null;
  }

  /** Sends a request once. Returns null if no usable response came, although the service may have received it. @param {Request} request @returns {Promise<Response | null>} */
  async send({ method = "GET", path, headers = {}, body, timeoutS = RESPONSE_TIMEOUT_S, maxBytes = MOST_SHORT_BYTES }) {
    const { platform } = this;
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(), 1000 * timeoutS);
    const sentS = platform.monotonicS();
    try {
      const response = await platform.fetch(`${this.url}${path}`, {
        method, headers, body: /** @type {BodyInit | undefined} */ (body), signal: limit.signal,
        cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
      });
      const reader = response.body?.getReader();
      const chunks = [];
      let length = 0;
      for (let part = await reader?.read(); part !== undefined && !part.done; part = await reader?.read()) {
        length += part.value.length;
        if (length > maxBytes) {
          limit.abort();
          return null;
        }
        chunks.push(part.value);
      }
      const received = new Uint8Array(length);
      chunks.reduce((start, chunk) => {
        received.set(chunk, start);
        return start + chunk.length;
      }, 0);
      const wait = Number(response.headers.get("retry-after") ?? 0);
      const retryAfterS = Math.min(Math.max(0, Number.isFinite(wait) ? wait : 0), 3600);
      return { status: response.status, body: received, sentS, receivedS: platform.monotonicS(), retryAfterS };
    } catch {
      return null;
    } finally {
      clearTimeout(timer);
    }
  }

  /** The server's time in seconds since 1970. */
  serverS() {
    if (this.clock === null) throw new ServiceFailed("the server's clock is not known yet");
    return this.platform.monotonicS() + this.clock.offsetS;
  }

  /** Keeps the more accurate of two estimates of the server's clock. @param {View} view @param {Response} response */
  readClock({ serverTimeS }, { sentS, receivedS }) {
    const estimate = { offsetS: serverTimeS - (sentS + receivedS) / 2, errorS: (receivedS - sentS) / 2, atS: receivedS };
    const oldErrorS = this.clock === null ? Infinity : this.clock.errorS + MOST_CLOCK_DRIFT * (estimate.atS - this.clock.atS);
    if (oldErrorS >= estimate.errorS) this.clock = estimate;
  }

  /** Returns the seconds before the next attempt, and counts this attempt. @param {Response | null} response @param {number} firstS @param {number} longestS */
  backoffS(response, firstS = FIRST_BACKOFF_S, longestS = LONGEST_BACKOFF_S) {
    const delayS = Math.min(LONGEST_BACKOFF_S, longestS, Math.min(FIRST_BACKOFF_S, firstS) * 2 ** Math.min(this.attempts, 20));
    this.attempts += 1;
    return delayS * (0.5 + 0.5 * jitter(this.platform.source)) + (response?.retryAfterS ?? 0);
  }

  /**
   * Repeats a request until parse returns a value. A busy service is retried without a limit, and one
   * that cannot be reached or responds incorrectly for retryTimeoutS.
   * @template Result
   * @param {Request} request @param {(response: Response) => Result | null | Promise<Result | null>} parse @returns {Promise<Result>}
   */
  async retryUntil(request, parse) {
    /** @type {number | null} */
    let failingSinceS = null;
    for (;;) {
      const response = await this.send(request);
      if (response !== null) {
        const parsed = await parse(response);
        if (parsed !== null) {
          this.attempts = 0;
          return parsed;
        }
        if (isFinal(response)) throw refusal(request, response);
      }
      const nowS = this.platform.monotonicS();
      const isBusy = response?.status === 503 || RETRYABLE.includes(problemOf(response) ?? "");
      failingSinceS = isBusy ? null : failingSinceS ?? nowS;
      if (failingSinceS !== null && nowS - failingSinceS >= this.retryTimeoutS) {
        throw new ServiceFailed(`the service does not respond correctly: ${response === null ? "no response" : `status ${response.status}`}`);
      }
      await this.platform.sleep(this.backoffS(response));
    }
  }

  /** Parses a view and updates the clock. Returns null if the response is no view. @param {Response} response @param {SavedState} saved */
  async viewIn(response, saved) {
    if (response.status !== 200) return null;
    let view;
    try {
      view = await parseView(response.body);
    } catch (error) {
      if (error instanceof Malformed) return null;
      throw error;
    }
    if (view.id !== this.run) throw new CampaignRefused(`the campaign ${view.id} must be ${this.run}`);
    if (saved.seal !== undefined && view.campaign.seal !== saved.seal) throw new CampaignRefused(`the seal must be ${saved.seal}, as it was before`);
    this.readClock(view, response);
    return view;
  }

  /** @returns {Request} */
  viewRequest() {
    return { path: `/campaigns/${this.run}`, maxBytes: MOST_VIEW_BYTES };
  }

  /** @param {number} entries @returns {Request} */
  headRequest(entries) {
    return { path: `/campaigns/${this.run}/ledger/heads/${entries}` };
  }

  /** Fetches the view, with retries. Throws if it is older than the saved state. @param {SavedState} saved */
  async fetchView(saved) {
    for (let check = 0; check < ROLLBACK_CHECKS; check += 1) {
      const view = await this.retryUntil(this.viewRequest(), (response) => this.viewIn(response, saved));
      if (!isRolledBack(view, saved) && (await this.containsSavedLine(view, saved))) return view;
      await this.platform.sleep(1);
    }
    throw new ServiceFailed(`the service was rolled back to an older state; ${NOTHING_SENT}`);
  }

  /** @param {View} view @param {SavedState} saved */
  async containsSavedLine(view, saved) {
    if (viewShowsSavedLine(view, saved)) return true;
    return this.retryUntil(this.headRequest(saved.entries), (response) => savedLineIn(response, saved));
  }

  /** Fetches the view once. Returns null if no usable response comes. @param {SavedState} saved */
  async tryFetchView(saved) {
    const response = await this.send(this.viewRequest());
    const view = response === null ? null : await this.viewIn(response, saved);
    if (view === null) return null;
    if (isRolledBack(view, saved)) return this.fetchView(saved);
    if (viewShowsSavedLine(view, saved)) return view;
    const line = await this.send(this.headRequest(saved.entries));
    const contains = line === null ? null : savedLineIn(line, saved);
    if (contains === false) return this.fetchView(saved);
    return contains ? view : null;
  }

  /** Returns the head that the ledger had at a length, or an empty text if the service cannot show it. @param {number} entries */
  async fetchHead(entries) {
    return this.retryUntil(this.headRequest(entries), (response) => {
      if (["unknown-entry", "unknown-path"].includes(problemOf(response) ?? "")) return "";
      const line = objectIn(response);
      return response.status === 200 && line.entries === entries ? String(line.head) : null;
    });
  }
}

/** @param {Request} request @param {Response} response */
const refusal = (request, response) => {
  const { detail, title } = objectIn(response);
  const why = String(detail ?? title ?? `status ${response.status}`);
  const problem = problemOf(response) ?? "";
  if (problem === "not-enrolled") return new CampaignRefused(`no valid enrolment key: ${why}`);
  return ["unknown-campaign", "over"].includes(problem) ? new CampaignRefused(why) : new ServiceFailed(`the service refused ${request.path}: ${why}`);
};

/** @param {View} view @param {SavedState} saved */
const isRolledBack = (view, saved) => view.epoch < saved.epoch || view.slotsClosed < saved.slots_closed || view.entries < saved.entries;

/** @param {string} head @param {SavedState} saved */
const checkHead = (head, saved) => {
  if (head === saved.head) return;
  throw new ServiceFailed(`the service was rolled back: entry ${saved.entries} of its ledger has another hash, so slots may be released twice; ${NOTHING_SENT}`);
};

/** Whether the view is enough to check the saved line of the ledger. @param {View} view @param {SavedState} saved */
const viewShowsSavedLine = (view, saved) => {
  if (saved.head !== undefined && view.entries === saved.entries) checkHead(view.head, saved);
  return saved.head === undefined || view.entries === saved.entries;
};

/** Returns whether the ledger still contains the saved line: false if it is now shorter, null if the response is not usable. @param {Response} response @param {SavedState} saved */
const savedLineIn = (response, saved) => {
  const problem = problemOf(response);
  if (problem === "unknown-entry") return false;
  if (problem === "unknown-path") throw new ServiceFailed(`the service cannot show earlier hashes of its ledger, so a rollback cannot be excluded; ${NOTHING_SENT}`);
  const { entries, head } = objectIn(response);
  if (response.status !== 200 || entries !== saved.entries || typeof head !== "string") return null;
  checkHead(head, saved);
  return true;
};

/**
 * Returns the id and the name of the first open run of the only open campaign.
 * @param {string} url @param {Platform} [platform] @returns {Promise<{ run: string, name: string }>}
 */
export const openRun = async (url, platform = browserPlatform) => {
  const service = new Service(url, "", platform, 10);
  const listing = await service.retryUntil({ path: "/campaigns", maxBytes: MOST_LISTING_BYTES }, (response) => {
    const { campaigns } = objectIn(response);
    return response.status === 200 && Array.isArray(campaigns) ? campaigns : null;
  });
  const runs = listing.filter(({ status }) => !FINISHED.includes(status)).sort((a, b) => a.run - b.run);
  const seals = new Set(runs.map(({ id }) => String(id).split("-")[0]));
  if (seals.size !== 1) throw new CampaignRefused(seals.size === 0 ? "no campaign is open here" : "several campaigns are open: name one of their runs");
  return { run: String(runs[0].id), name: String(runs[0].name) };
};

// --------------------------------------------------------------------------------------------- device

const LONG_SLEEP_S = 60;
const CLOCK_CHECK_BEFORE_SLOT_S = [5, 30];
const CHECK_IN_SPREAD = 0.25;
const MOST_POLL_S = 30;
const MOST_HELD_CHECK_IN_S = 2;
const MOST_LOGGED_UNITS = 10_000;

/** The slot of the device has ended. */
class SlotOver extends Error {}

/** Refuses an address without encryption on another machine. @param {string} url @param {boolean} plainHttp */
const checkUrl = (url, plainHttp) => {
  const { protocol, hostname } = new URL(url);
  const isLocal = hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
  if (protocol === "https:" || (protocol === "http:" && (isLocal || plainHttp))) return;
  throw new CampaignRefused(`${url} is not encrypted, so anyone on the network path can read and change what is sent`);
};

/**
 * One device in one run of a campaign. run takes part, or resumes after a reload; withdraw leaves.
 *
 * The draw is durable before the check-in is sent, and the report is durable before it is sent. A device
 * that is offline during its slot does not take part. At the end only the id of the run and the outcome
 * are stored. seal, mostEpsilon and accept restrict which campaigns are joined. onEvent gets every event,
 * for the owner of the device; events must not be stored, because they link the device to its slot.
 */
export class Device {
  /** @param {Options} options */
  constructor({ url, run, trainer, store = new IndexedDbStore(), key, seal, mostEpsilon, accept, onEvent, retryTimeoutS = 60, plainHttp = false, platform = browserPlatform }) {
    checkUrl(url, plainHttp);
    if (!RUN.test(run)) throw new CampaignRefused(`${run} is not the id of a run`);
    this.runId = run;
    this.trainer = trainer;
    this.store = store;
    this.key = key;
    this.seal = seal;
    this.mostEpsilon = mostEpsilon;
    this.accept = accept;
    this.onEvent = onEvent;
    this.platform = platform;
    this.service = new Service(url, run, platform, retryTimeoutS);
    /** @type {SavedState} */
    this.saved = parseState(null, run);
    /** @type {View} */
    this.view = /** @type {any} */ (null);
    /** @type {any} */
    this.knownOutcome = null;
    /** @type {unknown} */
    this.trainingError = null;
  }

  /** Takes part, or resumes after a reload or a kill. Returns the outcome. @returns {Promise<Outcome>} */
  async run() {
    return this.store.lock(this.runId, async () => {
      this.saved = parseState(await this.store.load(this.runId), this.runId);
      if (this.saved.ended === undefined) {
        await this.begin();
        await this.end(await this.participate());
        if (this.trainingError !== null) throw this.trainingError;
      }
      if (this.saved.ended === WITHDRAWN) throw new CampaignRefused("this device has withdrawn from this run");
      return /** @type {Outcome} */ (this.saved.ended);
    });
  }

  /** Leaves the run for good. Returns false if there was nothing to withdraw. */
  async withdraw() {
    return this.store.lock(this.runId, async () => {
      this.saved = parseState(await this.store.load(this.runId), this.runId);
      if (this.saved.ended !== undefined) return false;
      const isEnrolled = this.saved.key !== undefined;
      if (isEnrolled) {
        if (this.saved.token === undefined) await this.fetchToken();
        const gone = ["refused", "not-enrolled", "unknown-campaign", "over"];
        const request = { method: "DELETE", path: `/campaigns/${this.runId}/enrolments`, headers: bearer(String(this.saved.token)) };
        await this.service.retryUntil(request, (response) => response.status === 204 || gone.includes(problemOf(response) ?? "") || null);
      }
      this.saved = { ...parseState(null, this.runId), ended: WITHDRAWN };
      await this.save();
      if (isEnrolled) await this.tell("withdrawn");
      return isEnrolled;
    });
  }

  /** An upper bound on the privacy loss of all participations of this store. @returns {Promise<PrivacyLoss>} */
  async spent() {
    return Odometer.parse(await this.store.load(ODOMETER)).total();
  }

  /** Returns how this run stands in the store: null before the draw, "DRAWN", "PRIVATIZED", or how it ended. */
  async stored() {
    const { phase, ended } = parseState(await this.store.load(this.runId), this.runId);
    return ended ?? phase ?? null;
  }

  /** Replaces the stored state, durably. At the end, only the id of the run and the outcome are kept. */
  async save() {
    const { campaign, ended } = this.saved;
    await this.store.save(this.runId, JSON.stringify({ schema: 1, ...(ended === undefined ? this.saved : { campaign, ended }) }));
  }

  /** @param {string} event @param {Record<string, unknown>} [fields] */
  async tell(event, fields = {}) {
    await this.onEvent?.({ event, campaign: this.runId, ...fields });
  }

  /** Checks the campaign, enrols and draws, unless a draw is stored. */
  async begin() {
    await this.fetchView();
    const { campaign } = this.view;
    if (this.seal !== undefined && campaign.seal !== this.seal) throw new CampaignRefused(`the seal ${campaign.seal} must be ${this.seal}`);
    await this.accept?.(campaign);
    const hasDrawn = this.saved.phase !== undefined;
    if (this.view.isOver && !hasDrawn) throw new CampaignRefused(`the run is over: it has ${this.view.status}`);
    const sameLedger = await this.headsInLedger();
    if (!hasDrawn) {
      await this.checkOdometer(sameLedger);
      await this.enrol();
    }
    await this.store.lock(ODOMETER, async () => { // durable before the draw is saved
      await this.store.save(ODOMETER, (await this.checkOdometer(sameLedger)).text());
    });
    if (hasDrawn) {
      await this.tell("restarted", { slot: this.saved.slot ?? null });
      return;
    }
    const slot = drawSlot(campaign, this.view.firstOpenSlot(this.service.serverS()), this.platform.source);
    this.saved = { ...this.saved, phase: "DRAWN", ...(slot === null ? {} : { slot }) };
    await this.save();
    await this.tell("drawn", { slot });
  }

  async fetchView() {
    await this.useView(await this.service.fetchView(this.saved));
  }

  /** Records what shows a rollback of the service. @param {View} view */
  async useView(view) {
    this.view = view;
    const { seal } = view.campaign;
    const evidence = { seal, epoch: view.epoch, slots_closed: view.slotsClosed, entries: view.entries, head: view.head };
    this.saved = { ...this.saved, ...evidence };
    if (this.saved.key !== undefined) await this.save();
  }

  /** Fetches the view once. Returns whether the run is over, and false without a response. */
  async refreshView() {
    const view = await this.service.tryFetchView(this.saved);
    if (view !== null) await this.useView(view);
    return view !== null && view.isOver;
  }

  /** Returns the heads of earlier charges that the ledger of this campaign contains. */
  async headsInLedger() {
    const { charges } = Odometer.parse(await this.store.load(ODOMETER));
    const own = charges.filter(({ population }) => population === this.view.campaign.populationKey);
    /** @type {Set<string>} */
    const found = new Set();
    for (const [head, entries] of new Map(own.map((charge) => [charge.head, charge.entries]))) {
      if (entries < this.view.entries && (await this.service.fetchHead(entries)) === head) found.add(head);
    }
    return found;
  }

  /** Returns the odometer after this campaign. Throws if it is above the limit. @param {Set<string>} sameLedger */
  async checkOdometer(sameLedger) {
    const after = Odometer.parse(await this.store.load(ODOMETER)).charged(this.view, sameLedger);
    if (this.mostEpsilon === undefined) return after;
    const charged = new Set(after.charges.flatMap(({ runs }) => runs));
    for (const run of (await this.store.keys()).filter((name) => RUN.test(name) && !charged.has(name))) {
      const { phase, ended } = parseState(await this.store.load(run), run);
      if (phase !== undefined || ended !== undefined) throw new CampaignRefused(`mostEpsilon cannot be kept: this device took part in ${run} without an odometer`);
    }
    const { epsilon } = after.total();
    if (!(epsilon <= this.mostEpsilon)) throw new CampaignRefused(`mostEpsilon = ${this.mostEpsilon} would be exceeded: with this campaign, this device has spent up to ${epsilon}`);
    return after;
  }

  /** Gets a token. The idempotency key is durable first, so a retry gets the same token. */
  async enrol() {
    if (this.saved.key === undefined) {
      const key = toBase64(this.platform.source.bytes(32)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
      this.saved = { ...this.saved, key };
      await this.save();
    }
    await this.fetchToken();
    await this.tell("enrolled");
  }

  async fetchToken() {
    const headers = { "Idempotency-Key": String(this.saved.key), ...(this.key === undefined ? {} : bearer(this.key)) };
    const request = { method: "POST", path: `/campaigns/${this.runId}/enrolments`, headers };
    const token = await this.service.retryUntil(request, (response) => ([200, 201].includes(response.status) ? safeSecret(objectIn(response).token) : null));
    this.saved = { ...this.saved, token };
  }

  /** Erases slot, receipt and report. @param {Outcome} outcome */
  async end(outcome) {
    this.saved = { ...parseState(null, this.runId), ended: outcome };
    await this.save();
    await this.tell("done", { outcome: outcome.toLowerCase() });
  }

  /** Waits for the slot and takes part in it. @returns {Promise<Outcome>} */
  async participate() {
    const { slot } = this.saved;
    if (slot === undefined) return "ABSTAINED";
    try {
      if (this.saved.report === undefined) {
        if (!(await this.wake(slot))) return "MISSED";
        const receipt = await this.repeat(() => this.checkIn(slot));
        if (receipt === null) return "REFUSED";
        const model = await this.repeat(() => this.awaitModel(slot, receipt));
        if (model === null) return "DISMISSED";
        const update = await this.train(slot, model);
        const report = reportToBytes(makeReport(update, this.view.campaign.randomizer, this.platform.source));
        this.saved = { ...this.saved, phase: "PRIVATIZED", receipt, report: toBase64(report) };
        await this.save(); // durable before it is sent, so a retry sends the same bytes
      }
      await this.repeat(() => this.sendReport(slot));
      return "REPORTED";
    } catch (error) {
      if (error instanceof SlotOver) return "LATE";
      throw error;
    }
  }

  /**
   * Returns the update. If training fails, it is zero, so the report is a dummy, and nobody learns from
   * the message whether training failed on the data of this device.
   * @param {number} slot @param {Tensors} model
   */
  async train(slot, model) {
    try {
      return flatten(await this.trainer(model, this.view), this.view.shapes);
    } catch (error) {
      this.trainingError = error;
      await this.tell("training-failed", { slot, error: String(error) });
      return new Float64Array(this.view.dimension);
    }
  }

  /**
   * Repeats an attempt until its result is not undefined.
   * @template Result
   * @param {() => Promise<Result | undefined>} attempt @returns {Promise<Result>}
   */
  async repeat(attempt) {
    for (;;) {
      const result = await attempt();
      if (result !== undefined) return result;
    }
  }

  /** Sleeps until a random time early in the slot. Returns false if the slot has passed, or the run is over. @param {number} slot */
  async wake(slot) {
    const { service, view } = this;
    const isOver = () => slot > view.campaign.slots || this.view.isOver || service.serverS() >= view.ends(slot);
    if (isOver()) return false;
    const beginS = view.begins(slot);
    await this.tell("asleep", { slot, seconds: Math.max(0, beginS - service.serverS()) });
    if (beginS - service.serverS() > LONG_SLEEP_S) {
      const [shortestS, longestS] = CLOCK_CHECK_BEFORE_SLOT_S;
      await this.sleepUntil(beginS - shortestS - (longestS - shortestS) * jitter(this.platform.source));
      if (await this.refreshView()) return false;
    }
    await this.sleepUntil(beginS + CHECK_IN_SPREAD * view.campaign.chooseS * jitter(this.platform.source));
    return !isOver();
  }

  /**
   * Sleeps until a time of the server. The monotonic clock of some browsers stops while the computer
   * sleeps; if the calendar shows that, the server's time is read again.
   * @param {number} serverS
   */
  async sleepUntil(serverS) {
    const { platform, service } = this;
    for (let leftS = serverS - service.serverS(); leftS > 0; leftS = serverS - service.serverS()) {
      const lag = platform.calendarS() - platform.monotonicS();
      await platform.sleep(Math.min(leftS, MOST_SLEEP_S));
      if (Math.abs(platform.calendarS() - platform.monotonicS() - lag) > 1 && service.clock !== null) {
        service.clock = { ...service.clock, errorS: Infinity };
        await this.refreshView();
      }
    }
  }

  /** Checks that the ledger still contains the saved line. Returns undefined if this must be tried again. @param {number} slot */
  async checkRollback(slot) {
    const response = await this.sendInSlot(slot, this.service.headRequest(this.saved.entries));
    if (response === null) return undefined;
    const contains = savedLineIn(response, this.saved);
    if (contains === null) return this.pause(slot, response, false);
    if (!contains) await this.fetchView();
    return true;
  }

  /** Returns a receipt, null if the check-in was refused, or undefined to try again. @param {number} slot */
  async checkIn(slot) {
    if ((await this.checkRollback(slot)) === undefined) return undefined;
    await this.tell("checking-in", { slot });
    const isSoon = this.view.chooses(slot) - this.service.serverS() <= MOST_HELD_CHECK_IN_S;
    const waitS = isSoon ? this.pollS(slot) : 0;
    const path = `/campaigns/${this.runId}/slots/${slot}/check-ins${isSoon ? `?model=true&wait=${waitS}` : ""}`;
    const request = { method: "POST", path, headers: bearer(String(this.saved.token)), maxBytes: MOST_OUTCOME_BYTES };
    const response = await this.sendInSlot(slot, request, waitS);
    if (response === null) return undefined;
    const body = objectIn(response);
    const receipt = response.status === 202 ? safeSecret(body.receipt) : null;
    if (receipt !== null) {
      await this.tell("checked-in", { slot, receipt });
      this.knownOutcome = body;
      return receipt;
    }
    if (problemOf(response) === "too-early") await this.refreshView();
    else if (isFinal(response)) {
      await this.tell("refused", { slot, problem: problemOf(response) });
      return null;
    }
    return this.pause(slot, response);
  }

  /** Returns how many seconds a request for the outcome should wait. @param {number} slot */
  pollS(slot) {
    return Math.min(MOST_POLL_S, 1 + Math.max(0, Math.ceil(this.view.chooses(slot) - this.service.serverS())));
  }

  /** Returns the model if the device was chosen, null if it was not, or undefined to try again. @param {number} slot @param {string} receipt */
  async awaitModel(slot, receipt) {
    const known = this.knownOutcome;
    this.knownOutcome = null;
    const model = await this.modelIn(known, slot, receipt);
    if (model !== undefined) return model;
    if (this.view.chooses(slot) - this.service.serverS() > MOST_POLL_S) await this.sleepUntil(this.view.chooses(slot) - 5);
    const waitS = this.pollS(slot);
    const path = `/campaigns/${this.runId}/check-ins/${receipt}?model=true&wait=${waitS}`;
    const response = await this.sendInSlot(slot, { path, maxBytes: MOST_OUTCOME_BYTES }, waitS);
    if (response === null) return undefined;
    const body = response.status === 200 ? objectIn(response) : null;
    const sent = await this.modelIn(body, slot, receipt);
    if (sent !== undefined) return sent;
    const hasWaited = response.receivedS - response.sentS > 0.5 * waitS;
    if (body?.outcome === "waiting" && body.slot === slot && hasWaited) return undefined;
    return this.pause(slot, response, false);
  }

  /** Returns the model for an outcome, null if the device was not chosen, or undefined. @param {any} body @param {number} slot @param {string} receipt */
  async modelIn(body, slot, receipt) {
    if (body?.slot !== slot || !["chosen", "dismissed"].includes(body.outcome)) return undefined;
    await this.tell(body.outcome, { slot, receipt });
    if (body.outcome === "dismissed") return null;
    try {
      if (typeof body.model === "string") return modelFromBytes(fromBase64(body.model), this.view.shapes);
    } catch {
      // no model of this campaign: ask for it at its own address
    }
    return this.fetchModel(slot, receipt);
  }

  /** @param {number} slot @param {string} receipt */
  async fetchModel(slot, receipt) {
    const names = Object.entries(this.view.shapes).reduce((bytes, [name, shape]) => bytes + 24 * name.length + 24 * shape.length + 256, 0);
    const request = { path: `/campaigns/${this.runId}/slots/${slot}/model`, headers: bearer(receipt), maxBytes: 8 * this.view.dimension + names + MOST_SHORT_BYTES };
    const response = await this.sendInSlot(slot, request);
    if (response === null) return undefined;
    try {
      if (response.status === 200) return modelFromBytes(response.body, this.view.shapes);
    } catch (error) {
      if (!(error instanceof Malformed)) throw error;
    }
    return this.pause(slot, response, false);
  }

  /** Returns true once the service has the report, or undefined to try again. @param {number} slot */
  async sendReport(slot) {
    const receipt = String(this.saved.receipt);
    const report = fromBase64(String(this.saved.report));
    if ((await this.checkRollback(slot)) === undefined) return undefined;
    const digest = await sha256(report);
    const units = new Int32Array(report.slice(report.length - 4 * this.view.dimension).buffer);
    await this.tell("reporting", { slot, receipt, sha256: digest, ...(units.length <= MOST_LOGGED_UNITS ? { units: Array.from(units) } : {}) });
    const headers = { ...bearer(receipt), "Content-Type": "application/octet-stream" };
    const response = await this.sendInSlot(slot, { method: "PUT", path: `/campaigns/${this.runId}/slots/${slot}/report`, headers, body: report });
    if (response === null) return undefined;
    if (response.status === 200 && objectIn(response).status === "taken") {
      await this.tell("acknowledged", { slot, receipt, sha256: digest });
      return true;
    }
    return this.pause(slot, response);
  }

  /** Sends a request unless the slot is over. Returns null after a pause if there was no response. @param {number} slot @param {Request} request @param {number} [waitS] how long the service may wait */
  async sendInSlot(slot, request, waitS = 0) {
    const remainingS = this.view.ends(slot) - this.service.serverS();
    if (remainingS <= 0) throw new SlotOver();
    // If the response is lost, the device must have time to repeat the request.
    const timeoutS = waitS + Math.max(1, Math.min(RESPONSE_TIMEOUT_S, remainingS / 3));
    const response = await this.service.send({ ...request, timeoutS });
    if (response === null) await this.pause(slot, null);
    else if (response.status < 300) this.service.attempts = 0;
    return response;
  }

  /**
   * Waits before the next attempt, and throws SlotOver if the slot has ended. A final refusal is waited
   * out, except where it may come from a worker of the service that lags behind.
   * @param {number} slot @param {Response | null} response @param {boolean} acceptRefusal @returns {Promise<undefined>}
   */
  async pause(slot, response, acceptRefusal = true) {
    const { slotS } = this.view.campaign;
    const endS = this.view.ends(slot);
    const nowS = this.service.serverS();
    const backoffS = this.service.backoffS(response, slotS / 20, slotS / 4);
    await this.sleepUntil(acceptRefusal && isFinal(response) ? endS : Math.min(endS, nowS + backoffS));
    if (this.service.serverS() >= endS) throw new SlotOver();
    return undefined;
  }
}

// ------------------------------------------------------------------------------------------- training

/**
 * Returns a trainer of the linear models of this package on the rows of one person. It computes the mean
 * gradient or, after several local steps, (start - end) / step size. Features must be scaled by public
 * constants.
 * @param {number[][]} rows @param {number[]} labels @returns {Trainer}
 */
export const rowsTrainer = (rows, labels) => (model, { campaign, shapes }) => {
  const { model: name, localSteps, localRate } = campaign.task;
  if (name !== "logistic" && name !== "softmax") throw new CampaignRefused(`this device cannot train the model ${name}: pass a trainer of your own`);
  const features = shapes.weights[0];
  const classes = name === "softmax" ? shapes.weights[1] : 1;
  if (rows.length === 0 || rows.length !== labels.length || rows.some((row) => row.length !== features)) throw new TypeError(`needs rows of ${features} features, and a label for each`);
  const weights = model.weights.slice();
  const bias = model.bias.slice();
  let gradient = linearGradient(weights, bias, rows, labels, classes);
  if (localSteps === 1) return gradient;
  for (let step = 0; step < localSteps; step += 1) {
    if (step > 0) gradient = linearGradient(weights, bias, rows, labels, classes);
    for (let i = 0; i < weights.length; i += 1) weights[i] -= localRate * gradient.weights[i];
    for (let i = 0; i < bias.length; i += 1) bias[i] -= localRate * gradient.bias[i];
  }
  return {
    weights: weights.map((end, i) => (model.weights[i] - end) / localRate),
    bias: bias.map((end, i) => (model.bias[i] - end) / localRate),
  };
};

/** Returns the mean gradient of logistic regression (one class) or softmax regression. @param {Float64Array} weights @param {Float64Array} bias @param {number[][]} rows @param {number[]} labels @param {number} classes */
const linearGradient = (weights, bias, rows, labels, classes) => {
  const gradient = { weights: new Float64Array(weights.length), bias: new Float64Array(bias.length) };
  rows.forEach((row, r) => {
    const scores = Float64Array.from(bias, (start, k) => row.reduce((sum, x, j) => sum + x * weights[j * classes + k], start));
    const largest = scores.reduce((a, b) => Math.max(a, b));
    const exponentials = scores.map((score) => Math.exp(score - largest));
    const total = exponentials.reduce((a, b) => a + b);
    const residuals = classes === 1
      ? [(Math.tanh(scores[0] / 2) + 1) / 2 - labels[r]]
      : Array.from(exponentials, (value, k) => value / total - (labels[r] === k ? 1 : 0));
    residuals.forEach((residual, k) => {
      row.forEach((x, j) => { gradient.weights[j * classes + k] += (x * residual) / rows.length; });
      gradient.bias[k] += residual / rows.length;
    });
  });
  return gradient;
};
