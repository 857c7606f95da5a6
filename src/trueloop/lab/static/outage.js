// @ts-check
// The server does not answer for a while: whoever asked in vain waits here until it does again.

const KNOCK_MS = 1000;
/** @type {Promise<void> | null} */
let waiting = null;

/** Whether somebody waits. */
export const lost = () => waiting !== null;

/** Wait until the server answers. The page hears "server" events: detail "lost", then "back". @returns {Promise<void>} */
export function back() {
  waiting ??= knocking().finally(() => { waiting = null; tell("back"); });
  return waiting;
}

/** Whether the server answers now. @returns {Promise<boolean>} */
export function there() {
  return fetch("icon.svg", { method: "HEAD", cache: "no-store" }).then(({ ok }) => ok, () => false);
}

async function knocking() {
  tell("lost");
  do await new Promise((wake) => setTimeout(wake, KNOCK_MS));
  while (document.hidden || !(await there()));
}

/** @param {"lost" | "back"} what */
function tell(what) {
  dispatchEvent(new CustomEvent("server", { detail: what }));
}
