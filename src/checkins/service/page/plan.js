// The planner's page. It requests a plan when an input changes, and shows the last plan until the response.

import { byId, setText, show } from "./dom.js";
import { drawPlan, markQuestion, redraw } from "./plan-answer.js";
import { finiteOrNull, roundNearest } from "./numbers.js";
import {
  inputValue, disableDimensionForTask, isAutomatic, storePopulationRatio, moveSliders, prepareSliders, questionQuery, restoreInputs, showPlannedValues, applySlider,
} from "./plan-question.js";

const REQUEST_DELAY_MS = 180;  // delay of a request after the last movement of a slider
const MAX_PLANS = 60;  // number of plans that are cached
const MAX_RETRY_S = 30;

const plans = new Map();
let shownQuery = null;
let wantedQuery = null;
let request = null;
let timer = 0;

const setState = (name, text) => {
  byId("state").dataset.state = name;
  setText("state-text", text);
};

// The shown plan is dimmed if it does not belong to the current question.
const setBusy = (isBusy) => {
  byId("main").setAttribute("aria-busy", String(isBusy));
  byId("plan").classList.toggle("stale", isBusy || shownQuery !== wantedQuery);
};

// Shows an error next to its input, or at the end of the form if the error belongs to no input.
const fields = () => [...document.querySelectorAll("[data-field]")];
const showError = (detail) => {
  const name = /^[a-z_]+/.exec(detail)?.[0];
  const field = fields().find((each) => each.dataset.field === name);
  clearErrors();
  if (field === undefined) {
    show("trouble", true);
    setText("trouble", detail);
  } else {
    setText(`${name}-error`, detail.replace(/^[a-z_]+( = [^:]*)?: /, ""));
    for (const input of field.querySelectorAll("input:not([type]), select")) input.setAttribute("aria-invalid", "true");
    for (let details = field.closest("details"); details !== null; details = null) details.open = true;
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
  showPlannedValues(finiteOrNull(plan.recommended?.slots), finiteOrNull(plan.question?.dimension));
  drawPlan(plan, key);
  markQuestion(null, null);
  const seconds = finiteOrNull(plan.seconds);
  setState("done", seconds === null ? "Planned" : `Planned in ${roundNearest(seconds, 2)} s`);
  setText("said", `Recommended: ${plan.recommended?.label ?? "a design"}.`);
};

const showRefusal = (detail) => {
  request = null;
  setState("lost", "Not planned");
  setBusy(false);
  setText("nothing", "No plan yet: correct the question.");
  showError(detail);
};

const retryLater = (text, delayS) => {
  request = null;
  setState("lost", text);
  clearTimeout(timer);
  timer = setTimeout(requestPlan, 1000 * Math.min(MAX_RETRY_S, delayS));
};

const problemDetail = async (response) => {
  try {
    const body = await response.json();
    return typeof body?.detail === "string" ? body.detail : "";
  } catch {
    return "";
  }
};

const requestPlan = async () => {
  clearTimeout(timer);
  const key = questionQuery();
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
  const thisRequest = { key, control: new AbortController() };
  request = thisRequest;
  setBusy(true);
  setState("computing", "Computing");
  let response = null;
  let plan = null;
  try {
    response = await fetch(`plan/answer?${key}`, { signal: thisRequest.control.signal });
    if (response.ok) plan = await response.json();
  } catch {
    if (request === thisRequest) retryLater("No response. Trying again.", 3);
    return;
  }
  if (request !== thisRequest) return;
  if (plan !== null) {
    cache(key, plan);
    showPlan(key, plan);
    return;
  }
  const detail = await problemDetail(response);
  if (request !== thisRequest) return;
  const delayS = Number(response.headers.get("retry-after"));
  if (delayS > 0 && delayS <= MAX_RETRY_S) retryLater(`Busy. Trying again in ${delayS} s.`, delayS);
  else showRefusal(detail || `The server responded ${response.status}.`);
};

const requestPlanSoon = () => {
  clearTimeout(timer);
  wantedQuery = questionQuery();  // so that the plan of an earlier question stays dimmed
  setState("computing", "Computing");
  setBusy(true);
  timer = setTimeout(requestPlan, REQUEST_DELAY_MS);
};

const questionChanged = () => {
  moveSliders();
  markQuestion(inputValue("epsilon"), isAutomatic() ? null : inputValue("slots"));
  requestPlanSoon();
};

for (const name of ["epsilon", "population", "slots"]) {
  byId(`${name}-slider`).addEventListener("input", () => {
    applySlider(name);
    questionChanged();
  });
  byId(`${name}-slider`).addEventListener("pointerup", () => setTimeout(requestPlan));  // the slider was released, so do not wait
}
byId("question").addEventListener("input", (event) => {
  const { id, type } = event.target;
  if (type === "range") return;
  if (id === "slots") byId("automatic").checked = false;
  if (id === "low" || id === "high") storePopulationRatio();
  disableDimensionForTask();
  questionChanged();
});
byId("question").addEventListener("submit", (event) => {
  event.preventDefault();
  requestPlan();
});
addEventListener("hashchange", () => {
  restoreInputs(location.hash.slice(1));
  requestPlan();
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
restoreInputs(location.hash.slice(1));
requestPlan();
