// The planner's page. It requests a plan when a slider moves, and shows the last plan until the response.

import { byId, setText, show } from "./dom.js";
import { drawPlan, markAsked, redraw } from "./plan-answer.js";
import { finite, nearest } from "./numbers.js";
import {
  asked, followTask, isAutomatic, keepRatio, moveSliders, prepareSliders, query, restore, showFound, takeSlider,
} from "./plan-question.js";

const PAUSE_MS = 180;  // after the last movement of a slider
const MAX_PLANS = 60;
const LONGEST_WAIT_S = 30;

const plans = new Map();
let shownQuery = null;
let wantedQuery = null;
let request = null;
let timer = 0;

const state = (name, text) => {
  byId("state").dataset.state = name;
  setText("state-text", text);
};

// The shown plan is dimmed if it does not belong to the current question.
const setBusy = (is) => {
  byId("main").setAttribute("aria-busy", String(is));
  byId("plan").classList.toggle("stale", is || shownQuery !== wantedQuery);
};

// Shows an error beside its input, or at the end of the form if it belongs to none.
const fields = () => [...document.querySelectorAll("[data-field]")];
const showError = (detail) => {
  const name = /^[a-z_]+/.exec(detail)?.[0];
  const field = fields().find((one) => one.dataset.field === name);
  clearErrors();
  if (field === undefined) {
    show("trouble", true);
    setText("trouble", detail);
  } else {
    setText(`${name}-error`, detail.replace(/^[a-z_]+( = [^:]*)?: /, ""));
    for (const input of field.querySelectorAll("input:not([type]), select")) input.setAttribute("aria-invalid", "true");
    for (let fold = field.closest("details"); fold !== null; fold = null) fold.open = true;
  }
  setText("said", `Not planned. ${detail}`);
};
const clearErrors = () => {
  show("trouble", false);
  for (const field of fields()) {
    setText(`${field.dataset.field}-error`, "");
    for (const input of field.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  }
};

const cache = (key, plan) => {
  plans.delete(key);
  plans.set(key, plan);
  if (plans.size > MAX_PLANS) plans.delete(plans.keys().next().value);
};

const showPlan = (key, plan) => {
  request = null;
  shownQuery = key;
  clearErrors();
  setBusy(false);
  show("nothing", false);
  show("plan", true);
  showFound(finite(plan.recommended?.slots), finite(plan.question?.dimension));
  drawPlan(plan, key);
  markAsked(null, null);
  const took = finite(plan.seconds);
  state("done", took === null ? "Planned" : `Planned in ${nearest(took, 2)} s`);
  setText("said", `Recommended: ${plan.recommended?.label ?? "a design"}.`);
};

const showRefusal = (detail) => {
  request = null;
  state("lost", "Not planned");
  setBusy(false);
  setText("nothing", "No plan yet: correct the question.");
  showError(detail);
};

const retryLater = (text, seconds) => {
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
  wantedQuery = key;
  history.replaceState(null, "", `#${key}`);
  if (plans.has(key)) {
    cache(key, plans.get(key));
    showPlan(key, plans.get(key));
    return;
  }
  const mine = { key, control: new AbortController() };
  request = mine;
  setBusy(true);
  state("computing", "Computing");
  let response = null;
  let plan = null;
  try {
    response = await fetch(`plan/answer?${key}`, { signal: mine.control.signal });
    if (response.ok) plan = await response.json();
  } catch {
    if (request === mine) retryLater("No response. Trying again.", 3);
    return;
  }
  if (request !== mine) return;
  if (plan !== null) {
    cache(key, plan);
    showPlan(key, plan);
    return;
  }
  const detail = await problemOf(response);
  if (request !== mine) return;
  const wait = Number(response.headers.get("retry-after"));
  if (wait > 0 && wait <= LONGEST_WAIT_S) retryLater(`Busy. Trying again in ${wait} s.`, wait);
  else showRefusal(detail || `The server responded ${response.status}.`);
};

const askSoon = () => {
  clearTimeout(timer);
  state("computing", "Computing");
  setBusy(true);
  timer = setTimeout(ask, PAUSE_MS);
};

const moved = () => {
  moveSliders();
  markAsked(asked("epsilon"), isAutomatic() ? null : asked("slots"));
  askSoon();
};

for (const name of ["epsilon", "population", "slots"]) {
  byId(`${name}-slider`).addEventListener("input", () => {
    takeSlider(name);
    moved();
  });
  byId(`${name}-slider`).addEventListener("pointerup", () => setTimeout(ask));  // the slider was released, so do not wait
}
byId("question").addEventListener("input", (event) => {
  const { id, type } = event.target;
  if (type === "range") return;
  if (id === "slots") byId("automatic").checked = false;
  if (id === "low" || id === "high") keepRatio();
  followTask();
  moved();
});
byId("question").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
addEventListener("hashchange", () => {
  restore(location.hash.slice(1));
  ask();
});
byId("share").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    setText("share", "Copied");
  } catch {
    setText("share", "Copy it from the address bar");  // the browser does not allow it
  }
  setTimeout(() => setText("share", "Copy link to this plan"), 2000);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the fragment of the address is the question
  byId("main").focus();
});
let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== width) redraw();
  width = contentRect.width;
}).observe(byId("main"));
prepareSliders();
restore(location.hash.slice(1));
ask();
