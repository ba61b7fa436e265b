// The page /read: a certificate or a ledger in plain words, with a check of the ledger's hashes. It works
// without a server, so the documentation contains the same page.

import { plainNumbers } from "./canonical-json.js";
import { byId, element, setList, setTable, setTerms, setText, show } from "./dom.js";
import { InvalidLedger, checkLedger } from "./ledger-check.js";
import { finiteOrNull, formatCount } from "./numbers.js";
import * as words from "./read-words.js";

const NOT_FOUND = "This is neither a certificate nor a ledger. A certificate is a JSON object with epsilon, delta and adjacency: the output of checkins account --json, or the view of a campaign. A ledger is the file ledger.jsonl.";
const MAX_FILE_BYTES = 2 ** 28;
const HASH = /^[0-9a-f]{64}$/;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isCertificate = (value) => isObject(value) && "epsilon" in value && finiteOrNull(value.delta) !== null && typeof value.adjacency === "string";

// Returns the certificate in a JSON object: the object itself, or its field certificate. Null if there is none.
const certificateIn = (value) => [value, value?.certificate].find(isCertificate) ?? null;

// Returns the JSON value of a text, or null.
const parseOrNull = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
};

const looksLikeLedger = (text) => /^\s*\{[^\n]*"kind":"(?:opened|slot-closed|closed)"/.test(text) || /"previous":"[0-9a-f]{64}"/.test(text);

// Reads a text. Returns { certificate, ledger, problem }: the ledger is null for a certificate alone, and
// problem says why the text is refused, or is null.
export const read = (text, { head = null } = {}) => {
  if (!looksLikeLedger(text)) {
    const certificate = certificateIn(parseOrNull(text));
    return { certificate, ledger: null, problem: certificate === null ? NOT_FOUND : null };
  }
  try {
    const ledger = checkLedger(text, { head });
    return { certificate: ledger.closed.at(-1)?.certificate ?? null, ledger, problem: null };
  } catch (error) {
    if (!(error instanceof InvalidLedger)) throw error;
    return { certificate: null, ledger: null, problem: `This ledger is refused. ${error.message}.` };
  }
};

const drawCertificate = (certificate) => {
  show("meaning", certificate !== null);
  if (certificate === null) return;
  setText("claim", words.sentence(certificate));
  setTerms("facts", words.facts(certificate));
  setTerms("attackers", words.attackers(certificate));
  const assumptions = words.assumptions(certificate);
  setList("assumptions", assumptions.length > 0 ? assumptions : ["The certificate states no assumption."]);
};

const runRow = (run) => {
  const { slots } = run.campaign.protocol;
  const state = run.reason ?? "open";
  return [String(run.campaign.name), String(run.number), `${formatCount(run.slotsClosed)} of ${formatCount(slots)}`, state];
};

const drawLedger = (ledger) => {
  show("hashes", ledger !== null);
  if (ledger === null) return;
  const runs = ledger.running === null ? ledger.closed : [...ledger.closed, ledger.running];
  const simulated = runs.some((run) => run.simulated);
  setTerms("chain", [
    ["Lines", `${formatCount(ledger.entries)}. Each hash fits its line, and each line continues the line before it.`],
    ["Head", ledger.head, true],
    ["Seals", "Each seal is the hash of its campaign's parameters."],
    simulated ? ["Simulation", "The noise of a simulation comes from a seed that can be repeated, so it protects nobody."] : null,
    ledger.running === null ? null : ["Open", "The last campaign is still open, so this ledger states no certificate for it."],
  ]);
  setTable("runs", [{ name: "campaign" }, { name: "run", number: true }, { name: "slots closed", number: true }, { name: "state" }], runs.map(runRow), "Campaigns in this ledger");
};

const draw = ({ certificate, ledger, problem }) => {
  setText("problem", problem ?? "");
  show("problem", problem !== null);
  show("answer", problem === null);
  drawCertificate(certificate);
  drawLedger(ledger);
  show("no-hashes", problem === null && ledger === null);
  if (problem !== null) setText("said", problem);
  else setText("said", ledger === null ? "The certificate was read." : "All hashes of the ledger are right.");
};

const knownHead = () => {
  const given = byId("head").value.trim().toLowerCase();
  return given === "" ? null : given;
};

const readText = (text) => {
  const head = knownHead();
  if (head !== null && !HASH.test(head)) draw({ certificate: null, ledger: null, problem: "The known head must be 64 hexadecimal digits." });
  else draw(read(text, { head }));
};

// A text that was pasted may have lost the newline at its end. A file must be complete.
const readPasted = () => {
  const text = byId("text").value.trim();
  if (text === "") draw({ certificate: null, ledger: null, problem: "Nothing to read yet: paste a certificate or a ledger, or choose a file." });
  else readText(looksLikeLedger(text) ? `${text}\n` : text);
};

const readFile = async (file) => {
  if (file.size > MAX_FILE_BYTES) {
    draw({ certificate: null, ledger: null, problem: "This file is larger than 256 MiB. Use checkins verify instead." });
    return;
  }
  byId("text").value = "";
  setText("file-name", file.name);
  const bytes = await file.arrayBuffer();
  const utf8 = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  // A ledger is checked byte by byte: every byte becomes one character.
  readText(looksLikeLedger(utf8) ? new TextDecoder("latin1").decode(bytes) : utf8);
};

const showExample = () => {
  byId("text").value = byId("example").textContent.trim();
  readPasted();
};

const start = () => {
  byId("ask").addEventListener("submit", (event) => { event.preventDefault(); readPasted(); });
  byId("show-example").addEventListener("click", showExample);
  byId("file").addEventListener("change", ({ target }) => { if (target.files.length > 0) readFile(target.files[0]); });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length > 0) readFile(event.dataTransfer.files[0]);
  });
};

start();
