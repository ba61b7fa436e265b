// The page /take-part: this browser becomes one device of a campaign on public data, with an invented
// record. The device itself is /client.js.

import { CampaignRefused, Device, IndexedDbStore, InvalidState, Odometer, ServiceFailed, openRun, parseView, rowsTrainer, systemBytes } from "../client.js";
import { byId, element, setTable, setTerms, setText, show } from "./dom.js";
import { formatCount, formatDuration, roundUp } from "./numbers.js";
import { isOnPublicData } from "./words.js";

const MODELS = ["logistic", "softmax"];
const STORE = new IndexedDbStore();
const RECORD = "record";
const TICK_MS = 500;
const LEAVE = "leave"; // kept in the tab: a link to this page must not make a device leave

// The measures of the public data set "patients", with their public ranges.
const PATIENT = [
  ["age", 20, 100, "Age in years", false], ["male", 0, 1, "Male", false], ["case", 0, 1, "Has fatty liver disease", false],
  ["bmi", 15, 45, "Body mass index", true], ["hdl", 20, 80, "HDL cholesterol in mg/dL", true], ["sbp", 90, 170, "Blood pressure in mmHg", true],
  ["fib4", 0, 5.34, "Index of liver fibrosis", true], ["smoke", 0, 1, "Smokes", true],
];
const YES_NO = ["male", "case", "smoke"];

const OUTCOMES = {
  ABSTAINED: ["Done: the coin of this device decided against taking part.", "Nothing was sent. That is part of the protection."],
  MISSED: ["Done: the slot of this device has passed.", "It was not awake in time, so nothing was sent. That is no error."],
  REFUSED: ["Done: the check-in was refused.", "It came too late. Nothing was sent."],
  DISMISSED: ["Done: this device was not chosen.", "Nothing of its record was sent."],
  LATE: ["Done: the slot ended too early.", "The coordinator did not confirm the report in time, so it does not count."],
  REPORTED: ["Done: the update was sent and accepted.", "The device has erased its slot and its report, and keeps only this result."],
};

const WORDS = {
  enrolled: () => "It enrolled. The coordinator does not know whether and when it will check in.",
  drawn: ({ slot }) => (slot === null ? "It tossed its coin: not this time." : `It drew its slot at random: slot ${formatCount(slot)}.`),
  restarted: ({ slot }) => (slot === null ? "It went on where it was." : `It went on where it was, with slot ${formatCount(slot)}.`),
  asleep: () => "It waits for its slot.",
  "checking-in": () => "Its slot has begun. It checks in.",
  "checked-in": () => "Its check-in was accepted. It waits for the choice.",
  chosen: () => "It was chosen, and trains on its record.",
  dismissed: () => "It was not chosen.",
  reporting: () => "It sends its update, clipped and rounded. Its record stays here.",
  acknowledged: () => "The coordinator has the update.",
  refused: () => "Its check-in was refused.",
  withdrawn: () => "It has left. The coordinator has erased its check-in.",
};

// A number uniform on [0, 1). The invented record is not secret, but Math.random is never used here.
const uniform = () => new Uint32Array(systemBytes.bytes(4).buffer)[0] / 2 ** 32;

// Invents a record for the data set of a campaign, with values anywhere in their public ranges.
const inventRecord = ({ campaign, shapes }) => {
  const classes = campaign.task.model === "softmax" ? shapes.weights[1] : 2;
  const label = Math.floor(uniform() * classes);
  if (campaign.task.data !== "patients") {
    const features = Array.from({ length: shapes.weights[0] }, () => 2 * uniform() - 1);
    return { features, label, facts: [["Features", `${formatCount(features.length)} random numbers`], ["Label", String(label)]] };
  }
  const features = [];
  const facts = [];
  for (const [name, low, high, words, mayBeMissing] of PATIENT) {
    const isYesNo = YES_NO.includes(name);
    const value = isYesNo ? Math.floor(2 * uniform()) : low + (high - low) * uniform();
    const middle = (low + high) / 2;
    features.push((value - middle) / (high - middle), ...(mayBeMissing ? [0] : []));
    facts.push([words, isYesNo ? ["no", "yes"][value] : value.toFixed(name === "fib4" ? 2 : 0)]);
  }
  facts.push(["Died during the study", ["no", "yes"][label]]);
  return { features, label, facts };
};

// Returns the record of this device for a campaign. It is kept, because a second call must train on the same.
const recordOf = async (view) => {
  const key = `${RECORD}/${view.id}`;
  const kept = await STORE.load(key);
  const record = kept === null ? inventRecord(view) : JSON.parse(kept);
  if (kept === null) await STORE.save(key, JSON.stringify(record));
  return record;
};

const drawOdometer = async () => {
  const odometer = Odometer.parse(await STORE.load("odometer"));
  const { epsilon, delta, adjacency } = odometer.total();
  const neighbours = adjacency === "add-remove" ? "with or without you" : "with other data of yours";
  const isBounded = Number.isFinite(epsilon);
  setText("spent", odometer.charges.length === 0 ? "ε = 0" : isBounded ? `ε ≤ ${roundUp(epsilon)}, δ ≤ ${roundUp(delta)}` : "no upper bound");
  const meaning = !isBounded
    ? "A campaign had no bound on ε before its end, so no upper bound is known."
    : odometer.charges.length === 0
      ? "Nothing has been spent on this device yet. A campaign adds its whole budget as soon as the device draws its slot."
      : `An upper bound on what all releases together can reveal about this device (${neighbours}), over all its participations. A campaign counts with its whole budget, even if the device is not chosen.`;
  setText("spent-note", meaning);
  const rows = odometer.charges.map((charge) => [charge.population.replace(/^\w+ /, ""), String(charge.runs.length), charge.epsilon === Infinity ? "none" : roundUp(charge.epsilon), roundUp(charge.delta)]);
  setTable("charges", [{ name: "Population" }, { name: "Runs", number: true }, { name: "ε", number: true }, { name: "δ", number: true }], rows, "Budgets that were added");
  show("charges-sheet", rows.length > 0);
};

const tellProblem = (error) => {
  const isKnown = [CampaignRefused, InvalidState, ServiceFailed].some((kind) => error instanceof kind);
  setText("problem", isKnown ? `It stopped: ${error.message}.` : `This does not work here: ${error.message}.`);
  show("problem", true);
};

const addStep = (headline, note = "") => {
  setText("now", headline);
  byId("steps").append(element("li", {}, `${headline} ${note}`));
};

// Counts down to the slot. Screen readers are not told every second.
const startTimer = (waitS) => {
  const endMs = performance.now() + 1000 * waitS;
  const draw = () => {
    const leftS = Math.ceil((endMs - performance.now()) / 1000);
    show("timer", leftS > 0);
    setText("timer", leftS > 0 ? `Its slot begins in ${formatDuration(leftS)}.` : "");
    if (leftS <= 0) clearInterval(ticking);
  };
  const ticking = setInterval(draw, TICK_MS);
  draw();
};

const hear = (event) => {
  if (event.event === "done") return;
  const words = WORDS[event.event];
  if (words !== undefined) addStep(words(event));
  if (event.event === "asleep" && event.seconds > 1) startTimer(event.seconds);
  if (event.event === "drawn") void drawOdometer();
};

const deviceFor = (run, view, record) => new Device({
  url: new URL("./", location.href).href,
  run,
  trainer: rowsTrainer([record.features], [record.label]),
  store: STORE,
  seal: view.campaign.seal,
  onEvent: hear,
});

const finish = (outcome) => {
  const [headline, note] = OUTCOMES[outcome];
  show("progress", true);
  show("timer", false);
  show("withdraw", false);
  byId("progress").dataset.state = outcome.toLowerCase();
  addStep(headline, note);
  void drawOdometer();
};

const takePart = async (device) => {
  show("join", false);
  show("consent", false);
  show("problem", false);
  show("progress", true);
  show("withdraw", true);
  byId("progress").focus(); // the button that had the focus is gone
  addStep("This device checks the seal of the campaign.");
  void navigator.storage?.persist?.(); // asks the browser to keep the slot and the odometer
  try {
    finish(await device.run());
  } catch (error) {
    show("withdraw", false);
    show("timer", false);
    setText("now", "It stopped.");
    tellProblem(error);
  }
};

// Returns why this page cannot join a campaign, or null.
const refusalOf = ({ campaign, enrolment, isOver }) => {
  const { model, features } = campaign.task;
  if (!isOnPublicData(campaign) || !MODELS.includes(model) || features !== null) {
    return "This page trains on invented records, so it joins only demonstrations: campaigns on a public data set with a linear model. This campaign is for devices with data of their own.";
  }
  if (enrolment !== "open") return "Only devices with a key may enrol in this campaign.";
  return isOver ? "This campaign is over." : null;
};

const main = async () => {
  await drawOdometer();
  if (!isSecureContext) {
    setText("name", "This address is not encrypted");
    setText("about", "Browsers let a page take part only over HTTPS, or on the machine of the coordinator itself.");
    return;
  }
  let run;
  try {
    ({ run } = await openRun(new URL("./", location.href).href));
  } catch (error) {
    setText("name", error instanceof CampaignRefused ? "No single campaign is open here" : "The coordinator does not respond");
    setText("about", "Open this page again while a demonstration runs.");
    return;
  }
  const response = await fetch(`campaigns/${run}`);
  const view = await parseView(new Uint8Array(await response.arrayBuffer()));
  const { campaign } = view;
  setText("name", campaign.name);
  const noise = campaign.randomizer.noiseAt === "server" ? "The coordinator adds noise to the sum of each slot" : "This device adds noise before it sends anything";
  setText("about", `${formatCount(campaign.slots)} slots of ${formatDuration(campaign.slotS)}. ${noise}. Budget: ε = ${roundUp(campaign.epsilon)}, δ = ${roundUp(campaign.delta)} (${campaign.adjacency}).`);
  const refusal = refusalOf(view);
  if (refusal !== null) {
    setText("problem", refusal);
    for (const id of ["intro", "good-to-know"]) show(id, false);
    show("problem", true);
    return;
  }
  const record = await recordOf(view);
  setTerms("record", record.facts);
  show("record-card", true);
  const device = deviceFor(run, view, record);
  byId("join").addEventListener("click", () => takePart(device));
  byId("withdraw").addEventListener("click", () => {
    sessionStorage.setItem(LEAVE, run);
    location.reload(); // afterwards, nothing runs that holds the lock of the device
  });
  if (sessionStorage.getItem(LEAVE) === run) {
    await device.withdraw();
    sessionStorage.removeItem(LEAVE);
  }
  const stored = await device.stored();
  if (stored === "WITHDRAWN") {
    show("progress", true);
    setText("now", "This device has left the campaign. Its check-in is erased, and it sends nothing more.");
  } else if (stored !== null && stored in OUTCOMES) finish(stored);
  else if (stored !== null) await takePart(device);
  else {
    show("join", true);
    show("consent", true);
  }
};

main().catch(tellProblem);
