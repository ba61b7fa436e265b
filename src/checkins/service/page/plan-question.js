// The question to the planner. Converts the inputs of the form to the query of the request, and the
// fragment of the page's address, which is such a query, back to the inputs.

import { byId } from "./dom.js";

// Initial values of the inputs.
const DEFAULTS = {
  epsilon: "1", population: "10000..20000", delta: "1e-6", adjacency: "add-remove", dimension: "1000",
  dropout: "0.05", duration_s: "86400",
};
// For each name in the query, the id of the input and the factor from the input's unit to the query's
// unit. The factor is null if the value is not a number.
const INPUTS = {
  epsilon: ["epsilon", 1], delta: ["delta", 1], adjacency: ["adjacency", null], dimension: ["dimension", 1],
  dropout: ["dropout", 0.01], availability_s: ["availability", 3600], uplink_bytes_per_s: ["uplink", 1000],
  task: ["task", null], updates_per_s: ["updates", 1], protocol: ["protocol", null], noise_at: ["noise-at", null],
  randomizer: ["randomizer", null], participation: ["participation", 1], capacity: ["capacity", null],
  window: ["window", 1], minibatch: ["minibatch", 1], repeats: ["repeats", 1], bands: ["bands", 1],
};
const DURATION_UNITS_S = [86400, 3600, 60];

// Lowest and highest value of each slider.
const SLIDERS = {
  epsilon: { low: 0.05, high: 20 },
  population: { low: 100, high: 1e7 },
  slots: { low: 1, high: 1e5 },
};
const SLIDER_STEPS = 1000;

const parseNumber = (text) => {
  const value = Number(text);
  return text.trim() !== "" && Number.isFinite(value) ? value : null;
};

const numberText = (value) => String(Number(value.toPrecision(12)));
const roundTo = (value, digits) => Number(value.toPrecision(digits));

// Text that is not a number is sent unchanged, and the server's error message explains it.
const toQueryText = (text, factor) => {
  const trimmed = text.trim().replace(/(?<=\d)[,\u00a0 ](?=\d{3}\b)/g, "");
  const value = factor === null || factor === 1 ? null : parseNumber(trimmed);
  return value === null ? trimmed : numberText(value * factor);
};

const toInputText = (text, factor) => {
  const value = factor === null || factor === 1 ? null : parseNumber(text);
  return value === null ? text : numberText(value / factor);
};

// The upper end of the population divided by the lower end. The slider keeps this ratio.
let populationRatio = 2;

export const isAutomatic = () => byId("automatic").checked;

// A task of the package determines the dimension of the model, so the input is disabled.
const hasBuiltInTask = () => byId("task").value !== "";
export const disableDimensionForTask = () => {
  byId("dimension").disabled = hasBuiltInTask();
};

export const questionQuery = () => {
  const parameters = new URLSearchParams();
  parameters.set("population", `${toQueryText(byId("low").value, 1)}..${toQueryText(byId("high").value, 1)}`);
  for (const [name, [id, factor]] of Object.entries(INPUTS)) {
    const text = byId(id).disabled ? "" : toQueryText(byId(id).value, factor);
    if (text !== "" || (name in DEFAULTS && !byId(id).disabled)) parameters.set(name, text);
  }
  parameters.set("duration_s", toQueryText(byId("duration").value, Number(byId("duration-unit").value)));
  if (!isAutomatic()) parameters.set("slots", toQueryText(byId("slots").value, 1));
  return parameters.toString();
};

// Sets the inputs from the query in the page's address. Missing values are those of DEFAULTS.
export const restoreInputs = (text) => {
  const values = { ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(text)) };
  for (const [name, [id, factor]] of Object.entries(INPUTS)) byId(id).value = toInputText(values[name] ?? "", factor);
  const [low, high] = values.population.split("..");
  byId("low").value = low;
  byId("high").value = high ?? low;
  const seconds = parseNumber(values.duration_s) ?? 0;
  const unit = DURATION_UNITS_S.find((unitS) => seconds >= unitS && Number.isInteger(roundTo(seconds / unitS, 6))) ?? 60;
  byId("duration-unit").value = String(unit);
  byId("duration").value = toInputText(values.duration_s, unit);
  byId("automatic").checked = values.slots === undefined;
  if (values.slots !== undefined) byId("slots").value = values.slots;
  if (Object.keys(INPUTS).some((name) => values[name] && byId("more").contains(byId(INPUTS[name][0])))) byId("more").open = true;
  disableDimensionForTask();
  storePopulationRatio();
  moveSliders();
};

export const storePopulationRatio = () => {
  const [low, high] = [parseNumber(byId("low").value), parseNumber(byId("high").value)];
  if (low > 0 && high >= low) populationRatio = high / low;
};

const populationMean = () => Math.sqrt(parseNumber(byId("low").value) * parseNumber(byId("high").value));
const inputValues = { epsilon: () => parseNumber(byId("epsilon").value), population: populationMean, slots: () => parseNumber(byId("slots").value) };

// For each slider, turns its value into the texts of its inputs, by the id of the input.
const inputTexts = {
  epsilon: (value) => ({ epsilon: numberText(roundTo(value, 2)) }),
  population: (value) => ({
    low: numberText(Math.max(1, Math.round(roundTo(value / Math.sqrt(populationRatio), 2)))),
    high: numberText(Math.max(1, Math.round(roundTo(value * Math.sqrt(populationRatio), 2)))),
  }),
  slots: (value) => ({ slots: numberText(Math.max(1, Math.round(roundTo(value, 2)))) }),
};

// Returns [id, text] of each input for the position of a slider. Sliders are logarithmic, so that each
// step changes the value by the same factor.
const sliderTexts = (name) => {
  const { low, high } = SLIDERS[name];
  return Object.entries(inputTexts[name](low * (high / low) ** (Number(byId(`${name}-slider`).value) / SLIDER_STEPS)));
};

// Moves the sliders to the values of the inputs. A slider whose position already gives the same texts is
// not moved.
export const moveSliders = () => {
  for (const [name, { low, high }] of Object.entries(SLIDERS)) {
    const slider = byId(`${name}-slider`);
    const value = inputValues[name]();
    if (value > 0 && sliderTexts(name).some(([id, text]) => byId(id).value !== text)) {
      const share = Math.log(value / low) / Math.log(high / low);
      slider.value = String(Math.round(SLIDER_STEPS * Math.min(1, Math.max(0, share))));
    }
    slider.setAttribute("aria-valuetext", name === "population"
      ? `${byId("low").value} to ${byId("high").value} clients` : byId(name).value);
  }
  document.querySelector('[data-field="slots"]').classList.toggle("automatic", isAutomatic());
  byId("slots-how").textContent = isAutomatic() ? "automatic" : "fixed";
};

// Sets the inputs after a slider was moved.
export const applySlider = (name) => {
  if (name === "slots") byId("automatic").checked = false;
  for (const [id, text] of sliderTexts(name)) byId(id).value = text;
  moveSliders();
};

// Shows values that the planner chose: the number of slots, and the dimension of a task's model.
export const showPlannedValues = (slots, dimension) => {
  if (hasBuiltInTask() && dimension !== null) byId("dimension").value = String(dimension);
  if (!isAutomatic() || slots === null) return;
  byId("slots").value = String(slots);
  moveSliders();
};

export const prepareSliders = () => {
  for (const name of Object.keys(SLIDERS)) {
    for (const [key, value] of [["min", 0], ["max", SLIDER_STEPS], ["step", 5]]) byId(`${name}-slider`).setAttribute(key, value);
  }
};

export const inputValue = (name) => inputValues[name]();
