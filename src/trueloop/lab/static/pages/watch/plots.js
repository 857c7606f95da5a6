// @ts-check
// The curves of one run, or of overlaid runs on the same axes.
import { chart } from "../../chart.js";
import { fill, h } from "../../dom.js";

/** The colour of each role of a curve. @type {Record<string, string>} */
const ROLES = { train: "--data", val: "--c3", test: "--c2", rate: "--update", norm: "--gradient", speed: "--c6", wait: "--c7", memory: "--c5" };
const DASHES = [undefined, [8, 4], [2, 3], [10, 3, 2, 3], [14, 4], [5, 2]];

/** @typedef {{label: string, role: string, kind: string, x: number[], y: number[]}} Curve */

export function plots() {
  /** @type {Map<string, {drawn: ReturnType<typeof chart>, shape: string, caption: HTMLElement, element: HTMLElement}>} */
  const charts = new Map();
  const element = h("div", { class: "watch-plots" });

  /** @param {any[]} runs @param {string[]} order */
  function show(runs, order) {
    const overlaid = order.length > 1;
    const names = [...new Set(runs.flatMap((run) => run.panels.map((/** @type {any} */ panel) => panel.name)))];
    for (const [name, { drawn, element: old }] of charts) {
      if (names.includes(name)) continue;
      drawn.unmount();
      old.remove();
      charts.delete(name);
    }
    names.forEach((name, index) => {
      const panels = runs.map((run) => ({ run, panel: run.panels.find((/** @type {any} */ each) => each.name === name) })).filter(({ panel }) => panel);
      const curves = panels.flatMap(({ run, panel }) => panel.curves
        .filter((/** @type {Curve} */ curve) => curve.y.length && !(overlaid && curve.kind === "raw"))
        .map((/** @type {Curve} */ curve) => ({ ...curve, run, runIndex: order.indexOf(run.id) })));
      draw(name, index, panels, curves, overlaid);
    });
  }

  /** @param {string} name @param {number} index @param {any[]} panels @param {any[]} curves @param {boolean} overlaid */
  function draw(name, index, panels, curves, overlaid) {
    const { title: panelTitle, log, percent } = panels[0].panel, title = percent ? `${panelTitle} (%)` : panelTitle;
    const lines = curves.map((curve) => line(curve, overlaid));
    const shape = JSON.stringify([title, log, overlaid, lines]);
    let entry = charts.get(name);
    if (entry?.shape !== shape) {
      entry?.drawn.unmount();
      const drawn = chart({ title, lines: lines.length ? lines : [{ label: title, colour: "--data" }], log, height: 190, legend: !overlaid, cursor: "watch" });
      const caption = h("p", { class: "caption" });
      drawn.element.append(caption);
      entry?.element.remove();
      entry = { drawn, shape, caption, element: drawn.element };
      charts.set(name, entry);
    }
    if (element.children[index] !== entry.element) element.insertBefore(entry.element, element.children[index] ?? null);
    const [xs, columns] = alignCurves(curves.length ? curves : [{ x: [], y: [] }]);
    entry.drawn.set(xs, ...columns);
    entry.drawn.marks(overlaid ? [] : marksOf(panels[0]));
    const caption = overlaid ? panels.map(({ run, panel }) => `${run.id.split("/")[1]}: ${panel.caption}`).join(" ") : panels[0].panel.caption;
    entry.drawn.describe(`${title}. ${caption}`);
    const hasBothKinds = overlaid && curves.some((curve) => curve.kind === "points") && curves.some((curve) => curve.kind !== "points");
    fill(entry.caption, overlaid ? hasBothKinds && "Lines: training. Lines with circles: held-out data." : caption);
  }

  return {
    element, show,
    /** Return a sample of a run's lines. @param {number} index index of the run */
    swatch: (index) => h("i", { class: "swatch", style: { "border-top": `3px ${index ? (index % 2 ? "dashed" : "dotted") : "solid"} var(--c${index})` } }),
    unmount() {
      for (const { drawn } of charts.values()) drawn.unmount();
      charts.clear();
    },
  };
}

/** @param {any} curve @param {boolean} overlaid */
function line(curve, overlaid) {
  const points = curve.kind === "points";
  if (overlaid) return { label: `${curve.run.id.split("/")[1]} ${curve.label}`, colour: `--c${curve.runIndex}`, dash: DASHES[curve.runIndex], width: points ? 1.5 : 2, points, joined: true };
  const raw = curve.kind === "raw";
  return { label: curve.label, colour: raw ? "--ghost" : ROLES[curve.role] ?? "--data", width: raw ? 1 : 2, points, joined: true };
}

/** Return the marks of a chart: findings, non-finite values and the best evaluation. @param {{run: any, panel: any}} shown */
function marksOf({ run, panel }) {
  const findings = run.findings.filter((/** @type {any} */ each) => each.first_update !== null && each.severity !== "note");
  return [
    ...panel.marks.map((/** @type {number} */ x) => ({ x, colour: "--muted" })),
    ...findings.map((/** @type {any} */ each) => ({ x: each.first_update, colour: "--error" })),
    ...(panel.best ? [{ x: panel.best[0], colour: "--update" }] : []),
  ];
}

/** Convert curves with different updates to columns over all updates. @param {{x: number[], y: number[]}[]} curves
 * @returns {[number[], (number | null)[][]]} */
export function alignCurves(curves) {
  const xs = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, i) => [x, i]));
  return [xs, curves.map(({ x, y }) => {
    const column = new Array(xs.length).fill(null);
    x.forEach((update, i) => { column[/** @type {number} */ (at.get(update))] = y[i]; });
    return column;
  })];
}
