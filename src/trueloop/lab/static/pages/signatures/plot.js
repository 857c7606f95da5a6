// @ts-check
// A small plot of one quantity for the correct and the broken script; the server sends coordinates in a unit square.
import { h, formatNumber, svg } from "../../dom.js";

/** @typedef {{x: number[], least: (number | null)[], middle: (number | null)[], most: (number | null)[], lost: number | null}} Band
 * @typedef {{name: string, title: string, words: string, log: boolean, low: number, high: number, last: number, healthy: Band, broken: Band}} Plot */

const WIDTH = 260, HEIGHT = 112, LEFT = 4, RIGHT = 4, TOP = 14, BOTTOM = 16;

/** @param {Plot} plot */
export function comparisonPlot(plot) {
  const toX = (/** @type {number} */ x) => Math.round(10 * (LEFT + x * (WIDTH - LEFT - RIGHT))) / 10;
  const toY = (/** @type {number} */ y) => Math.round(10 * (HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM))) / 10;
  const shapes = /** @type {const} */ (["healthy", "broken"]).flatMap((which) => {
    const band = plot[which];
    return [
      ...finiteSections(band.x, band.least, band.most).map((points) => svg("polygon", { class: `sig-band of-${which}`, points: [...points.map(([x, low]) => `${toX(x)},${toY(low)}`), ...points.reverse().map(([x, , high]) => `${toX(x)},${toY(high)}`)].join(" ") })),
      ...finiteSections(band.x, band.middle, band.middle).map((points) => svg("polyline", { class: `sig-${which}`, points: points.map(([x, y]) => `${toX(x)},${toY(y)}`).join(" ") })),
      band.lost !== null && cross(toX(Math.min(1, band.lost / Math.max(1, plot.last)))),
    ];
  });
  return h("figure", { class: "sig-plot" },
    h("figcaption", {}, h("b", {}, plot.title), plot.log && " (log)"),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${plot.title}. ${plot.words}` },
      svg("rect", { class: "sig-frame", x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM }),
      shapes.filter(Boolean),
      svg("text", { x: LEFT, y: TOP - 4 }, formatNumber(plot.high, 3)),
      svg("text", { x: LEFT, y: HEIGHT - 4 }, formatNumber(plot.low, 3)),
      svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, `update ${formatNumber(plot.last)}`)),
    h("figcaption", {}, plot.words));
}

/** @param {number} x */
function cross(x) {
  const y = TOP + 9;
  return svg("g", { class: "sig-lost" }, svg("line", { x1: x - 4, y1: y - 4, x2: x + 4, y2: y + 4 }), svg("line", { x1: x - 4, y1: y + 4, x2: x + 4, y2: y - 4 }));
}

/** Split a curve at its gaps into lists of [x, low, high]. @param {number[]} xs @param {(number | null)[]} low @param {(number | null)[]} high @returns {[number, number, number][][]} */
function finiteSections(xs, low, high) {
  /** @type {[number, number, number][][]} */
  const sections = [[]];
  xs.forEach((x, i) => {
    const least = low[i], most = high[i];
    if (least === null || most === null) sections.push([]);
    else sections[sections.length - 1].push([x, least, most]);
  });
  return sections.filter((points) => points.length);
}

/** The legend of the page. */
export function plotLegend() {
  const line = (/** @type {string} */ which) => svg("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, svg("polyline", { class: `sig-${which}`, points: "0,5 30,5" }));
  return h("div", { class: "sig-key" }, h("span", {}, line("healthy"), "correct"), h("span", {}, line("broken"), "with the failure"),
    h("span", {}, "shaded: range of three seeds"), h("span", {}, "× non-finite from here on"));
}
