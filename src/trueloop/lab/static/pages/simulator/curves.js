// @ts-check
// The curves of a run, of its twin and of earlier runs, on charts that are drawn at most once per frame.
import { chart } from "../../chart.js";
import { fill, h, number } from "../../dom.js";

/** @typedef {import("./run.js").Run} Run */
/** @typedef {import("./run.js").Series} Series */

const MOST = 1500; // points of a curve; a longer one is reduced to the lowest and highest value of each section
const DASHES = [[2, 3], [7, 3], [1, 5], [9, 3, 2, 3], [4, 6]];
export const GHOSTS = DASHES.length;

/** Reduce a curve to few points, keeping its lowest and highest values. @param {[number[], any[]]} curve @param {number} [most]
 * @returns {[number[], any[]]} */
export function thinned([xs, ys], most = MOST) {
  const length = xs.length;
  if (length <= most) return [xs, ys];
  const stretch = Math.ceil((length * 2) / most), kept = [];
  for (let from = 0; from < length; from += stretch) {
    const to = Math.min(from + stretch, length);
    let low = -1, high = -1;
    for (let i = from; i < to; i++) {
      if (typeof ys[i] !== "number") continue;
      if (low < 0 || ys[i] < ys[low]) low = i;
      if (high < 0 || ys[i] > ys[high]) high = i;
    }
    if (low < 0) kept.push(from); // no finite value: keep the gap
    else if (low === high) kept.push(low);
    else kept.push(Math.min(low, high), Math.max(low, high));
  }
  if (kept[kept.length - 1] !== length - 1) kept.push(length - 1);
  return [kept.map((i) => xs[i]), kept.map((i) => ys[i])];
}

/** Align curves on one axis; undefined where a curve has no value. @param {[number[], any[]][]} curves @returns {[number[], ...any[][]]} */
export function together(curves) {
  const few = curves.map((each) => thinned(each));
  const longest = few.reduce((best, [xs]) => (xs.length > best.length ? xs : best), /** @type {number[]} */ ([]));
  const places = new Set(longest);
  const before = places.size;
  for (const [xs] of few) if (xs !== longest) for (const x of xs) places.add(x);
  const whole = places.size === before ? longest : [...places].sort((a, b) => a - b);
  return [whole, ...few.map(([xs, ys]) => {
    let i = 0;
    return whole.map((x) => {
      while (i < xs.length && xs[i] < x) i++;
      return xs[i] === x ? ys[i] : undefined;
    });
  })];
}

/** Return the first update with a non-finite value; null if all values are finite. @param {Series} series @returns {number | null} */
export function firstNotFinite(series) {
  const at = series.loss.findIndex((value) => typeof value !== "number");
  return at < 0 ? null : series.update[at];
}

const evaluated = (/** @type {Series} */ series, /** @type {1 | 2} */ which) => /** @type {[number[], any[]]} */ ([
  series.evaluations.map(([update]) => update), series.evaluations.map((each) => each[which])]);

/** Which charts there are: each a title, its lines, and the curves of one run. @type {{key: string, title: string, height: number, x?: any, lines: [string, string][], of: (s: Series) => [number[], any[]][]}[]} */
const CHARTS = [
  { key: "loss", title: "Loss", height: 128, x: null, lines: [["in training", "--data"], ["held out", "--c3"]], of: (s) => [[s.update, s.loss], evaluated(s, 1)] },
  { key: "norm", title: "Gradient norm", height: 102, lines: [["gradient norm", "--gradient"]], of: (s) => [[s.update, s.norm]] },
  { key: "accuracy", title: "Held-out accuracy", height: 110, lines: [["accuracy", "--c3"]], of: (s) => [evaluated(s, 2)] },
  { key: "rate", title: "Learning rate", height: 110, lines: [["learning rate", "--update"]], of: (s) => [[s.update, s.rate]] },
  { key: "memory", title: "Memory, MiB", height: 110, lines: [["memory", "--c6"]], of: (s) => [[s.at, s.memory]] },
  { key: "graphs", title: "Live graphs", height: 110, lines: [["graphs", "--c9"]], of: (s) => [[s.at, s.graphs]] },
];
const FIRST = 2; // number of charts drawn with every frame; the others are drawn a few times per second

/** @typedef {{label: string, series: Series, setup: import("./run.js").Setup}} Ghost */

/** All charts. @param {{onghosts?: (ghosts: Ghost[]) => void}} options */
export function curves({ onghosts }) {
  /** @type {Ghost[]} */ let ghosts = [];
  /** @type {Record<string, any>} */ let charts = {};
  const places = Object.fromEntries(CHARTS.map(({ key }) => [key, h("div", {})]));
  const events = h("ul", { class: "sim-events", "aria-label": "What happened" });
  const chips = h("ul", { class: "ghosts", "aria-label": "Earlier runs" });
  let twins = 0;

  /** @param {number} runs one, or two side by side */
  function arrange(runs) {
    if (runs === twins) return;
    twins = runs;
    for (const { key, title, height, lines, x } of CHARTS) {
      charts[key]?.unmount();
      const all = runs === 1 ? lines.map(([label, colour]) => line(key, label, colour, false))
        : [...lines.map(([label, colour]) => line(key, label === "held out" ? label : "broken", colour, false)), ...lines.map(([label]) => line(key, label === "held out" ? label : "without", label === "held out" ? "--c6" : "--update", true))];
      charts[key] = chart({ title, lines: all, height, x });
      fill(places[key], charts[key].element);
    }
    showGhosts();
  }

  function line(/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ colour, /** @type {boolean} */ second) {
    const sparse = label === "held out" || key === "accuracy";
    return { label, colour, width: sparse ? 1.6 : 1.2, points: sparse, ...(second ? { dash: [6, 4] } : {}) };
  }

  /** @param {Run[]} runs @param {boolean} [all] */
  function draw(runs, all = true) {
    for (const { key, of } of all ? CHARTS : CHARTS.slice(0, FIRST)) charts[key].set(...together(runs.flatMap(({ series }) => of(series))));
  }

  /** @param {Run[]} runs */
  function describe(runs) {
    const said = runs.map(({ series, update }) => `After ${update} updates: loss ${number(series.loss[series.last])}, gradient norm ${number(series.norm[series.last])}.`).join(" ");
    for (const { key } of CHARTS) charts[key].describe(said);
  }

  function showGhosts() {
    for (const { key, of } of CHARTS) {
      charts[key].ghosts(ghosts.map(({ label, series }, i) => {
        const [x, y] = thinned(of(series)[0], 300);
        return { label, x, y, dash: DASHES[i] };
      }));
    }
    fill(chips, ...ghosts.map(({ label, series }, i) => h("li", {},
      h("i", { class: `swatch ghost-${i}`, "aria-hidden": "true" }), h("span", {}, label),
      h("span", { class: "muted mono" }, ` loss ${number(series.loss[series.last], 3)}`),
      h("button", { type: "button", class: "quiet small", "aria-label": `Remove the run: ${label}`, onclick: () => { ghosts.splice(i, 1); showGhosts(); } }, "✕"))));
    chips.hidden = !ghosts.length;
    onghosts?.(ghosts);
  }

  arrange(1);
  return {
    places, events, chips, arrange, draw, describe,
    get ghosts() { return ghosts; },
    /** Keep the curves of a run behind those of the next run. @param {Ghost} ghost */
    keep(ghost) {
      ghosts = [...ghosts, ghost].slice(-GHOSTS);
      showGhosts();
    },
    /** @param {(ghost: Ghost) => string} labelled */
    relabel(labelled) {
      for (const ghost of ghosts) ghost.label = labelled(ghost);
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
