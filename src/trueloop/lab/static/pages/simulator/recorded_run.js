// @ts-check
// The recorded run of the default settings, which plays while PyTorch starts (tools/record_opening_run.py).
import { decodeFrame } from "../../net.js";

const DELAY_MS = 400; // a worker that is up within this time needs no recorded run
const FRAME_MS = 400;
const PREFIX_BYTES = 5, TEXT = 0; // each message has its length and its kind in front of it

/** Play the recorded run until `isOver` returns true.
 * @param {{onstarted: (message: any) => void, onframe: (header: any, planes: Uint8Array[]) => void, isOver: () => boolean}} options */
export async function playRecordedRun({ onstarted, onframe, isOver }) {
  await wait(DELAY_MS);
  if (isOver()) return;
  const { body } = await fetch("pages/simulator/opening_run.bin");
  if (!body) return;
  const data = await new Response(body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  for (const { kind, bytes } of messages(data)) {
    if (isOver()) return;
    if (kind === TEXT) onstarted(JSON.parse(new TextDecoder().decode(bytes)));
    else {
      onframe(...decodeFrame(bytes));
      await wait(FRAME_MS);
    }
  }
}

/** @param {ArrayBuffer} data */
function* messages(data) {
  const view = new DataView(data);
  for (let at = 0; at < data.byteLength;) {
    const length = view.getUint32(at, true), kind = view.getUint8(at + 4), start = at + PREFIX_BYTES;
    at = start + length;
    yield { kind, bytes: data.slice(start, at) };
  }
}

const wait = (/** @type {number} */ ms) => new Promise((wake) => setTimeout(wake, ms));
