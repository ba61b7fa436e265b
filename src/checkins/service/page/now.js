// The current state of a run by the server's clock: countdown, slot, phase of the slot, and end.

import { byId, setChildren, element, setText, show } from "./dom.js";
import { clock } from "./feed.js";
import { formatCount, formatDuration, finiteOrNull, formatTime, formatSlots } from "./numbers.js";
import { drawStrip } from "./strip.js";
import * as words from "./words.js";

const MIN_LIVE_SLOT_S = 2;  // phases of shorter slots would flicker, so only their lengths are shown

const slotTiming = (view) => {
  const { start, slot_s: length, choose_s: choose, slots } = view.schedule ?? {};
  const startMs = Date.parse(start);
  if (!Number.isFinite(startMs) || !(length > 0) || !(slots > 0)) return null;
  const elapsedS = (clock.now() - startMs) / 1000;
  const slot = elapsedS < 0 ? 0 : Math.floor(elapsedS / length) + 1;
  const lastSlot = Math.min(slots, finiteOrNull(view.affordable) ?? slots);
  const inSlotS = elapsedS - (slot - 1) * length;
  return { startMs, length, choose: finiteOrNull(choose) ?? 0, slots, lastSlot, elapsedS, slot, inSlotS, endMs: startMs + 1000 * lastSlot * length };
};

const headline = (view, time) => {
  const closed = formatCount(view.slots_closed);
  const ofSlots = `of ${formatCount(view.schedule?.slots)}`;
  if (view.status === "completed") return ["Completed", `${closed} ${ofSlots} slots released`];
  if (view.status === "stopped") return ["Stopped", `after ${closed} ${ofSlots} slots`];
  if (words.isOnHold(view)) return ["On hold", `${closed} ${ofSlots} slots released`];
  if (time === null) return [words.status(view.status), `${closed} ${ofSlots} slots`];
  if (time.elapsedS < 0) return [`Begins in ${formatDuration(Math.ceil(-time.elapsedS))}`, ""];
  if (time.slot > time.lastSlot) return ["Closing", `${closed} ${ofSlots} slots released`];
  return [`Slot ${formatCount(time.slot)}`, ofSlots];
};

const timeText = (view, time) => {
  if (time === null) return "";
  const now = clock.now();
  if (view.status === "stopped" || words.isOnHold(view)) return "";
  if (view.status === "completed") return `ended ${formatTime(time.endMs, now)}`;
  if (time.elapsedS < 0) return `${formatTime(time.startMs, now)}, then ${formatSlots(time.lastSlot)} in ${formatDuration(time.lastSlot * time.length)}`;
  if (time.slot > time.lastSlot) return "the last slot is over";
  return `ends ${formatTime(time.endMs, now)}, in ${formatDuration(Math.ceil((time.endMs - now) / 1000))}`;
};

const drawPhases = (view, time) => {
  const isVisible = time !== null && !words.isOver(view.status) && !words.isOnHold(view) && time.slot <= time.lastSlot;
  show("phases", isVisible);
  if (!isVisible) return;
  const trainingS = Math.max(0, time.length - time.choose);
  const isLive = time.slot > 0 && time.length >= MIN_LIVE_SLOT_S;
  const isOpen = isLive && time.inSlotS < time.choose;
  byId("phase-mark").style.left = `${(100 * time.choose) / time.length}%`;
  byId("phase-fill").style.width = isLive ? `${Math.min(100, (100 * time.inSlotS) / time.length)}%` : "0";
  byId("phases").classList.toggle("live", isLive);
  byId("phase-open").classList.toggle("on", isOpen);
  byId("phase-train").classList.toggle("on", isLive && !isOpen);
  if (isLive) {
    const remainingS = isOpen ? time.choose - time.inSlotS : time.length - time.inSlotS;
    const remaining = formatDuration(Math.ceil(remainingS));
    setText("phase-open", isOpen ? `check-ins open, ${remaining} left` : "check-ins closed");
    setText("phase-train", isOpen ? "then training" : `training, ${remaining} left`);
  } else {
    setText("phase-open", `each slot: check-ins for ${formatDuration(time.choose)},`);
    setText("phase-train", `then training for ${formatDuration(trainingS)}`);
  }
};

let drawnState = "";

const drawSlots = (view, time, force) => {
  const slots = finiteOrNull(view.schedule?.slots) ?? 0;
  show("strip", slots > 0);
  if (!(slots > 0)) return;
  const closed = finiteOrNull(view.slots_closed) ?? 0;
  const isRunning = time !== null && !words.isOver(view.status) && time.slot > closed && time.slot <= time.lastSlot;
  const ended = time === null || words.isOver(view.status) ? closed : Math.min(time.slot - 1, time.lastSlot);
  const state = {
    slots, closed, ended, running: isRunning ? time.slot : null, affordable: finiteOrNull(view.affordable) ?? slots,
  };
  const key = JSON.stringify(state);
  if (key === drawnState && !force) return;
  drawnState = key;
  drawStrip(byId("strip"), state);
  byId("strip").setAttribute("aria-label",
    `${formatCount(closed)} of ${formatCount(slots)} slots released${isRunning ? `, slot ${formatCount(time.slot)} running` : ""}`);
  const legend = [["closed", "released"]];
  if (!words.isOver(view.status)) legend.push(["ended", "over, release follows"], ["running", "running"]);
  if (closed < Math.min(slots, state.affordable)) legend.push(["ahead", words.isOver(view.status) ? "not run" : "to come"]);
  if (state.affordable < slots) legend.push(["over-budget", "exceeds the budget"]);
  setChildren("strip-key", legend.map(([className, text]) => element("li", {}, element("i", { class: className, "aria-hidden": "true" }), text)));
};

// Called ten times a second. force: true to draw the strip of slots even if its state is unchanged,
// because colours or widths may have changed.
export const drawCurrentState = (view, sealedCampaign, force = false) => {
  const time = slotTiming(view);
  const [title, subtitle] = headline(view, time);
  const heading = byId("now");
  if (heading.dataset.shown !== `${title} ${subtitle}`) {
    heading.dataset.shown = `${title} ${subtitle}`;
    heading.replaceChildren(title, ...(subtitle ? [" ", element("small", {}, subtitle)] : []));
  }
  setText("when", timeText(view, time));
  drawPhases(view, time);
  drawSlots(view, time, force);
  setText("slots-note", words.explainSlots(sealedCampaign));
};
