// The slots of a run as a strip of cells, or as one bar if there are too many slots for cells.
// A canvas is one node even for ten thousand slots. All released slots look the same.

const MOST_ROWS = 4;
const LEAST_PITCH = 5;
const COLOURS = { closed: "--blue", running: "--orange", ahead: "--ahead", unpaid: "--wash", edge: "--ahead" };

const layout = (slots, width) => {
  for (let rows = 1; rows <= MOST_ROWS; rows += 1) {
    const columns = Math.ceil(slots / rows);
    if (width / columns >= LEAST_PITCH) return { columns, rows, pitch: width / columns };
  }
  return null;
};

const kindOf = (slot, { closed, running, affordable }) => {
  if (slot <= closed) return "closed";
  if (slot === running) return "running";
  return slot > affordable ? "unpaid" : "ahead";
};

const drawCells = (pen, state, { columns, pitch, height }, paint) => {
  const gap = pitch > 8 ? 2 : 1;
  for (let slot = 1; slot <= state.slots; slot += 1) {
    const kind = kindOf(slot, state);
    const [column, row] = [(slot - 1) % columns, Math.floor((slot - 1) / columns)];
    const [x, y] = [column * pitch, row * (height + 3)];
    const [left, right] = [Math.round(x), Math.round(x + pitch) - gap];
    pen.fillStyle = paint(kind);
    pen.fillRect(left, y, right - left, height);
    if (kind === "unpaid") {
      pen.strokeStyle = paint("edge");
      pen.strokeRect(left + 0.5, y + 0.5, right - left - 1, height - 1);
    }
  }
};

const drawBar = (pen, { slots, closed, running, affordable }, width, height, paint) => {
  const x = (slot) => (slot / slots) * width;
  pen.fillStyle = paint("ahead");
  pen.fillRect(0, 0, x(Math.min(slots, affordable)), height);
  pen.strokeStyle = paint("edge");
  pen.strokeRect(0.5, 0.5, width - 1, height - 1);
  pen.fillStyle = paint("closed");
  pen.fillRect(0, 0, x(closed), height);
  if (running !== null) {
    pen.fillStyle = paint("running");
    pen.fillRect(Math.min(width - 3, Math.max(0, x(running) - 2)), 0, 3, height);
  }
};

// state: { slots, closed, running (or null), affordable }
export const drawStrip = (canvas, state) => {
  const width = canvas.parentElement.clientWidth
    - parseFloat(getComputedStyle(canvas.parentElement).paddingLeft)
    - parseFloat(getComputedStyle(canvas.parentElement).paddingRight);
  const cells = layout(state.slots, width);
  const rowHeight = cells !== null && cells.rows > 1 ? 13 : 20;
  const height = cells === null ? rowHeight : cells.rows * (rowHeight + 3) - 3;
  const style = getComputedStyle(document.documentElement);
  const paint = (kind) => style.getPropertyValue(COLOURS[kind]).trim();
  const sharp = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  if (cells === null) drawBar(pen, state, width, height, paint);
  else drawCells(pen, state, { ...cells, height: rowHeight }, paint);
};
