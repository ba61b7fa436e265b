// The data of one run, kept up to date by server-sent events. Nothing is polled while connected.
// After a lost connection, the stream is opened again, and view and progress are read again to get
// what was missed.

import { finite } from "./numbers.js";
import { isOver } from "./words.js";

const FIRST_WAIT_S = 1;
const LONGEST_WAIT_S = 10;
const OVERDUE_S = 15;
const CATCH_UP_S = 2;
const LAST_EVENTS_S = 10;  // the stream still sends measurements made after the last slot
const MOST_RELEASES = 200;

export const clock = { offset: 0, roundTrip: Infinity };
clock.now = () => Date.now() + clock.offset;

// Estimates the server's clock from the response with the shortest round trip so far.
const setClock = (serverTime, asked, answered) => {
  const serverMs = Date.parse(serverTime);
  const roundTrip = answered - asked;
  if (!Number.isFinite(serverMs) || roundTrip > clock.roundTrip) return;
  clock.roundTrip = roundTrip;
  clock.offset = serverMs - (asked + answered) / 2;
};

export class BadResponse extends Error {
  constructor(status) {
    super(`the server responded ${status}`);
    this.status = status;
  }
}

export const read = async (path) => {
  const asked = Date.now();
  const answer = await fetch(path, { cache: "no-store", headers: { Accept: "application/json" } });
  if (!answer.ok) throw new BadResponse(answer.status);
  const body = await answer.json();
  if (body === null || typeof body !== "object") throw new BadResponse("with something else");
  setClock(body.server_time, asked, Date.now());
  return body;
};

const list = (value) => (Array.isArray(value) ? value.filter((one) => one !== null && typeof one === "object") : []);

export class Feed {
  // state: "connecting", "live", "lost", "over", or "gone" if there is no such run
  constructor(id, changed) {
    this.path = `campaigns/${encodeURIComponent(id)}`;
    this.id = id;
    this.changed = changed;
    this.state = "connecting";
    this.view = null;
    this.curve = new Map();
    this.spending = new Map();
    this.releases = new Map();
    this.lastHeard = Date.now();
    this.source = null;
    this.retry = 0;
    this.timer = 0;
    this.attempts = 0;
    this.closed = false;
    this.open();
  }

  close() {
    this.closed = true;
    clearTimeout(this.retry);
    clearTimeout(this.timer);
    this.source?.close();
  }

  async open() {
    try {
      await this.readAll();
    } catch (problem) {
      this.reconnect(problem);
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
      this.readAll().catch((problem) => this.reconnect(problem));  // get what happened before the stream was open
    };
    source.onerror = () => {
      source.close();
      if (!this.closed) this.reconnect(null);
    };
    const on = (name, handle) => source.addEventListener(name, (event) => {
      if (this.closed) return;
      this.lastHeard = Date.now();
      try {
        handle(JSON.parse(event.data));
      } catch {
        return;  // malformed event: the next readAll corrects the data
      }
      this.changed(this);
    });
    on("state", (data) => this.apply(data));
    on("release", (data) => this.apply(data));
    on("curve", (data) => this.addCurve([data]));
    on("status", (data) => {
      const holding = data.holding ?? null;
      if (data.status === this.view.status && holding === (this.view.holding ?? null)) return;  // every stream begins with a status event
      this.view.status = data.status;
      this.view.holding = holding;
      if (isOver(data.status)) this.end();
      this.readAll().catch((problem) => this.reconnect(problem));
    });
  }

  async readAll() {
    const [view, progress] = await Promise.all([read(this.path), read(`${this.path}/progress`)]);
    if (this.closed) return;
    if (!this.isOlder(view)) this.view = view;
    this.lastHeard = Date.now();
    this.addCurve(list(progress.curve));
    for (const { slots, epsilon } of list(progress.spending)) this.addSpending(slots, epsilon);
    for (const { slot, model_hash: hash } of list(progress.releases)) this.addRelease(slot, hash);
    if (isOver(this.view.status)) this.end();
    this.changed(this);
  }

  // Returns true if events newer than this response have already arrived.
  isOlder(view) {
    if (this.view === null || view.epoch !== this.view.epoch) return false;
    return view.slots_closed < this.view.slots_closed || (isOver(this.view.status) && !isOver(view.status));
  }

  apply(data) {
    if (finite(data.slots_closed) === null || data.slots_closed < this.view.slots_closed) return;
    this.view.slots_closed = data.slots_closed;
    this.view.model_hash = data.model_hash ?? this.view.model_hash;
    this.view.ledger = { entries: data.entries, head: data.head };
    if (this.view.status === "waiting" && data.slots_closed > 0) this.view.status = "running";
    if (data.spent !== undefined) this.view.spent = data.spent;
    const computed = finite(data.spent?.slots);
    if (computed > 0 && !this.spending.has(computed)) this.catchUp();  // new epsilons were computed: read all of them
    this.addSpending(computed, data.spent?.epsilon);
    this.addRelease(data.slot, data.model_hash);
  }

  catchUp() {
    if (this.timer !== 0 || this.state === "over") return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.readAll().catch((problem) => this.reconnect(problem));
    }, 1000 * CATCH_UP_S);
  }

  // The run is over. The stream is closed after LAST_EVENTS_S.
  end() {
    if (this.state === "over") return;
    this.setState("over");
    clearTimeout(this.timer);
    clearTimeout(this.retry);
    this.timer = setTimeout(() => {
      this.source?.close();
      if (this.source !== null) this.readAll().catch(() => {});
    }, 1000 * LAST_EVENTS_S);
  }

  addCurve(points) {
    for (const { slots, metrics } of points) {
      if (finite(slots) !== null && metrics !== null && typeof metrics === "object") this.curve.set(slots, metrics);
    }
  }

  addSpending(slots, epsilon) {
    if (finite(slots) !== null && finite(epsilon) !== null) this.spending.set(slots, epsilon);
  }

  addRelease(slot, hash) {
    if (!(finite(slot) > 0)) return;
    this.releases.set(slot, hash);
    if (this.releases.size > MOST_RELEASES) this.releases.delete(Math.min(...this.releases.keys()));
  }

  reconnect(problem) {
    if (this.closed || this.state === "over") return;
    this.source?.close();
    if (problem instanceof BadResponse && problem.status === 404) {
      this.setState("gone");
      return;
    }
    this.setState("lost");
    clearTimeout(this.retry);
    const wait = Math.min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** this.attempts) * (0.75 + Math.random() / 2);
    this.attempts += 1;
    this.retry = setTimeout(() => this.open(), 1000 * wait);
  }

  setState(state) {
    if (this.closed || this.state === state) return;
    this.state = state;
    this.changed(this);
  }

  // Reads everything again if a release is overdue and no event has come.
  checkOverdue() {
    if (this.state !== "live" || this.view === null) return;
    const { start, slot_s: length } = this.view.schedule ?? {};
    const due = Date.parse(start) + 1000 * length * (this.view.slots_closed + 1);
    const patience = 1000 * Math.max(OVERDUE_S, 2 * length);
    if (clock.now() - due > patience && Date.now() - this.lastHeard > patience) {
      this.lastHeard = Date.now();
      this.readAll().catch((problem) => this.reconnect(problem));
    }
  }

  // After sleep or a change of tabs, reads at once instead of waiting for the next event.
  wake() {
    if (this.state === "lost") {
      clearTimeout(this.retry);
      this.open();
    } else if (this.view !== null) {
      this.readAll().catch((problem) => this.reconnect(problem));
    }
  }
}
