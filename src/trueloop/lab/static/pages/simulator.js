// @ts-check
// The simulator: a small network learns points in the plane in a PyTorch script, with injected failures, under the sanitizer.
import { oncePerFrame, equal, fill, h, debounce, formatNumber } from "../dom.js";
import { isHidden } from "../classroom.js";
import { fetchFields, latestOnly } from "../net.js";
import { prefersReducedMotion } from "../player.js";
import * as address from "./simulator/address.js";
import { bar } from "./simulator/bar.js";
import { decisionPlane } from "./simulator/decision_plane.js";
import { bugs } from "./simulator/bugs.js";
import { curves, firstNotFinite } from "./simulator/curves.js";
import { findings } from "./simulator/findings.js";
import { labelOf, difference, knobs } from "./simulator/knobs.js";
import { pointLegend, weightLegend } from "./simulator/legend.js";
import { network } from "./simulator/network.js";
import { MAIN_NUMBERS, MORE_NUMBERS, numbers } from "./simulator/numbers.js";
import { createPacer } from "./simulator/pacer.js";
import { playRecordedRun } from "./simulator/recorded_run.js";
import { NO_RUN, reconnectWhenUsed, Run } from "./simulator/run.js";
import { scenarios } from "./simulator/scenarios.js";
import { script } from "./simulator/script.js";
import { className } from "./simulator/shapes.js";
import { tabs } from "./simulator/tabs.js";
import { firstDifference } from "./simulator/twin.js";
import { weights } from "./simulator/weights.js";

export const title = "Simulator";
export const lead = "Train a small network in real PyTorch, inject failures into its loop, and see what the sanitizer finds.";

const MIN_GHOST_UPDATES = 25; // the curves of shorter runs are not kept as dotted curves
const SLOW_CHART_INTERVAL = 6; // the charts in the tab are drawn once in so many frames

/** @typedef {import("./simulator/run.js").Setup} Setup */

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const view = new View(root, { setParams, announce }); // its worker starts while the settings are requested
  const queries = await fetchFields("simulator");
  await view.open(queries.find(({ name }) => name === "config").fields, params);
  return () => view.close();
}

class View {
  /** @param {HTMLElement} root @param {Omit<import("../app.js").Page, "params">} page */
  constructor(root, { setParams, announce }) {
    this.root = root;
    /** @type {any[]} */ this.fields = [];
    this.setParams = setParams;
    this.announce = announce;
    this.twins = false;
    this.openRequests = 0; // number of requests about settings that are not answered yet
    this.pendingSteps = 0; // number of steps requested while a run was starting
    this.trainWhenStarted = false;
    this.frames = 0;
    /** @type {Record<string, [any, any]>} name of a setting that a switch has set -> its value before and since */ this.setBySwitches = {};
    this.firstDifference = firstDifference();
    this.shownPlane = "boundary"; // name of the picture on the plane: the decision, or the map of a neuron
    this.request = latestOnly("simulator");
    this.pacer = createPacer(() => this.runs);
    this.paint = oncePerFrame(() => this.paintNow());
    this.runs = [this.createRun()];
  }

  /** @param {any[]} fields @param {URLSearchParams} params */
  async open(fields, params) {
    this.fields = fields;
    const { setup, twin, play, invalid } = address.decode(this.fields, params);
    this.build(setup);
    this.requested = /** @type {Setup} */ (setup);
    this.setup = setup;
    const train = play ?? !prefersReducedMotion(); // the page opens training
    if (!setup.bugs.length && !twin) this.begin({ train, keep: false }); // the server changes settings only for failures
    if (train && !twin && equal(setup, this.defaults)) this.playRecorded();
    if (invalid.length) this.showStatus(`The address has ${invalid.join(", ")}, which is not a setting and was ignored.`);
    if (!await this.apply(setup, { train, twin })) {
      await this.apply(this.defaults, { train, twin });
      this.showStatus("The settings in the address cannot be run; the defaults are used.");
    }
    this.clock = setInterval(() => { if (!document.hidden) this.pacer.tick(); }, 60);
    this.stopReconnecting = reconnectWhenUsed(() => this.runs);
    this.onRevealed = () => this.markEvents();
    addEventListener("revealed", this.onRevealed);
  }

  /** @returns {Setup} */
  get defaults() { return { config: Object.fromEntries(this.fields.map(({ name, default: value }) => [name, value])), bugs: [], points: [] }; }

  /** Play the recorded run until the worker of the first run is up. */
  playRecorded() {
    const [run] = this.runs;
    let hasBegun = false;
    playRecordedRun({
      isOver: () => this.closed || (hasBegun ? !run.recorded : Boolean(run.started)) || !equal(run.setup, this.defaults),
      onstarted: (message) => { hasBegun = true; run.showRecorded(message); this.showRun(run); this.showStatus("A recorded run plays while PyTorch starts."); },
      onframe: (header, planes) => run.show(header, planes),
    }).catch(() => {}); // without the recorded run, the page waits for the worker
  }

  /** @param {Setup} setup */
  build(setup) {
    const label = h("select", { "aria-label": "Class of the points you add" });
    this.label = label;
    this.bar = bar({
      onplay: () => this.play(), onpause: () => this.pause(), onstep: () => this.step(),
      onreset: () => this.begin({ train: false, keep: false, message: "Restarted with the same settings and seed." }),
      ondata: () => this.change({ config: { ...this.requested.config, seed: this.requested.config.seed + 1 } }),
      onspeed: (speed) => this.pacer.setSpeed(speed),
      ontwin: (on) => { this.arrange(on); this.begin({ train: this.pacer.training || this.trainWhenStarted, keep: false, message: on ? "Restarted two runs with the same seed." : "Restarted one run." }); },
      onrace: () => { location.hash = address.race(this.fields, this.setup); },
      address: () => location.href,
    });
    this.knobs = knobs(this.fields, { config: setup.config, onchange: (name, value) => this.changeSetting(name, value), onrefusedrare: () => this.tabs.select("settings") });
    this.bugs = bugs({ onchange: (codes) => { this.tabs.select("finding"); this.change({ bugs: codes, config: this.ownConfig() }, { train: true, early: !this.twins }); } });
    this.findings = findings({ onpick: (line) => this.code.toLine(line) });
    this.curves = curves();
    this.numbers = numbers(MAIN_NUMBERS);
    this.moreNumbers = numbers(MORE_NUMBERS);
    this.code = script({ onopen: () => this.tabs.select("code") });
    this.weights = weights({ onedit: (...change) => this.edit(...change), isTableVisible: () => this.tabs?.current === "weights", activation: () => this.setup.config.activation });
    this.network = network({ onhover: (at) => this.hover(at), onpick: (at) => this.weights.pick(at) });
    this.scenarios = scenarios({ announce: this.announce, onopen: ({ config, bugs: codes, label: text }) => this.change({ config, bugs: codes, points: [] }, { train: true, message: `From the experiment: ${text}.` }) });
    this.planesContainer = h("div", { class: "boards" });
    /** @type {ReturnType<typeof decisionPlane>[]} */ this.planes = [];
    this.status = h("p", { class: "sim-status", role: "status" });
    this.divergence = h("p", { class: "parted", hidden: true });
    this.memory = h("p", { class: "muted" });
    const { loss, ...otherCharts } = this.curves.containers;
    this.tabs = tabs({ label: "Details of the run", onshow: (key) => { if (key === "weights") this.weights.showTable(); if (key === "code") this.code.shown(); this.paint(); }, tabs: [
      { key: "finding", title: "Finding", panel: this.findings.element },
      { key: "code", title: "Code", panel: this.code.element },
      { key: "gradients", title: "Gradients", panel: h("div", { class: "sim-more" }, this.moreNumbers.element, h("div", { class: "tiles" }, Object.values(otherCharts)), this.memory) },
      { key: "weights", title: "Weights", panel: this.weights.table },
      { key: "settings", title: "Settings", panel: this.knobs.more },
      { key: "experiments", title: "Experiments", panel: this.scenarios.element },
    ] });
    const networkPanel = h("section", { class: "panel sim-net", "aria-label": "The network" }, this.network.element, weightLegend(), this.weights.inspector);
    this.grid = h("div", { class: "sim-grid" },
      h("div", { class: "panel sim-knobs" }, this.knobs.element),
      networkPanel,
      h("div", { class: "panel sim-plane" }, this.planesContainer, this.findings.verdictAtPlane, this.divergence,
        h("div", { class: "row adds" }, h("span", { class: "muted" }, "Click adds"), label, pointLegend(), h("span", { class: "unseen", id: "board-keys" }, "Shift-click removes the nearest point. Arrow keys move a cross, Enter adds a point there, Delete removes the nearest point."))),
      h("div", { class: "panel sim-curves" }, this.numbers.element, loss, this.curves.events, this.curves.chips));
    fill(this.root, h("div", { class: "sim" }, this.bar.element, this.status, this.grid,
      h("div", { class: "sim-lower" }, h("div", { class: "panel" }, this.bugs.element), h("div", { class: "panel sim-tabs" }, this.findings.verdict, this.tabs.element))));
    this.arrange(false);
    this.networkObserver = new IntersectionObserver(([{ isIntersecting }]) => { for (const [i, run] of this.runs.entries()) run.showNeurons(isIntersecting && i === 0); this.networkVisible = isIntersecting; this.paint(); });
    this.networkObserver.observe(networkPanel);
    const applyLater = debounce(() => { if (this.changingSetting) this.change({ config: this.requested.config }); }, 250);
    this.changeSetting = (/** @type {string} */ name, /** @type {any} */ value) => {
      if (this.changingSetting && this.changingSetting !== name) this.change({ config: this.requested.config }); // two settings changed quickly: apply both
      this.changingSetting = name;
      this.requested = { ...this.requested, config: { ...this.requested.config, [name]: value } };
      applyLater();
    };
  }

  /** Show the map of the neuron under the pointer on the plane, and describe the neuron or weight. @param {import("./simulator/network.js").Picked | null} at */
  hover(at) {
    this.weights.hover(at);
    this.shownPlane = at?.kind === "neuron" && this.runs[0].planes.has(`${at.layer}:${at.to}`) ? `${at.layer}:${at.to}` : "boundary";
    this.planes[0].paint(this.runs[0].planes.get(this.shownPlane));
  }

  /** Show one plane, or two side by side. @param {boolean} twins */
  arrange(twins) {
    const count = twins ? 2 : 1;
    this.twins = twins;
    while (this.runs.length > count) this.runs.pop()?.close();
    for (const plane of this.planes) plane.unmount();
    this.planes = Array.from({ length: count }, (_, i) => decisionPlane({
      title: twins ? ["With the failures", "Without"][i] : "", chosenClass: () => Number(this.label.value),
      ...(i ? {} : { onadd: (point) => this.add(point), onremove: (x, y) => this.remove(x, y) }),
    }));
    fill(this.planesContainer, ...this.planes.map(({ element }) => element));
    this.planesContainer.classList.toggle("two", twins);
    this.grid.classList.toggle("two", twins);
    this.planes.forEach((plane, i) => plane.title(twins ? ["with the failures", "same seed, without"][i] : ""));
    this.curves.arrange(count);
    this.shownPlane = "boundary";
    this.divergence.hidden = !twins;
    while (this.runs.length < count) this.runs.push(this.createRun());
    this.runs[0].showNeurons(this.networkVisible ?? false);
  }

  get connected() { return this.runs.every(({ connection }) => connection === "open"); }

  get allStarted() { return this.runs.every(({ started, recorded }) => started && !recorded); }

  createRun() {
    return new Run({
      onstarted: (run) => this.runStarted(run),
      onframe: () => this.paint(),
      onfinding: (run, message) => this.showFinding(run, message),
      onrefused: (problem) => this.showRefusal(problem),
      onended: (run) => this.runEnded(run),
      onscript: (run) => { if (run === this.runs[0]) this.showCode(); },
      onstate: (...change) => this.connectionChanged(...change),
    });
  }

  /** @param {string} previous @param {string} state @param {string} reason @param {boolean} reconnected */
  connectionChanged(previous, state, reason, reconnected) {
    if (!this.bar) return; // the page is not built yet
    if (state !== "open" && previous === "open") {
      this.trainWhenStarted ||= this.pacer.training;
      this.pacer.stop();
      this.keepCurves();
      this.showStatus(state === "idle" ? reason : "The connection to the lab is lost. The page reconnects by itself.");
    } else if (state === "busy") this.showStatus(reason);
    if (reconnected && this.twins) this.begin({ train: this.trainWhenStarted, keep: false }); // both runs restart, so that they stay synchronised
    if (reconnected) {
      this.showStatus("Reconnected. Restarted with the same settings.");
      this.findings.show(this.runs[0]);
    }
    this.paint(); // the numbers of a lost run are not shown
    this.show();
  }

  /** Return the settings without the values that switches have set; the server sets those again that are still needed. */
  ownConfig() {
    const config = { ...this.requested.config };
    for (const [name, [before, set]] of Object.entries(this.setBySwitches)) if (equal(config[name], set)) config[name] = before;
    return config;
  }

  /** Restart with changed settings. @param {Partial<Setup>} changes @param {{train?: boolean, message?: string, early?: boolean}} [applyOptions] */
  change(changes, applyOptions = {}) {
    this.changingSetting = "";
    const next = { ...this.requested, ...changes };
    if (changes.config && next.config.dataset !== this.setup.config.dataset) next.points = [];
    return this.apply(next, applyOptions);
  }

  /** @param {Setup} next @param {{train?: boolean, twin?: boolean, message?: string, early?: boolean}} options early: start the run before the server has described the settings, which the worker changes in the same way
   * @returns {Promise<boolean>} false if these settings cannot be run */
  async apply(next, { train = false, twin = this.twins, message = "", early = false } = {}) {
    this.requested = next;
    this.openRequests++;
    if (early) {
      this.keepCurves();
      this.startRuns(next, train);
    }
    let answer;
    try {
      answer = await this.request({ config: next.config, bugs: next.bugs });
    } catch (error) {
      const problem = /** @type {any} */ (error).problem ?? { what: String(error) };
      this.knobs.refuse(problem);
      this.showStatus(`${problem.what} ${problem.fix ?? ""}`);
      this.requested = { ...next, bugs: this.setup.bugs };
      this.bugs.show(this.injectable ?? [], this.setup.bugs, true);
      this.pendingSteps = 0;
      if (early) this.startRuns(this.setup, train);
      return false;
    } finally {
      this.openRequests--;
    }
    if (!answer) return true; // replaced by a newer request
    const changed = Object.keys(answer.config).filter((name) => !equal(answer.config[name], next.config[name]));
    const previous = this.setup, isFirst = !this.injectable, newest = this.requested.config;
    const trainNow = train || this.pacer.training || this.trainWhenStarted;
    if (!isFirst && !early) this.keepCurves();
    this.setBySwitches = Object.fromEntries([...Object.entries(this.setBySwitches), ...changed.map((name) => [name, [next.config[name], answer.config[name]]])]
      .filter(([name, [, set]]) => equal(answer.config[name], set)));
    this.setup = this.requested = { config: answer.config, bugs: next.bugs, points: next.points };
    if (this.changingSetting) this.requested = { ...this.setup, config: { ...answer.config, [this.changingSetting]: newest[this.changingSetting] } };
    this.injectable = answer.bugs;
    this.knobs.refuse(null);
    this.knobs.set(this.requested.config);
    this.bugs.show(answer.bugs, next.bugs);
    this.scenarios.show(answer.scenarios ?? []);
    this.preview = answer;
    this.curves.relabel((ghost) => difference(ghost.setup, this.setup));
    if (twin !== this.twins) this.arrange(twin);
    const alsoSet = changed.length ? ` Also set: ${changed.map((name) => `${labelOf(name)} ${answer.config[name]}`).join(", ")}.` : "";
    if (isFirst && equal(this.runs[0].setup, this.setup) && !this.twins) return true; // it has started already
    if (early) this.runs[0].setup = this.setup;
    this.begin({ train: trainNow, keep: false, started: early, message: isFirst && equal(next, previous) ? alsoSet : `${message || `Restarted: ${difference({ ...this.setup, config: next.config }, previous)}.`}${alsoSet}` });
    return true;
  }

  /** Start the runs; the second one has no failures. @param {Setup} setup @param {boolean} train */
  startRuns(setup, train) {
    this.pacer.stop();
    this.trainWhenStarted = train;
    this.runs.forEach((run, i) => run.begin(i ? { ...setup, bugs: [] } : setup, train && this.pacer.isUnlimited));
    this.show();
  }

  /** Restart the runs with the current setup. @param {{train: boolean, keep?: boolean, message?: string, started?: boolean}} options started: the runs have started already */
  begin({ train, keep = true, message = "", started = false }) {
    if (keep) this.keepCurves();
    if (!started) this.startRuns(this.setup, train);
    this.firstDifference.reset();
    this.nonFinite = null;
    this.markEvents();
    this.setParams(address.encode(this.fields, { ...this.setup, config: this.ownConfig() }, this.twins));
    this.showCode();
    this.findings.show(this.runs[0]);
    this.showStatus(message);
    this.paint();
    this.show();
  }

  /** Keep the curves of the current run as a ghost if it is long enough. */
  keepCurves() {
    const { series, started, setup } = this.runs[0];
    if (!started || !setup || series.update.length < MIN_GHOST_UPDATES) return;
    const ghostOfSetup = this.curves.ghosts.find((ghost) => equal(ghost.setup, setup));
    if (ghostOfSetup) ghostOfSetup.series = series;
    else this.curves.keep({ series, setup, label: difference(setup, this.requested) });
  }

  /** @param {Run} run */
  runStarted(run) {
    const i = this.runs.indexOf(run);
    if (run.replacesRecorded) this.showStatus("");
    if (i === 0) this.showRun(run);
    else this.planes[i].begin(run.started);
    if (this.allStarted) {
      if (this.trainWhenStarted) this.pacer.play();
      else if (this.pendingSteps) this.pacer.step(this.pendingSteps);
      else if (run.train) run.send("pause"); // the user has paused it while it started
      this.trainWhenStarted = false;
      this.pendingSteps = 0;
    }
    this.show();
  }

  /** Show what does not change during a run: its points, its layers, its script. @param {Run} run */
  showRun(run) {
    const { classes, layers, memory } = run.started, chosenLabel = this.label.value;
    fill(this.label, ...Array.from({ length: classes }, (_, label) => h("option", { value: label }, className(label, classes))));
    if (Number(chosenLabel) < classes) this.label.value = chosenLabel || "0";
    this.planes[0].begin(run.started);
    this.network.begin(layers);
    this.weights.begin(layers);
    this.memory.textContent = memory ? `Memory: ${memory}` : "";
    this.showCode();
  }

  /** Make one update; while a run is starting, it is made after the start. */
  step() {
    if (this.changingSetting) this.change({ config: this.requested.config }); // do not wait until typing pauses
    if (this.openRequests || !this.allStarted) {
      if (this.pacer.training) this.pacer.pause();
      this.trainWhenStarted = false;
      this.pendingSteps++;
    } else this.pacer.step();
    this.show();
  }

  play() {
    if (!this.allStarted) {
      this.trainWhenStarted = true;
      return this.show();
    }
    if (this.runs.every(({ ended }) => ended)) return this.begin({ train: true, message: "Restarted with the same settings and seed." });
    this.pacer.play();
    this.announce("Training.");
    this.show();
  }

  pause() {
    this.trainWhenStarted = false;
    this.pacer.pause();
    this.announce(`Paused after ${this.runs[0].update} updates.`);
    this.show();
  }

  /** @param {Run} run */
  runEnded(run) {
    if (this.runs.every((each) => each.ended)) this.pacer.stop();
    if (run === this.runs[0]) this.findings.show(run);
    if (run.ended.why !== "finished") this.showStatus(`The run has ended: ${run.ended.why}`);
    this.announce(`The run has ended after ${run.update} updates. ${isHidden("spoilers") ? "" : run.ended.headline ?? ""}`);
    this.paint();
    this.show();
  }

  /** @param {{what: string, why?: string, fix?: string}} problem */
  showRefusal({ what, why, fix }) {
    const [run] = this.runs, text = [what, why, fix].filter(Boolean).join(" ");
    if (!run.started && this.setup.points.length) { // the points in the address do not fit its dataset
      this.setPoints([]);
      this.begin({ train: this.trainWhenStarted, keep: false, message: `${text} The added points are left out.` });
    } else this.showStatus(text);
  }

  /** @param {string} parameter @param {number[]} index @param {number} value */
  edit(parameter, index, value) {
    if (this.runs[0].ended) return this.showStatus("The run has ended: restart it to change its weights.");
    for (const run of this.runs) run.send("edit", { parameter, index, value });
    this.showStatus(`${parameter}[${index.join(", ")}] is now ${formatNumber(value)}. The end of the script lists the change.`);
  }

  /** @param {[number, number, number]} point */
  add(point) {
    const [x, y, label] = point;
    for (const run of this.runs) run.send("add_point", { x, y, label });
    for (const plane of this.planes) plane.add(point);
    this.setPoints([...this.setup.points, point]);
    this.showStatus(`A point of ${className(label, this.runs[0].started?.classes ?? 2)} at ${formatNumber(x)}, ${formatNumber(y)}${this.runs[0].ended ? "" : ": used from the next epoch,"} and in the script of the next run.`);
  }

  /** @param {number} x @param {number} y */
  remove(x, y) {
    for (const run of this.runs) run.send("remove_point", { x, y });
    const [removed] = this.planes.map((plane) => plane.remove(x, y));
    if (!removed) return;
    const addedIndex = this.setup.points.findIndex((point) => point.every((value, i) => Math.abs(value - removed[i]) < 1e-3));
    if (addedIndex >= 0) this.setPoints(this.setup.points.filter((_, i) => i !== addedIndex));
    this.showStatus(addedIndex >= 0 ? "The point is removed." : "The point is removed from this run; a new run generates it again.");
  }

  /** @param {[number, number, number][]} points */
  setPoints(points) {
    this.setup = { ...this.setup, points };
    this.requested = { ...this.requested, points };
    this.setParams(address.encode(this.fields, { ...this.setup, config: this.ownConfig() }, this.twins));
  }

  /** @param {Run} run @param {any} message */
  showFinding(run, { finding, line }) {
    if (run !== this.runs[0]) return;
    this.findings.show(run);
    this.showCode();
    this.announce(isHidden("spoilers") ? "The sanitizer has found something." : `The sanitizer found ${finding.code}: ${finding.title}${line ? `, line ${line}` : ""}.`);
    this.markEvents();
  }

  /** Mark events on the charts and list them. */
  markEvents() {
    const events = this.runs[0].findings.filter(({ finding }) => finding.severity !== "note" && !isHidden("spoilers")).map(({ finding }) => ({ at: (finding.first_update ?? 0) + 1, text: `${finding.code} seen` }));
    if (this.nonFinite) events.push({ at: this.nonFinite, text: "the loss is NaN or infinite" });
    this.curves.showEvents(events);
  }

  paintNow() {
    const startedRuns = this.runs.filter(({ started }) => started), [run] = this.runs;
    const idle = this.runs.every(({ state }) => state !== "running");
    this.frames++;
    this.runs.forEach((each, i) => {
      if (!each.hasUnpaintedFrame) return;
      this.planes[i].paint(each.planes.get(i ? "boundary" : this.shownPlane));
      each.hasUnpaintedFrame = false;
    });
    this.curves.draw(this.runs, this.tabs.current === "gradients" && (idle || this.frames % SLOW_CHART_INTERVAL === 0));
    for (const each of [this.numbers, this.moreNumbers]) each.show(this.connected || this.runs[0].recorded ? this.runs : this.runs.map(() => NO_RUN), this.pacer.training);
    if (this.networkVisible && run.started && (idle || run.header?.weights || !run.weights)) {
      this.network.paint(run);
      this.weights.paint(run.weights);
    }
    if (this.twins && startedRuns.length === 2) this.divergence.textContent = this.firstDifference.describe(this.runs[0], this.runs[1]);
    if (run.header?.first_not_finite !== null && !this.nonFinite) {
      this.nonFinite = firstNotFinite(run.series);
      if (this.nonFinite) {
        this.markEvents();
        this.announce(`From update ${this.nonFinite} on the loss is NaN or infinite.`);
      }
    }
    if (idle) this.curves.describe(this.runs);
    this.findings.showVerdict(run, this.injectable?.find(({ code, late }) => late && run.setup?.bugs.includes(code))?.late);
    this.pacer.tick();
    this.show();
    for (const each of this.runs) each.acknowledge();
  }

  /** Show the script with its injected lines and the line of the first finding marked. */
  showCode() {
    const [run] = this.runs, message = run.started ?? this.preview;
    if (message) this.code.show(message, run.findings.find(({ line }) => line)?.line ?? null, this.tabs.current === "code");
  }

  /** @param {string} text */
  showStatus(text) {
    this.status.textContent = text;
  }

  show() {
    const [run] = this.runs, training = this.pacer.training || this.trainWhenStarted;
    const unconnected = this.runs.find(({ connection }) => connection !== "open")?.connection, state = unconnected ? "lost" : !this.allStarted ? "waiting" : run.ended ? "ended" : this.pacer.training ? "running" : "paused";
    const text = run.recorded ? "recorded run" : { lost: unconnected === "connecting" ? "starting PyTorch ..." : "not connected", waiting: "writing ...", ended: run.ended?.why === "finished" ? "finished" : "ended", running: "training", paused: run.window ? "paused" : "ready" }[state];
    this.grid.classList.toggle("offline", state === "lost" && Boolean(run.header));
    this.bar.show({ training, enabled: !unconnected && !(run.ended && training), twins: this.twins, state, text });
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
    removeEventListener("revealed", /** @type {any} */ (this.onRevealed));
    this.stopReconnecting?.();
    this.networkObserver.disconnect();
    for (const part of [...this.runs.map((run) => ({ unmount: () => run.close() })), ...this.planes, this.curves, this.network, this.knobs, this.scenarios]) part.unmount();
  }
}
