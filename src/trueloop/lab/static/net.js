// @ts-check
// Communication with the server: requests (JSON in, JSON out) and live sessions (a WebSocket to an own worker process).
import { serverBack } from "./outage.js";

const GONE = 0; // the status of a request that no server has answered

/** A refused request, with the server's message. */
export class Refused extends Error {
  /** @param {{what: string, why?: string, fix?: string}} words @param {number} status */
  constructor(words, status) {
    super([words.what, words.why, words.fix].filter(Boolean).join(" "));
    this.words = words;
    this.status = status;
  }
}

/** Send a request to a page's view. @param {string} page @param {object} asked @param {AbortSignal} [signal] @returns {Promise<any>} */
export function ask(page, asked, signal) {
  return fetched(`api/${page}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked), signal });
}

/** Return the fields of a page's query. @param {string} page @returns {Promise<any[]>} */
export function described(page) {
  return patiently(() => fetched(`api/${page}`, {}));
}

/** Send a request that changes nothing; if the server is away, send it again when the server is back.
 * @template T @param {() => Promise<T>} question @param {AbortSignal} [signal] @returns {Promise<T>} */
export async function patiently(question, signal) {
  for (;;) {
    try {
      return await question();
    } catch (error) {
      if (!(error instanceof Refused && error.status === GONE) || signal?.aborted) throw error;
      await serverBack();
    }
  }
}

/** @param {string} path @param {RequestInit} options */
export async function fetched(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused({ what: "The lab's server does not answer.", fix: "Is `trueloop lab` still running?" }, GONE);
  }
  const answer = await response.json().catch((error) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error; // given up while it was being read
    return { what: `The server answered ${response.status}.` };
  });
  if (!response.ok) throw new Refused(answer, answer.stopping ? GONE : response.status);
  return answer;
}

/** Send only the newest request: an older request that is still running is aborted. @param {string} page */
export function newest(page) {
  /** @type {AbortController | null} */
  let going = null;
  return async (/** @type {object} */ asked) => {
    going?.abort();
    const mine = (going = new AbortController());
    try {
      const answer = await patiently(() => ask(page, asked, mine.signal), mine.signal);
      return mine.signal.aborted ? null : answer;
    } catch (error) {
      if (mine.signal.aborted) return null;
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
    this.waited = 0;
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
    socket.onopen = () => { this.waited = 0; this.report("open"); this.handlers.onopen?.(); };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.handlers.ontext(JSON.parse(data));
      else this.handlers.onframe?.(...decodeFrame(data));
    };
    socket.onclose = ({ code, reason }) => {
      if (this.closed || socket !== this.socket) return;
      if (code === IDLE) return this.report("idle", reason); // the page reconnects on the next interaction
      this.report(code === BUSY ? "busy" : "lost", reason);
      this.waited = Math.min((this.waited || 125) * 2, 4000);
      this.timer = setTimeout(() => this.connect(), this.waited);
    };
  }

  /** @param {object} message @returns {boolean} whether it could be sent */
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
