// @ts-check
// One run in its own worker process: its settings, its results, and the acknowledgement of painted frames.
import { Live } from "../../net.js";

const USER_EVENTS = ["pointerdown", "keydown", "visibilitychange"];

/** @typedef {{config: Record<string, any>, bugs: string[], points: [number, number, number][]}} Setup */

/** The curves of a run with all their points. */
export class Series {
  constructor() {
    /** @type {number[]} */ this.update = [];
    /** @type {any[]} */ this.loss = [];
    /** @type {any[]} the smoothed loss */ this.smooth = [];
    /** @type {any[]} */ this.norm = [];
    /** @type {any[]} */ this.rate = [];
    /** @type {[number, any, any][]} an evaluation: update, held-out loss, accuracy */
    this.evaluations = [];
    /** @type {number[]} the updates at which memory and graphs were measured */
    this.measuredAt = [];
    /** @type {any[]} */ this.memory = [];
    /** @type {any[]} */ this.graphs = [];
  }

  /** @param {any} header of a frame */
  append(header) {
    const { update, loss, smooth, norm, rate } = header.points;
    for (let i = 0; i < update.length; i++) {
      this.update.push(update[i] + 1); // the page counts updates from 1
      this.loss.push(loss[i]);
      this.smooth.push(smooth[i]);
      this.norm.push(norm[i]);
      this.rate.push(rate[i]);
    }
    for (const evaluation of header.evaluations ?? []) this.evaluations.push(evaluation);
    if (this.measuredAt[this.measuredAt.length - 1] === header.window) {
      this.measuredAt.pop(); this.memory.pop(); this.graphs.pop();
    }
    this.measuredAt.push(header.window);
    this.memory.push(header.memory_mib);
    this.graphs.push(header.graphs);
  }

  get last() { return this.update.length - 1; }
}

/** A run without numbers. */
export const NO_RUN = /** @type {any} */ ({ header: null, series: new Series(), started: null, ended: null });

/** Reconnect idle runs when the page is used again; return a function that ends this. @param {() => Run[]} runs */
export function reconnectWhenUsed(runs) {
  const reconnect = () => { for (const run of runs()) if (run.connection === "idle" && !document.hidden) run.live.connect(); };
  for (const event of USER_EVENTS) document.addEventListener(event, reconnect);
  return () => { for (const event of USER_EVENTS) document.removeEventListener(event, reconnect); };
}

/** A live run, which restarts automatically after a reconnection. */
export class Run {
  /** @param {{onstarted: (run: Run) => void, onframe: (run: Run) => void, onfinding: (run: Run, message: any) => void, onrefused: (problem: any) => void,
   *           onended: (run: Run) => void, onscript?: (run: Run) => void, onstate: (previous: string, state: string, reason: string, reconnected: boolean) => void}} handlers */
  constructor(handlers) {
    this.handlers = handlers;
    /** @type {Setup | null} */ this.setup = null;
    this.id = this.latestStartedId = 0; // latestStartedId: id of the newest run that has started
    this.request = 0; // number of start commands; an earlier run that starts late is ignored
    this.ready = this.replacesRecorded = this.train = false;
    this.lost = false;
    this.neurons = false;
    this.connection = "connecting";
    this.newestFrame = 0;
    this.acknowledged = 0;
    this.clear();
    this.live = new Live("simulator", {
      ontext: (message) => this.receive(message),
      onframe: (header, planes) => this.receiveFrame(header, planes),
      onstate: (state, reason) => this.connectionChanged(state, reason),
    });
  }

  clear() {
    this.series = new Series();
    /** @type {any} the worker's message "started"; null until the run has started */ this.started = null;
    /** @type {any} the header of the newest frame */ this.header = null;
    /** @type {Map<string, {plane: any, bytes: Uint8Array}>} the newest picture of each name */ this.planes = new Map();
    /** @type {Record<string, any> | null} */ this.weights = null;
    /** @type {any[]} */ this.findings = [];
    /** @type {any} */ this.ended = null;
    this.state = "waiting";
    this.hasUnpaintedFrame = false;
    this.recorded = false; // true while a recorded run is shown in place of one that has not started
  }

  /** Start a run, which trains immediately or is paused before its first batch. @param {Setup} setup @param {boolean} [train] */
  begin(setup, train = false) {
    this.setup = setup;
    this.train = train;
    this.id = 0;
    this.clear();
    if (this.ready) this.sendStart();
  }

  sendStart() {
    if (!this.setup) return;
    this.live.send({ do: "start", request: ++this.request, train: this.train, ...this.setup });
    if (this.neurons) this.live.send({ do: "show_neurons", neurons: true });
  }

  /** @param {boolean} neurons */
  showNeurons(neurons) {
    if (neurons === this.neurons) return;
    this.neurons = neurons;
    this.live.send({ do: "show_neurons", neurons });
  }

  /** Send a command to the worker. @param {"run" | "pause" | "step" | "run_until" | "edit" | "add_point" | "remove_point"} command @param {object} [values] */
  send(command, values = {}) {
    if (this.started && !this.ended && !this.recorded) this.live.send({ do: command, ...values });
  }

  get update() { return this.header?.update ?? 0; }

  /** Number of accumulation windows that have ended, also those without an update, so that every run advances. */
  get window() { return this.header?.window ?? 0; }

  /** Acknowledge the newest frame, so that the worker sends more; to be called once it is painted, which a hidden page never does. */
  acknowledge() {
    if (this.newestFrame > this.acknowledged && this.live.send({ do: "ack", frame: this.newestFrame })) this.acknowledged = this.newestFrame;
  }

  /** @param {any} message */
  receive(message) {
    if (message.kind === "ready") {
      this.ready = true;
      this.id = 0;
      if (!this.recorded) this.clear();
      this.sendStart();
    } else if (message.kind === "started") {
      this.latestStartedId = message.run;
      if (message.request !== this.request) return; // a newer run is requested, which replaces this one
      this.replacesRecorded = this.recorded;
      this.clear();
      this.id = message.run;
      this.started = message;
      this.handlers.onstarted(this);
    } else if (message.kind === "refused") this.handlers.onrefused(message);
    else if (message.kind === "ended" && !this.id && message.run > this.latestStartedId) this.handlers.onrefused({ what: message.why }); // the run never started
    if (message.run !== this.id || !this.id) return;
    if (message.kind === "finding") {
      this.findings.push(message);
      this.handlers.onfinding(this, message);
    } else if (message.kind === "script") {
      this.started = { ...this.started, text: message.text, script: message.script };
      this.handlers.onscript?.(this);
    } else if (message.kind === "ended") {
      this.ended = message;
      this.state = "ended";
      this.handlers.onended(this);
    }
  }

  /** @param {any} header @param {Uint8Array[]} planes */
  receiveFrame(header, planes) {
    this.newestFrame = Math.max(this.newestFrame, header.frame);
    if (header.run !== this.id) return this.acknowledge(); // a frame of an earlier run is not painted
    this.show(header, planes);
  }

  /** Show the settings of a recorded run. @param {any} message */
  showRecorded(message) {
    this.clear();
    this.started = message;
    this.recorded = true;
  }

  /** Take over the content of a frame. @param {any} header @param {Uint8Array[]} planes */
  show(header, planes) {
    this.header = header;
    if (!this.ended) this.state = header.state;
    this.series.append(header);
    if (header.weights) this.weights = header.weights;
    (header.planes ?? []).forEach((/** @type {any} */ plane, /** @type {number} */ i) => this.planes.set(plane.name, { plane, bytes: planes[i] }));
    this.hasUnpaintedFrame = true;
    this.handlers.onframe(this);
  }

  /** @param {string} state @param {string} reason */
  connectionChanged(state, reason) {
    const previous = this.connection;
    this.connection = state;
    if (state === "connecting") return;
    const reconnected = state === "open" && this.lost;
    if (reconnected) this.clear(); // until the new worker starts: numbers of the old one would look like its own
    if (state === "open") this.lost = false;
    else {
      this.lost ||= state !== "closed";
      this.ready = false;
      this.newestFrame = this.acknowledged = this.id = this.latestStartedId = 0; // a new worker counts from 0
    }
    if (state !== "closed") this.handlers.onstate(previous, state, reason, reconnected);
  }

  close() {
    this.live.close();
  }
}
