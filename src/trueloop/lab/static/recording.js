// @ts-check
// Records what a canvas shows as a video file, in this browser.

const TYPES = /** @type {const} */ ([["video/webm;codecs=vp9", "webm"], ["video/webm", "webm"], ["video/mp4", "mp4"]]);
const FRAMES_PER_S = 30;

/** Return the type and the file ending of videos that this browser records; null if it records none. */
export function videoType() {
  return typeof MediaRecorder === "undefined" ? null : TYPES.find(([type]) => MediaRecorder.isTypeSupported(type)) ?? null;
}

/** Record a canvas while it is drawn.
 * @param {HTMLCanvasElement} canvas
 * @param {(share: number) => void} draw draws the canvas; share: from 0, the start, to 1, the end
 * @param {{play_ms: number, hold_ms: number}} times hold_ms: how long the end is shown
 * @returns {Promise<Blob>} */
export async function record(canvas, draw, { play_ms, hold_ms }) {
  const [mimeType] = /** @type {readonly [string, string]} */ (videoType());
  draw(0);
  const recorder = new MediaRecorder(canvas.captureStream(FRAMES_PER_S), { mimeType, videoBitsPerSecond: 2_500_000 });
  /** @type {Blob[]} */
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const stopped = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.start();
  const start_ms = performance.now();
  await new Promise((resolve) => {
    const timer = setInterval(() => { // not once per painted frame: the tab may be in the background
      const passed_ms = performance.now() - start_ms;
      draw(Math.min(1, passed_ms / play_ms));
      if (passed_ms < play_ms + hold_ms) return;
      clearInterval(timer);
      resolve(undefined);
    }, 1000 / FRAMES_PER_S);
  });
  recorder.stop();
  await stopped;
  return new Blob(parts, { type: mimeType });
}
