// @ts-check
// Line charts with uPlot: the lab's colours in light and dark, gaps for non-finite numbers, log scale, last N updates, earlier runs.
import uPlot from "./vendor/uplot.js";
import { colour, oncePerFrame, fill, h, formatNumber, swatch } from "./dom.js";

/** @typedef {{label: string, colour: string, dash?: number[], width?: number, scale?: string, points?: boolean, joined?: boolean}} Line
 *   colour: a CSS variable such as "--data"; joined: draw no gap at missing values, because the lines have different updates
 * @typedef {{x: number, text?: string, colour?: string}} Mark an event at an update */

const MAX_RATIO_WITH_MINOR_LINES = 1e3; // of the ends of a logarithmic axis
const FONT_PX = 11, PAGE_FONT_PX = 15; // default font sizes of charts and of the page
/** Return the font size of charts, which grows with the page's font size in the class view. */
const fontSize_px = () => Math.round(FONT_PX * parseFloat(getComputedStyle(document.documentElement).fontSize) / PAGE_FONT_PX);

/** Return a finite number unchanged and anything else, such as the server's "nan" and "inf", as null, a gap. @param {any} value */
export const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Create a chart that redraws at most once per frame and has the width of its parent.
 * @param {{title: string, lines: Line[], height?: number, x?: string, y?: string, log?: boolean, tools?: boolean, legend?: boolean, cursor?: string, span?: [number, number]}} options
 *   tools: show a switch for the log scale and a choice of the last N updates; legend: false if the page has a legend for all its charts;
 *   cursor: charts with the same one have a common cursor, and show their values there; span: lowest and highest y, if they are known */
export function chart({ title, lines, height = 180, x = "update", y = "", log = false, tools = true, legend = true, cursor = "", span }) {
  let isLog = log, lastUpdates = 0;
  /** @type {(number | null | undefined)[][]} */
  let data = [[], ...lines.map(() => [])];
  /** @type {{label: string, x: number[], y: (number | null)[], dash?: number[]}[]} */
  let ghosts = [];
  /** @type {Mark[]} */
  let marks = [];
  /** @type {uPlot | null} */
  let plot = null;
  const scaledHeight = () => Math.round(height * fontSize_px() / FONT_PX);
  const plotContainer = h("div", { class: "chart-place" });
  const summary = h("figcaption", { class: "unseen" });
  const values = cursor ? h("p", { class: "chart-values mono" }, "\u00a0") : null;
  const logBox = h("input", { type: "checkbox", checked: log, onchange: () => { isLog = logBox.checked; build(); } });
  const rangeSelect = h("select", { "aria-label": `${title}: how much is shown`, onchange: () => { lastUpdates = Number(rangeSelect.value); redraw(); } },
    [[0, "all"], [1000, "last 1,000"], [200, "last 200"], [50, "last 50"]].map(([value, text]) => h("option", { value }, text)));
  const element = h("figure", { class: "chart", "aria-label": title },
    h("div", { class: "row chart-head" },
      h("span", { class: "chart-title" }, title),
      h("div", { class: "chart-tools" }, h("span", { class: "legend" }, legend && lines.length > 1 && lines.filter(({ label }) => label).map((line) => h("span", {}, swatch(line), line.label))),
      tools && h("label", { class: "tool" }, logBox, "log"), tools && rangeSelect)),
    plotContainer, values, summary);

  function build() {
    plot?.destroy();
    const ink = colour("--muted"), grid = colour("--line");
    const fontSize = fontSize_px(), font = `${fontSize}px system-ui, sans-serif`, extra = fontSize - FONT_PX;
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font };
    plot = new uPlot({
      width: Math.max(plotContainer.clientWidth, 120), height: scaledHeight(),
      hooks: { draw: [(/** @type {uPlot} */ self) => drawMarks(self, marks)], setCursor: [showValues] },
      legend: { show: false }, cursor: { drag: { x: true, y: false }, points: { size: 6 }, ...(cursor && { sync: { key: cursor } }) },
      scales: { x: { time: false }, y: isLog ? { distr: 3 } : span ? { range: span } : {} },
      axes: [{ ...axis, label: x, labelSize: 16 + extra, labelFont: font, size: 28 + extra, space: 50 + 5 * extra },
        { ...axis, ...(isLog && { grid: { ...axis.grid, filter: wholeDecades }, ticks: { ...axis.ticks, filter: wholeDecades } }), size: 52 + 3 * extra, space: 22 + extra, label: y || undefined, labelSize: 14 + extra, labelFont: font, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : formatTick(tick))) }],
      series: [{ label: x },
        ...lines.map((line) => ({ label: line.label, stroke: colour(line.colour), width: line.width ?? 2, dash: line.dash, spanGaps: line.points || line.joined || false, points: { show: line.points || hasOneValue, size: 5 } })),
        ...ghosts.map((ghost) => ({ label: ghost.label, stroke: colour("--ghost"), width: 1.3, dash: ghost.dash, spanGaps: true, points: { show: false } }))],
    }, visibleData(), plotContainer);
  }

  /** Show the values at the cursor. @param {uPlot} self */
  function showValues({ cursor: { idx }, data: columns }) {
    if (!values) return;
    const texts = idx === null || idx === undefined ? [] : lines.map(({ label }, i) => [label, nearest(columns[i + 1], idx)]).filter(([, value]) => value !== null).map(([label, value]) => `${label} ${formatNumber(/** @type {number} */ (value))}`);
    values.textContent = texts.length ? `${x} ${formatNumber(/** @type {any} */ (columns[0])[/** @type {number} */ (idx)])}: ${texts.join(", ")}` : "\u00a0";
  }

  function visibleData() {
    const columns = ghosts.length ? uPlot.join([data, ...ghosts.map((ghost) => [ghost.x, ghost.y])], undefined) : data;
    const from = lastUpdates && columns[0].length ? firstIndexAtLeast(columns[0], columns[0][columns[0].length - 1] - lastUpdates) : 0;
    const visible = columns.map((column) => (from ? column.slice(from) : column));
    return isLog ? visible.map((column, i) => (i ? column.map((value) => (value === undefined || (value !== null && value > 0) ? value : null)) : column)) : visible;
  }

  const redraw = oncePerFrame(() => {
    if (!plotContainer.clientWidth) return; // a hidden chart is drawn when it is shown
    if (!plot) build();
    else plot.setData(visibleData());
  });
  const resizeObserver = new ResizeObserver(() => {
    if (!plot) redraw();
    else if (plotContainer.clientWidth && plot.width !== plotContainer.clientWidth) plot.setSize({ width: plotContainer.clientWidth, height: scaledHeight() });
  });
  resizeObserver.observe(plotContainer);
  addEventListener("colours", build);

  return {
    element,
    /** @param {number[]} xs @param {...any[]} columns one per line; a non-finite value makes a gap, undefined does not */
    set(xs, ...columns) {
      data = [xs, ...columns.map((column) => column.map((value) => (value === undefined ? value : finite(value))))];
      redraw();
    },
    /** Set the dotted curves of earlier runs. @param {{label: string, x: number[], y: any[], dash?: number[]}[]} newGhosts */
    ghosts(newGhosts) {
      ghosts = newGhosts.map((ghost) => ({ ...ghost, y: ghost.y.map(finite) }));
      plot?.destroy();
      plot = null;
      redraw();
    },
    /** Set the marks: dashed lines with a text or a triangle on top. @param {Mark[]} newMarks */
    marks(newMarks) {
      marks = newMarks;
      redraw();
    },
    /** Set the description for screen readers. @param {string} text */
    describe(text) { fill(summary, text); },
    unmount() {
      resizeObserver.disconnect();
      removeEventListener("colours", build);
      plot?.destroy();
    },
  };
}

/** @param {uPlot} plot @param {Mark[]} marks */
function drawMarks({ ctx, bbox, valToPos }, marks) {
  const size = 5 * devicePixelRatio;
  ctx.save();
  ctx.font = `${fontSize_px() * devicePixelRatio}px system-ui, sans-serif`;
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
      const toTheLeft = at + ctx.measureText(text).width + 6 > bbox.left + bbox.width;
      ctx.textAlign = toTheLeft ? "right" : "left";
      ctx.fillText(text, at + (toTheLeft ? -4 : 4), bbox.top + 2 + i * 13 * devicePixelRatio);
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

/** Return the value of a line at an index, or next to it if it has none there. @param {any} column @param {number} index */
function nearest(column, index) {
  for (let distance = 0; distance < column.length; distance++) for (const at of [index - distance, index + distance]) if (typeof column[at] === "number") return column[at];
  return null;
}

/** Return true if a line has only one value, which is then drawn as a point. @param {uPlot} plot @param {number} line */
function hasOneValue({ data }, line) {
  let values = 0;
  for (const value of data[line]) if (value !== null && value !== undefined && ++values > 1) return false;
  return values === 1;
}

/** Leave out the lines between powers of ten where there are so many powers that they would form grey bands. @param {uPlot} _plot @param {number[]} ticks */
function wholeDecades(_plot, ticks) {
  const isWide = Math.max(...ticks) > MAX_RATIO_WITH_MINOR_LINES * Math.min(...ticks);
  return isWide ? ticks.map((tick) => (Number.isInteger(Math.round(1e6 * Math.log10(tick)) / 1e6) ? tick : null)) : ticks;
}

/** Format the number of a tick, short enough for its axis. @param {number} tick */
function formatTick(tick) {
  const size = Math.abs(tick);
  return size === 0 || (size >= 1e-3 && size < 1e5) ? formatNumber(tick, 3) : Number(tick.toPrecision(2)).toExponential().replace("e+", "e").replaceAll("-", "−");
}

/** Return the first index whose value is at least `value`. @param {(number | null)[]} sorted @param {number} value */
function firstIndexAtLeast(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {number} */ (sorted[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
