// Certificate, ledger, sealed text, and how to take part.

import { at, command, facts, items, say, show, table } from "./dom.js";
import { count, up } from "./numbers.js";
import * as words from "./words.js";

const LATEST = 12;

const base = () => new URL(".", document.baseURI).href.replace(/\/$/, "");
const strings = (value) => (Array.isArray(value) ? value.filter((one) => typeof one === "string") : []);

// Lists the server's further limits. A limit of the page itself is hidden if the server states it
// in its own words.
const drawLimits = (further) => {
  for (const ours of document.querySelectorAll("#limits [data-about]")) {
    ours.hidden = further.some((sentence) => sentence.includes(ours.dataset.about));
  }
  items("further", further);
};

export const drawCertificate = (view) => {
  const certificate = view.certificate ?? null;
  say("claim", words.claim(certificate));
  facts("certificate", certificate === null ? [] : [
    ["Interval", words.interval(certificate)],
    ["Covers", `${words.scope(view)}.`],
    ["Protects", `${words.told(certificate.unit, "one client")}, in all releases together.`],
    ["Neighbours", `${words.neighbours(certificate.adjacency)}.`],
    ["Method", `${words.method(certificate.method)}.`],
    ["Against the server", words.againstServer(certificate)],
    ["Rounding", `${words.told(certificate.rounding, "epsilon is rounded up, epsilon_lower down")}.`],
  ]);
  const promises = strings(view.promises);
  items("promises", promises);
  at("promises").previousElementSibling.hidden = promises.length === 0;
  const assumed = strings(certificate?.assumptions);
  items("assumptions", assumed.length > 0 ? assumed : ["The server states no assumption."]);
  drawLimits(strings(view.assumptions).filter((sentence) => !assumed.includes(sentence)));
  const others = Array.isArray(certificate?.alternatives) ? certificate.alternatives.filter(Boolean) : [];
  table("alternatives",
    [{ name: "method" }, { name: "ε at most", number: true }, { name: "role" }, { name: "note" }],
    others.map((one) => [words.told(one.method), up(one.epsilon), one.proves === false ? "comparison" : "proof", words.told(one.note, "")]),
    `ε rounded up, ${words.adjacencyShort(certificate?.adjacency)}. A comparison is the epsilon of another protocol and proves nothing here`,
  );
};

export const drawLedger = (feed) => {
  const { view } = feed;
  command("verify", `checkins verify ${base()}/${feed.path}`);
  facts("ledger", [
    ["Entries", count(view.ledger?.entries)],
    ["Head", words.told(view.ledger?.head), true],
    ["Model", words.told(view.model_hash), true],
    ["Seal", words.told(view.seal), true],
    ["Population", words.told(view.population_id)],
  ]);
  at("get-ledger").href = `${feed.path}/ledger`;
  at("get-ledger").download = "ledger.jsonl";
  at("get-model").href = `${feed.path}/models/latest`;
  at("get-model").download = `${feed.id}.safetensors`;
  const latest = [...feed.releases].sort(([a], [b]) => b - a).slice(0, LATEST);
  table("releases",
    [{ name: "slot", number: true }, { name: "SHA-256 of the model" }],
    latest.map(([slot, hash]) => [count(slot), words.told(hash)]),
    `The last ${count(latest.length)} releases`,
  );
};

export const drawSeal = (view, sealed) => {
  say("sealed", sealed === null ? words.told(view.campaign) : JSON.stringify(sealed, null, 2));
};

// A campaign on tables needs a file. A campaign on a data set of the package needs one of its rows.
const joining = (feed, sealed) => {
  const rows = typeof sealed?.task?.data === "string" ? "--row 1" : "--data my-rows.csv";
  const key = ["secret", "allow-list"].includes(feed.view.enrolment) ? " --key-file my-key" : "";
  return `checkins join ${base()} --campaign ${feed.id} ${rows} --state my-device${key}`;
};

export const drawPart = (feed, sealed) => {
  const { view } = feed;
  const open = !words.isOver(view.status);
  say("part", words.part(view, sealed));
  show("join-box", open);
  show("join-how", open);
  if (open) command("join", joining(feed, sealed));
};
