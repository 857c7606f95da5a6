// @ts-check
// A race: up to four synchronised runs of one seed, each with its own settings or failures, on shared axes.
import { chart } from "../chart.js";
import { form, mentions } from "../controls.js";
import { oncePerFrame, fill, h, debounce, formatNumber } from "../dom.js";
import { isHidden } from "../classroom.js";
import { fetchFields } from "../net.js";
import { prefersReducedMotion } from "../player.js";
import { lane } from "./race/lane.js";
import { runningMean, examplesAfterUpdates, SMOOTHING_UPDATES, standings } from "./race/standing.js";
import * as address from "./simulator/address.js";
import { alignCurves } from "./simulator/curves.js";
import { difference, LABELS, SLIDERS } from "./simulator/knobs.js";
import { createPacer, SPEEDS } from "./simulator/pacer.js";
import { reconnectWhenUsed } from "./simulator/run.js";

export const title = "Race of runs";
export const lead = "Up to four runs with the same seed and points, each with its own settings or failure, side by side.";

const NAMES = ["A", "B", "C", "D"]; // each run has its own process; more would need too much memory
const COLOURS = ["--c0", "--c1", "--c2", "--c3"];
const DASHES = [undefined, [8, 4], [2, 3], [9, 3, 2, 3]];
const DEFAULT_RUNNERS = ["optimizer=adam", "optimizer=momentum&learning_rate=0.1", "optimizer=adam&bugs=GRD001"];
const CHARTS = /** @type {const} */ ([["loss", `Training loss, mean of the latest ${SMOOTHING_UPDATES}`, 170], ["accuracy", "Held-out accuracy", 140], ["norm", "Gradient norm", 140]]);
const CHART_INTERVAL = 3; // charts and table are drawn once in so many frames, the planes in each

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  /** @type {import("../controls.js").Field[]} */
  const fields = (await fetchFields("simulator")).find(({ name }) => name === "config").fields;
  const sharedFields = fields.filter(({ name }) => address.SHARED_SETTINGS.includes(name)), runFields = fields.filter(({ name }) => !address.SHARED_SETTINGS.includes(name));
  const sharedParams = new URLSearchParams([...params].filter(([name]) => !NAMES.includes(name.toUpperCase()) && !["goal", "axis"].includes(name)));
  const parsed = address.decode(sharedFields, sharedParams);
  let sharedConfig = parsed.setup.config, goal = Math.min(1, Math.max(0.5, Number(params.get("goal")) || 0.95)), axis = params.get("axis") === "example" ? "example" : "update";
  let trainWhenReady = !prefersReducedMotion(), pendingSteps = 0, frames = 0, changeCount = 0, mounted = true;
  /** @type {ReturnType<typeof lane>[]} */ let lanes = [];
  const pacer = createPacer(() => lanes.map(({ run }) => run));
  const statusLine = h("p", { class: "sim-status", role: "status" });
  const showStatus = (/** @type {string} */ text) => { statusLine.textContent = text; };
  const play = h("button", { type: "button", class: "play", onclick: () => (pacer.training || trainWhenReady ? pause() : start()) }, "▶ Train all");
  const step = h("button", { type: "button", class: "quiet", "aria-label": "Step", title: "One update of each", onclick: () => { trainWhenReady = false; if (ready()) pacer.step(); else pendingSteps++; show(); } }, "▶|", h("span", {}, " Step"));
  const reset = h("button", { type: "button", class: "quiet", "aria-label": "Reset", title: "Restart all", onclick: () => begin(false) }, "↺", h("span", {}, " Reset"));
  const add = h("button", { type: "button", class: "quiet", "aria-label": "Add a runner", onclick: () => { const { setup } = lanes.find((each) => !each.setup.bugs.length) ?? lanes[lanes.length - 1]; addLane({ ...setup, config: { ...setup.config } }); change(); } }, "+", h("span", {}, " Add a runner"));
  const speed = h("select", { "aria-label": "Speed", onchange: () => pacer.setSpeed(Number(speed.value)) }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
  const axisSelect = h("select", { id: "race-axis", onchange: () => { axis = axisSelect.value; updateAddress(); build(); draw(true); } }, [["update", "updates"], ["example", "examples seen"]].map(([value, text]) => h("option", { value, selected: value === axis }, text)));
  const target = h("input", { type: "number", id: "race-goal", min: 50, max: 100, step: 1, value: Math.round(100 * goal), oninput: () => { const value = Number(target.value) / 100; if (value >= 0.5 && value <= 1) { goal = value; updateAddress(); draw(true); } } });
  const stateBadge = h("span", { class: "state", dataset: { state: "waiting" } }, "starting");
  const sharedForm = form(sharedFields, { values: sharedConfig, labels: LABELS, sliders: SLIDERS, onchange: debounce((values) => { sharedConfig = Object.fromEntries(address.SHARED_SETTINGS.map((name) => [name, values[name]])); change(); }, 250) });
  const chartContainers = Object.fromEntries(CHARTS.map(([key]) => [key, h("div", {})]));
  /** @type {Record<string, ReturnType<typeof chart>>} */ const charts = {};
  const table = standings(), laneList = h("div", { class: "lanes" });
  fill(root, h("div", { class: "race" },
    h("div", { class: "row sim-bar", role: "group", "aria-label": "The race" }, play, step, reset, speed, add, stateBadge), statusLine,
    laneList,
    h("section", { class: "panel", "aria-labelledby": "race-stand" }, h("div", { class: "row" }, h("h2", { id: "race-stand" }, "Standings"), h("label", { for: "race-goal" }, "accuracy to reach, %"), target, h("label", { for: "race-axis" }, "counted in"), axisSelect), table.element),
    h("section", { class: "panel", "aria-label": "Curves" }, Object.values(chartContainers)),
    h("details", { class: "panel common", open: true }, h("summary", {}, "Shared settings"), sharedForm.element),
    h("section", { class: "panel" }, h("h2", {}, "What to look for"), h("ul", { class: "look" },
      h("li", {}, "All runs are synchronised by update. Count examples instead to compare different batch sizes fairly."),
      h("li", {}, "One seed is one race: change the seed before you trust the order."),
      h("li", {}, "Inject a failure into one of two equal runs: where their curves coincide, only the sanitizer shows the difference.")))));

  /** @param {import("./simulator/run.js").Setup} setup */
  function addLane(setup) {
    const index = NAMES.findIndex((each) => !lanes.some(({ name }) => name === each));
    const newLane = lane({
      name: NAMES[index], colour: COLOURS[index], dash: DASHES[index], fields: runFields, setup, onchange: () => change(), onremove: () => removeLane(newLane),
      handlers: {
        onstarted: runStarted, onframe: paint, onrefused: showStatus,
        onended: () => { if (lanes.every(({ run }) => run.ended)) finish(); paint(); },
        onfinding: (/** @type {any} */ runLane, { finding }) => { announce(isHidden("spoilers") ? `Runner ${runLane.name}: the sanitizer has found something.` : `Runner ${runLane.name}: the sanitizer found ${finding.code}, ${finding.title}.`); draw(true); },
        onstate: connectionChanged,
      },
    });
    lanes.push(newLane);
    lanes.sort((one, other) => (one.name < other.name ? -1 : 1));
  }

  /** @param {ReturnType<typeof lane>} removed */
  function removeLane(removed) {
    lanes = lanes.filter((each) => each !== removed);
    removed.unmount();
    change();
    add.focus();
  }

  /** @param {string} state @param {string} reason @param {boolean} reconnected */
  function connectionChanged(state, reason, reconnected) {
    if (state === "busy" || state === "idle") showStatus(reason);
    else if (state === "lost") { trainWhenReady ||= pacer.training; pacer.stop(); showStatus("The connection to the lab is lost. The page reconnects by itself."); }
    if (reconnected) { showStatus("Reconnected. The race is restarted."); begin(trainWhenReady); } // all runs restart, so that they stay synchronised
    show();
  }

  /** Check changed settings and restart. */
  async function change() {
    const thisChange = ++changeCount, trainNow = pacer.training || trainWhenReady;
    fill(laneList, ...lanes.map(({ element }) => element));
    for (const each of lanes) each.setAlone(lanes.length < 2);
    add.disabled = lanes.length >= NAMES.length;
    add.title = add.disabled ? "Each runner has its own process; a page may have four." : "Starts with the settings of the last runner";
    try {
      const prepared = await Promise.all(lanes.map((each) => each.prepare(sharedConfig)));
      if (thisChange !== changeCount || !mounted || !prepared.every(Boolean)) return;
    } catch (error) {
      if (thisChange !== changeCount || !mounted) return;
      const { problem, message } = /** @type {import("../net.js").RequestError} */ (error);
      sharedForm.refuse(address.SHARED_SETTINGS.some((name) => mentions(problem?.what, name)) ? problem : null);
      return showStatus(message);
    }
    sharedForm.refuse(null);
    build();
    begin(trainNow);
  }

  /** @param {boolean} train */
  function begin(train) {
    pacer.stop();
    trainWhenReady = train;
    for (const each of lanes) each.begin();
    updateAddress();
    draw(true);
    show();
  }

  const ready = () => lanes.length > 0 && lanes.every(({ run }) => run.started);

  function runStarted() {
    if (ready()) {
      if (trainWhenReady) pacer.play();
      else if (pendingSteps) pacer.step(pendingSteps);
      trainWhenReady = false;
      pendingSteps = 0;
    }
    show();
  }

  function start() {
    if (lanes.every(({ run }) => run.ended)) return begin(true);
    if (ready()) pacer.play();
    else trainWhenReady = true;
    announce("The race is on.");
    show();
  }

  function pause() {
    trainWhenReady = false;
    pacer.pause();
    announce("Paused.");
    show();
  }

  function finish() {
    pacer.stop();
    const [winner] = draw(true);
    const text = winner.countToGoal === null ? `No runner reached ${(100 * goal).toFixed(0)} %.` : `Runner ${winner.lane.name} was first at ${(100 * goal).toFixed(0)} %, after ${formatNumber(winner.countToGoal)} ${axis}s.`;
    showStatus(`The race is over. ${text}`);
    announce(`The race is over. ${text}`);
    show();
  }

  /** Describe how the settings of a run differ from those of the others. @param {ReturnType<typeof lane>} runLane */
  function describeSettings(runLane) {
    const [first, second] = lanes;
    return !second ? "alone" : runLane === first ? difference(runLane.setup, second.setup) : difference(runLane.setup, first.setup).replace("same settings, earlier run", `the same as ${first.name}`);
  }

  const paint = oncePerFrame(() => {
    frames++;
    for (const each of lanes) each.paint(describeSettings(each));
    draw(!pacer.training || frames % CHART_INTERVAL === 0);
    pacer.tick();
    show();
    for (const { run } of lanes) run.acknowledge();
  });

  function build() {
    for (const [key, text, height] of CHARTS) {
      charts[key]?.unmount();
      charts[key] = chart({ title: text, height, x: axis, lines: lanes.map(({ name, colour, dash }) => ({ label: name, colour, dash, width: 1.6, joined: true, points: key === "accuracy" })), ...(key === "accuracy" ? { tools: false } : {}) });
      fill(chartContainers[key], charts[key].element);
    }
  }

  /** @param {boolean} redraw false: leave charts and table unchanged */
  function draw(redraw) {
    if (!redraw || !charts.loss) return [];
    /** @type {Record<string, [number[], any[]][]>} */ const curves = { loss: [], accuracy: [], norm: [] };
    for (const { run, setup } of lanes) {
      const examplesAfter = examplesAfterUpdates(setup.config), toAxis = (/** @type {number[]} */ updates) => (axis === "update" ? updates : updates.map(examplesAfter)), xs = toAxis(run.series.update);
      curves.loss.push([xs, runningMean(run.series.loss)]);
      curves.norm.push([xs, run.series.norm]);
      curves.accuracy.push([toAxis(run.series.evaluations.map(([update]) => update)), run.series.evaluations.map(([, , accuracy]) => accuracy)]);
    }
    const rows = table.show(lanes, { goal, axis, describeSettings });
    const summary = rows.map(({ lane: { name }, accuracy }) => `${name}: ${accuracy < 0 ? "not evaluated yet" : `accuracy ${(100 * accuracy).toFixed(1)} %`}`).join("; ");
    for (const [key] of CHARTS) {
      charts[key].set(...alignCurves(curves[key]));
      if (!pacer.training) charts[key].describe(summary);
    }
    return rows;
  }

  function updateAddress() {
    const runners = Object.fromEntries(lanes.map(({ name, setup }) => [name.toLowerCase(), new URLSearchParams(address.encode(runFields, setup, false)).toString() || "optimizer=adam"]));
    setParams({ ...address.encode(sharedFields, { config: sharedConfig, bugs: [], points: [] }, false), ...runners, ...(goal !== 0.95 && { goal: String(goal) }), ...(axis !== "update" && { axis }) });
  }

  function show() {
    const training = pacer.training || trainWhenReady, unconnected = lanes.find(({ run }) => run.connection !== "open")?.run.connection;
    const allEnded = lanes.length > 0 && lanes.every(({ run }) => run.ended);
    if (play.dataset.training !== String(training)) fill(play, training ? "‖ Pause" : ["▶ Train", h("span", {}, " all")]);
    play.dataset.training = String(training);
    play.disabled = step.disabled = Boolean(unconnected) && unconnected !== "connecting";
    const [kind, text] = unconnected ? ["lost", unconnected === "connecting" ? "starting PyTorch ..." : "not connected"] : !ready() ? ["waiting", "writing ..."] : allEnded ? ["ended", "finished"] : pacer.training ? ["running", "training"] : ["paused", lanes.some(({ run }) => run.window) ? "paused" : "ready"];
    stateBadge.dataset.state = kind;
    if (stateBadge.textContent !== text) stateBadge.textContent = text;
  }

  const runnerParams = NAMES.map((name) => params.get(name.toLowerCase())).filter((text) => text !== null);
  const invalid = [...parsed.invalid];
  for (const text of runnerParams.length ? runnerParams : DEFAULT_RUNNERS) {
    const { setup, invalid: more } = address.decode(runFields, new URLSearchParams(/** @type {string} */ (text)));
    invalid.push(...more);
    addLane({ ...setup, config: { ...setup.config, ...sharedConfig }, points: [] });
  }
  if (invalid.length) showStatus(`The address has ${invalid.join(", ")}, which is not a setting and was ignored.`);
  const clock = setInterval(() => { if (!document.hidden) pacer.tick(); }, 60);
  const stopReconnecting = reconnectWhenUsed(() => lanes.map(({ run }) => run));
  await change();
  return () => {
    mounted = false;
    clearInterval(clock);
    stopReconnecting();
    for (const each of lanes) each.unmount();
    for (const each of Object.values(charts)) each.unmount();
  };
}
