// @ts-check
// Waiting for a server that does not answer.

const RETRY_MS = 1000;
/** @type {Promise<void> | null} */
let recovery = null;

/** Wait until the server answers. Dispatches "server" events: detail "lost", then "back". @returns {Promise<void>} */
export function untilServerAnswers() {
  recovery ??= poll().finally(() => { recovery = null; dispatch("back"); });
  return recovery;
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
