// Figures of a plan: panels above each other with a common x axis. All axes are logarithmic.
// A figure is drawn at the size of its box. CSS classes set the colours.

import { ticks } from "./chart.js";

const SPACE = "http://www.w3.org/2000/svg";
const EDGE = { top: 22, right: 14, bottom: 38, between: 30 };
const DIGIT = 6.7;  // width of a digit of a label in pixels
const MOVE_MS = 160;

const draw = (tag, attributes, text) => {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// Labels of a logarithmic axis: powers of ten, and 2 and 5 (or 3) times them if there is room.
const marksOf = (low, high, most) => {
  for (const heads of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const head of heads) {
        const value = head * 10 ** power;
        if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) found.push(value);
      }
    }
    if (found.length <= most && found.length >= 2) return found;
  }
  if (high / low >= 10) return thinned(low, high, most);
  const sizes = [most - 1, most, most + 1, 2 * most].map((many) => ticks(low, high, many));
  return sizes.find((found) => found.length >= 2) ?? sizes.at(-1);
};

const thinned = (low, high, most) => {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  return found;
};

const around = (values, room) => {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const more = Math.max((high / low) ** room, 1 + room);
  return [low / more, high * more];
};

const scale = ([low, high], from, to) => {
  const [a, b] = [Math.log(low), Math.log(high)];
  const place = (value) => from + ((Math.log(value) - a) / (b - a)) * (to - from);
  place.inverse = (pixel) => Math.exp(a + ((pixel - from) / (to - from)) * (b - a));
  return place;
};

const path = (points) => points.map(([x, y], i) => `${i === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Animates a curve from its old to its new shape. If the number of points differs, it jumps.
const before = new WeakMap();
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const glide = (place, shapes) => {
  const old = before.get(place) ?? [];
  before.set(place, shapes.map(({ points }) => points));
  const set = (share) => {
    shapes.forEach(({ points, put }, i) => {
      const same = old[i]?.length === points.length && share < 1;
      put(same ? points.map(([x, y], j) => [
        old[i][j][0] + share * (x - old[i][j][0]), old[i][j][1] + share * (y - old[i][j][1]),
      ]) : points);
    });
  };
  if (old.length === 0 || calm.matches) {
    set(1);
    return;
  }
  const start = performance.now();
  const step = (now) => {
    const share = Math.min(1, Math.max(0, (now - start) / MOVE_MS));
    set(share * (2 - share));
    if (share < 1 && shapes[0]?.node.isConnected) requestAnimationFrame(step);
  };
  set(0);
  requestAnimationFrame(step);
};

const nearest = (rows, x, at) => rows.reduce((best, row) =>
  (Math.abs(Math.log(at(row) / x)) < Math.abs(Math.log(at(best) / x)) ? row : best));

const usable = (value) => typeof value === "number" && Number.isFinite(value) && value > 0;

// rows: data; x: { of, name, format, range }; panels: [{ of, name, format, look }]; chosen: the row to
// mark; scatter: draw points without a line; describe: text of the row under the pointer, shown in the
// element readout; caption: text in readout without a pointer.
// Returns a function that moves the mark of the current question. It hides the mark if given null.
export const figure = (place, { rows, x, panels, chosen, scatter = false, describe, readout, caption, label, height }) => {
  const good = rows.filter((row) => usable(x.of(row)) && panels.every(({ of }) => usable(of(row))));
  readout.textContent = caption;
  if (good.length === 0) {
    before.delete(place);
    place.replaceChildren();
    return () => {};
  }
  const width = Math.max(240, place.clientWidth);
  const tall = (height - EDGE.top - EDGE.bottom - EDGE.between * (panels.length - 1)) / panels.length;
  const axes = panels.map((panel, i) => {
    const range = around(good.map(panel.of), 0.08);
    const top = EDGE.top + i * (tall + EDGE.between);
    return { ...panel, top, bottom: top + tall, upon: scale(range, top + tall, top), rows: marksOf(...range, Math.max(2, Math.floor(tall / 26))) };
  });
  const left = 10 + DIGIT * Math.max(...axes.flatMap(({ rows: marks, format }) => marks.map((mark) => format(mark).length)));
  const right = width - EDGE.right;
  const range = x.range ?? around(good.map(x.of), scatter ? 0.12 : 0.02);
  const across = scale(range, left, right);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const bottom = axes.at(-1).bottom;
  for (const { upon, rows: marks, format } of axes) {
    for (const mark of marks) {
      svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: upon(mark), y2: upon(mark) }));
      svg.append(draw("text", { class: "tick end", x: left - 7, y: upon(mark) + 4 }, format(mark)));
    }
  }
  for (const mark of marksOf(...range, Math.max(2, Math.floor((right - left) / 62)))) {
    const nearEnd = across(mark) > right - 14;
    svg.append(draw("text", { class: nearEnd ? "tick end" : "tick middle", x: nearEnd ? right + 8 : across(mark), y: bottom + 17 }, x.format(mark)));
  }
  svg.append(draw("text", { class: "tick middle", x: (left + right) / 2, y: height - 3 }, x.name));
  const upright = (look) => draw("line", { class: look, y1: EDGE.top, y2: bottom, visibility: "hidden" });
  const put = (line, value) => {
    const inside = usable(value) && value >= range[0] && value <= range[1];
    line.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) for (const end of ["x1", "x2"]) line.setAttribute(end, across(value));
  };
  const mark = upright("mark");
  const asked = upright("mark asked");
  svg.append(mark, asked);
  for (const { name, top } of axes) svg.append(draw("text", { class: "panel-name", x: left, y: top - 9 }, name));
  if (!scatter && chosen !== undefined) put(mark, x.of(chosen));
  const shapes = [];
  for (const { of, upon, look } of axes) {
    const points = good.map((row) => [across(x.of(row)), upon(of(row))]);
    if (!scatter) {
      const line = draw("path", { class: `line ${look}` });
      shapes.push({ node: line, points, put: (now) => line.setAttribute("d", path(now)) });
      svg.append(line);
    }
    const isChosen = (row) => row === chosen;
    const dotted = [...(scatter ? good.filter((row) => !isChosen(row)) : []), ...good.filter(isChosen)];
    for (const row of dotted) {
      const kind = scatter ? `point ${look(row)}${row === chosen ? " chosen" : ""}` : `dot ${look}`;
      const dot = draw("circle", { class: kind, r: row === chosen ? 6 : 4.5 });
      shapes.push({
        node: dot, points: [[across(x.of(row)), upon(of(row))]],
        put: ([[cx, cy]]) => { dot.setAttribute("cx", cx); dot.setAttribute("cy", cy); },
      });
      svg.append(dot);
    }
  }
  follow(svg, { good, axes, across, at: x.of, upright, put, describe, readout, caption, scatter });
  place.replaceChildren(svg);
  glide(place, shapes);
  return (value) => put(asked, value);
};

const follow = (svg, { good, axes, across, at, upright, put, describe, readout, caption, scatter }) => {
  const rule = upright("pointer");
  const dots = axes.map(() => draw("circle", { class: "pointer-dot", r: 4, visibility: "hidden" }));
  svg.append(rule, ...dots);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const near = (row) => Math.hypot(across(at(row)) - px, axes[0].upon(axes[0].of(row)) - py);
    const row = scatter
      ? good.reduce((best, one) => (near(one) < near(best) ? one : best))
      : nearest(good, across.inverse(px), at);
    if (!scatter) put(rule, at(row));
    dots.forEach((dot, i) => {
      dot.setAttribute("cx", across(at(row)));
      dot.setAttribute("cy", axes[i].upon(axes[i].of(row)));
      dot.setAttribute("visibility", "visible");
    });
    readout.textContent = describe(row);
  });
  svg.addEventListener("pointerleave", () => {
    for (const node of [rule, ...dots]) node.setAttribute("visibility", "hidden");
    readout.textContent = caption;
  });
};
