// @ts-check
// The bar of the simulator: train, pause, step, reset, new data, speed, twin run, sharing, and the state of the run.
import { h } from "../../dom.js";
import { SPEEDS } from "./pace.js";

/** @param {{onplay: () => void, onpause: () => void, onstep: () => void, onreset: () => void, ondata: () => void, onspeed: (speed: number) => void, ontwin: (on: boolean) => void, onrace: () => void, onexperiments: () => void, address: () => string}} does */
export function bar(does) {
  let goes = false;
  const play = h("button", { type: "button", class: "play", onclick: () => (goes ? does.onpause() : does.onplay()) }, "▶ Train");
  const step = h("button", { type: "button", class: "quiet", onclick: does.onstep, title: "One update" }, "▶| Step");
  const reset = h("button", { type: "button", class: "quiet", onclick: does.onreset, title: "Restart with the same settings and seed" }, "↺ Reset");
  const data = h("button", { type: "button", class: "quiet", onclick: does.ondata, title: "The next seed: other points, weights and order" }, "⟳ New data");
  const speed = h("select", { "aria-label": "Speed", onchange: () => does.onspeed(Number(speed.value)) }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
  const twin = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => does.ontwin(twin.getAttribute("aria-pressed") !== "true"), title: "The same seed with and without the failures, side by side" }, "Twin run");
  const race = h("button", { type: "button", class: "quiet to-race", onclick: does.onrace, title: "Compare up to four runs side by side, starting from these settings" }, "Race");
  const experiments = h("button", { type: "button", class: "quiet to-experiments", onclick: does.onexperiments }, "Experiments"), said = h("span", { class: "muted", role: "status" });
  const share = h("button", { type: "button", class: "quiet", onclick: async () => {
    try {
      await navigator.clipboard.writeText(does.address());
      said.textContent = "The address is copied; it contains all settings.";
    } catch {
      said.textContent = "The address of this page contains all settings.";
    }
    setTimeout(() => { said.textContent = ""; }, 4000);
  } }, "Share");
  const state = h("span", { class: "state", dataset: { state: "waiting" } }, "starting");
  return {
    element: h("div", { class: "sim-bar", role: "group", "aria-label": "Training" }, h("div", { class: "row" }, play, step, reset, data, speed, twin, race, share, experiments, state, said)),
    /** @param {{goes: boolean, able: boolean, twins: boolean, kind: string, text: string}} now */
    show(now) {
      goes = now.goes;
      play.textContent = goes ? "‖ Pause" : "▶ Train";
      play.disabled = step.disabled = !now.able;
      twin.setAttribute("aria-pressed", String(now.twins));
      if (state.textContent !== now.text) state.textContent = now.text;
      state.dataset.state = now.kind;
    },
  };
}
