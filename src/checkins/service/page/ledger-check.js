// Checks the hashes and the order of the lines of a ledger, as checkins.ledger does (docs/ledger.md).
// It does not recompute models and epsilons: `checkins verify` does.

import { NotCanonical, parseCanonical, plainNumbers } from "./canonical-json.js";
import { sha256, sha256OfText } from "./sha256.js";

export class InvalidLedger extends Error {}

const INITIAL_HASH = "0".repeat(64);
const HASH = /^[0-9a-f]{64}$/;
const COMMON_FIELDS = ["kind", "entry", "previous", "hash"];
const FIELDS = {
  "opened": ["schema", "campaign", "seal", "run", "model", "model_hash", "simulated", "filter"],
  "slot-closed": ["slot", "total", "dtype", "model_hash", "contributors"],
  "closed": ["reason", "certificate"],
};
const OPTIONAL_FIELDS = ["contributors", "filter"];
const CERTIFICATE_FIELDS = [
  "epsilon", "epsilon_lower", "epsilon_lower_of", "delta", "adjacency", "unit", "method", "rounding", "campaigns",
  "curious", "variation", "against_server", "assumptions", "alternatives", "seconds", "versions",
];
const ADJACENCIES = ["add-remove", "replace-one"];
const MAX_RUNS = 10n ** 6n;
const MAX_RENYI_ORDER = 1024;
const NUMBER_BYTES = 8;

const refuse = (problem) => { throw new InvalidLedger(problem); };
const require = (condition, problem) => { if (!condition) refuse(problem); };
const isCount = (value, least = 1n) => typeof value === "bigint" && value >= least;

const isFilter = (name) => {
  const order = /^renyi-([1-9][0-9]{0,3})$/.exec(name)?.[1];
  return name === "gaussian" || (Number(order) >= 2 && Number(order) <= MAX_RENYI_ORDER);
};

// Returns the bytes of a text in base64, which must be whole numbers of eight bytes each.
const bytesOf = (name, text, { floats }) => {
  let decoded;
  try {
    decoded = atob(text);
  } catch {
    refuse(`${name} must be base64`);
  }
  require(btoa(decoded) === text, `${name} must be base64`);
  const bytes = Uint8Array.from(decoded, (character) => character.charCodeAt(0));
  require(bytes.length > 0 && bytes.length % NUMBER_BYTES === 0, `${name} must be numbers of 8 bytes each`);
  const view = new DataView(bytes.buffer);
  for (let at = 0; floats && at < bytes.length; at += NUMBER_BYTES) {
    require(Number.isFinite(view.getFloat64(at, true)), `${name} must be finite numbers`);
  }
  return bytes;
};

// Parses one line, and checks its spelling, its fields and its hash. Returns its fields.
const parseLine = (text) => {
  require(/^[\x00-\x7f]*$/.test(text), "is not ASCII text");
  const { value, ends } = parseCanonical(text);
  const known = Object.hasOwn(FIELDS, value?.kind) ? [...COMMON_FIELDS, ...FIELDS[value.kind]] : null;
  require(known !== null, `kind must be one of ${Object.keys(FIELDS).join(", ")}`);
  for (const name of Object.keys(value)) require(known.includes(name), `${name} is not a field of an entry of the kind ${value.kind}`);
  for (const name of known) require(Object.hasOwn(value, name) || OPTIONAL_FIELDS.includes(name), `${name} is missing`);
  require(HASH.test(value.previous), "previous must be 64 hexadecimal digits");
  const keys = Object.keys(ends);
  const before = ends[keys[keys.indexOf("hash") - 1]];  // "hash" is never the first of the sorted keys
  const hashed = text.slice(0, before) + text.slice(ends.hash);
  require(value.hash === sha256OfText(hashed), "its hash does not match its content: the line was changed");
  return value;
};

const openRun = (ledger, entry) => {
  require(ledger.running === null, "the previous campaign is still open: it must be closed first");
  require(entry.schema === 1n, "schema must be 1: a newer version of checkins may read this ledger");
  require(typeof entry.campaign === "string", "campaign must be a text");
  require(typeof entry.simulated === "boolean", "simulated must be true or false");
  require(!Object.hasOwn(entry, "filter") || isFilter(entry.filter), "filter is unknown");
  const seal = `sha256:${sha256OfText(entry.campaign)}`;
  require(entry.seal === seal, `the seal does not match the campaign, whose seal is ${seal}`);
  const model = bytesOf("model", entry.model, { floats: true });
  require(entry.model_hash === sha256(model), "model_hash is not the hash of the model");
  const campaign = plainNumbers(parseCanonical(entry.campaign, { onlyAscii: false }).value);
  const { budget, protocol } = campaign;
  require(ADJACENCIES.includes(budget?.adjacency) && budget.delta > 0 && protocol?.slots >= 1, "the campaign cannot be read");
  const run = {
    campaign, seal, number: Number(entry.run), simulated: entry.simulated, filter: entry.filter ?? null,
    numbers: model.length / NUMBER_BYTES, slotsClosed: 0,
  };
  const earlier = ledger.closed.filter((one) => one.seal === seal).length;
  require(isCount(entry.run) && entry.run <= MAX_RUNS && run.number === earlier + 1, `is run ${entry.run} of this campaign, but ${earlier + 1} is next`);
  require(run.number <= protocol.repeats, `this campaign already ran ${protocol.repeats} times, as often as it declares`);
  if (ledger.closed.length > 0) checkComposable(ledger.closed, run);
  return run;
};

const checkComposable = (closed, run) => {
  const [first] = closed;
  const same = (name, value, expected) => require(value === expected, `${name} is ${value}, but the ledger is for ${expected}`);
  same("population_id", run.campaign.population_id, first.campaign.population_id);
  same("delta", run.campaign.budget.delta, first.campaign.budget.delta);
  same("adjacency", run.campaign.budget.adjacency, first.campaign.budget.adjacency);
  same("simulated", run.simulated, first.simulated);
  require(first.campaign.population_id !== undefined || run.seal === first.seal, "campaigns without a population_id cannot share a ledger");
  const named = closed.find((one) => one.filter !== null);
  if (named === undefined && run.filter === null) return;
  same("filter", run.filter ?? "absent", named === undefined ? "gaussian" : named.filter);
};

const closeSlot = (run, entry) => {
  const { kind, slots, window } = run.campaign.protocol;
  const expected = run.slotsClosed + 1;
  require(isCount(entry.slot) && Number(entry.slot) === expected && expected <= slots, expected > slots ? `all ${slots} slots are over` : `is slot ${entry.slot}, but slot ${expected} of ${slots} is next`);
  require(HASH.test(entry.model_hash), "model_hash must be 64 hexadecimal digits");
  const counted = Object.hasOwn(entry, "contributors");
  require(counted === (kind === "averaged"), kind === "averaged" ? "averaged updates need the number of contributors" : `the ${kind} protocol has no number of contributors`);
  require(!counted || isCount(entry.contributors, 0n), "contributors must be an integer");
  const leastReports = run.campaign.protocol.least_reports ?? 1;
  const isEmpty = counted ? Number(entry.contributors) < leastReports : expected < (window ?? 1);
  require((entry.total === null) === isEmpty, isEmpty ? "the total must be null" : "the total is missing");
  require((entry.dtype === null) === isEmpty, "dtype must be null if and only if total is null");
  if (!isEmpty) {
    require(["int64", "float64"].includes(entry.dtype), "dtype must be int64 or float64");
    require(run.simulated || entry.dtype === "int64", "dtype must be int64, because reports of a real campaign are integers");
    const total = bytesOf("total", entry.total, { floats: entry.dtype === "float64" });
    require(total.length === NUMBER_BYTES * run.numbers, `the total has ${total.length / NUMBER_BYTES} numbers, but the model has ${run.numbers}`);
  }
  return { ...run, slotsClosed: expected };
};

const closeRun = (run, entry) => {
  const { slots } = run.campaign.protocol;
  const expected = run.slotsClosed === slots ? "completed" : "stopped";
  require(entry.reason === expected, `the reason is ${entry.reason}, but ${run.slotsClosed} of ${slots} slots are over`);
  const certificate = plainNumbers(entry.certificate);
  require(certificate !== null && typeof certificate === "object" && !Array.isArray(certificate), "the certificate must be an object");
  for (const name of Object.keys(certificate)) require(CERTIFICATE_FIELDS.includes(name), `${name} is not a field of a certificate`);
  require(typeof certificate.epsilon === "number" && certificate.epsilon >= 0, "the certificate needs an epsilon");
  for (const name of ["delta", "adjacency"]) {
    require(certificate[name] === run.campaign.budget[name], `the certificate is for ${name} = ${certificate[name]}, but the budget has ${run.campaign.budget[name]}`);
  }
  return { ...run, reason: entry.reason, certificate };
};

const readLine = (ledger, text) => {
  const entry = parseLine(text);
  const number = ledger.entries + 1;
  require(entry.entry === BigInt(number), `is entry ${entry.entry}, but entry ${number} is next: a line was removed, added or moved`);
  require(entry.previous === ledger.head, "does not continue the line before it: one of the two was replaced");
  const after = { ...ledger, entries: number, head: entry.hash };
  if (entry.kind === "opened") return { ...after, running: openRun(ledger, entry) };
  require(ledger.running !== null, "no campaign is open: a campaign must be opened first");
  if (entry.kind === "slot-closed") return { ...after, running: closeSlot(ledger.running, entry) };
  return { ...after, running: null, closed: [...ledger.closed, closeRun(ledger.running, entry)] };
};

// Checks a ledger. text: the whole file, one character for each byte. head: the expected hash of the last
// line, or null to accept any. Returns { entries, head, running, closed }: running is the campaign that is
// still open, or null. Throws InvalidLedger, whose message names the line.
export const checkLedger = (text, { head = null } = {}) => {
  const lines = text.split("\n");
  let ledger = { entries: 0, head: INITIAL_HASH, running: null, closed: [] };
  let number = 0;
  try {
    require(lines.pop() === "", "the last line is incomplete: fetch the ledger again");
    for (const line of lines) {
      number += 1;
      ledger = readLine(ledger, line);
    }
  } catch (error) {
    if (!(error instanceof InvalidLedger || error instanceof NotCanonical)) throw error;
    throw new InvalidLedger(`Line ${number || lines.length + 1}: ${error.message}`);
  }
  require(ledger.entries > 0, "The ledger is empty: no campaign was ever opened");
  require(head === null || head === ledger.head, `The ledger ends with the hash ${ledger.head}, not with ${head}: lines were cut off or added, or this is another chain`);
  return ledger;
};
