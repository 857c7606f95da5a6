// @ts-check
// One run with its own worker: its settings, its results, and the acknowledgement of painted frames.
import { Live } from "../../net.js";

/** @typedef {{config: Record<string, any>, bugs: string[], points: [number, number, number][]}} Setup */

/** The curves of a run with all their points. */
export class Series {
  constructor() {
    /** @type {number[]} */ this.update = [];
    /** @type {any[]} */ this.loss = [];
    /** @type {any[]} */ this.norm = [];
    /** @type {any[]} */ this.rate = [];
    /** @type {[number, any, any][]} update, held-out loss, accuracy */
    this.evaluations = [];
    /** @type {number[]} the update at which the next two were measured */
    this.at = [];
    /** @type {any[]} */ this.memory = [];
    /** @type {any[]} */ this.graphs = [];
  }

  /** @param {any} header of a frame */
  take(header) {
    const { update, loss, norm, rate } = header.points;
    for (let i = 0; i < update.length; i++) {
      this.update.push(update[i] + 1); // the page counts updates from 1
      this.loss.push(loss[i]);
      this.norm.push(norm[i]);
      this.rate.push(rate[i]);
    }
    for (const each of header.evaluations ?? []) this.evaluations.push(each);
    if (this.at[this.at.length - 1] === header.update) {
      this.at.pop(); this.memory.pop(); this.graphs.pop();
    }
    this.at.push(header.update);
    this.memory.push(header.memory_mib);
    this.graphs.push(header.graphs);
  }

  get last() { return this.update.length - 1; }
}

/** A live run, which restarts automatically after a reconnection. */
export class Run {
  /** @param {{onbegan: (run: Run) => void, onframe: (run: Run) => void, onfinding: (run: Run, message: any) => void, onrefused: (words: any) => void,
   *           onended: (run: Run) => void, onscript?: (run: Run) => void, onstate: (before: string, state: string, reason: string, again: boolean) => void}} handlers */
  constructor(handlers) {
    this.handlers = handlers;
    /** @type {Setup | null} */ this.setup = null;
    this.id = this.known = 0; // known: id of the newest run that has started
    this.ready = false;
    this.lost = false;
    this.neurons = false;
    this.connection = "connecting";
    this.newest = 0;
    this.painted_ = 0;
    this.clear();
    this.live = new Live("simulator", {
      ontext: (message) => this.receive(message),
      onframe: (header, planes) => this.take(header, planes),
      onstate: (state, reason) => this.connect(state, reason),
    });
  }

  clear() {
    this.series = new Series();
    /** @type {any} what the worker said of this run */ this.began = null;
    /** @type {any} the newest frame's header */ this.header = null;
    /** @type {Map<string, {plane: any, bytes: Uint8Array}>} the newest of each picture */ this.planes = new Map();
    /** @type {Record<string, any> | null} */ this.weights = null;
    /** @type {any[]} */ this.findings = [];
    /** @type {any} */ this.ended = null;
    this.state = "waiting";
    this.fresh = false;
  }

  /** Start a run, paused before its first batch. @param {Setup} setup */
  begin(setup) {
    this.setup = setup;
    this.id = 0;
    this.clear();
    if (this.ready) this.start();
  }

  start() {
    if (!this.setup) return;
    this.live.send({ do: "start", ...this.setup });
    if (this.neurons) this.live.send({ do: "show_neurons", neurons: true });
  }

  /** @param {boolean} neurons */
  showNeurons(neurons) {
    if (neurons === this.neurons) return;
    this.neurons = neurons;
    this.live.send({ do: "show_neurons", neurons });
  }

  /** Send a command to the worker. @param {"run" | "pause" | "step" | "run_until" | "edit" | "add_point" | "remove_point"} what @param {object} [more] */
  send(what, more = {}) {
    if (this.began && !this.ended) this.live.send({ do: what, ...more });
  }

  get update() { return this.header?.update ?? 0; }

  /** Tell the worker what has been painted, so that it sends more. A hidden page paints nothing. */
  painted() {
    if (this.newest > this.painted_ && this.live.send({ do: "ack", frame: this.newest })) this.painted_ = this.newest;
  }

  /** @param {any} message */
  receive(message) {
    if (message.kind === "ready") {
      this.ready = true;
      if (this.setup) this.begin(this.setup);
    } else if (message.kind === "started") {
      this.clear(); // if two runs were requested, the first has started and ended meanwhile
      this.id = this.known = message.run;
      this.began = message;
      this.handlers.onbegan(this);
    } else if (message.kind === "refused") this.handlers.onrefused(message);
    else if (message.kind === "ended" && !this.id && message.run > this.known) this.handlers.onrefused({ what: message.why }); // the run never started
    if (message.run !== this.id || !this.id) return;
    if (message.kind === "finding") {
      this.findings.push(message);
      this.handlers.onfinding(this, message);
    } else if (message.kind === "script") {
      this.began = { ...this.began, text: message.text, script: message.script };
      this.handlers.onscript?.(this);
    } else if (message.kind === "ended") {
      this.ended = message;
      this.state = "ended";
      this.handlers.onended(this);
    }
  }

  /** @param {any} header @param {Uint8Array[]} planes */
  take(header, planes) {
    this.newest = Math.max(this.newest, header.frame);
    if (header.run !== this.id) return this.painted(); // a frame of an earlier run is not painted
    this.header = header;
    if (!this.ended) this.state = header.state;
    this.series.take(header);
    if (header.weights) this.weights = header.weights;
    (header.planes ?? []).forEach((/** @type {any} */ plane, /** @type {number} */ i) => this.planes.set(plane.name, { plane, bytes: planes[i] }));
    this.fresh = true;
    this.handlers.onframe(this);
  }

  /** @param {string} state @param {string} reason */
  connect(state, reason) {
    const before = this.connection;
    this.connection = state;
    if (state === "connecting") return;
    const again = state === "open" && this.lost;
    if (state === "open") this.lost = false;
    else {
      this.lost ||= state !== "closed";
      this.ready = false;
      this.newest = this.painted_ = this.id = this.known = 0; // a new worker counts from 0
    }
    if (state !== "closed") this.handlers.onstate(before, state, reason, again);
  }

  close() {
    this.live.close();
  }
}
