// A world of one device: a virtual clock, a disk that survives crashes, and a network that leads to the
// service of the test in Python (window.serve).

import * as client from "/client.js";

const base64 = (bytes) => btoa(String.fromCharCode(...bytes));
const bytesOf = (text) => Uint8Array.from(atob(text), (unit) => unit.charCodeAt(0));

const disk = new Map();
// The monotonic clock of the device, and the seconds for which it stood still.
const clock = { s: 0, stoodS: 0 };

// Random bytes of which the first draws fall as the test says.
const sourceOf = (slot) => ({
  drawn: 0,
  bytes(count) {
    this.drawn += 1;
    if (slot !== undefined && count === 9) return new Uint8Array(9); // a coin of zero
    if (slot !== undefined && count === 1) return Uint8Array.of(0).fill((slot - 1) << 5); // of four slots
    return client.systemBytes.bytes(count);
  },
});

// Begins a world at a time of the device's clock, with an empty disk.
export const begin = (startS) => {
  disk.clear();
  clock.s = startS;
  clock.stoodS = 0;
};

export const disks = () => Object.fromEntries(disk);
export const write = (key, text) => disk.set(key, text);

// Lets the device live until it ends, fails, or crashes at the step crashAt. A step is before or after a
// message or a write.
export const live = async ({ run, slot, crashAt = Infinity, fails = false, suspendedS = 0, withdraws = false, declines = false, options = {} }) => {
  const told = [];
  let steps = 0;
  let trained = 0;
  let leftS = suspendedS;
  let die = () => {};
  const death = new Promise((resolve) => { die = () => resolve("crashed"); });
  const step = async () => {
    steps += 1;
    if (steps < crashAt) return;
    die();
    await new Promise(() => {}); // it does nothing more
  };
  const platform = {
    fetch: async (url, { method, headers, body }) => {
      await step();
      clock.s += 0.01;
      const request = { method, path: url.replace("http://127.0.0.1", ""), headers, body: body === undefined ? "" : base64(body), s: clock.s + clock.stoodS };
      const { s, status, content, headers: sent } = await window.serve(request);
      clock.s = s - clock.stoodS + 0.01;
      await step();
      if (status === 0) throw new TypeError("no response");
      return new Response(status === 204 ? null : bytesOf(content), { status, headers: sent });
    },
    monotonicS: () => clock.s,
    calendarS: () => clock.s + clock.stoodS,
    sleep: async (seconds) => {
      clock.s += seconds;
      clock.stoodS += leftS; // the computer sleeps, and its monotonic clock stands still
      leftS = 0;
    },
    source: sourceOf(slot),
  };
  const store = {
    load: async (key) => disk.get(key) ?? null,
    save: async (key, text) => {
      await step();
      disk.set(key, text);
      await step();
    },
    keys: async () => [...disk.keys()],
    lock: (_, work) => work(),
  };
  const trainer = (model) => {
    trained += 1;
    if (fails) throw new RangeError("no rows");
    return { weights: model.weights.map((x) => x + 0.1), bias: model.bias.map((x) => x + 0.1) };
  };
  const accept = async () => {
    if (declines) throw new client.CampaignRefused("declined");
  };
  const device = new client.Device({ url: "http://127.0.0.1", run, trainer, store, platform, onEvent: (event) => told.push(event), accept, ...options });
  const end = { told, outcome: null, error: null, message: null };
  try {
    end.outcome = await Promise.race([withdraws ? device.withdraw() : device.run(), death]);
  } catch (error) {
    Object.assign(end, { error: error.constructor.name, message: error.message });
  }
  return { ...end, steps, trained, crashed: end.outcome === "crashed" };
};

// The computer is off for some seconds.
export const sleepFor = (seconds) => { clock.s += seconds; };
