// Canonical JSON, as ledgers and seals use it: sorted keys, no spaces, numbers as Python prints them.
// Every other spelling of a value is refused, so that no byte of a ledger can be changed.

export class NotCanonical extends Error {}

const MAX_DEPTH = 100;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const SHORT_ESCAPES = { "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// Returns a finite float as Python's repr prints it, such as 1e-06 or 2.0.
export const pythonFloat = (number) => {
  if (number === 0) return Object.is(number, -0) ? "-0.0" : "0.0";
  const [mantissa, exponent] = Math.abs(number).toExponential().split("e");
  const sign = number < 0 ? "-" : "";
  const digits = mantissa.replace(".", "");
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    const size = String(Math.abs(power)).padStart(2, "0");
    return `${sign}${mantissa}e${power < 0 ? "-" : "+"}${size}`;
  }
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
  const whole = digits.slice(0, power + 1).padEnd(power + 1, "0");
  return `${sign}${whole}.${digits.slice(power + 1) || "0"}`;
};

const escaped = (text, onlyAscii) => {
  const escapeUnit = (unit) => SHORT_ESCAPES[unit] ?? `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const plain = text.replace(/["\\]/g, "\\$&").replace(/[\x00-\x1f]/g, escapeUnit);
  return `"${onlyAscii ? plain.replace(/[^ -~]/g, escapeUnit) : plain}"`;
};

// Compares keys by code points, as Python does. JavaScript compares UTF-16 units.
const isBefore = (a, b) => {
  const [first, second] = [Array.from(a), Array.from(b)];
  const index = first.findIndex((point, i) => point !== second[i]);
  if (index < 0) return first.length < second.length;
  return index < second.length && first[index].codePointAt(0) < second[index].codePointAt(0);
};

class Reader {
  constructor(text, onlyAscii) {
    Object.assign(this, { text, onlyAscii, at: 0, depth: 0, ends: {} });
  }

  refuse(problem) {
    throw new NotCanonical(`is not canonical JSON: ${problem} at column ${this.at + 1}`);
  }

  take(text) {
    if (!this.text.startsWith(text, this.at)) this.refuse(`expected ${text}`);
    this.at += text.length;
  }

  value() {
    const first = this.text[this.at];
    if (first === "{") return this.nested(() => this.object());
    if (first === "[") return this.nested(() => this.array());
    if (first === '"') return this.string();
    for (const [word, value] of [["null", null], ["true", true], ["false", false]]) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    }
    return this.number();
  }

  nested(read) {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) this.refuse("nested too deeply");
    const value = read();
    this.depth -= 1;
    return value;
  }

  object() {
    const fields = new Map();
    let last = null;
    this.take("{");
    while (this.text[this.at] !== "}") {
      if (last !== null) this.take(",");
      const key = this.string();
      if (last !== null && !isBefore(last, key)) this.refuse("keys are not sorted, or one is there twice");
      this.take(":");
      fields.set(key, this.value());
      if (this.depth === 1) this.ends[key] = this.at;
      last = key;
    }
    this.take("}");
    return Object.fromEntries(fields);
  }

  array() {
    const values = [];
    this.take("[");
    while (this.text[this.at] !== "]") {
      if (values.length > 0) this.take(",");
      values.push(this.value());
    }
    this.take("]");
    return values;
  }

  string() {
    let end = this.at + 1;
    while (end < this.text.length && this.text[end] !== '"') end += this.text[end] === "\\" ? 2 : 1;
    const token = this.text.slice(this.at, end + 1);
    let value;
    try {
      value = JSON.parse(token);
    } catch {
      this.refuse("no text");
    }
    if (typeof value !== "string" || escaped(value, this.onlyAscii) !== token) this.refuse("another spelling of a text");
    this.at = end + 1;
    return value;
  }

  number() {
    NUMBER.lastIndex = this.at;
    const token = NUMBER.exec(this.text)?.[0];
    if (token === undefined) this.refuse("no value");
    const isInteger = /^-?\d+$/.test(token);
    const value = isInteger ? BigInt(token) : Number(token);
    const canonical = isInteger ? String(value) : pythonFloat(value);
    if (!isInteger && !Number.isFinite(value)) this.refuse("a number that is too large");
    if (canonical !== token) this.refuse("another spelling of a number");
    this.at += token.length;
    return value;
  }
}

// Parses canonical JSON. Integers become BigInt and other numbers become Number. Returns the value, and
// for each key of an object the position in the text after its value. Throws NotCanonical.
export const parseCanonical = (text, { onlyAscii = true } = {}) => {
  const reader = new Reader(text, onlyAscii);
  const value = reader.value();
  if (reader.at !== text.length) reader.refuse("more text after the value");
  return { value, ends: reader.ends };
};

// Returns a copy of a parsed value with all integers as Number.
export const plainNumbers = (value) => {
  if (typeof value === "bigint") return Number(value);
  if (Array.isArray(value)) return value.map(plainNumbers);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inside]) => [key, plainNumbers(inside)]));
};
