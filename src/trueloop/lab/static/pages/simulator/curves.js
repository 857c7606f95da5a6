// @ts-check
// Charts with the curves of a run, of its twin and of earlier runs; each is drawn at most once per frame.
import { chart } from "../../chart.js";
import { fill, h, formatNumber } from "../../dom.js";

/** @typedef {import("./run.js").Run} Run */
/** @typedef {import("./run.js").Series} Series */

const MAX_POINTS = 1500; // a longer curve is reduced to the lowest and highest value of each section
const DASHES = [[2, 3], [7, 3], [1, 5], [9, 3, 2, 3], [4, 6]];

/** Reduce a curve to few points, keeping its lowest and highest values. @param {[number[], any[]]} curve @param {number} [maxPoints]
 * @returns {[number[], any[]]} */
export function downsample([xs, ys], maxPoints = MAX_POINTS) {
  const length = xs.length;
  if (length <= maxPoints) return [xs, ys];
  const sectionLength = Math.ceil((length * 2) / maxPoints), indices = [];
  for (let from = 0; from < length; from += sectionLength) {
    const to = Math.min(from + sectionLength, length);
    let low = -1, high = -1;
    for (let i = from; i < to; i++) {
      if (typeof ys[i] !== "number") continue;
      if (low < 0 || ys[i] < ys[low]) low = i;
      if (high < 0 || ys[i] > ys[high]) high = i;
    }
    if (low < 0) indices.push(from); // no finite value: keep the gap
    else if (low === high) indices.push(low);
    else indices.push(Math.min(low, high), Math.max(low, high));
  }
  if (indices[indices.length - 1] !== length - 1) indices.push(length - 1);
  return [indices.map((i) => xs[i]), indices.map((i) => ys[i])];
}

/** Put curves on one axis; a value is undefined where a curve has no point. @param {[number[], any[]][]} curves @returns {[number[], ...any[][]]} */
export function alignCurves(curves) {
  const reduced = curves.map((each) => downsample(each));
  const longestAxis = reduced.reduce((best, [xs]) => (xs.length > best.length ? xs : best), /** @type {number[]} */ ([]));
  const updates = new Set(longestAxis);
  const longestSize = updates.size;
  for (const [xs] of reduced) if (xs !== longestAxis) for (const x of xs) updates.add(x);
  const axis = updates.size === longestSize ? longestAxis : [...updates].sort((a, b) => a - b);
  return [axis, ...reduced.map(([xs, ys]) => {
    let i = 0;
    return axis.map((x) => {
      while (i < xs.length && xs[i] < x) i++;
      return xs[i] === x ? ys[i] : undefined;
    });
  })];
}

/** Return the first update with a non-finite value; null if all values are finite. @param {Series} series @returns {number | null} */
export function firstNotFinite(series) {
  const index = series.loss.findIndex((value) => typeof value !== "number");
  return index < 0 ? null : series.update[index];
}

const evaluationCurve = (/** @type {Series} */ series, /** @type {1 | 2} */ which) => /** @type {[number[], any[]]} */ ([
  series.evaluations.map(([update]) => update), series.evaluations.map((each) => each[which])]);

/** The charts: each has a title, lines with their colours, and a function that returns the curves of a run. @type {{key: string, title: string, height: number, lines: [string, string][], curvesOf: (s: Series) => [number[], any[]][]}[]} */
const CHARTS = [
  { key: "loss", title: "Loss", height: 212, lines: [["", "--ghost"], ["training", "--data"], ["held out", "--c3"]], curvesOf: (s) => [[s.update, s.loss], [s.update, s.smooth], evaluationCurve(s, 1)] },
  { key: "norm", title: "Gradient norm", height: 110, lines: [["gradient norm", "--gradient"]], curvesOf: (s) => [[s.update, s.norm]] },
  { key: "accuracy", title: "Held-out accuracy", height: 110, lines: [["accuracy", "--c3"]], curvesOf: (s) => [evaluationCurve(s, 2)] },
  { key: "rate", title: "Learning rate", height: 110, lines: [["learning rate", "--update"]], curvesOf: (s) => [[s.update, s.rate]] },
  { key: "memory", title: "Memory, MiB", height: 110, lines: [["memory", "--c6"]], curvesOf: (s) => [[s.measuredAt, s.memory]] },
  { key: "graphs", title: "Live graphs", height: 110, lines: [["graphs", "--c9"]], curvesOf: (s) => [[s.measuredAt, s.graphs]] },
];

/** @typedef {{label: string, series: Series, setup: import("./run.js").Setup}} Ghost */

/** Create all charts. */
export function curves() {
  /** @type {Ghost[]} */ let ghosts = [];
  /** @type {Record<string, any>} */ let charts = {};
  const containers = Object.fromEntries(CHARTS.map(({ key }) => [key, h("div", {})]));
  const events = h("ul", { class: "sim-events", "aria-label": "What happened" });
  const chips = h("ul", { class: "ghosts", "aria-label": "Earlier runs" });
  let arrangedFor = 0;

  /** @param {number} runCount one, or two side by side */
  function arrange(runCount) {
    if (runCount === arrangedFor) return;
    arrangedFor = runCount;
    for (const { key, title, height, lines } of CHARTS) {
      charts[key]?.unmount();
      const chartLines = runCount === 1 ? lines.map(([label, colour]) => line(key, label, colour, false))
        : ["broken", "without"].flatMap((run, i) => lines.map(([label, colour]) => line(key, label === "held out" ? (i ? "" : label) : label && run, label ? ["--gradient", "--update"][i] : colour, label === "held out")));
      charts[key] = chart({ title, lines: chartLines, height, x: null });
      fill(containers[key], charts[key].element);
    }
    showGhosts();
  }

  function line(/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ colour, /** @type {boolean} */ isDashed) {
    const sparse = label === "held out" || key === "accuracy" || isDashed;
    return { label, colour, width: colour === "--ghost" ? 0.8 : key === "loss" ? 2 : 1.4, joined: sparse, ...(isDashed ? { dash: [4, 4] } : {}) };
  }

  /** @param {Run[]} runs @param {boolean} [allCharts] false: draw only the loss */
  function draw(runs, allCharts = true) {
    for (const { key, curvesOf } of allCharts ? CHARTS : CHARTS.slice(0, 1)) charts[key].set(...alignCurves(runs.flatMap(({ series }) => curvesOf(series))));
  }

  /** @param {Run[]} runs */
  function describe(runs) {
    const summary = runs.map(({ series, update }) => `After ${update} updates: loss ${formatNumber(series.loss[series.last])}, gradient norm ${formatNumber(series.norm[series.last])}.`).join(" ");
    for (const { key } of CHARTS) charts[key].describe(summary);
  }

  function showGhosts() {
    for (const { key, curvesOf } of CHARTS) {
      charts[key].ghosts(ghosts.map(({ label, series }, i) => {
        const [x, y] = downsample(curvesOf(series)[key === "loss" ? 1 : 0], 300); // of the loss, the smoothed curve
        return { label, x, y, dash: DASHES[i] };
      }));
    }
    fill(chips, ...ghosts.map(({ label, series }, i) => h("li", {},
      h("i", { class: `swatch ghost-${i}`, "aria-hidden": "true" }), h("span", {}, label),
      h("span", { class: "muted mono" }, ` loss ${formatNumber(series.loss[series.last], 3)}`),
      h("button", { type: "button", class: "quiet small", "aria-label": `Remove the run: ${label}`, onclick: () => { ghosts.splice(i, 1); showGhosts(); } }, "✕"))));
    chips.hidden = !ghosts.length;
  }

  arrange(1);
  return {
    containers, events, chips, arrange, draw, describe,
    get ghosts() { return ghosts; },
    /** Keep the curves of a run as dotted curves next to those of the next run. @param {Ghost} ghost */
    keep(ghost) {
      ghosts = [...ghosts, ghost].slice(-DASHES.length);
      showGhosts();
    },
    /** @param {(ghost: Ghost) => string} labelOf */
    relabel(labelOf) {
      for (const ghost of ghosts) ghost.label = labelOf(ghost);
      showGhosts();
    },
    /** Mark events on the charts and list them. @param {{at: number, text: string}[]} list */
    showEvents(list) {
      list.sort((one, other) => one.at - other.at);
      fill(events, ...list.map(({ at, text }) => h("li", {}, h("span", { class: "mono" }, `update ${at}`), ` ${text}`)));
      for (const { key } of CHARTS) charts[key].marks(list.map(({ at, text }) => ({ x: at, text: key === CHARTS[0].key ? text : "" })));
    },
    unmount() { for (const each of Object.values(charts)) each.unmount(); },
  };
}
