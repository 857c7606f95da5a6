// @ts-check
// The simulator's toolbar: train, pause, step, reset, new data, speed, twin run, sharing, and the state of the run.
import { fill, h, svg } from "../../dom.js";
import { SPEEDS } from "./pacer.js";

/** Outlines of the icons, which some fonts lack, in a square of 10 units. @type {Record<string, string>} */
const ICONS = { play: "M1 0 10 5 1 10Z", pause: "M1 0H4V10H1ZM6 0H9V10H6Z", step: "M0 0 7 5 0 10ZM8 0H10V10H8Z", reset: "M5 1V-1L1 2 5 5V3A3 3 0 1 1 2 6H0A5 5 0 1 0 5 1Z", data: "M0 0H4V4H0ZM6 6H10V10H6ZM6 2A2 2 0 1 1 10 2 2 2 0 1 1 6 2ZM0 8A2 2 0 1 1 4 8 2 2 0 1 1 0 8Z" };
const icon = (/** @type {string} */ name) => svg("svg", { class: "icon", viewBox: "0 -1 10 12", width: 11, height: 13, "aria-hidden": "true" }, svg("path", { d: ICONS[name], fill: "currentColor" }));

/** @param {{onplay: () => void, onpause: () => void, onstep: () => void, onreset: () => void, ondata: () => void, onspeed: (speed: number) => void, ontwin: (on: boolean) => void, onrace: () => void, address: () => string}} handlers */
export function bar(handlers) {
  /** @type {boolean | null} */ let training = null;
  const button = (/** @type {string} */ iconName, /** @type {string} */ text, /** @type {string} */ title, /** @type {() => void} */ onclick) => h("button", { type: "button", class: "quiet", title, onclick }, icon(iconName), h("span", {}, text));
  const play = h("button", { type: "button", class: "play", onclick: () => (training ? handlers.onpause() : handlers.onplay()) });
  const step = button("step", "Step", "One update", handlers.onstep);
  const reset = button("reset", "Reset", "Restart with the same settings and seed", handlers.onreset);
  const data = button("data", "New data", "The next seed: other points, weights and order", handlers.ondata);
  const speed = h("select", { "aria-label": "Speed", onchange: () => handlers.onspeed(Number(speed.value)) }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
  const twin = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => handlers.ontwin(twin.getAttribute("aria-pressed") !== "true"), title: "The same seed with and without the failures, side by side" }, "Twin run");
  const race = h("button", { type: "button", class: "quiet to-race", onclick: handlers.onrace, title: "Compare up to four runs side by side, starting from these settings" }, "Race");
  const shareNote = h("span", { class: "muted", role: "status" });
  const share = h("button", { type: "button", class: "quiet to-share", title: "Copy the address, which contains all settings", onclick: async () => {
    try {
      await navigator.clipboard.writeText(handlers.address());
      shareNote.textContent = "Copied: the address contains all settings.";
    } catch {
      shareNote.textContent = "The address of this page contains all settings.";
    }
    setTimeout(() => { shareNote.textContent = ""; }, 4000);
  } }, "Share");
  const stateBadge = h("span", { class: "state", dataset: { state: "waiting" } }, "starting");
  return {
    element: h("div", { class: "sim-bar", role: "group", "aria-label": "Training" }, h("div", { class: "row" }, play, step, reset, data, speed, twin, race, share, stateBadge, shareNote)),
    /** @param {{training: boolean, enabled: boolean, twins: boolean, state: string, text: string}} status */
    show(status) {
      if (training !== status.training) fill(play, icon(status.training ? "pause" : "play"), h("span", {}, status.training ? "Pause" : "Train"));
      training = status.training;
      play.disabled = step.disabled = !status.enabled;
      twin.setAttribute("aria-pressed", String(status.twins));
      if (stateBadge.textContent !== status.text) stateBadge.textContent = status.text;
      stateBadge.dataset.state = status.state;
    },
  };
}
