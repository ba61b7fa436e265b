// The current state by the server's clock: countdown, slot, phase and end.

import { byId, setChildren, element, setText, show } from "./dom.js";
import { clock } from "./feed.js";
import { count, duration, finite, moment, slotCount } from "./numbers.js";
import { drawStrip } from "./strip.js";
import * as words from "./words.js";

const QUICK_S = 2;  // phases of shorter slots would flicker, so only their lengths are shown

const timing = (view) => {
  const { start, slot_s: length, choose_s: choose, slots } = view.schedule ?? {};
  const begins = Date.parse(start);
  if (!Number.isFinite(begins) || !(length > 0) || !(slots > 0)) return null;
  const passed = (clock.now() - begins) / 1000;
  const slot = passed < 0 ? 0 : Math.floor(passed / length) + 1;
  const last = Math.min(slots, finite(view.affordable) ?? slots);
  const within = passed - (slot - 1) * length;
  return { begins, length, choose: finite(choose) ?? 0, slots, last, passed, slot, within, ends: begins + 1000 * last * length };
};

const headline = (view, time) => {
  const closed = count(view.slots_closed);
  const of = `of ${count(view.schedule?.slots)}`;
  if (view.status === "completed") return ["Completed", `${closed} ${of} slots released`];
  if (view.status === "stopped") return ["Stopped", `after ${closed} ${of} slots`];
  if (words.isOnHold(view)) return ["On hold", `${closed} ${of} slots released`];
  if (time === null) return [words.status(view.status), `${closed} ${of} slots`];
  if (time.passed < 0) return [`Begins in ${duration(Math.ceil(-time.passed))}`, ""];
  if (time.slot > time.last) return ["Closing", `${closed} ${of} slots released`];
  return [`Slot ${count(time.slot)}`, of];
};

const when = (view, time) => {
  if (time === null) return "";
  const now = clock.now();
  if (view.status === "stopped" || words.isOnHold(view)) return "";
  if (view.status === "completed") return `ended ${moment(time.ends, now)}`;
  if (time.passed < 0) return `${moment(time.begins, now)}, then ${slotCount(time.last)} in ${duration(time.last * time.length)}`;
  if (time.slot > time.last) return "the last slot is over";
  return `ends ${moment(time.ends, now)}, in ${duration(Math.ceil((time.ends - now) / 1000))}`;
};

const phases = (view, time) => {
  const running = time !== null && !words.isOver(view.status) && !words.isOnHold(view) && time.slot <= time.last;
  show("phases", running);
  if (!running) return;
  const rest = Math.max(0, time.length - time.choose);
  const live = time.slot > 0 && time.length >= QUICK_S;
  const opened = live && time.within < time.choose;
  byId("phase-mark").style.left = `${(100 * time.choose) / time.length}%`;
  byId("phase-fill").style.width = live ? `${Math.min(100, (100 * time.within) / time.length)}%` : "0";
  byId("phases").classList.toggle("live", live);
  byId("phase-open").classList.toggle("on", opened);
  byId("phase-train").classList.toggle("on", live && !opened);
  if (live) {
    const leftover = opened ? time.choose - time.within : time.length - time.within;
    const seconds = duration(Math.ceil(leftover));
    setText("phase-open", opened ? `check-ins open, ${seconds} left` : "check-ins closed");
    setText("phase-train", opened ? "then training" : `training, ${seconds} left`);
  } else {
    setText("phase-open", `each slot: check-ins for ${duration(time.choose)},`);
    setText("phase-train", `then training for ${duration(rest)}`);
  }
};

let drawn = "";

const slotsStrip = (view, time, again) => {
  const slots = finite(view.schedule?.slots) ?? 0;
  show("strip", slots > 0);
  if (!(slots > 0)) return;
  const closed = finite(view.slots_closed) ?? 0;
  const busy = time !== null && !words.isOver(view.status) && time.slot > closed && time.slot <= time.last;
  const state = {
    slots, closed, running: busy ? time.slot : null, affordable: finite(view.affordable) ?? slots,
  };
  const key = JSON.stringify(state);
  if (key === drawn && !again) return;
  drawn = key;
  drawStrip(byId("strip"), state);
  byId("strip").setAttribute("aria-label",
    `${count(closed)} of ${count(slots)} slots released${busy ? `, slot ${count(time.slot)} running` : ""}`);
  const keys = [["closed", "released"]];
  if (!words.isOver(view.status)) keys.push(["running", "running"]);
  if (closed < Math.min(slots, state.affordable)) keys.push(["ahead", words.isOver(view.status) ? "not run" : "to come"]);
  if (state.affordable < slots) keys.push(["unpaid", "exceeds the budget"]);
  setChildren("strip-key", keys.map(([look, text]) => element("li", {}, element("i", { class: look, "aria-hidden": "true" }), text)));
};

// Called ten times a second, and with again = true if colours or widths have changed.
export const drawNow = (view, sealed, again = false) => {
  const time = timing(view);
  const [big, small] = headline(view, time);
  const place = byId("now");
  if (place.dataset.shown !== `${big} ${small}`) {
    place.dataset.shown = `${big} ${small}`;
    place.replaceChildren(big, ...(small ? [" ", element("small", {}, small)] : []));
  }
  setText("when", when(view, time));
  phases(view, time);
  slotsStrip(view, time, again);
  setText("alike", words.alike(sealed));
};
