// The live page: opens a run or the list of runs, draws it, and announces changes to screen readers.
// The fragment of the page's address is the id of the run. Without a fragment, the list is shown.

import { byId, setChildren, element, setText, show } from "./dom.js";
import { Feed, fetchJson } from "./feed.js";
import { drawLearningCurve, drawPrivacyLoss } from "./figures.js";
import { drawCurrentState } from "./now.js";
import { formatCount, formatDuration, finiteOrNull } from "./numbers.js";
import { drawCertificate, drawLedger, drawJoin, drawSeal } from "./records.js";
import * as words from "./words.js";

const TICK_MS = 100;
const LIST_REFRESH_S = 15;  // only while the list is shown

let feed = null;
let sealedCampaign = null;
let frameRequest = 0;
let lastAnnouncement = "";
let listTimer = 0;

const runInAddress = () => {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return location.hash.slice(1);
  }
};

const parseObject = (text) => {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? value : null;
  } catch {
    return null;
  }
};

const announce = (text) => {
  if (text === lastAnnouncement) return;
  lastAnnouncement = text;
  setText("said", text);
};

const progressText = (run) => {
  const runs = finiteOrNull(run.repeats) > 1 ? `run ${formatCount(run.run)} of ${formatCount(run.repeats)}, ` : "";
  return `${runs}${formatCount(run.slots_closed)} of ${formatCount(run.slots)} slots`;
};

const runAddress = (run) => `#${encodeURIComponent(run.id)}`;

const drawList = (campaigns) => {
  setChildren("campaigns", campaigns.map((run) => element("li", {}, element("a", { href: runAddress(run) },
    element("strong", {}, words.textOr(run.name, run.id)),
    element("span", { class: "badge", "data-status": words.textOr(run.status) }, words.status(run.status)),
    element("span", { class: "soft" }, progressText(run)),
  ))));
};

const drawListLink = (campaigns, openRun) => {
  const otherRuns = campaigns.filter((run) => run.id !== openRun);
  setChildren("others", otherRuns.length === 0 ? [] : [element("a", { href: "#" }, `All campaigns (${formatCount(campaigns.length)})`)]);
};

const drawLink = () => {
  const silence = formatDuration(Math.floor((Date.now() - (feed?.lastMessageMs ?? Date.now())) / 1000));
  const state = feed?.state ?? "list";
  const texts = {
    connecting: "Connecting", live: "Live", over: "Over", gone: "Not here", list: "",
    lost: feed?.view ? `Connection lost. Last heard ${silence} ago. Trying again.` : "No response. Trying again.",
  };
  byId("link").dataset.state = state;
  setText("link-text", texts[state]);
};

const drawNotice = () => {
  const { view, state } = feed;
  const next = words.isOver(view.status) && typeof view.next === "string" ? view.next : null;
  const notice = byId("notice");
  const text = state === "lost"
    ? "The connection is lost. The page shows the last state that the server sent. Only the clock goes on."
    : next !== null ? "This run is over. "
    : view.status === "stopped" ? words.stopReason(view)
    : words.holdNotice(view);
  notice.hidden = text === "";
  notice.replaceChildren(text, ...(next !== null && state !== "lost" ? [element("a", { href: `#${encodeURIComponent(next)}` }, "Open the next run")] : []));
};

const announceState = () => {
  const { view, state } = feed;
  if (state === "lost") return announce("Connection lost. Trying again.");
  const name = words.textOr(view.name, feed.id);
  const slots = finiteOrNull(view.schedule?.slots) ?? 0;
  const tenths = slots > 0 ? Math.floor((10 * view.slots_closed) / slots) : 0;
  if (words.isOnHold(view)) return announce(`${name}: on hold. ${words.holdNotice(view)}`);
  const progress = view.status === "running" && tenths > 0 ? `, ${10 * tenths} % of the slots released` : "";
  return announce(`${name}: ${words.status(view.status)}${progress}.`);
};

const draw = () => {
  frameRequest = 0;
  drawLink();
  if (feed === null) return;
  if (feed.state === "gone") {
    const id = feed.id;
    closeFeed();
    openList(`There is no campaign ${id} here.`);
    return;
  }
  if (feed.view === null) return;
  const { view } = feed;
  show("list", false);
  show("campaign", true);
  const name = words.textOr(view.name, feed.id);
  document.title = `${name} · checkins`;
  setText("name", name);
  setText("kind", words.subtitle(view));
  setText("lede", words.introduction(view, sealedCampaign));
  drawNotice();
  drawCurrentState(view, sealedCampaign, true);
  drawLearningCurve(feed, sealedCampaign, redrawSoon);
  drawPrivacyLoss(feed);
  drawCertificate(view);
  drawLedger(feed);
  drawSeal(view, sealedCampaign);
  drawJoin(feed, sealedCampaign);
  announceState();
};

const redrawSoon = () => {
  if (frameRequest === 0) frameRequest = requestAnimationFrame(draw);
};

const feedChanged = (changedFeed) => {
  if (changedFeed !== feed) return;
  if (feed.view !== null && sealedCampaign === null) sealedCampaign = parseObject(feed.view.campaign);
  redrawSoon();
};

const closeFeed = () => {
  feed?.close();
  feed = null;
  sealedCampaign = null;
};

const openCampaign = (id) => {
  closeFeed();
  clearTimeout(listTimer);
  feed = new Feed(id, feedChanged);
  drawLink();
};

// note: a message that stays until the reader opens a run.
const openList = async (note = "") => {
  clearTimeout(listTimer);
  document.title = "checkins";
  let campaigns = null;
  try {
    const listing = await fetchJson("campaigns");
    campaigns = (Array.isArray(listing.campaigns) ? listing.campaigns : []).filter((run) => typeof run?.id === "string");
  } catch {
    campaigns = null;
  }
  if (feed !== null) return;  // the reader has opened a campaign meanwhile
  if (campaigns?.length === 1 && note === "") {
    openCampaign(campaigns[0].id);
    return;
  }
  show("campaign", false);
  show("list", true);
  drawLink();
  const connectionError = campaigns === null ? "No response from the server. Trying again." : "";
  const noCampaign = campaigns?.length === 0 ? "No campaign yet. The operator starts one with: checkins serve campaign.toml" : "";
  const message = [note, connectionError || noCampaign].filter(Boolean).join(" ");
  show("list-note", message !== "");
  setText("list-note", message);
  announce(message || `${formatCount(campaigns?.length)} campaigns.`);
  if (campaigns !== null) drawList(campaigns);
  setChildren("others", []);
  listTimer = setTimeout(() => openList(note), 1000 * (campaigns === null ? 3 : LIST_REFRESH_S));
};

const followAddress = async () => {
  if (feed !== null && feed.id === runInAddress()) return;
  closeFeed();
  if (runInAddress() === "") {
    await openList();
    return;
  }
  openCampaign(runInAddress());
  const openedFeed = feed;
  try {
    const listing = await fetchJson("campaigns");
    if (feed === openedFeed) drawListLink(Array.isArray(listing.campaigns) ? listing.campaigns : [], feed.id);
  } catch {
    // the feed reports that there is no response
  }
};

setInterval(() => {
  if (document.hidden || feed === null) return;
  feed.checkOverdue();
  drawLink();
  if (feed.view !== null) drawCurrentState(feed.view, sealedCampaign);
}, TICK_MS);
addEventListener("hashchange", followAddress);
addEventListener("online", () => feed?.wake());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) feed?.wake();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawSoon);
let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== width) redrawSoon();
  width = contentRect.width;
}).observe(byId("main"));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the fragment of the address is the id of the run
  byId("main").focus();
});
followAddress();
