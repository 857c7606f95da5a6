// @ts-check
// Two runs with one seed, with and without the failures: the first update at which they differ.
import { number } from "../../dom.js";

/** @typedef {import("./run.js").Run} Run */

/** Watches two runs for the first update whose numbers differ. */
export function firstDifference() {
  let seen = 0;
  /** @type {number | null} */ let at = null;
  return {
    reset() { seen = 0; at = null; },
    get at() { return at; },
    /** @param {Run} broken @param {Run} healthy @returns {string} what can be said now */
    say(broken, healthy) {
      const a = broken.series, b = healthy.series, both = Math.min(a.update.length, b.update.length);
      for (; at === null && seen < both; seen++) {
        if (a.loss[seen] !== b.loss[seen] || a.norm[seen] !== b.norm[seen] || a.rate[seen] !== b.rate[seen]) at = seen;
      }
      if (!broken.setup?.bugs.length) return "Both run the same script. Inject a failure: the right run will not have it.";
      if (at !== null) return `They differ from update ${a.update[at]} on: ${words(a, b, at)}.`;
      if (!both) return "The same seed twice: left with the failures, right without.";
      return `Up to update ${both} they are bitwise equal: no curve shows this failure yet.`;
    },
  };
}

/** @param {import("./run.js").Series} a @param {import("./run.js").Series} b @param {number} at */
function words(a, b, at) {
  const [name, key] = a.loss[at] !== b.loss[at] ? ["loss", "loss"] : a.norm[at] !== b.norm[at] ? ["gradient norm", "norm"] : ["learning rate", "rate"];
  const left = /** @type {any} */ (a)[key][at], right = /** @type {any} */ (b)[key][at];
  const digits = [4, 6, 8, 12].find((each) => number(left, each) !== number(right, each)) ?? 17;
  return `${name} ${number(left, digits)} with, ${number(right, digits)} without`;
}
