// The question: converts the inputs to the query of the request, and the page's address to the inputs.

import { byId } from "./dom.js";

// Initial values of the inputs.
const FIRST = {
  epsilon: "1", population: "10000..20000", delta: "1e-6", adjacency: "add-remove", dimension: "1000",
  dropout: "0.05", duration_s: "86400",
};
// Name in the query: id of the input, and the factor from the input's unit to the query's unit.
const PLAIN = {
  epsilon: ["epsilon", 1], delta: ["delta", 1], adjacency: ["adjacency", null], dimension: ["dimension", 1],
  dropout: ["dropout", 0.01], availability_s: ["availability", 3600], uplink_bytes_per_s: ["uplink", 1000],
  task: ["task", null], updates_per_s: ["updates", 1], protocol: ["protocol", null], noise_at: ["noise-at", null],
  randomizer: ["randomizer", null], participation: ["participation", 1], capacity: ["capacity", null],
  window: ["window", 1], minibatch: ["minibatch", 1], repeats: ["repeats", 1],
};
const UNITS = [86400, 3600, 60];

const SLIDERS = {
  epsilon: { low: 0.05, high: 20 },
  population: { low: 100, high: 1e7 },
  slots: { low: 1, high: 1e5 },
};
const STEPS = 1000;

const number = (text) => {
  const value = Number(text);
  return text.trim() !== "" && Number.isFinite(value) ? value : null;
};

const tidy = (value) => String(Number(value.toPrecision(12)));
const few = (value, digits) => Number(value.toPrecision(digits));

// Text that is not a number is sent unchanged, and the server's error message explains it.
const scaled = (text, factor) => {
  const plain = text.trim().replace(/(?<=\d)[,\u00a0 ](?=\d{3}\b)/g, "");
  const value = factor === null || factor === 1 ? null : number(plain);
  return value === null ? plain : tidy(value * factor);
};

const shown = (text, factor) => {
  const value = factor === null || factor === 1 ? null : number(text);
  return value === null ? text : tidy(value / factor);
};

let ratio = 2;

export const isAutomatic = () => byId("automatic").checked;

// A task of the package determines the dimension of the model.
const knownTask = () => byId("task").value !== "";
export const followTask = () => {
  byId("dimension").disabled = knownTask();
};

export const query = () => {
  const asked = new URLSearchParams();
  asked.set("population", `${scaled(byId("low").value, 1)}..${scaled(byId("high").value, 1)}`);
  for (const [name, [id, factor]] of Object.entries(PLAIN)) {
    const text = byId(id).disabled ? "" : scaled(byId(id).value, factor);
    if (text !== "" || (name in FIRST && !byId(id).disabled)) asked.set(name, text);
  }
  asked.set("duration_s", scaled(byId("duration").value, Number(byId("duration-unit").value)));
  if (!isAutomatic()) asked.set("slots", scaled(byId("slots").value, 1));
  return asked.toString();
};

// Sets the inputs from the query in the page's address. Missing values are those of FIRST.
export const restore = (text) => {
  const given = { ...FIRST, ...Object.fromEntries(new URLSearchParams(text)) };
  for (const [name, [id, factor]] of Object.entries(PLAIN)) byId(id).value = shown(given[name] ?? "", factor);
  const [low, high] = given.population.split("..");
  byId("low").value = low;
  byId("high").value = high ?? low;
  const seconds = number(given.duration_s) ?? 0;
  const unit = UNITS.find((size) => seconds >= size && Number.isInteger(few(seconds / size, 6))) ?? 60;
  byId("duration-unit").value = String(unit);
  byId("duration").value = shown(given.duration_s, unit);
  byId("automatic").checked = given.slots === undefined;
  if (given.slots !== undefined) byId("slots").value = given.slots;
  if (Object.keys(PLAIN).some((name) => given[name] && byId("more").contains(byId(PLAIN[name][0])))) byId("more").open = true;
  followTask();
  keepRatio();
  moveSliders();
};

export const keepRatio = () => {
  const [low, high] = [number(byId("low").value), number(byId("high").value)];
  if (low > 0 && high >= low) ratio = high / low;
};

const middle = () => Math.sqrt(number(byId("low").value) * number(byId("high").value));
const numberIn = { epsilon: () => number(byId("epsilon").value), population: middle, slots: () => number(byId("slots").value) };

// The texts of the inputs for a slider's value.
const texts = {
  epsilon: (value) => ({ epsilon: tidy(few(value, 2)) }),
  population: (value) => ({
    low: tidy(Math.max(1, Math.round(few(value / Math.sqrt(ratio), 2)))),
    high: tidy(Math.max(1, Math.round(few(value * Math.sqrt(ratio), 2)))),
  }),
  slots: (value) => ({ slots: tidy(Math.max(1, Math.round(few(value, 2)))) }),
};

// A slider is logarithmic, so that each step changes the value by the same factor.
const inSlider = (name) => {
  const { low, high } = SLIDERS[name];
  return Object.entries(texts[name](low * (high / low) ** (Number(byId(`${name}-slider`).value) / STEPS)));
};

// Moves the sliders to the values of the inputs. A slider that already has the same value stays.
export const moveSliders = () => {
  for (const [name, { low, high }] of Object.entries(SLIDERS)) {
    const slider = byId(`${name}-slider`);
    const value = numberIn[name]();
    if (value > 0 && inSlider(name).some(([id, text]) => byId(id).value !== text)) {
      const share = Math.log(value / low) / Math.log(high / low);
      slider.value = String(Math.round(STEPS * Math.min(1, Math.max(0, share))));
    }
    slider.setAttribute("aria-valuetext", name === "population"
      ? `${byId("low").value} to ${byId("high").value} clients` : byId(name).value);
  }
  document.querySelector('[data-field="slots"]').classList.toggle("automatic", isAutomatic());
  byId("slots-how").textContent = isAutomatic() ? "automatic" : "fixed";
};

// Sets the inputs after a slider was moved.
export const takeSlider = (name) => {
  if (name === "slots") byId("automatic").checked = false;
  for (const [id, text] of inSlider(name)) byId(id).value = text;
  moveSliders();
};

// Shows values that the planner chose: the number of slots, and the dimension of a task's model.
export const showFound = (slots, dimension) => {
  if (knownTask() && dimension !== null) byId("dimension").value = String(dimension);
  if (!isAutomatic() || slots === null) return;
  byId("slots").value = String(slots);
  moveSliders();
};

export const prepareSliders = () => {
  for (const name of Object.keys(SLIDERS)) {
    for (const [key, value] of [["min", 0], ["max", STEPS], ["step", 5]]) byId(`${name}-slider`).setAttribute(key, value);
  }
};

export const asked = (name) => numberIn[name]();
