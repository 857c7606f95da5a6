// @ts-check
// The simulator's toolbar: train, pause, step, reset, new data, speed, twin run, sharing, and the state of the run.
import { h } from "../../dom.js";
import { SPEEDS } from "./pacer.js";

/** @param {{onplay: () => void, onpause: () => void, onstep: () => void, onreset: () => void, ondata: () => void, onspeed: (speed: number) => void, ontwin: (on: boolean) => void, onrace: () => void, onexperiments: () => void, address: () => string}} handlers */
export function bar(handlers) {
  let training = false;
  const play = h("button", { type: "button", class: "play", onclick: () => (training ? handlers.onpause() : handlers.onplay()) }, "▶ Train");
  const step = h("button", { type: "button", class: "quiet", onclick: handlers.onstep, title: "One update" }, "▶| Step");
  const reset = h("button", { type: "button", class: "quiet", onclick: handlers.onreset, title: "Restart with the same settings and seed" }, "↺ Reset");
  const data = h("button", { type: "button", class: "quiet", onclick: handlers.ondata, title: "The next seed: other points, weights and order" }, "⟳ New data");
  const speed = h("select", { "aria-label": "Speed", onchange: () => handlers.onspeed(Number(speed.value)) }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
  const twin = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => handlers.ontwin(twin.getAttribute("aria-pressed") !== "true"), title: "The same seed with and without the failures, side by side" }, "Twin run");
  const race = h("button", { type: "button", class: "quiet to-race", onclick: handlers.onrace, title: "Compare up to four runs side by side, starting from these settings" }, "Race");
  const experiments = h("button", { type: "button", class: "quiet to-experiments", onclick: handlers.onexperiments }, "Experiments"), shareNote = h("span", { class: "muted", role: "status" });
  const share = h("button", { type: "button", class: "quiet", onclick: async () => {
    try {
      await navigator.clipboard.writeText(handlers.address());
      shareNote.textContent = "The address is copied; it contains all settings.";
    } catch {
      shareNote.textContent = "The address of this page contains all settings.";
    }
    setTimeout(() => { shareNote.textContent = ""; }, 4000);
  } }, "Share");
  const stateBadge = h("span", { class: "state", dataset: { state: "waiting" } }, "starting");
  return {
    element: h("div", { class: "sim-bar", role: "group", "aria-label": "Training" }, h("div", { class: "row" }, play, step, reset, data, speed, twin, race, share, experiments, stateBadge, shareNote)),
    /** @param {{training: boolean, enabled: boolean, twins: boolean, state: string, text: string}} status */
    show(status) {
      training = status.training;
      play.textContent = training ? "‖ Pause" : "▶ Train";
      play.disabled = step.disabled = !status.enabled;
      twin.setAttribute("aria-pressed", String(status.twins));
      if (stateBadge.textContent !== status.text) stateBadge.textContent = status.text;
      stateBadge.dataset.state = status.state;
    },
  };
}
