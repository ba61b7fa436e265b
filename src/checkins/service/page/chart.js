// A line chart in SVG. The chart is drawn at the size of its container, so that text stays readable on
// a phone. CSS classes set the colours, so a change between light and dark needs no redraw.

import { element } from "./dom.js";

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 190;
const MARGIN = { top: 14, right: 10, bottom: 36 };
const MIN_TICK_GAP_PX = 56;
const DIGIT_WIDTH_PX = 6.7;  // width of a digit of a label in pixels

const svgElement = (tag, attributes, text) => {
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// Returns about targetCount round numbers from low to high.
export const ticks = (low, high, targetCount) => {
  const roughStep = (high - low) / Math.max(1, targetCount);
  if (!(roughStep > 0) || !Number.isFinite(roughStep)) return [low];
  const power = 10 ** Math.floor(Math.log10(roughStep));
  const step = [1, 2, 5, 10].find((size) => size * power >= roughStep * (1 - 1e-9)) * power;
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) values.push(i * step || 0);
  return values;
};

// If there are more than four points for each pixel column, keeps only the first, lowest, highest and
// last point of each column.
const thinOut = (points, columns) => {
  if (points.length <= 4 * columns) return points;
  const keptPoints = [];
  const size = points.length / columns;
  for (let column = 0; column < columns; column += 1) {
    const columnPoints = points.slice(Math.floor(column * size), Math.floor((column + 1) * size));
    if (columnPoints.length === 0) continue;
    let low = columnPoints[0];
    let high = columnPoints[0];
    for (const point of columnPoints) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    keptPoints.push(...new Set([columnPoints[0], ...(low[0] < high[0] ? [low, high] : [high, low]), columnPoints.at(-1)]));
  }
  return keptPoints;
};

const path = (points, steps) => points.map(([x, y], i) => {
  const [px, py] = [x.toFixed(1), y.toFixed(1)];
  if (i === 0) return `M${px} ${py}`;
  return steps ? `V${py}H${px}` : `L${px} ${py}`;
}).join("");

const nearestPoint = (points, x) => {
  let [before, after] = [0, points.length - 1];
  while (after - before > 1) {
    const middle = (before + after) >> 1;
    if (points[middle][0] <= x) before = middle;
    else after = middle;
  }
  return Math.abs(points[before][0] - x) <= Math.abs(points[after][0] - x) ? points[before] : points[after];
};

const followPointer = (svg, { points, xPixel, yPixel, box, readout, caption }) => {
  const pointerLine = svgElement("line", { class: "pointer", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const dot = svgElement("circle", { class: "pointer-dot", r: 4, visibility: "hidden" });
  svg.append(pointerLine, dot);
  const hidePointer = () => {
    for (const node of [pointerLine, dot]) node.setAttribute("visibility", "hidden");
    readout.textContent = caption;
  };
  svg.addEventListener("pointermove", (event) => {
    const share = (event.clientX - svg.getBoundingClientRect().left - box.left) / (box.right - box.left);
    const point = nearestPoint(points.all, share * points.maxX);
    const [x, y] = [xPixel(point[0]), yPixel(point[1])];
    for (const [name, value] of [["x1", x], ["x2", x]]) pointerLine.setAttribute(name, value);
    for (const [name, value] of [["cx", x], ["cy", y]]) dot.setAttribute(name, value);
    for (const node of [pointerLine, dot]) node.setAttribute("visibility", "visible");
    readout.textContent = points.describe(point);
  });
  svg.addEventListener("pointerleave", hidePointer);
};

// lines: [{ points: [[x, y], ...], className, steps: true for a step function, dot: true to mark the last
// point, skipPointer: true if the pointer does not select its points }];
// limit: { y, text } of a horizontal line; maxX: largest x; range: [low, high] of y; format: turns y into
// text; label: description for screen readers; describe: turns the point under the pointer into text,
// which is shown in the element readout; caption: text in readout without a pointer; xName: label of the
// x axis.
export const plot = (container, { lines, limit, maxX, range, format, label, describe, readout, caption, xName }) => {
  const width = Math.max(220, container.clientWidth);
  const [low, high] = range;
  const yTicks = ticks(low, high, 4);
  const left = 10 + DIGIT_WIDTH_PX * Math.max(...yTicks.map((tick) => format(tick).length));
  const box = { left, right: width - MARGIN.right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom };
  const xPixel = (x) => box.left + (x / maxX) * (box.right - box.left);
  const yPixel = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label,
  });
  for (const tick of yTicks) {
    svg.append(svgElement("line", { class: "grid", x1: box.left, x2: box.right, y1: yPixel(tick), y2: yPixel(tick) }));
    svg.append(svgElement("text", { class: "tick end", x: box.left - 7, y: yPixel(tick) + 4 }, format(tick)));
  }
  const xTicks = ticks(0, maxX, Math.min(maxX, Math.max(2, Math.floor(width / 90))));
  const lastTick = Math.floor(maxX);  // its label is always shown, and replaces labels that it would touch
  const inner = xTicks.filter((x) => Number.isInteger(x) && xPixel(lastTick) - xPixel(x) > MIN_TICK_GAP_PX);
  for (const tick of [...inner, lastTick]) {
    const nearEnd = xPixel(tick) > box.right - 14;
    svg.append(svgElement("text", {
      class: nearEnd ? "tick end" : "tick middle", x: nearEnd ? box.right + 4 : xPixel(tick), y: box.bottom + 17,
    }, tick.toLocaleString("en-GB")));
  }
  svg.append(svgElement("text", { class: "tick middle", x: (box.left + box.right) / 2, y: HEIGHT - 3 }, xName));
  if (limit !== undefined) {
    svg.append(svgElement("line", { class: "limit", x1: box.left, x2: box.right, y1: yPixel(limit.y), y2: yPixel(limit.y) }));
    svg.append(svgElement("text", { class: "tick limit-text", x: box.left + 6, y: yPixel(limit.y) + 15 }, limit.text));
  }
  for (const { points, className, steps, dot } of lines) {
    if (points.length === 0) continue;
    const pixelPoints = thinOut(points, Math.ceil(box.right - box.left)).map(([x, y]) => [xPixel(x), yPixel(y)]);
    svg.append(svgElement("path", { class: `line ${className}`, d: path(pixelPoints, steps) }));
    if (dot) svg.append(svgElement("circle", { class: `dot ${className}`, cx: pixelPoints.at(-1)[0], cy: pixelPoints.at(-1)[1], r: 3.5 }));
  }
  const hoverPoints = lines.flatMap(({ points, skipPointer }) => (skipPointer ? [] : points)).sort((a, b) => a[0] - b[0]);
  readout.textContent = caption;
  if (hoverPoints.length > 0) followPointer(svg, { points: { all: hoverPoints, maxX, describe }, xPixel, yPixel, box, readout, caption });
  container.replaceChildren(svg);
};

export const showEmpty = (container, text, readout) => {
  readout.textContent = "";
  container.replaceChildren(element("p", { class: "empty" }, text));
};
