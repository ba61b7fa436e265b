// A line chart in SVG. It is drawn at the size of its box, so that text stays readable on a phone.
// CSS classes set the colours, so a change between light and dark needs no redraw.

import { element } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 190;
const EDGE = { top: 14, right: 10, bottom: 36 };
const DIGIT = 6.7;  // width of a digit of a label in pixels

const draw = (tag, attributes, text) => {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// Returns about ``many`` round numbers from low to high.
export const ticks = (low, high, many) => {
  const rough = (high - low) / Math.max(1, many);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((size) => size * power >= rough * (1 - 1e-9)) * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step || 0);
  return found;
};

// If there are too many points, keeps the first, lowest, highest and last point of each pixel column.
const thinned = (points, columns) => {
  if (points.length <= 4 * columns) return points;
  const kept = [];
  const size = points.length / columns;
  for (let column = 0; column < columns; column += 1) {
    const part = points.slice(Math.floor(column * size), Math.floor((column + 1) * size));
    if (part.length === 0) continue;
    let low = part[0];
    let high = part[0];
    for (const point of part) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    kept.push(...new Set([part[0], ...(low[0] < high[0] ? [low, high] : [high, low]), part.at(-1)]));
  }
  return kept;
};

const path = (points, steps) => points.map(([x, y], i) => {
  const [px, py] = [x.toFixed(1), y.toFixed(1)];
  if (i === 0) return `M${px} ${py}`;
  return steps ? `V${py}H${px}` : `L${px} ${py}`;
}).join("");

const nearestPoint = (points, x) => {
  let [from, to] = [0, points.length - 1];
  while (to - from > 1) {
    const middle = (from + to) >> 1;
    if (points[middle][0] <= x) from = middle;
    else to = middle;
  }
  return Math.abs(points[from][0] - x) <= Math.abs(points[to][0] - x) ? points[from] : points[to];
};

const follow = (svg, { points, across, upon, box, readout, caption }) => {
  const rule = draw("line", { class: "pointer", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const dot = draw("circle", { class: "pointer-dot", r: 4, visibility: "hidden" });
  svg.append(rule, dot);
  const leave = () => {
    for (const node of [rule, dot]) node.setAttribute("visibility", "hidden");
    readout.textContent = caption;
  };
  svg.addEventListener("pointermove", (event) => {
    const share = (event.clientX - svg.getBoundingClientRect().left - box.left) / (box.right - box.left);
    const point = nearestPoint(points.all, share * points.most);
    const [x, y] = [across(point[0]), upon(point[1])];
    for (const [name, value] of [["x1", x], ["x2", x]]) rule.setAttribute(name, value);
    for (const [name, value] of [["cx", x], ["cy", y]]) dot.setAttribute(name, value);
    for (const node of [rule, dot]) node.setAttribute("visibility", "visible");
    readout.textContent = points.describe(point);
  });
  svg.addEventListener("pointerleave", leave);
};

// lines: [{ points: [[x, y], ...], look: CSS class, steps: true for a step function }];
// limit: { y, text } of a horizontal line; most: largest x; range: [low, high] of y;
// format: y as text; describe: text of a point under the pointer, shown in the element readout;
// caption: text in readout without a pointer; xName: label of the x axis.
export const plot = (place, { lines, limit, most, range, format, label, describe, readout, caption, xName }) => {
  const width = Math.max(220, place.clientWidth);
  const [low, high] = range;
  const rows = ticks(low, high, 4);
  const left = 10 + DIGIT * Math.max(...rows.map((row) => format(row).length));
  const box = { left, right: width - EDGE.right, top: EDGE.top, bottom: HEIGHT - EDGE.bottom };
  const across = (x) => box.left + (x / most) * (box.right - box.left);
  const upon = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
  const svg = draw("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label,
  });
  for (const row of rows) {
    svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: upon(row), y2: upon(row) }));
    svg.append(draw("text", { class: "tick end", x: box.left - 7, y: upon(row) + 4 }, format(row)));
  }
  const columns = ticks(0, most, Math.min(most, Math.max(2, Math.floor(width / 90))));
  for (const column of columns.filter((x) => Number.isInteger(x))) {
    const nearEnd = across(column) > box.right - 14;
    svg.append(draw("text", {
      class: nearEnd ? "tick end" : "tick middle", x: nearEnd ? box.right + 4 : across(column), y: box.bottom + 17,
    }, column.toLocaleString("en-GB")));
  }
  svg.append(draw("text", { class: "tick middle", x: (box.left + box.right) / 2, y: HEIGHT - 3 }, xName));
  if (limit !== undefined) {
    svg.append(draw("line", { class: "limit", x1: box.left, x2: box.right, y1: upon(limit.y), y2: upon(limit.y) }));
    svg.append(draw("text", { class: "tick limit-text", x: box.left + 6, y: upon(limit.y) + 15 }, limit.text));
  }
  for (const { points, look, steps, dot } of lines) {
    if (points.length === 0) continue;
    const drawn = thinned(points, Math.ceil(box.right - box.left)).map(([x, y]) => [across(x), upon(y)]);
    svg.append(draw("path", { class: `line ${look}`, d: path(drawn, steps) }));
    if (dot) svg.append(draw("circle", { class: `dot ${look}`, cx: drawn.at(-1)[0], cy: drawn.at(-1)[1], r: 3.5 }));
  }
  const all = lines.flatMap(({ points, mute }) => (mute ? [] : points)).sort((a, b) => a[0] - b[0]);
  readout.textContent = caption;
  if (all.length > 0) follow(svg, { points: { all, most, describe }, across, upon, box, readout, caption });
  place.replaceChildren(svg);
};

export const empty = (place, text, readout) => {
  readout.textContent = "";
  place.replaceChildren(element("p", { class: "empty" }, text));
};
