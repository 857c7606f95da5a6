// @ts-check
// A small plot of losses: curves, and a level that a model must come below to have learned anything.
import { formatNumber, svg } from "../../dom.js";

const LEFT = 6, RIGHT = 6, TOP = 8, BOTTOM = 18;
const LOG_RATIO = 30; // highest divided by lowest value, from which a log scale is easier to read

/** @typedef {{updates: number[], values: any[]}} Curve */

/** @param {{curves: {curve: Curve | null, kind: string}[], level: number | null, label: string, width?: number, height?: number}} options
 *   kind: class of the curve: "before", "after" */
export function lossPlot({ curves, level, label, width = 260, height = 110 }) {
  const shown = curves.filter(({ curve }) => curve && curve.values.length);
  const values = [...shown.flatMap(({ curve }) => /** @type {Curve} */ (curve).values), level].filter((value) => typeof value === "number");
  const low = Math.min(...values), high = Math.max(...values), isLog = low > 0 && high > LOG_RATIO * low;
  const last = Math.max(1, ...shown.map(({ curve }) => /** @type {Curve} */ (curve).updates.at(-1) ?? 1));
  const x = (/** @type {number} */ update) => round(LEFT + update / last * (width - LEFT - RIGHT));
  const share = (/** @type {number} */ value) => (high === low ? 0.5 : isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const y = (/** @type {number} */ value) => round(height - BOTTOM - share(value) * (height - TOP - BOTTOM));
  return svg("svg", { class: "loss-plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    svg("rect", { class: "frame", x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM }),
    level !== null && svg("line", { class: "level", x1: LEFT, x2: width - RIGHT, y1: y(level), y2: y(level) }),
    shown.flatMap(({ curve, kind }) => sections(/** @type {Curve} */ (curve)).map((points) => svg("polyline", { class: kind, points: points.map(([update, value]) => `${x(update)},${y(value)}`).join(" ") }))),
    svg("text", { x: LEFT, y: height - 5 }, `${formatNumber(low, 3)} to ${formatNumber(high, 3)}${isLog ? " (log)" : ""}`),
    svg("text", { x: width - RIGHT, y: height - 5, "text-anchor": "end" }, `${formatNumber(last + 1)} updates`));
}

const round = (/** @type {number} */ value) => Math.round(value * 10) / 10;

/** Split a curve at values that are not finite. @param {Curve} curve @returns {[number, number][][]} */
function sections({ updates, values }) {
  /** @type {[number, number][][]} */
  const parts = [[]];
  updates.forEach((update, i) => (typeof values[i] === "number" ? parts[parts.length - 1].push([update, values[i]]) : parts.push([])));
  return parts.filter((part) => part.length);
}
