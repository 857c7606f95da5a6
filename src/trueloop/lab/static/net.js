// @ts-check
// Communication with the server: requests with a JSON answer, and live sessions, each a WebSocket to its own worker process.
import { untilServerAnswers } from "./outage.js";

const NO_ANSWER = 0; // the status of a request that the server has not answered

/** A refused request, with the server's message. */
export class RequestError extends Error {
  /** @param {{what: string, why?: string, fix?: string}} problem @param {number} status */
  constructor(problem, status) {
    super([problem.what, problem.why, problem.fix].filter(Boolean).join(" "));
    this.problem = problem;
    this.status = status;
  }
}

/** Send a request to a page's view. @param {string} page @param {object} query @param {AbortSignal} [signal] @returns {Promise<any>} */
export function ask(page, query, signal) {
  return fetchJson(`api/${page}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(query), signal });
}

/** Return the descriptions of the fields of a page's query. @param {string} page @returns {Promise<any[]>} */
export function fetchFields(page) {
  return retryUntilAnswered(() => fetchJson(`api/${page}`, {}));
}

/** Send a request that changes nothing on the server; if the server does not answer, send it again when it is back.
 * @template T @param {() => Promise<T>} send @param {AbortSignal} [signal] @returns {Promise<T>} */
export async function retryUntilAnswered(send, signal) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof RequestError && error.status === NO_ANSWER) || signal?.aborted) throw error;
      await untilServerAnswers();
    }
  }
}

/** @param {string} path @param {RequestInit} options */
export async function fetchJson(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new RequestError({ what: "The lab's server does not answer.", fix: "Is `trueloop lab` still running?" }, NO_ANSWER);
  }
  const answer = await response.json().catch((error) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error; // aborted while the answer was being read
    return { what: `The server answered ${response.status}.` };
  });
  if (!response.ok) throw new RequestError(answer, answer.stopping ? NO_ANSWER : response.status);
  return answer;
}

/** Return a function that sends a query and aborts the previous one if it is still running; the answer is then null. @param {string} page */
export function latestOnly(page) {
  /** @type {AbortController | null} */
  let controller = null;
  return async (/** @type {object} */ query) => {
    controller?.abort();
    const thisController = (controller = new AbortController());
    try {
      const answer = await retryUntilAnswered(() => ask(page, query, thisController.signal), thisController.signal);
      return thisController.signal.aborted ? null : answer;
    } catch (error) {
      if (thisController.signal.aborted) return null;
      throw error;
    }
  };
}

const BUSY = 4001, IDLE = 4002;

/** A live session. It reconnects by itself; `onopen` is then called again. */
export class Live {
  /** @param {string} kind
   *  @param {{ontext: (message: any) => void, onframe?: (header: any, planes: Uint8Array[]) => void, onopen?: () => void,
   *           onstate?: (state: "connecting" | "open" | "lost" | "idle" | "busy" | "closed", reason: string) => void}} handlers */
  constructor(kind, handlers) {
    this.kind = kind;
    this.handlers = handlers;
    this.delay_ms = 0;
    this.closed = false;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.report("connecting");
    const socket = (this.socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live/${this.kind}`));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { this.delay_ms = 0; this.report("open"); this.handlers.onopen?.(); };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.handlers.ontext(JSON.parse(data));
      else this.handlers.onframe?.(...decodeFrame(data));
    };
    socket.onclose = ({ code, reason }) => {
      if (this.closed || socket !== this.socket) return;
      if (code === IDLE) return this.report("idle", reason); // the page reconnects when it is used again
      this.report(code === BUSY ? "busy" : "lost", reason);
      this.delay_ms = Math.min((this.delay_ms || 125) * 2, 4000);
      this.timer = setTimeout(() => this.connect(), this.delay_ms);
    };
  }

  /** @param {object} message @returns {boolean} true if the message was sent */
  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.socket?.close();
    this.report("closed");
  }

  /** @param {"connecting" | "open" | "lost" | "idle" | "busy" | "closed"} state @param {string} [reason] */
  report(state, reason = "") {
    this.handlers.onstate?.(state, reason);
  }
}

/** Decode a frame: u32 length of the header, the header, planes. @param {ArrayBuffer} data @returns {[any, Uint8Array[]]} */
export function decodeFrame(data) {
  const length = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  let at = 4 + length;
  const planes = (header.planes ?? []).map((/** @type {{width: number, height: number}} */ { width, height }) => {
    const plane = new Uint8Array(data, at, width * height);
    at += width * height;
    return plane;
  });
  return [header, planes];
}
