// Numbers as text, with few digits. Upper bounds are rounded up, lower bounds down.
// A number that is missing or not finite is shown as a dash.

export const MISSING = "–";
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const METRIC_NAMES = { auc: "AUC" };
const NO_BREAK = "\u00a0";

export const finite = (value) =>
  typeof value === "number" && Number.isFinite(value) ? value : null;

const grouped = (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ",");

const plain = (figures, power) => {
  if (power < 0) return `0.${"0".repeat(-power - 1)}${figures}`;
  const whole = figures.slice(0, power + 1).padEnd(power + 1, "0");
  const rest = figures.slice(power + 1);
  return grouped(whole) + (rest ? `.${rest}` : "");
};

const raised = (power) =>
  `10${power < 0 ? "⁻" : ""}${Array.from(String(Math.abs(power)), (d) => SUPERSCRIPTS[d]).join("")}`;

// Starts from the shortest decimal representation, whose last digit is not 0. Truncating it rounds
// towards 0. Adding 1 to the last kept digit rounds away from 0.
const rounded = (value, digits, side) => {
  const number = finite(value);
  if (number === null) return MISSING;
  if (number === 0) return "0";
  const [mantissa, exponent] = Math.abs(number).toExponential().split("e");
  let figures = mantissa.replace(".", "");
  let power = Number(exponent);
  if (figures.length > digits) {
    const more = side === 0 ? figures[digits] >= "5" : side > 0 === number > 0;
    figures = String(Number(figures.slice(0, digits)) + (more ? 1 : 0));
    power += figures.length - digits;
  }
  figures = figures.replace(/0+$/, "");
  const sign = number < 0 ? "−" : "";
  if (power >= -4 && power < 7) return sign + plain(figures, power);
  const head = plain(figures, 0);
  return sign + (head === "1" ? raised(power) : `${head}·${raised(power)}`);
};

export const up = (value, digits = 4) => rounded(value, digits, 1);
export const down = (value, digits = 4) => rounded(value, digits, -1);
export const nearest = (value, digits = 4) => rounded(value, digits, 0);

export const count = (value) => {
  const number = finite(value);
  return number === null ? MISSING : `${number < 0 ? "−" : ""}${grouped(Math.abs(number).toFixed(0))}`;
};

export const slotCount = (value) => `${count(value)} slot${value === 1 ? "" : "s"}`;

export const metricName = (name) =>
  Object.hasOwn(METRIC_NAMES, name) ? METRIC_NAMES[name] : name;

export const metric = (name, value) => {
  const number = finite(value);
  if (number === null) return MISSING;
  if (name === "accuracy") return `${(100 * number).toFixed(2)}${NO_BREAK}%`;
  return Math.abs(number) < 10 ? number.toFixed(4) : nearest(number);
};

// A duration in at most two units.
export const duration = (seconds) => {
  const number = finite(seconds);
  if (number === null) return MISSING;
  const long = Math.max(0, number);
  if (long < 10 && long !== Math.floor(long)) return `${nearest(long, 2)}${NO_BREAK}s`;
  const whole = Math.floor(long);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return `0${NO_BREAK}s`;
  return parts
    .slice(first, first + 2)
    .filter(([amount], place) => place === 0 || amount > 0)
    .map(([amount, unit]) => `${amount}${NO_BREAK}${unit}`)
    .join(" ");
};

// A time in the reader's time zone. The date is shown unless it is today, and seconds if the time is
// less than an hour away.
export const moment = (milliseconds, now) => {
  const when = new Date(milliseconds);
  if (finite(milliseconds) === null || Number.isNaN(when.getTime())) return MISSING;
  const today = when.toDateString() === new Date(now).toDateString();
  const day = { year: "numeric", month: "short", day: "numeric" };
  return when.toLocaleString("en-GB", {
    ...(today ? {} : day), hour: "2-digit", minute: "2-digit",
    ...(Math.abs(milliseconds - now) < 3.6e6 ? { second: "2-digit" } : {}), timeZoneName: "short",
  });
};
