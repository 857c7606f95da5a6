// @ts-check
// Two runs with one seed, with and without the failures: the first update at which they differ.
import { formatNumber } from "../../dom.js";

/** @typedef {import("./run.js").Run} Run */

/** Find the first update at which the numbers of two runs differ. */
export function firstDifference() {
  let i = 0; // index of the next update to compare
  /** @type {number | null} */ let first = null;
  return {
    reset() { i = 0; first = null; },
    /** Describe the first difference. @param {Run} broken @param {Run} healthy @returns {string} */
    describe(broken, healthy) {
      const brokenSeries = broken.series, healthySeries = healthy.series, commonUpdates = Math.min(brokenSeries.update.length, healthySeries.update.length);
      for (; first === null && i < commonUpdates; i++) {
        if (brokenSeries.loss[i] !== healthySeries.loss[i] || brokenSeries.norm[i] !== healthySeries.norm[i] || brokenSeries.rate[i] !== healthySeries.rate[i]) first = i;
      }
      if (!broken.setup?.bugs.length) return "Both run the same script. Inject a failure: the right run will not have it.";
      if (first !== null) return `They differ from update ${brokenSeries.update[first]} on: ${describeDifference(brokenSeries, healthySeries, first)}.`;
      if (!commonUpdates) return "The same seed twice: left with the failures, right without.";
      return `Up to update ${commonUpdates} they are bitwise equal: no curve shows this failure yet.`;
    },
  };
}

/** @param {import("./run.js").Series} a @param {import("./run.js").Series} b @param {number} at index into both series */
function describeDifference(a, b, at) {
  const [name, key] = a.loss[at] !== b.loss[at] ? ["loss", "loss"] : a.norm[at] !== b.norm[at] ? ["gradient norm", "norm"] : ["learning rate", "rate"];
  const left = /** @type {any} */ (a)[key][at], right = /** @type {any} */ (b)[key][at];
  const digits = [4, 6, 8, 12].find((each) => formatNumber(left, each) !== formatNumber(right, each)) ?? 17;
  return `${name} ${formatNumber(left, digits)} with, ${formatNumber(right, digits)} without`;
}
