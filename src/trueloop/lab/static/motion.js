// @ts-check
// Animations of elements that move to a new position, unless the user prefers reduced motion.
import { prefersReducedMotion } from "./player.js";

/** Let elements fly from the positions of other elements to their own, unless the user prefers reduced motion.
 * @param {[Element | null | undefined, Element | null | undefined][]} pairs the element at the start, and the element that flies
 * @param {{ms?: number, delayStep_ms?: number}} [options] */
export function fly(pairs, { ms = 420, delayStep_ms = 18 } = {}) {
  if (prefersReducedMotion()) return;
  const moves = pairs.flatMap(([from, to]) => (from && to ? [{ to, start: centre(from), end: centre(to) }] : []));
  moves.forEach(({ to, start, end }, i) => to.animate(
    [{ transform: `translate(${start[0] - end[0]}px, ${start[1] - end[1]}px)`, opacity: 0.25 }, { transform: "none", opacity: 1 }],
    { duration: ms, delay: Math.min(i * delayStep_ms, ms), easing: "cubic-bezier(0.3, 0, 0.2, 1)", fill: "backwards" },
  ));
}

/** @param {Element} element @returns {[number, number]} */
function centre(element) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}
