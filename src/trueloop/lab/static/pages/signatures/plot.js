// @ts-check
// A small plot of one quantity for the correct and the broken script; the server sends coordinates in a unit square.
import { h, formatNumber, svg } from "../../dom.js";

/** @typedef {{x: number[], least: (number | null)[], middle: (number | null)[], most: (number | null)[], lost: number | null}} Band the values over several seeds
 * @typedef {{name: string, title: string, words: string, log: boolean, low: number, high: number, last: number, healthy: Band, broken: Band}} Plot
 * @typedef {{seeds: number, plots: Record<string, Plot>}} Curves the measured curves of the wall, by the code of their failure
 * @typedef {{width: number, height: number, left: number, right: number, top: number, bottom: number}} Frame the size of a picture and its margins */

const PLOT = { width: 260, height: 112, left: 4, right: 4, top: 14, bottom: 16 }, TILE = { width: 120, height: 76, left: 4, right: 4, top: 5, bottom: 5 };

/** @param {Plot} plot */
export function comparisonPlot(plot) {
  const { width, height, left, right, top, bottom } = PLOT;
  return h("figure", { class: "sig-plot" },
    h("figcaption", {}, h("b", {}, plot.title), plot.log && " (log)"),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plot.title}. ${plot.words}` },
      svg("rect", { class: "sig-frame", x: left, y: top, width: width - left - right, height: height - top - bottom }),
      curves(plot, PLOT),
      svg("text", { x: left, y: top - 4 }, formatNumber(plot.high, 3)),
      svg("text", { x: left, y: height - 4 }, formatNumber(plot.low, 3)),
      svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, `update ${formatNumber(plot.last)}`)),
    h("figcaption", {}, plot.words.replace("At the end: ", "")));
}

/** Draw a plot for a tile, without numbers and words. @param {Plot} plot */
export const thumbnail = (plot) => svg("svg", { viewBox: `0 0 ${TILE.width} ${TILE.height}`, "aria-hidden": "true" }, curves(plot, TILE));

/** @param {Plot} plot @param {Frame} frame */
function curves(plot, { width, height, left, right, top, bottom }) {
  const toX = (/** @type {number} */ x) => Math.round(10 * (left + x * (width - left - right))) / 10;
  const toY = (/** @type {number} */ y) => Math.round(10 * (height - bottom - y * (height - top - bottom))) / 10;
  return /** @type {const} */ (["healthy", "broken"]).flatMap((which) => {
    const { x, least, middle, most, lost } = plot[which];
    return [
      ...finiteSections(x, least, most).map((points) => svg("polygon", { class: `sig-band of-${which}`, points: [...points.map(([at, low]) => `${toX(at)},${toY(low)}`), ...points.reverse().map(([at, , high]) => `${toX(at)},${toY(high)}`)].join(" ") })),
      ...finiteSections(x, middle, middle).map((points) => svg("polyline", { class: `sig-${which}`, points: points.map(([at, y]) => `${toX(at)},${toY(y)}`).join(" ") })),
      lost !== null && cross(toX(Math.min(1, lost / Math.max(1, plot.last))), top + 9),
    ];
  }).filter(Boolean);
}

/** @param {number} x @param {number} y */
function cross(x, y) {
  return svg("g", { class: "sig-lost" }, svg("line", { x1: x - 4, y1: y - 4, x2: x + 4, y2: y + 4 }), svg("line", { x1: x - 4, y1: y + 4, x2: x + 4, y2: y - 4 }));
}

/** Split a curve at its gaps into lists of [x, low, high]. @param {number[]} xs @param {(number | null)[]} low @param {(number | null)[]} high @returns {[number, number, number][][]} */
function finiteSections(xs, low, high) {
  /** @type {[number, number, number][][]} */
  const sections = [[]];
  xs.forEach((x, i) => {
    const least = low[i] ?? null, most = high[i] ?? null; // a plot of one seed has no range
    if (least === null || most === null) sections.push([]);
    else sections[sections.length - 1].push([x, least, most]);
  });
  return sections.filter((points) => points.length);
}

/** The legend of the plots. @param {number} seeds number of seeds whose range is shaded */
export function plotLegend(seeds) {
  const line = (/** @type {string} */ which) => svg("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, svg("polyline", { class: `sig-${which}`, points: "0,5 30,5" }));
  return h("div", { class: "sig-key" }, h("span", {}, line("healthy"), "correct"), h("span", {}, line("broken"), "with the failure"),
    h("span", {}, `shaded: range of ${seeds} seeds`), h("span", {}, "× non-finite from here on"));
}
