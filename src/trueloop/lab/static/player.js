// @ts-check
// A player for everything with steps: play, pause, step forward and back, speed.
import { h } from "./dom.js";

/** True if the user prefers reduced motion. */
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** @param {{count: () => number, ready?: () => boolean, show: (step: number) => void, label?: string, perStep_ms?: number, loop?: boolean}} options
 *   ready() says whether there is anything to step through: what is pressed before that is done as soon as the page goes to its first step
 *   show(step) draws a step from 0 to count() - 1; it must be able to draw any at any time */
export function player({ count, ready = () => true, show, label = "Animation", perStep_ms = 900, loop = false }) {
  let step = 0, timer = 0, speed = 1, owed = 0, plays = false;
  const playing = () => timer !== 0 || plays;
  const play = h("button", { type: "button", onclick: () => (playing() ? pause() : start()) }, "▶ Play");
  const back = h("button", { type: "button", class: "quiet", "aria-label": "One step back", onclick: () => { pause(); go(step - 1); } }, "◀");
  const on = h("button", { type: "button", class: "quiet", "aria-label": "One step forward", onclick: () => { pause(); go(step + 1); } }, "▶|");
  const rate = h("select", { "aria-label": "Speed", onchange: () => { speed = Number(rate.value); if (playing()) { pause(); start(); } } },
    [0.25, 0.5, 1, 2, 4].map((value) => h("option", { value, selected: value === 1 }, `${value}×`)));
  const place = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": `${label}: step`, oninput: () => { pause(); go(Number(place.value)); } });
  const where = h("output", { class: "muted mono" });

  /** @param {number} next */
  function go(next) {
    if (!ready()) {
      owed = Math.max(0, owed + next - step);
      where.textContent = "… a moment";
      return;
    }
    next += owed;
    owed = 0;
    step = Math.max(0, Math.min(next, count() - 1));
    place.max = String(Math.max(0, count() - 1));
    place.value = String(step);
    where.textContent = `${step + 1} / ${count()}`;
    show(step);
    if (plays) start();
  }
  function tick() {
    if (step + 1 < count()) go(step + 1);
    else if (loop) go(0);
    else return pause();
    timer = setTimeout(tick, perStep_ms / speed);
  }
  function start() {
    play.textContent = "⏸ Pause";
    plays = !ready();
    if (plays) return;
    if (step + 1 >= count()) go(0);
    timer = setTimeout(tick, still() ? 0 : perStep_ms / speed / 3);
  }
  function pause() {
    clearTimeout(timer);
    timer = 0;
    plays = false;
    play.textContent = "▶ Play";
  }
  const element = h("div", { class: "player row", role: "group", "aria-label": label }, play, back, on, place, where, rate);
  return { element, go, start, pause, playing, get step() { return step; }, unmount: pause };
}
