// Certificate, ledger, sealed text, and how to take part.

import { byId, command, setTerms, setList, setText, show, table } from "./dom.js";
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
  setList("further", further);
};

export const drawCertificate = (view) => {
  const certificate = view.certificate ?? null;
  setText("claim", words.claim(certificate));
  setTerms("certificate", certificate === null ? [] : [
    ["Interval", words.interval(certificate)],
    ["Covers", `${words.scope(view)}.`],
    ["Protects", `${words.textOr(certificate.unit, "one client")}, in all releases together.`],
    ["Neighbours", `${words.neighbours(certificate.adjacency)}.`],
    ["Method", `${words.method(certificate.method)}.`],
    ["Against the server", words.againstServer(certificate)],
    ["Rounding", `${words.textOr(certificate.rounding, "epsilon is rounded up, epsilon_lower down")}.`],
  ]);
  const promises = strings(view.promises);
  setList("promises", promises);
  byId("promises").previousElementSibling.hidden = promises.length === 0;
  const assumed = strings(certificate?.assumptions);
  setList("assumptions", assumed.length > 0 ? assumed : ["The server states no assumption."]);
  drawLimits(strings(view.assumptions).filter((sentence) => !assumed.includes(sentence)));
  const others = Array.isArray(certificate?.alternatives) ? certificate.alternatives.filter(Boolean) : [];
  table("alternatives",
    [{ name: "method" }, { name: "ε at most", number: true }, { name: "role" }, { name: "note" }],
    others.map((one) => [words.textOr(one.method), up(one.epsilon), one.proves === false ? "comparison" : "proof", words.textOr(one.note, "")]),
    `ε rounded up, ${words.adjacencyShort(certificate?.adjacency)}. A comparison is the epsilon of another protocol and proves nothing here`,
  );
};

export const drawLedger = (feed) => {
  const { view } = feed;
  command("verify", `checkins verify ${base()}/${feed.path}`);
  setTerms("ledger", [
    ["Entries", count(view.ledger?.entries)],
    ["Head", words.textOr(view.ledger?.head), true],
    ["Model", words.textOr(view.model_hash), true],
    ["Seal", words.textOr(view.seal), true],
    ["Population", words.textOr(view.population_id)],
  ]);
  byId("get-ledger").href = `${feed.path}/ledger`;
  byId("get-ledger").download = "ledger.jsonl";
  byId("get-model").href = `${feed.path}/models/latest`;
  byId("get-model").download = `${feed.id}.safetensors`;
  const latest = [...feed.releases].sort(([a], [b]) => b - a).slice(0, LATEST);
  table("releases",
    [{ name: "slot", number: true }, { name: "SHA-256 of the model" }],
    latest.map(([slot, hash]) => [count(slot), words.textOr(hash)]),
    `The last ${count(latest.length)} releases`,
  );
};

export const drawSeal = (view, sealed) => {
  setText("sealed", sealed === null ? words.textOr(view.campaign) : JSON.stringify(sealed, null, 2));
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
  setText("part", words.part(view, sealed));
  show("join-box", open);
  show("join-how", open);
  if (open) command("join", joining(feed, sealed));
};
