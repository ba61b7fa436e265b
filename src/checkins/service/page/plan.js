// The planner's page. It requests a plan when a slider moves, and shows the last plan until the response.

import { at, say, show } from "./dom.js";
import { drawPlan, markAsked, redraw } from "./plan-answer.js";
import { finite, nearest } from "./numbers.js";
import {
  asked, followTask, isAutomatic, keepRatio, moveSliders, prepareSliders, query, restore, showFound, takeSlider,
} from "./plan-question.js";

const PAUSE_MS = 180;  // after the last movement of a slider
const KEPT = 60;
const LONGEST_WAIT_S = 30;

const kept = new Map();
let shownFor = null;
let wanted = null;
let request = null;
let timer = 0;

const state = (name, text) => {
  at("state").dataset.state = name;
  say("state-text", text);
};

// The shown plan is dimmed if it does not belong to the current question.
const busy = (is) => {
  at("main").setAttribute("aria-busy", String(is));
  at("plan").classList.toggle("stale", is || shownFor !== wanted);
};

// Shows an error beside its input, or at the end of the form if it belongs to none.
const fields = () => [...document.querySelectorAll("[data-field]")];
const complain = (detail) => {
  const name = /^[a-z_]+/.exec(detail)?.[0];
  const field = fields().find((one) => one.dataset.field === name);
  clear();
  if (field === undefined) {
    show("trouble", true);
    say("trouble", detail);
  } else {
    say(`${name}-error`, detail.replace(/^[a-z_]+( = [^:]*)?: /, ""));
    for (const input of field.querySelectorAll("input:not([type]), select")) input.setAttribute("aria-invalid", "true");
    for (let fold = field.closest("details"); fold !== null; fold = null) fold.open = true;
  }
  say("said", `Not planned. ${detail}`);
};
const clear = () => {
  show("trouble", false);
  for (const field of fields()) {
    say(`${field.dataset.field}-error`, "");
    for (const input of field.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  }
};

const keep = (key, plan) => {
  kept.delete(key);
  kept.set(key, plan);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
};

const answered = (key, plan) => {
  request = null;
  shownFor = key;
  clear();
  busy(false);
  show("nothing", false);
  show("plan", true);
  showFound(finite(plan.recommended?.slots), finite(plan.question?.dimension));
  drawPlan(plan, key);
  markAsked(null, null);
  const took = finite(plan.seconds);
  state("done", took === null ? "Planned" : `Planned in ${nearest(took, 2)} s`);
  say("said", `Recommended: ${plan.recommended?.label ?? "a design"}.`);
};

const refused = (detail) => {
  request = null;
  state("lost", "Not planned");
  busy(false);
  say("nothing", "No plan yet: correct the question.");
  complain(detail);
};

const later = (text, seconds) => {
  request = null;
  state("lost", text);
  clearTimeout(timer);
  timer = setTimeout(ask, 1000 * Math.min(LONGEST_WAIT_S, seconds));
};

const problemOf = async (response) => {
  try {
    const body = await response.json();
    return typeof body?.detail === "string" ? body.detail : "";
  } catch {
    return "";
  }
};

const ask = async () => {
  clearTimeout(timer);
  const key = query();
  if (request?.key === key) return;
  request?.control.abort();
  request = null;
  wanted = key;
  history.replaceState(null, "", `#${key}`);
  if (kept.has(key)) {
    keep(key, kept.get(key));
    answered(key, kept.get(key));
    return;
  }
  const mine = { key, control: new AbortController() };
  request = mine;
  busy(true);
  state("computing", "Computing");
  let response = null;
  let plan = null;
  try {
    response = await fetch(`plan/answer?${key}`, { signal: mine.control.signal });
    if (response.ok) plan = await response.json();
  } catch {
    if (request === mine) later("No response. Trying again.", 3);
    return;
  }
  if (request !== mine) return;
  if (plan !== null) {
    keep(key, plan);
    answered(key, plan);
    return;
  }
  const detail = await problemOf(response);
  if (request !== mine) return;
  const wait = Number(response.headers.get("retry-after"));
  if (wait > 0 && wait <= LONGEST_WAIT_S) later(`Busy. Trying again in ${wait} s.`, wait);
  else refused(detail || `The server responded ${response.status}.`);
};

const soon = () => {
  clearTimeout(timer);
  state("computing", "Computing");
  busy(true);
  timer = setTimeout(ask, PAUSE_MS);
};

const moved = () => {
  moveSliders();
  markAsked(asked("epsilon"), isAutomatic() ? null : asked("slots"));
  soon();
};

for (const name of ["epsilon", "population", "slots"]) {
  at(`${name}-slider`).addEventListener("input", () => {
    takeSlider(name);
    moved();
  });
  at(`${name}-slider`).addEventListener("pointerup", () => setTimeout(ask));  // the slider was released, so do not wait
}
at("question").addEventListener("input", (event) => {
  const { id, type } = event.target;
  if (type === "range") return;
  if (id === "slots") at("automatic").checked = false;
  if (id === "low" || id === "high") keepRatio();
  followTask();
  moved();
});
at("question").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
addEventListener("hashchange", () => {
  restore(location.hash.slice(1));
  ask();
});
at("share").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    say("share", "Copied");
  } catch {
    say("share", "Copy it from the address bar");  // the browser does not allow it
  }
  setTimeout(() => say("share", "Copy link to this plan"), 2000);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the fragment of the address is the question
  at("main").focus();
});
let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== width) redraw();
  width = contentRect.width;
}).observe(at("main"));
prepareSliders();
restore(location.hash.slice(1));
ask();
