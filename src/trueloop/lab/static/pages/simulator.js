// @ts-check
// The simulator: a small network learns points in the plane in a PyTorch script, with injected failures, under the sanitizer.
import { eachFrame, fill, h, later, number } from "../dom.js";
import { hidden } from "../classroom.js";
import { described, newest } from "../net.js";
import * as address from "./simulator/address.js";
import { bar } from "./simulator/bar.js";
import { board } from "./simulator/board.js";
import { bugs } from "./simulator/bugs.js";
import { curves, firstNotFinite } from "./simulator/curves.js";
import { findings } from "./simulator/findings.js";
import { labelOf, difference, knobs } from "./simulator/knobs.js";
import { legend, network } from "./simulator/network.js";
import { numbers } from "./simulator/numbers.js";
import { pace as paced } from "./simulator/pace.js";
import { Run } from "./simulator/run.js";
import { scenarios } from "./simulator/scenarios.js";
import { script } from "./simulator/script.js";
import { named } from "./simulator/shapes.js";
import { firstDifference } from "./simulator/twin.js";
import { weights } from "./simulator/weights.js";
import { hints, marks, loadStyle } from "./simulator/words.js";

export const title = "Simulator";
export const lead = "Train a small network in real PyTorch, inject failures into its loop, and see what the sanitizer finds.";

const MIN_GHOST_UPDATES = 25; // shorter runs are not kept as dotted curves
const SLOW_CHART_INTERVAL = 6; // frames: the charts further down are drawn less often

/** @typedef {import("./simulator/run.js").Setup} Setup */

/** @param {HTMLElement} root @param {{params: URLSearchParams, setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} page */
export async function mount(root, { params, setParams, announce }) {
  const [fields] = await Promise.all([described("simulator").then((all) => all.find((/** @type {any} */ { name }) => name === "config").fields), loadStyle()]);
  const view = new View(root, fields, { setParams, announce });
  await view.open(params);
  return () => view.close();
}

class View {
  /** @param {HTMLElement} root @param {any[]} fields @param {{setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} page */
  constructor(root, fields, { setParams, announce }) {
    this.root = root;
    this.fields = fields;
    this.setParams = setParams;
    this.announce = announce;
    /** @type {Run[]} */ this.runs = [];
    this.twins = false;
    this.pendingRequests = 0; // open requests about settings
    this.pendingSteps = 0; // steps requested while a run was starting
    this.pending = false; // train as soon as the run has started
    this.frames = 0;
    this.notice = "";
    this.firstDifference = firstDifference();
    this.request = newest("simulator");
    this.pace = paced(() => this.runs);
    this.paint = eachFrame(() => this.painted());
  }

  /** @param {URLSearchParams} params */
  async open(params) {
    const { setup, twin, play, wrong } = address.read(this.fields, params);
    this.build(setup);
    this.wanted = /** @type {Setup} */ (setup);
    this.setup = setup;
    if (wrong.length) this.say(`The address has ${wrong.join(", ")}, which is not a setting and was ignored.`);
    if (!await this.apply(setup, { train: play, twin })) {
      await this.apply({ config: Object.fromEntries(this.fields.map(({ name, default: value }) => [name, value])), bugs: [], points: [] }, { twin });
      this.say("The settings in the address cannot be run; the defaults are used.");
    }
    this.clock = setInterval(() => { if (!document.hidden) this.pace.tick(); }, 60);
    this.wake = () => { for (const run of this.runs) if (run.connection === "idle" && !document.hidden) run.live.connect(); };
    for (const what of ["pointerdown", "keydown", "visibilitychange"]) document.addEventListener(what, this.wake);
    this.revealed = () => this.mark();
    addEventListener("revealed", this.revealed);
  }

  /** @param {Setup} setup */
  build(setup) {
    const label = h("select", { "aria-label": "Class of the points you add" });
    this.label = label;
    this.bar = bar({
      onplay: () => this.play(), onpause: () => this.hold(), onstep: () => this.step(),
      onreset: () => this.begin({ train: false, keep: false, why: "Restarted with the same settings and seed." }),
      ondata: () => this.change({ config: { ...this.wanted.config, seed: this.wanted.config.seed + 1 } }),
      onspeed: (speed) => this.pace.at(speed),
      ontwin: (on) => { this.arrange(on); this.begin({ train: this.pace.goes || this.pending, keep: false, why: on ? "Restarted two runs with the same seed." : "Restarted one run." }); },
      onrace: () => { location.hash = address.race(this.fields, this.setup); },
      onexperiments: () => { this.scenarios.element.scrollIntoView(); this.scenarios.element.querySelector("button")?.focus({ preventScroll: true }); },
      address: () => location.href,
    });
    this.knobs = knobs(this.fields, { config: setup.config, onchange: (name, value) => this.turn(name, value) });
    this.bugs = bugs({ onchange: (codes) => this.change({ bugs: codes }, { train: true }) });
    this.findings = findings({ onpick: (line) => this.code.toLine(line) });
    this.curves = curves({});
    this.numbers = numbers();
    this.code = script();
    this.weights = weights({ onedit: (...what) => this.edit(...what), enlarge: (into, name) => this.network.enlarge(into, name), activation: () => this.setup.config.activation });
    this.network = network({ onhover: (at) => this.weights.hover(at), onpick: (at) => this.weights.pick(at) });
    this.scenarios = scenarios({ announce: this.announce, onopen: ({ config, bugs: codes, label: text }) => { this.change({ config, bugs: codes, points: [] }, { train: true, why: `From the experiment: ${text}.` }); scrollTo({ top: 0, behavior: "smooth" }); } });
    this.boards = h("div", { class: "boards" });
    /** @type {ReturnType<typeof board>[]} */ this.planes = [];
    this.status = h("p", { class: "sim-status", role: "status" });
    this.divergence = h("p", { class: "parted", hidden: true });
    this.grid = h("div", { class: "sim-grid" },
      h("div", { class: "panel sim-knobs" }, this.knobs.element),
      h("div", { class: "panel sim-plane" }, this.boards, this.divergence,
        h("div", { class: "row adds" }, h("span", { class: "muted" }, "Click adds"), label, h("span", { class: "muted" }, "shift-click removes"), marks(), h("span", { class: "unseen", id: "board-keys" }, "Arrow keys move a cross, Enter adds a point there, Delete removes the nearest point.")),
        this.findings.element),
      h("div", { class: "sim-right" },
        h("div", { class: "panel sim-curves" }, this.curves.places.loss, this.curves.places.norm, this.curves.events, this.curves.chips),
        h("div", { class: "panel" }, this.bugs.element)),
      this.knobs.more);
    const net = h("section", { class: "panel sim-net", "aria-labelledby": "net-title" }, h("div", { class: "row" }, h("h2", { id: "net-title" }, "The network"), legend()),
      this.network.element, this.weights.inspector, this.weights.details);
    this.memory = h("p", { class: "muted" });
    fill(this.root,
      h("div", { class: "sim" }, this.bar.element, this.numbers.element, this.status, this.grid, net,
        h("section", { class: "panel sim-more", "aria-label": "More curves" }, h("div", { class: "tiles" }, ["accuracy", "rate", "memory", "graphs"].map((key) => this.curves.places[key])), this.memory),
        hints(), this.scenarios.element, this.code.element));
    this.arrange(false);
    this.seen = new IntersectionObserver(([{ isIntersecting }]) => { for (const [i, run] of this.runs.entries()) run.showNeurons(isIntersecting && i === 0); this.netSeen = isIntersecting; this.paint(); });
    this.seen.observe(net);
    const turning = later(() => { if (this.turning) this.change({ config: this.wanted.config }); }, 250);
    this.turn = (/** @type {string} */ name, /** @type {any} */ value) => {
      if (this.turning && this.turning !== name) this.change({ config: this.wanted.config }); // two settings changed quickly: apply both
      this.turning = name;
      this.wanted = { ...this.wanted, config: { ...this.wanted.config, [name]: value } };
      turning();
    };
  }

  /** One plane, or two side by side. @param {boolean} twins */
  arrange(twins) {
    const count = twins ? 2 : 1;
    this.twins = twins;
    while (this.runs.length > count) this.runs.pop()?.close();
    for (const plane of this.planes) plane.unmount();
    this.planes = Array.from({ length: count }, (_, i) => board({
      title: twins ? ["With the failures", "Without"][i] : "", chosen: () => Number(this.label.value),
      ...(i ? {} : { onadd: (point) => this.add(point), onremove: (x, y) => this.remove(x, y) }),
    }));
    fill(this.boards, ...this.planes.map(({ element }) => element));
    this.boards.classList.toggle("two", twins);
    this.grid.classList.toggle("two", twins);
    this.planes.forEach((plane, i) => plane.title(twins ? ["with the failures", "same seed, without"][i] : ""));
    this.curves.arrange(count);
    this.divergence.hidden = !twins;
    while (this.runs.length < count) this.runs.push(this.connected());
    this.runs[0].showNeurons(this.netSeen ?? false);
  }

  connected() {
    return new Run({
      onbegan: (run) => this.began(run),
      onframe: () => this.paint(),
      onfinding: (run, message) => this.found(run, message),
      onrefused: (words) => this.refused(words),
      onended: (run) => this.ended(run),
      onscript: (run) => { if (run === this.runs[0]) this.showCode(); },
      onstate: (...how) => this.connection(...how),
    });
  }

  /** @param {string} before @param {string} state @param {string} reason @param {boolean} again */
  connection(before, state, reason, again) {
    if (state !== "open" && before === "open") {
      this.pending ||= this.pace.goes;
      this.pace.stop();
      this.keep();
      this.say(state === "idle" ? reason : "The connection to the lab is lost. The page reconnects by itself.");
    } else if (state === "busy") this.say(reason);
    if (again && this.twins) this.begin({ train: this.pending, keep: false }); // both, so that they are in step
    if (again) this.say("Reconnected. Restarted with the same settings.");
    this.show();
  }

  /** Restart with changed settings. @param {Partial<Setup>} what @param {{train?: boolean, why?: string}} [how] */
  change(what, how = {}) {
    this.turning = "";
    const next = { ...this.wanted, ...what };
    if (what.config && next.config.dataset !== this.setup.config.dataset) next.points = [];
    return this.apply(next, how);
  }

  /** @param {Setup} next @param {{train?: boolean, twin?: boolean, why?: string}} how @returns {Promise<boolean>} whether it can be run */
  async apply(next, { train = false, twin = this.twins, why = "" } = {}) {
    this.wanted = next;
    this.pendingRequests++;
    let answer;
    try {
      answer = await this.request({ config: next.config, bugs: next.bugs });
    } catch (error) {
      const words = /** @type {any} */ (error).words ?? { what: String(error) };
      this.knobs.refuse(words);
      this.say(`${words.what} ${words.fix ?? ""}`);
      this.wanted = { ...next, bugs: this.setup.bugs };
      this.bugs.show(this.all ?? [], this.setup.bugs, true);
      this.pendingSteps = 0;
      return false;
    } finally {
      this.pendingRequests--;
    }
    if (!answer) return true; // replaced by a newer request
    const changed = Object.keys(answer.config).filter((name) => JSON.stringify(answer.config[name]) !== JSON.stringify(next.config[name]));
    const from = this.setup, first = !this.all;
    const goes = train || this.pace.goes || this.pending;
    if (!first) this.keep();
    this.setup = this.wanted = { config: answer.config, bugs: next.bugs, points: next.points };
    this.all = answer.bugs;
    this.knobs.refuse(null);
    this.knobs.set(answer.config);
    this.bugs.show(answer.bugs, next.bugs);
    this.scenarios.show(answer.scenarios ?? []);
    this.preview = answer;
    this.curves.relabel((ghost) => difference(ghost.setup, this.setup));
    if (twin !== this.twins) this.arrange(twin);
    const needs = changed.length ? ` Also set: ${changed.map((name) => `${labelOf(name)} ${answer.config[name]}`).join(", ")}.` : "";
    this.begin({ train: goes, keep: false, why: first ? needs : `${why || `Restarted: ${difference({ ...this.setup, config: next.config }, from)}.`}${needs}` });
    return true;
  }

  /** @param {{train: boolean, keep?: boolean, why?: string}} how */
  begin({ train, keep = true, why = "" }) {
    if (keep) this.keep();
    this.pace.stop();
    this.pending = train;
    this.firstDifference.reset();
    this.nonFinite = null;
    this.curves.showEvents([]);
    this.runs.forEach((run, i) => run.begin(i ? { ...this.setup, bugs: [] } : this.setup));
    this.setParams(address.encode(this.fields, this.setup, this.twins));
    this.showCode();
    this.findings.show(this.runs[0]);
    this.say(why);
    this.paint();
    this.show();
  }

  /** Keep the curves of the current run as a ghost if it is long enough. */
  keep() {
    const { series, began, setup } = this.runs[0];
    if (!began || !setup || series.update.length < MIN_GHOST_UPDATES) return;
    const same = this.curves.ghosts.find((ghost) => JSON.stringify(ghost.setup) === JSON.stringify(setup));
    if (same) same.series = series;
    else this.curves.keep({ series, setup, label: difference(setup, this.wanted) });
  }

  /** @param {Run} run */
  began(run) {
    const i = this.runs.indexOf(run);
    this.planes[i].begin(run.began);
    if (i === 0) {
      const { classes, layers, memory } = run.began, before = this.label.value;
      fill(this.label, ...Array.from({ length: classes }, (_, label) => h("option", { value: label }, `a point of ${named(label, classes)}`)));
      if (Number(before) < classes) this.label.value = before || "0";
      this.network.begin(layers);
      this.weights.begin(layers);
      this.memory.textContent = memory ? `Memory: ${memory}` : "";
      this.showCode();
    }
    if (this.runs.every((each) => each.began)) {
      if (this.pending) this.pace.play();
      else if (this.pendingSteps) this.pace.step(this.pendingSteps);
      this.pending = false;
      this.pendingSteps = 0;
    }
    this.show();
  }

  /** Make one update; remembered while a run is starting. */
  step() {
    if (this.turning) this.change({ config: this.wanted.config }); // now, not when typing pauses
    if (this.pendingRequests || !this.runs.every(({ began }) => began)) {
      if (this.pace.goes) this.pace.pause();
      this.pending = false;
      this.pendingSteps++;
    } else this.pace.step();
    this.show();
  }

  play() {
    if (!this.runs.every(({ began }) => began)) {
      this.pending = true;
      return this.show();
    }
    if (this.runs.every(({ ended }) => ended)) return this.begin({ train: true, why: "Restarted with the same settings and seed." });
    this.pace.play();
    this.announce("Training.");
    this.show();
  }

  hold() {
    this.pending = false;
    this.pace.pause();
    this.announce(`Paused after ${this.runs[0].update} updates.`);
    this.show();
  }

  /** @param {Run} run */
  ended(run) {
    if (this.runs.every((each) => each.ended)) this.pace.stop();
    if (run === this.runs[0]) this.findings.show(run);
    if (run.ended.why !== "finished") this.say(`The run has ended: ${run.ended.why}`);
    this.announce(`The run has ended after ${run.update} updates. ${hidden("spoilers") ? "" : run.ended.headline ?? ""}`);
    this.paint();
    this.show();
  }

  /** @param {{what: string, why?: string, fix?: string}} words */
  refused({ what, why, fix }) {
    const [run] = this.runs, text = [what, why, fix].filter(Boolean).join(" ");
    if (!run.began && this.setup.points.length) { // the points of the address do not fit its dataset
      this.byHand([]);
      this.begin({ train: this.pending, keep: false, why: `${text} The added points are left out.` });
    } else this.say(text);
  }

  /** @param {string} parameter @param {number[]} index @param {number} value */
  edit(parameter, index, value) {
    if (this.runs[0].ended) return this.say("The run has ended: restart it to change its weights.");
    for (const run of this.runs) run.send("edit", { parameter, index, value });
    this.say(`${parameter}[${index.join(", ")}] is now ${number(value)}. The end of the script lists the change.`);
  }

  /** @param {[number, number, number]} point */
  add(point) {
    const [x, y, label] = point;
    for (const run of this.runs) run.send("add_point", { x, y, label });
    for (const plane of this.planes) plane.add(point);
    this.byHand([...this.setup.points, point]);
    this.say(`A point of ${named(label, this.runs[0].began?.classes ?? 2)} at ${number(x)}, ${number(y)}${this.runs[0].ended ? "" : ": used from the next epoch,"} and in the script of the next run.`);
  }

  /** @param {number} x @param {number} y */
  remove(x, y) {
    for (const run of this.runs) run.send("remove_point", { x, y });
    const [removed] = this.planes.map((plane) => plane.remove(x, y));
    if (!removed) return;
    const own = this.setup.points.findIndex((point) => point.every((value, i) => Math.abs(value - removed[i]) < 1e-3));
    if (own >= 0) this.byHand(this.setup.points.filter((_, i) => i !== own));
    this.say(own >= 0 ? "The point is removed." : "The point is removed from this run; a new run generates it again.");
  }

  /** @param {[number, number, number][]} points */
  byHand(points) {
    this.setup = { ...this.setup, points };
    this.wanted = { ...this.wanted, points };
    this.setParams(address.encode(this.fields, this.setup, this.twins));
  }

  /** @param {Run} run @param {any} message */
  found(run, { finding, line }) {
    if (run !== this.runs[0]) return;
    this.findings.show(run);
    this.showCode();
    this.announce(hidden("spoilers") ? "The sanitizer has found something." : `The sanitizer found ${finding.code}: ${finding.title}${line ? `, line ${line}` : ""}.`);
    this.mark();
  }

  /** Mark events on the charts and list them. */
  mark() {
    const events = this.runs[0].findings.filter(({ finding }) => finding.severity !== "note" && !hidden("spoilers")).map(({ finding }) => ({ at: (finding.first_update ?? 0) + 1, text: `${finding.code} seen` }));
    if (this.nonFinite) events.push({ at: this.nonFinite, text: "the loss is NaN or infinite" });
    this.curves.showEvents(events);
  }

  painted() {
    const shown = this.runs.filter(({ began }) => began), [run] = this.runs;
    const still = this.runs.every(({ state }) => state !== "running");
    this.frames++;
    this.runs.forEach((each, i) => {
      if (!each.fresh) return;
      this.planes[i].paint(each.planes.get("boundary"));
      each.fresh = false;
    });
    this.curves.draw(this.runs, still || this.frames % SLOW_CHART_INTERVAL === 0);
    this.numbers.show(this.runs, this.pace.goes);
    if (this.netSeen && run.began && (still || run.header?.weights || !run.weights)) {
      this.network.paint(run);
      this.weights.paint(run.weights);
    }
    if (this.twins && shown.length === 2) this.divergence.textContent = this.firstDifference.say(this.runs[0], this.runs[1]);
    if (run.header?.first_not_finite !== null && !this.nonFinite) {
      this.nonFinite = firstNotFinite(run.series);
      if (this.nonFinite) {
        this.mark();
        this.announce(`From update ${this.nonFinite} on the loss is NaN or infinite.`);
      }
    }
    if (still) this.curves.describe(this.runs);
    this.findings.head(run);
    this.pace.tick();
    this.show();
    for (const each of this.runs) each.painted();
  }

  /** Mark the injected lines and the found line in the script. */
  showCode() {
    const [run] = this.runs, written = run.began ?? this.preview;
    if (written) this.code.show(written, run.findings.find(({ line }) => line)?.line ?? null);
  }

  /** @param {string} text */
  say(text) {
    this.status.textContent = text;
  }

  show() {
    const [run] = this.runs, goes = this.pace.goes || this.pending;
    const away = this.runs.find(({ connection }) => connection !== "open")?.connection, kind = away ? "lost" : !this.runs.every(({ began }) => began) ? "waiting" : run.ended ? "ended" : this.pace.goes ? "running" : "paused";
    const text = { lost: away === "connecting" ? "starting PyTorch ..." : "not connected", waiting: "writing ...", ended: run.ended?.why === "finished" ? "finished" : "ended", running: "training", paused: run.update ? "paused" : "ready" }[kind];
    this.bar.show({ goes, able: !away && !(run.ended && goes), twins: this.twins, kind, text });
  }

  close() {
    clearInterval(this.clock);
    removeEventListener("revealed", /** @type {any} */ (this.revealed));
    for (const what of ["pointerdown", "keydown", "visibilitychange"]) document.removeEventListener(what, /** @type {any} */ (this.wake));
    this.seen.disconnect();
    for (const part of [...this.runs.map((run) => ({ unmount: () => run.close() })), ...this.planes, this.curves, this.network, this.knobs, this.scenarios]) part.unmount();
  }
}
