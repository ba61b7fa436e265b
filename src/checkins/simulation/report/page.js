// Draws each figure of the page. Colours in a figure are names of the stylesheet's colours, so that
// they change between light mode, dark mode and print: "@blue", "@blue/0.2" (with opacity 0.2) or
// "@blue~orange~0.3" (a mixture of two colours).
(() => {
  "use strict";
  const NARROW = 560;
  const PAPER = 640;
  const QUIET = { displayModeBar: false, doubleClick: false, showTips: false };
  const print = matchMedia("print");
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const named = (name) => {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };

  const colour = (token) => {
    const [name, opacity = "1"] = token.slice(1).split("/");
    const [from, to = from, share = "0"] = name.split("~");
    const [start, end] = [named(from), named(to)];
    const mixed = start.map((part, i) => Math.round(part + share * (end[i] - part)));
    return `rgba(${mixed.join(",")},${opacity})`;
  };

  const painted = (value, key = "") => {
    if (Array.isArray(value)) return value.map((part) => painted(part, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, k)]));
    }
    return typeof value === "string" && value[0] === "@" && /color$/.test(key) ? colour(value) : value;
  };

  const draw = (box) => {
    const spec = document.getElementById(`${box.id}-data`);
    const { data, layout } = painted(JSON.parse(spec.textContent));
    const width = print.matches ? Math.min(box.clientWidth, PAPER) : box.clientWidth;
    const narrow = width < NARROW;
    box.closest("figure").classList.toggle("narrow", narrow);
    const other = narrow ? "wide" : "narrow";  // a narrow plot has a legend instead of labels
    layout.annotations = (layout.annotations || []).filter((note) => note.name !== other);
    if (narrow) Object.assign(layout.margin, layout.meta.narrow);
    return Plotly.react(box, data, { ...layout, width }, QUIET);
  };

  const drawAll = () => Promise.all(Array.from(document.querySelectorAll(".plot"), draw));

  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(drawAll);
  };
  addEventListener("resize", soon);
  dark.addEventListener("change", drawAll);
  print.addEventListener("change", drawAll);
  drawAll().then(() => document.documentElement.classList.add("drawn"));
})();
