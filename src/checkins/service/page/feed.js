// The data of one run, updated by server-sent events. Nothing is polled while connected.
// After a lost connection, the stream is opened again, and view (the public description of the run) and
// progress (its learning curve and epsilons) are read again to get the events that were missed.

import { finiteOrNull } from "./numbers.js";
import { isOver } from "./words.js";

const FIRST_RETRY_S = 1;
const MAX_RETRY_S = 10;
const OVERDUE_S = 15;  // a release is overdue if it is later than this, and than two slots
const CATCH_UP_DELAY_S = 2;
const LAST_EVENTS_S = 10;  // after the end of a run, the stream still sends measurements of the last model
const MAX_RELEASES = 200;

export const clock = { offset: 0, roundTrip: Infinity };
clock.now = () => Date.now() + clock.offset;

// Estimates the server's clock from the response with the shortest round trip so far.
const setClock = (serverTime, sentMs, receivedMs) => {
  const serverMs = Date.parse(serverTime);
  const roundTrip = receivedMs - sentMs;
  if (!Number.isFinite(serverMs) || roundTrip > clock.roundTrip) return;
  clock.roundTrip = roundTrip;
  clock.offset = serverMs - (sentMs + receivedMs) / 2;
};

export class BadResponse extends Error {
  constructor(status) {
    super(`the server responded ${status}`);
    this.status = status;
  }
}

export const fetchJson = async (path) => {
  const sentMs = Date.now();
  const response = await fetch(path, { cache: "no-store", headers: { Accept: "application/json" } });
  if (!response.ok) throw new BadResponse(response.status);
  const body = await response.json();
  if (body === null || typeof body !== "object") throw new BadResponse("with something else");
  setClock(body.server_time, sentMs, Date.now());
  return body;
};

const objectsIn = (value) => (Array.isArray(value) ? value.filter((item) => item !== null && typeof item === "object") : []);

export class Feed {
  // state: "connecting", "live", "lost", "over", or "gone" if there is no such run
  constructor(id, onChange) {
    this.path = `campaigns/${encodeURIComponent(id)}`;
    this.id = id;
    this.onChange = onChange;
    this.state = "connecting";
    this.view = null;
    this.curve = new Map();
    this.spending = new Map();
    this.releases = new Map();
    this.lastMessageMs = Date.now();
    this.source = null;
    this.retryTimer = 0;
    this.readTimer = 0;
    this.attempts = 0;
    this.reads = 0;
    this.appliedRead = 0;
    this.closed = false;
    this.open();
  }

  close() {
    this.closed = true;
    clearTimeout(this.retryTimer);
    clearTimeout(this.readTimer);
    this.source?.close();
  }

  async open() {
    try {
      await this.readAll();
    } catch (error) {
      this.reconnect(error);
      return;
    }
    if (this.closed || this.state === "over") return;
    this.listen();
  }

  listen() {
    const source = new EventSource(`${this.path}/events`);
    this.source = source;
    source.onopen = () => {
      this.attempts = 0;
      if (this.state !== "over") this.setState("live");
      this.readAll().catch((error) => this.reconnect(error));  // get what happened before the stream was open
    };
    source.onerror = () => {
      source.close();
      if (!this.closed) this.reconnect(null);
    };
    const addListener = (name, handler) => source.addEventListener(name, (event) => {
      if (this.closed) return;
      this.lastMessageMs = Date.now();
      try {
        handler(JSON.parse(event.data));
      } catch {
        return;  // malformed event: the next readAll corrects the data
      }
      this.onChange(this);
    });
    addListener("state", (data) => this.applyEvent(data));
    addListener("release", (data) => this.applyEvent(data));
    addListener("curve", (data) => this.addCurve([data]));
    addListener("status", (data) => {
      const holding = data.holding ?? null;
      if (data.status === this.view.status && holding === (this.view.holding ?? null)) return;  // every stream begins with a status event
      this.view.status = data.status;
      this.view.holding = holding;
      if (isOver(data.status)) this.end();
      this.readAll().catch((error) => this.reconnect(error));
    });
  }

  async readAll() {
    const read = this.reads += 1;
    const [view, progress] = await Promise.all([fetchJson(this.path), fetchJson(`${this.path}/progress`)]);
    if (this.closed) return;
    if (read > this.appliedRead && !this.isOlder(view)) {  // responses may arrive in another order than they were asked for
      this.appliedRead = read;
      this.view = view;
    }
    this.lastMessageMs = Date.now();
    this.addCurve(objectsIn(progress.curve));
    for (const { slots, epsilon } of objectsIn(progress.spending)) this.addSpending(slots, epsilon);
    for (const { slot, model_hash: hash } of objectsIn(progress.releases)) this.addRelease(slot, hash);
    if (isOver(this.view.status)) this.end();
    this.onChange(this);
  }

  // Returns true if events newer than this response have already arrived.
  isOlder(view) {
    if (this.view === null || view.epoch !== this.view.epoch) return false;
    return view.slots_closed < this.view.slots_closed || (isOver(this.view.status) && !isOver(view.status));
  }

  applyEvent(data) {
    if (finiteOrNull(data.slots_closed) === null || data.slots_closed < this.view.slots_closed) return;
    this.view.slots_closed = data.slots_closed;
    this.view.model_hash = data.model_hash ?? this.view.model_hash;
    this.view.ledger = { entries: data.entries, head: data.head };
    if (this.view.status === "waiting" && data.slots_closed > 0) this.view.status = "running";
    if (data.spent !== undefined) this.view.spent = data.spent;
    const computedSlots = finiteOrNull(data.spent?.slots);
    if (computedSlots > 0 && !this.spending.has(computedSlots)) this.readAllSoon();  // new epsilons were computed: read all of them
    this.addSpending(computedSlots, data.spent?.epsilon);
    this.addRelease(data.slot, data.model_hash);
  }

  readAllSoon() {
    if (this.readTimer !== 0 || this.state === "over") return;
    this.readTimer = setTimeout(() => {
      this.readTimer = 0;
      this.readAll().catch((error) => this.reconnect(error));
    }, 1000 * CATCH_UP_DELAY_S);
  }

  // The run is over. The stream is closed after LAST_EVENTS_S.
  end() {
    if (this.state === "over") return;
    this.setState("over");
    clearTimeout(this.readTimer);
    clearTimeout(this.retryTimer);
    this.readTimer = setTimeout(() => {
      this.source?.close();
      if (this.source !== null) this.readAll().catch(() => {});
    }, 1000 * LAST_EVENTS_S);
  }

  addCurve(points) {
    for (const { slots, metrics } of points) {
      if (finiteOrNull(slots) !== null && metrics !== null && typeof metrics === "object") this.curve.set(slots, metrics);
    }
  }

  addSpending(slots, epsilon) {
    if (finiteOrNull(slots) !== null && finiteOrNull(epsilon) !== null) this.spending.set(slots, epsilon);
  }

  addRelease(slot, hash) {
    if (!(finiteOrNull(slot) > 0)) return;
    this.releases.set(slot, hash);
    if (this.releases.size > MAX_RELEASES) this.releases.delete(Math.min(...this.releases.keys()));
  }

  reconnect(error) {
    if (this.closed || this.state === "over") return;
    this.source?.close();
    if (error instanceof BadResponse && error.status === 404) {
      this.setState("gone");
      return;
    }
    this.setState("lost");
    clearTimeout(this.retryTimer);
    const delayS = Math.min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** this.attempts) * (0.75 + Math.random() / 2);
    this.attempts += 1;
    this.retryTimer = setTimeout(() => this.open(), 1000 * delayS);
  }

  setState(state) {
    if (this.closed || this.state === state) return;
    this.state = state;
    this.onChange(this);
  }

  // Reads everything again if a release is overdue and no event has come since.
  checkOverdue() {
    if (this.state !== "live" || this.view === null) return;
    const { start, slot_s: length } = this.view.schedule ?? {};
    const dueMs = Date.parse(start) + 1000 * length * (this.view.slots_closed + 1);
    const patienceMs = 1000 * Math.max(OVERDUE_S, 2 * length);
    if (clock.now() - dueMs > patienceMs && Date.now() - this.lastMessageMs > patienceMs) {
      this.lastMessageMs = Date.now();
      this.readAll().catch((error) => this.reconnect(error));
    }
  }

  // Reads everything at once after the computer has slept or the reader has changed tabs.
  wake() {
    if (this.state === "lost") {
      clearTimeout(this.retryTimer);
      this.open();
    } else if (this.view !== null) {
      this.readAll().catch((error) => this.reconnect(error));
    }
  }
}
