// The sections of a run's page below the figures: certificate, ledger, sealed campaign, how to take part.

import { byId, setCommand, setTerms, setList, setText, show, setTable } from "./dom.js";
import { formatCount, roundUp, withPowers } from "./numbers.js";
import * as words from "./words.js";

const MAX_RELEASES_SHOWN = 12;

const baseUrl = () => new URL(".", document.baseURI).href.replace(/\/$/, "");
const stringsIn = (value) => (Array.isArray(value) ? value.filter((item) => typeof item === "string") : []);

// Lists the limits of the guarantee that the server states. A limit in index.html is hidden if a sentence
// of the server contains its data-about text, so that no limit is stated twice.
const drawLimits = (serverLimits) => {
  for (const item of document.querySelectorAll("#limits [data-about]")) {
    item.hidden = serverLimits.some((sentence) => sentence.includes(item.dataset.about));
  }
  setList("further", serverLimits.map(withPowers));
};

export const drawCertificate = (view) => {
  const certificate = view.certificate ?? null;
  setText("claim", words.guarantee(certificate));
  setTerms("certificate", certificate === null ? [] : [
    ["Interval", words.epsilonInterval(certificate)],
    ["Covers", `${words.coverage(view)}.`],
    ["Protects", `${words.textOr(certificate.unit, "one client")}, in all releases together.`],
    ["Neighbours", `${words.neighbours(certificate.adjacency)}.`],
    ["Method", `${words.method(certificate.method)}.`],
    ["If the server is the adversary", words.againstServer(certificate)],
    ["Rounding", `${words.rounding(certificate.rounding)}.`],
  ]);
  const promises = stringsIn(view.promises);
  setList("promises", promises.map(withPowers));
  byId("promises").previousElementSibling.hidden = promises.length === 0;
  const assumptions = stringsIn(certificate?.assumptions);
  setList("assumptions", assumptions.length > 0 ? assumptions.map(withPowers) : ["The server states no assumption."]);
  drawLimits(stringsIn(view.assumptions).filter((sentence) => !assumptions.includes(sentence)));
  const others = Array.isArray(certificate?.alternatives) ? certificate.alternatives.filter(Boolean) : [];
  setTable("alternatives",
    [{ name: "method" }, { name: "ε at most", number: true }, { name: "kind" }, { name: "note" }],
    others.map((other) => [words.textOr(other.method), roundUp(other.epsilon), other.proves === false ? "other protocol" : "upper bound", words.textOr(other.note, "")]),
    `ε rounded up, ${words.adjacencyShort(certificate?.adjacency)}`,
  );
};

export const drawLedger = (feed) => {
  const { view } = feed;
  setCommand("verify", `checkins verify ${baseUrl()}/${feed.path}`);
  setTerms("ledger", [
    ["Entries", formatCount(view.ledger?.entries)],
    ["Head", words.textOr(view.ledger?.head), true],
    ["Model", words.textOr(view.model_hash), true],
    ["Seal", words.textOr(view.seal), true],
    ["Population", words.textOr(view.population_id)],
  ]);
  byId("get-ledger").href = `${feed.path}/ledger`;
  byId("get-ledger").download = "ledger.jsonl";
  byId("get-model").href = `${feed.path}/models/latest`;
  byId("get-model").download = `${feed.id}.safetensors`;
  const latest = [...feed.releases].sort(([a], [b]) => b - a).slice(0, MAX_RELEASES_SHOWN);
  setTable("releases",
    [{ name: "slot", number: true }, { name: "SHA-256 of the model" }],
    latest.map(([slot, hash]) => [formatCount(slot), words.textOr(hash)]),
    `The last ${formatCount(latest.length)} releases`,
  );
};

export const drawSeal = (view, sealedCampaign) => {
  setText("sealed", sealedCampaign === null ? words.textOr(view.campaign) : JSON.stringify(sealedCampaign, null, 2));
};

// The command to take part. If the campaign learns from tables, the command names the reader's file. If it
// learns from a data set of the package, the command names a row of this data set.
const joinCommand = (feed, sealedCampaign) => {
  const rowOption = typeof sealedCampaign?.task?.data === "string" ? "--row 1" : "--data my-rows.csv";
  const keyOption = ["secret", "allow-list"].includes(feed.view.enrolment) ? " --key-file my-key" : "";
  return `checkins join ${baseUrl()} --campaign ${feed.id} ${rowOption} --state my-device${keyOption}`;
};

export const drawJoin = (feed, sealedCampaign) => {
  const { view } = feed;
  const isOpen = !words.isOver(view.status);
  setText("part", words.howToJoin(view, sealedCampaign));
  show("join-box", isOpen);
  show("join-how", isOpen);
  show("join-browser", isOpen && view.enrolment === "open" && words.isOnPublicData(sealedCampaign));
  if (isOpen) setCommand("join", joinCommand(feed, sealedCampaign));
};
