// @ts-check
// Line charts with uPlot: the lab's colours in light and dark, gaps for non-finite numbers, log scale, last N updates, earlier runs.
import uPlot from "./vendor/uplot.js";
import { colour, eachFrame, fill, h, number } from "./dom.js";

/** @typedef {{label: string, colour: string, dash?: number[], width?: number, scale?: string, points?: boolean, joined?: boolean}} Line
 *   colour is a CSS variable: "--data"; joined: a value that is missing is no gap, because other lines have their own updates
 * @typedef {{x: number, text?: string, colour?: string}} Mark something happened there */

const FONT_PX = 11, ROOT = 15; // pixels: font size of charts, and of the page by default
/** Font size on a chart: it grows with the font size of the page, for a class. */
const letter = () => Math.round(FONT_PX * parseFloat(getComputedStyle(document.documentElement).fontSize) / ROOT);

/** A number for the chart; the server's "nan" and "inf" become gaps. @param {any} value */
export const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** A chart that redraws at most once per frame and has the width of its parent.
 * @param {{title: string, lines: Line[], height?: number, x?: string, y?: string, log?: boolean, tools?: boolean, legend?: boolean, span?: [number, number]}} options
 *   tools: a switch for the log scale and a choice of the last N; legend: off where the page has one for all its charts;
 *   span: lowest and highest y, where they are known */
export function chart({ title, lines, height = 180, x = "update", y = "", log = false, tools = true, legend = true, span }) {
  let logarithmic = log, last = 0;
  /** @type {(number | null | undefined)[][]} */
  let data = [[], ...lines.map(() => [])];
  /** @type {{label: string, x: number[], y: (number | null)[], dash?: number[]}[]} */
  let ghosts = [];
  /** @type {Mark[]} */
  let marks = [];
  /** @type {uPlot | null} */
  let plot = null;
  const tall = () => Math.round(height * letter() / FONT_PX);
  const place = h("div", { class: "chart-place" });
  const summary = h("figcaption", { class: "unseen" });
  const logBox = h("input", { type: "checkbox", checked: log, onchange: () => { logarithmic = logBox.checked; build(); } });
  const zoom = h("select", { "aria-label": `${title}: how much is shown`, onchange: () => { last = Number(zoom.value); redraw(); } },
    [[0, "all"], [1000, "last 1,000"], [200, "last 200"], [50, "last 50"]].map(([value, text]) => h("option", { value }, text)));
  const element = h("figure", { class: "chart", "aria-label": title },
    h("div", { class: "row chart-head" },
      h("span", { class: "chart-title" }, title),
      h("div", { class: "chart-tools" }, h("span", { class: "legend" }, legend && lines.length > 1 && lines.map((line) => h("span", {}, h("i", { class: "swatch", style: { "border-top": `${line.width ?? 2}px ${line.dash ? "dashed" : "solid"} var(${line.colour})` } }), line.label))),
      tools && h("label", { class: "tool" }, logBox, "log"), tools && zoom)),
    place, summary);

  function build() {
    plot?.destroy();
    const ink = colour("--muted"), grid = colour("--line");
    const fontSize = letter(), font = `${fontSize}px system-ui, sans-serif`, more = fontSize - FONT_PX;
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font };
    plot = new uPlot({
      width: Math.max(place.clientWidth, 120), height: tall(),
      hooks: { draw: [(/** @type {uPlot} */ drawn) => mark(drawn, marks)] },
      legend: { show: false }, cursor: { drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: false }, y: logarithmic ? { distr: 3 } : span ? { range: span } : {} },
      axes: [{ ...axis, label: x, labelSize: 16 + more, labelFont: font, size: 28 + more, space: 50 + 5 * more },
        { ...axis, size: 52 + 3 * more, space: 22 + more, label: y || undefined, labelSize: 14 + more, labelFont: font, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) }],
      series: [{ label: x },
        ...lines.map((line) => ({ label: line.label, stroke: colour(line.colour), width: line.width ?? 2, dash: line.dash, spanGaps: line.points || line.joined || false, points: { show: line.points || alone, size: 5 } })),
        ...ghosts.map((ghost) => ({ label: ghost.label, stroke: colour("--ghost"), width: 1.3, dash: ghost.dash, spanGaps: true, points: { show: false } }))],
    }, shown(), place);
  }

  function shown() {
    const whole = ghosts.length ? uPlot.join([data, ...ghosts.map((ghost) => [ghost.x, ghost.y])], undefined) : data;
    const from = last && whole[0].length ? cut(whole[0], whole[0][whole[0].length - 1] - last) : 0;
    const part = whole.map((column) => (from ? column.slice(from) : column));
    return logarithmic ? part.map((column, i) => (i ? column.map((value) => (value === undefined || (value !== null && value > 0) ? value : null)) : column)) : part;
  }

  const redraw = eachFrame(() => {
    if (!place.isConnected) return;
    if (!plot) build();
    else plot.setData(shown());
  });
  const watcher = new ResizeObserver(() => { if (place.clientWidth && plot && plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: tall() }); });
  watcher.observe(place);
  addEventListener("colours", build);

  return {
    element,
    /** @param {number[]} xs @param {...any[]} columns one per line; a non-finite value makes a gap, undefined does not */
    set(xs, ...columns) {
      data = [xs, ...columns.map((column) => column.map((value) => (value === undefined ? value : finite(value))))];
      redraw();
    },
    /** Set the dotted curves of earlier runs. @param {{label: string, x: number[], y: any[], dash?: number[]}[]} given */
    ghosts(given) {
      ghosts = given.map((ghost) => ({ ...ghost, y: ghost.y.map(finite) }));
      if (plot) build();
    },
    /** Set the marks: dashed lines with a text or a triangle on top. @param {Mark[]} given */
    marks(given) {
      marks = given;
      redraw();
    },
    /** Set the description for screen readers. @param {string} text */
    describe(text) { fill(summary, text); },
    unmount() {
      watcher.disconnect();
      removeEventListener("colours", build);
      plot?.destroy();
    },
  };
}

/** @param {uPlot} plot @param {Mark[]} marks */
function mark({ ctx, bbox, valToPos }, marks) {
  const size = 5 * devicePixelRatio;
  ctx.save();
  ctx.font = `${letter() * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4, 3]);
  marks.forEach(({ x, colour: name = "--error", text }, i) => {
    const at = valToPos(x, "x", true);
    if (!(at >= bbox.left && at <= bbox.left + bbox.width)) return;
    ctx.fillStyle = ctx.strokeStyle = colour(name);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    if (text) {
      const left = at + ctx.measureText(text).width + 6 > bbox.left + bbox.width;
      ctx.textAlign = left ? "right" : "left";
      ctx.fillText(text, at + (left ? -4 : 4), bbox.top + 2 + i * 13 * devicePixelRatio);
    } else {
      ctx.beginPath();
      ctx.moveTo(at - size, bbox.top);
      ctx.lineTo(at + size, bbox.top);
      ctx.lineTo(at, bbox.top + size * 1.4);
      ctx.fill();
    }
  });
  ctx.restore();
}

/** True if a line has only one value, which is drawn as a point. @param {uPlot} plot @param {number} line */
function alone({ data }, line) {
  let seen = 0;
  for (const value of data[line]) if (value !== null && value !== undefined && ++seen > 1) return false;
  return seen === 1;
}

/** Format the number of a tick, short enough for its axis. @param {number} tick */
function short(tick) {
  const size = Math.abs(tick);
  return size === 0 || (size >= 1e-3 && size < 1e5) ? number(tick, 3) : Number(tick.toPrecision(2)).toExponential().replace("e+", "e").replaceAll("-", "−");
}

/** Return the first index whose value is at least `value`. @param {(number | null)[]} sorted @param {number} value */
function cut(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {number} */ (sorted[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
