// The live page: opens a campaign or the list, draws it, and announces changes to screen readers.

import { byId, setChildren, element, setText, show } from "./dom.js";
import { Feed, read } from "./feed.js";
import { drawLearned, drawSpent } from "./figures.js";
import { drawNow } from "./now.js";
import { count, duration, finite } from "./numbers.js";
import { drawCertificate, drawLedger, drawPart, drawSeal } from "./records.js";
import * as words from "./words.js";

const TICK_MS = 100;
const LIST_AGAIN_S = 15;  // only while the list is shown

let feed = null;
let sealed = null;
let frame = 0;
let announced = "";
let listTimer = 0;

const wantedRun = () => {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return location.hash.slice(1);
  }
};

const parsed = (text) => {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? value : null;
  } catch {
    return null;
  }
};

const announce = (text) => {
  if (text === announced) return;
  announced = text;
  setText("said", text);
};

const progressOf = (one) => {
  const runs = finite(one.repeats) > 1 ? `run ${count(one.run)} of ${count(one.repeats)}, ` : "";
  return `${runs}${count(one.slots_closed)} of ${count(one.slots)} slots`;
};

const link = (one) => `#${encodeURIComponent(one.id)}`;

const drawList = (campaigns) => {
  setChildren("campaigns", campaigns.map((one) => element("li", {}, element("a", { href: link(one) },
    element("strong", {}, words.textOr(one.name, one.id)),
    element("span", { class: "badge", "data-status": words.textOr(one.status) }, words.status(one.status)),
    element("span", { class: "soft" }, progressOf(one)),
  ))));
};

const drawOthers = (campaigns, open) => {
  const others = campaigns.filter((one) => one.id !== open);
  setChildren("others", others.length === 0 ? [] : [element("a", { href: "#" }, `All campaigns (${count(campaigns.length)})`)]);
};

const drawLink = () => {
  const ago = duration(Math.floor((Date.now() - (feed?.lastHeard ?? Date.now())) / 1000));
  const state = feed?.state ?? "list";
  const texts = {
    connecting: "Connecting", live: "Live", over: "Over", gone: "Not here", list: "",
    lost: feed?.view ? `Connection lost. Last heard ${ago} ago. Trying again.` : "No response. Trying again.",
  };
  byId("link").dataset.state = state;
  setText("link-text", texts[state]);
};

const drawNotice = () => {
  const { view, state } = feed;
  const next = words.isOver(view.status) && typeof view.next === "string" ? view.next : null;
  const place = byId("notice");
  const text = state === "lost"
    ? "The connection is lost. The page shows what was last heard from the server. Only the clock goes on."
    : next !== null ? "This run is over. "
    : view.status === "stopped" ? words.stopped(view)
    : words.holding(view);
  place.hidden = text === "";
  place.replaceChildren(text, ...(next !== null && state !== "lost" ? [element("a", { href: `#${encodeURIComponent(next)}` }, "Open the next run")] : []));
};

const announceState = () => {
  const { view, state } = feed;
  if (state === "lost") return announce("Connection lost. Trying again.");
  const name = words.textOr(view.name, feed.id);
  const slots = finite(view.schedule?.slots) ?? 0;
  const tenths = slots > 0 ? Math.floor((10 * view.slots_closed) / slots) : 0;
  if (words.isOnHold(view)) return announce(`${name}: on hold. ${words.holding(view)}`);
  const far = view.status === "running" && tenths > 0 ? `, ${10 * tenths} % of the slots released` : "";
  return announce(`${name}: ${words.status(view.status)}${far}.`);
};

const draw = () => {
  frame = 0;
  drawLink();
  if (feed === null) return;
  if (feed.state === "gone") {
    const id = feed.id;
    leave();
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
  setText("kind", words.kind(view));
  setText("lede", words.lede(view, sealed));
  drawNotice();
  drawNow(view, sealed, true);
  drawLearned(feed, sealed, redrawSoon);
  drawSpent(feed);
  drawCertificate(view);
  drawLedger(feed);
  drawSeal(view, sealed);
  drawPart(feed, sealed);
  announceState();
};

const redrawSoon = () => {
  if (frame === 0) frame = requestAnimationFrame(draw);
};

const feedChanged = (from) => {
  if (from !== feed) return;
  if (feed.view !== null && sealed === null) sealed = parsed(feed.view.campaign);
  redrawSoon();
};

const leave = () => {
  feed?.close();
  feed = null;
  sealed = null;
};

const openCampaign = (id) => {
  leave();
  clearTimeout(listTimer);
  feed = new Feed(id, feedChanged);
  drawLink();
};

// note: a message that stays until the reader opens something.
const openList = async (note = "") => {
  clearTimeout(listTimer);
  document.title = "checkins";
  let campaigns = null;
  try {
    const answer = await read("campaigns");
    campaigns = (Array.isArray(answer.campaigns) ? answer.campaigns : []).filter((one) => typeof one?.id === "string");
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
  const trouble = campaigns === null ? "No response from the server. Trying again." : "";
  const none = campaigns?.length === 0 ? "No campaign yet. The operator starts one with: checkins serve campaign.toml" : "";
  const message = [note, trouble || none].filter(Boolean).join(" ");
  show("list-note", message !== "");
  setText("list-note", message);
  announce(message || `${count(campaigns?.length)} campaigns.`);
  if (campaigns !== null) drawList(campaigns);
  setChildren("others", []);
  listTimer = setTimeout(() => openList(note), 1000 * (campaigns === null ? 3 : LIST_AGAIN_S));
};

const followAddress = async () => {
  if (feed !== null && feed.id === wantedRun()) return;
  leave();
  if (wantedRun() === "") {
    await openList();
    return;
  }
  openCampaign(wantedRun());
  const mine = feed;
  try {
    const answer = await read("campaigns");
    if (feed === mine) drawOthers(Array.isArray(answer.campaigns) ? answer.campaigns : [], feed.id);
  } catch {
    // the feed reports that there is no response
  }
};

setInterval(() => {
  if (document.hidden || feed === null) return;
  feed.checkOverdue();
  drawLink();
  if (feed.view !== null) drawNow(feed.view, sealed);
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
