// The slots of a run as a strip of cells, or as one bar if there are too many slots for cells.
// A canvas is used because it is one node even for ten thousand slots. All released slots look the same,
// because the number of clients in a slot is secret.

const MAX_ROWS = 4;
const MIN_CELL_WIDTH_PX = 5;
const COLOUR_VARIABLES = { closed: "--blue", ended: "--ended", running: "--orange", ahead: "--ahead", "over-budget": "--wash", edge: "--ahead" };

const layout = (slots, width) => {
  for (let rows = 1; rows <= MAX_ROWS; rows += 1) {
    const columns = Math.ceil(slots / rows);
    if (width / columns >= MIN_CELL_WIDTH_PX) return { columns, rows, pitch: width / columns };
  }
  return null;
};

const slotKind = (slot, { closed, ended, running, affordable }) => {
  if (slot <= closed) return "closed";
  if (slot <= ended) return "ended";
  if (slot === running) return "running";
  return slot > affordable ? "over-budget" : "ahead";
};

const drawCells = (context, state, { columns, pitch, height }, colourOf) => {
  const gap = pitch > 8 ? 2 : 1;
  for (let slot = 1; slot <= state.slots; slot += 1) {
    const kind = slotKind(slot, state);
    const [column, row] = [(slot - 1) % columns, Math.floor((slot - 1) / columns)];
    const [x, y] = [column * pitch, row * (height + 3)];
    const [left, right] = [Math.round(x), Math.round(x + pitch) - gap];
    context.fillStyle = colourOf(kind);
    context.fillRect(left, y, right - left, height);
    if (kind === "over-budget") {
      context.strokeStyle = colourOf("edge");
      context.strokeRect(left + 0.5, y + 0.5, right - left - 1, height - 1);
    }
  }
};

const drawBar = (context, { slots, closed, ended, running, affordable }, width, height, colourOf) => {
  const x = (slot) => (slot / slots) * width;
  context.fillStyle = colourOf("ahead");
  context.fillRect(0, 0, x(Math.min(slots, affordable)), height);
  context.strokeStyle = colourOf("edge");
  context.strokeRect(0.5, 0.5, width - 1, height - 1);
  context.fillStyle = colourOf("ended");
  context.fillRect(0, 0, x(Math.max(closed, ended)), height);
  context.fillStyle = colourOf("closed");
  context.fillRect(0, 0, x(closed), height);
  if (running !== null) {
    context.fillStyle = colourOf("running");
    context.fillRect(Math.min(width - 3, Math.max(0, x(running) - 2)), 0, 3, height);
  }
};

// state: { slots: number of slots, closed: number of released slots, ended: the last slot whose time is
// over, released or not, running: the slot that is running
// or null, affordable: the last slot that the budget allows }. Slots after affordable are "over-budget".
export const drawStrip = (canvas, state) => {
  const width = canvas.parentElement.clientWidth
    - parseFloat(getComputedStyle(canvas.parentElement).paddingLeft)
    - parseFloat(getComputedStyle(canvas.parentElement).paddingRight);
  const cells = layout(state.slots, width);
  const rowHeight = cells !== null && cells.rows > 1 ? 13 : 20;
  const height = cells === null ? rowHeight : cells.rows * (rowHeight + 3) - 3;
  const style = getComputedStyle(document.documentElement);
  const colourOf = (kind) => style.getPropertyValue(COLOUR_VARIABLES[kind]).trim();
  const pixelRatio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * pixelRatio);
  canvas.height = Math.round(height * pixelRatio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
  if (cells === null) drawBar(context, state, width, height, colourOf);
  else drawCells(context, state, { ...cells, height: rowHeight }, colourOf);
};
