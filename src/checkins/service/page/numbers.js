// Numbers as text, with few digits. Upper bounds are rounded up, lower bounds down.
// A number that is missing or not finite is shown as a dash.

export const MISSING = "–";
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const METRIC_NAMES = { auc: "AUC" };
const NO_BREAK = "\u00a0";

export const finiteOrNull = (value) =>
  typeof value === "number" && Number.isFinite(value) ? value : null;

const groupThousands = (wholePart) => wholePart.replace(/\B(?=(\d{3})+$)/g, ",");

const plainDecimal = (digitText, power) => {
  if (power < 0) return `0.${"0".repeat(-power - 1)}${digitText}`;
  const wholePart = digitText.slice(0, power + 1).padEnd(power + 1, "0");
  const rest = digitText.slice(power + 1);
  return groupThousands(wholePart) + (rest ? `.${rest}` : "");
};

const powerOfTen = (power) =>
  `10${power < 0 ? "⁻" : ""}${Array.from(String(Math.abs(power)), (digit) => SUPERSCRIPTS[digit]).join("")}`;

// Rounds value to a number of significant digits. direction: 1 rounds up, -1 down, 0 to nearest.
// Starts from the shortest decimal representation of the value, whose last digit is not 0. Truncating
// this text rounds towards 0. Adding 1 to the last remaining digit rounds away from 0.
const roundTo = (value, digits, direction) => {
  const number = finiteOrNull(value);
  if (number === null) return MISSING;
  if (number === 0) return "0";
  const [mantissa, exponent] = Math.abs(number).toExponential().split("e");
  let digitText = mantissa.replace(".", "");
  let power = Number(exponent);
  if (digitText.length > digits) {
    const isAway = direction === 0 ? digitText[digits] >= "5" : direction > 0 === number > 0;
    digitText = String(Number(digitText.slice(0, digits)) + (isAway ? 1 : 0));
    power += digitText.length - digits;
  }
  digitText = digitText.replace(/0+$/, "");
  const sign = number < 0 ? "−" : "";
  if (power >= -4 && power < 7) return sign + plainDecimal(digitText, power);
  const leading = plainDecimal(digitText, 0);
  return sign + (leading === "1" ? powerOfTen(power) : `${leading}·${powerOfTen(power)}`);
};

// Writes numbers such as 1e-06 in a text of the server as on the rest of the page: 10⁻⁶.
export const withPowers = (text) => text.replace(/(?<![\w.])(\d+(?:\.\d+)?)e([-+]\d+)(?!\w)/g, (_, leading, power) =>
  (Number(leading) === 1 ? powerOfTen(Number(power)) : `${leading}·${powerOfTen(Number(power))}`));

export const roundUp = (value, digits = 4) => roundTo(value, digits, 1);
export const roundDown = (value, digits = 4) => roundTo(value, digits, -1);
export const roundNearest = (value, digits = 4) => roundTo(value, digits, 0);

export const formatCount = (value) => {
  const number = finiteOrNull(value);
  return number === null ? MISSING : `${number < 0 ? "−" : ""}${groupThousands(Math.abs(number).toFixed(0))}`;
};

export const formatSlots = (value) => `${formatCount(value)} slot${value === 1 ? "" : "s"}`;

export const metricName = (name) =>
  Object.hasOwn(METRIC_NAMES, name) ? METRIC_NAMES[name] : name;

export const formatMetric = (name, value) => {
  const number = finiteOrNull(value);
  if (number === null) return MISSING;
  if (name === "accuracy") return `${(100 * number).toFixed(2)}${NO_BREAK}%`;
  return Math.abs(number) < 10 ? number.toFixed(4) : roundNearest(number);
};

// A duration as text in at most two units, such as 2 h 5 min.
export const formatDuration = (seconds) => {
  const number = finiteOrNull(seconds);
  if (number === null) return MISSING;
  const nonNegative = Math.max(0, number);
  if (nonNegative < 10 && nonNegative !== Math.floor(nonNegative)) return `${roundNearest(nonNegative, 2)}${NO_BREAK}s`;
  const wholePart = Math.floor(nonNegative);
  const parts = [
    [Math.floor(wholePart / 86400), "d"],
    [Math.floor(wholePart / 3600) % 24, "h"],
    [Math.floor(wholePart / 60) % 60, "min"],
    [wholePart % 60, "s"],
  ];
  const firstUnit = parts.findIndex(([amount]) => amount > 0);
  if (firstUnit < 0) return `0${NO_BREAK}s`;
  return parts
    .slice(firstUnit, firstUnit + 2)
    .filter(([amount], index) => index === 0 || amount > 0)
    .map(([amount, unit]) => `${amount}${NO_BREAK}${unit}`)
    .join(" ");
};

// A time as text in the reader's time zone. The date is added unless it is today, and the seconds if the
// time is less than an hour before or after now.
export const formatTime = (milliseconds, now) => {
  const date = new Date(milliseconds);
  if (finiteOrNull(milliseconds) === null || Number.isNaN(date.getTime())) return MISSING;
  const isToday = date.toDateString() === new Date(now).toDateString();
  const dateOptions = { year: "numeric", month: "short", day: "numeric" };
  return date.toLocaleString("en-GB", {
    ...(isToday ? {} : dateOptions), hour: "2-digit", minute: "2-digit",
    ...(Math.abs(milliseconds - now) < 3.6e6 ? { second: "2-digit" } : {}), timeZoneName: "short",
  });
};
