// @ts-check
// A player for anything that has steps: play, pause, step forward and back, speed.
import { h } from "./dom.js";

/** Return true if the user prefers reduced motion. */
export const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** @param {{count: () => number, ready?: () => boolean, show: (step: number) => void, label?: string, perStep_ms?: number, loop?: boolean, onplay?: () => void}} options
 *   ready() returns true if there are steps to show; buttons pressed before take effect when the page first calls go()
 *   onplay() is called when it starts to play
 *   show(step) draws a step from 0 to count() - 1; steps can come in any order */
export function player({ count, ready = () => true, show, label = "Animation", perStep_ms = 900, loop = false, onplay }) {
  let step = 0, timer = 0, speed = 1, pendingSteps = 0, startWhenReady = false;
  const playing = () => timer !== 0 || startWhenReady;
  const play = h("button", { type: "button", onclick: () => (playing() ? pause() : start()) }, "▶ Play");
  const back = h("button", { type: "button", class: "quiet", "aria-label": "One step back", onclick: () => { pause(); go(step - 1); } }, "◀");
  const forward = h("button", { type: "button", class: "quiet", "aria-label": "One step forward", onclick: () => { pause(); go(step + 1); } }, "▶|");
  const speedSelect = h("select", { "aria-label": "Speed", onchange: () => { speed = Number(speedSelect.value); if (playing()) { pause(); start(); } } },
    [0.25, 0.5, 1, 2, 4].map((value) => h("option", { value, selected: value === 1 }, `${value}×`)));
  const slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": `${label}: step`, oninput: () => { pause(); go(Number(slider.value)); } });
  const position = h("output", { class: "muted mono" });

  /** @param {number} next */
  function go(next) {
    if (!ready()) {
      pendingSteps = Math.max(0, pendingSteps + next - step);
      position.textContent = "… a moment";
      return;
    }
    next += pendingSteps;
    pendingSteps = 0;
    step = Math.max(0, Math.min(next, count() - 1));
    slider.max = String(Math.max(0, count() - 1));
    slider.value = String(step);
    position.textContent = `${step + 1} / ${count()}`;
    show(step);
    if (startWhenReady) start();
  }
  function tick() {
    if (step + 1 < count()) go(step + 1);
    else if (loop) go(0);
    else return pause();
    timer = setTimeout(tick, perStep_ms / speed);
  }
  function start() {
    onplay?.();
    play.textContent = "‖ Pause";
    startWhenReady = !ready();
    if (startWhenReady) return;
    if (step + 1 >= count()) go(0);
    timer = setTimeout(tick, prefersReducedMotion() ? 0 : perStep_ms / speed / 3);
  }
  function pause() {
    clearTimeout(timer);
    timer = 0;
    startWhenReady = false;
    play.textContent = "▶ Play";
  }
  /** Play when the page opens, unless the user prefers reduced motion. */
  function autoplay() {
    if (!prefersReducedMotion()) start();
  }
  const element = h("div", { class: "player row", role: "group", "aria-label": label }, play, back, forward, slider, position, speedSelect);
  return { element, go, start, autoplay, pause, playing, get step() { return step; }, unmount: pause };
}
