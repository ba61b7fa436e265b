// Figures of a plan: panels above each other with a common x axis. All axes are logarithmic.
// A figure is drawn at the size of its container. CSS classes set the colours.

import { ticks } from "./chart.js";

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const MARGIN = { top: 22, right: 14, bottom: 38, between: 30 };
const DIGIT_WIDTH_PX = 6.7;  // width of a digit of a label in pixels
const ANIMATION_MS = 160;

const svgElement = (tag, attributes, text) => {
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// Values to label on a logarithmic axis, at most maxMarks: powers of ten, and if there is room for more
// marks, also 2 and 5 times (or 3 times) the powers of ten.
const axisMarks = (low, high, maxMarks) => {
  for (const leadingDigits of [[1, 2, 5], [1, 3], [1]]) {
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const digit of leadingDigits) {
        const value = digit * 10 ** power;
        if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) marks.push(value);
      }
    }
    if (marks.length <= maxMarks && marks.length >= 2) return marks;
  }
  if (high / low >= 10) return powersOfTen(low, high, maxMarks);
  const sizes = [maxMarks - 1, maxMarks, maxMarks + 1, 2 * maxMarks].map((target) => ticks(low, high, target));
  return sizes.find((marks) => marks.length >= 2) ?? sizes.at(-1);
};

const powersOfTen = (low, high, maxMarks) => {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / maxMarks));
  const marks = [];
  for (let power = first; power <= last; power += step) marks.push(10 ** power);
  return marks;
};

const paddedRange = (values, padding) => {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const factor = Math.max((high / low) ** padding, 1 + padding);
  return [low / factor, high * factor];
};

const scale = ([low, high], startPixel, endPixel) => {
  const [logLow, logHigh] = [Math.log(low), Math.log(high)];
  const toPixel = (value) => startPixel + ((Math.log(value) - logLow) / (logHigh - logLow)) * (endPixel - startPixel);
  toPixel.inverse = (pixel) => Math.exp(logLow + ((pixel - startPixel) / (endPixel - startPixel)) * (logHigh - logLow));
  return toPixel;
};

const path = (points) => points.map(([x, y], i) => `${i === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Animates shapes from their previous to their new points. A shape whose number of points has changed is
// drawn at once. Meanwhile the container has the class "moving".
const previousShapes = new WeakMap();
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const animate = (container, shapes) => {
  const old = previousShapes.get(container) ?? [];
  const latest = shapes.map(({ points }) => points);
  previousShapes.set(container, latest);
  const set = (share) => {
    shapes.forEach(({ points, moveTo }, i) => {
      const same = old[i]?.length === points.length && share < 1;
      moveTo(same ? points.map(([x, y], j) => [
        old[i][j][0] + share * (x - old[i][j][0]), old[i][j][1] + share * (y - old[i][j][1]),
      ]) : points);
    });
  };
  container.classList.remove("moving");
  if (old.length === 0 || reducedMotion.matches) {
    set(1);
    return;
  }
  const start = performance.now();
  const step = (now) => {
    const share = Math.min(1, Math.max(0, (now - start) / ANIMATION_MS));
    set(share * (2 - share));
    if (share === 1) {
      if (previousShapes.get(container) === latest) container.classList.remove("moving");
    } else if (shapes[0]?.node.isConnected) {
      requestAnimationFrame(step);
    }
  };
  container.classList.add("moving");
  set(0);
  requestAnimationFrame(step);
};

const nearestRow = (rows, x, xOf) => rows.reduce((best, row) =>
  (Math.abs(Math.log(xOf(row) / x)) < Math.abs(Math.log(xOf(best) / x)) ? row : best));

const isPositive = (value) => typeof value === "number" && Number.isFinite(value) && value > 0;

// rows: data, one row for each point; x: { of, name, format, range } of the x axis, where of(row) returns
// the value of a row and format(value) its text; panels: [{ of, name, format, className }], one y axis
// each; chosen: the row to mark; scatter: true to draw points without a line; describe: turns the row
// under the pointer into text, which is shown in the element readout; caption: text in readout without a
// pointer; label: description for screen readers.
// Returns a function that moves the mark of the current question to a value of x, or hides it if given
// null.
export const figure = (container, { rows, x, panels, chosen, scatter = false, describe, readout, caption, label, height }) => {
  const usableRows = rows.filter((row) => isPositive(x.of(row)) && panels.every(({ of }) => isPositive(of(row))));
  readout.textContent = caption;
  if (usableRows.length === 0) {
    previousShapes.delete(container);
    container.replaceChildren();
    return () => {};
  }
  const width = Math.max(240, container.clientWidth);
  const panelHeight = (height - MARGIN.top - MARGIN.bottom - MARGIN.between * (panels.length - 1)) / panels.length;
  const axes = panels.map((panel, i) => {
    const range = paddedRange(usableRows.map(panel.of), 0.08);
    const top = MARGIN.top + i * (panelHeight + MARGIN.between);
    return { ...panel, top, bottom: top + panelHeight, yPixel: scale(range, top + panelHeight, top), marks: axisMarks(...range, Math.max(2, Math.floor(panelHeight / 26))) };
  });
  const left = 10 + DIGIT_WIDTH_PX * Math.max(...axes.flatMap(({ marks, format }) => marks.map((mark) => format(mark).length)));
  const right = width - MARGIN.right;
  const range = x.range ?? paddedRange(usableRows.map(x.of), scatter ? 0.12 : 0.02);
  const xPixel = scale(range, left, right);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const bottom = axes.at(-1).bottom;
  for (const { yPixel, marks, format } of axes) {
    for (const mark of marks) {
      svg.append(svgElement("line", { class: "grid", x1: left, x2: right, y1: yPixel(mark), y2: yPixel(mark) }));
      svg.append(svgElement("text", { class: "tick end", x: left - 7, y: yPixel(mark) + 4 }, format(mark)));
    }
  }
  for (const mark of axisMarks(...range, Math.max(2, Math.floor((right - left) / 62)))) {
    const nearEnd = xPixel(mark) > right - 14;
    svg.append(svgElement("text", { class: nearEnd ? "tick end" : "tick middle", x: nearEnd ? right + 8 : xPixel(mark), y: bottom + 17 }, x.format(mark)));
  }
  svg.append(svgElement("text", { class: "tick middle", x: (left + right) / 2, y: height - 3 }, x.name));
  const verticalLine = (className) => svgElement("line", { class: className, y1: MARGIN.top, y2: bottom, visibility: "hidden" });
  const moveLine = (line, value) => {
    const isInside = isPositive(value) && value >= range[0] && value <= range[1];
    line.setAttribute("visibility", isInside ? "visible" : "hidden");
    if (isInside) for (const end of ["x1", "x2"]) line.setAttribute(end, xPixel(value));
  };
  const mark = verticalLine("mark");
  const askedMark = verticalLine("mark asked");
  svg.append(mark, askedMark);
  for (const { name, top } of axes) svg.append(svgElement("text", { class: "panel-name", x: left, y: top - 9 }, name));
  if (!scatter && chosen !== undefined) moveLine(mark, x.of(chosen));
  const shapes = [];
  for (const { of, yPixel, className } of axes) {
    const points = usableRows.map((row) => [xPixel(x.of(row)), yPixel(of(row))]);
    if (!scatter) {
      const line = svgElement("path", { class: `line ${className}` });
      shapes.push({ node: line, points, moveTo: (now) => line.setAttribute("d", path(now)) });
      svg.append(line);
    }
    const isChosen = (row) => row === chosen;
    const dottedRows = [...(scatter ? usableRows.filter((row) => !isChosen(row)) : []), ...usableRows.filter(isChosen)];
    for (const row of dottedRows) {
      const kind = scatter ? `point ${className(row)}${row === chosen ? " chosen" : ""}` : `dot ${className}`;
      const dot = svgElement("circle", { class: kind, r: row === chosen ? 6 : 4.5 });
      shapes.push({
        node: dot, points: [[xPixel(x.of(row)), yPixel(of(row))]],
        moveTo: ([[cx, cy]]) => { dot.setAttribute("cx", cx); dot.setAttribute("cy", cy); },
      });
      svg.append(dot);
    }
  }
  followPointer(svg, { usableRows, axes, xPixel, xOf: x.of, verticalLine, moveLine, describe, readout, caption, scatter });
  container.replaceChildren(svg);
  animate(container, shapes);
  return (value) => moveLine(askedMark, value);
};

const followPointer = (svg, { usableRows, axes, xPixel, xOf, verticalLine, moveLine, describe, readout, caption, scatter }) => {
  const pointerLine = verticalLine("pointer");
  const dots = axes.map(() => svgElement("circle", { class: "pointer-dot", r: 4, visibility: "hidden" }));
  svg.append(pointerLine, ...dots);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const distance = (row) => Math.hypot(xPixel(xOf(row)) - px, axes[0].yPixel(axes[0].of(row)) - py);
    const row = scatter
      ? usableRows.reduce((best, candidate) => (distance(candidate) < distance(best) ? candidate : best))
      : nearestRow(usableRows, xPixel.inverse(px), xOf);
    if (!scatter) moveLine(pointerLine, xOf(row));
    dots.forEach((dot, i) => {
      dot.setAttribute("cx", xPixel(xOf(row)));
      dot.setAttribute("cy", axes[i].yPixel(axes[i].of(row)));
      dot.setAttribute("visibility", "visible");
    });
    readout.textContent = describe(row);
  });
  svg.addEventListener("pointerleave", () => {
    for (const node of [pointerLine, ...dots]) node.setAttribute("visibility", "hidden");
    readout.textContent = caption;
  });
};
