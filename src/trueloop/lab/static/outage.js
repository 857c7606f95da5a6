// @ts-check
// Waits until a server that does not answer is back.

const RETRY_MS = 1000;
/** @type {Promise<void> | null} */
let waiting = null;

/** True while the server is away. */
export const lost = () => waiting !== null;

/** Wait until the server answers. Dispatches "server" events: detail "lost", then "back". @returns {Promise<void>} */
export function serverBack() {
  waiting ??= poll().finally(() => { waiting = null; dispatch("back"); });
  return waiting;
}

/** Return true if the server answers now. @returns {Promise<boolean>} */
export function isServerUp() {
  return fetch("icon.svg", { method: "HEAD", cache: "no-store" }).then(({ ok }) => ok, () => false);
}

async function poll() {
  dispatch("lost");
  do await new Promise((wake) => setTimeout(wake, RETRY_MS));
  while (document.hidden || !(await isServerUp()));
}

/** @param {"lost" | "back"} what */
function dispatch(what) {
  dispatchEvent(new CustomEvent("server", { detail: what }));
}
