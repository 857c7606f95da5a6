// @ts-check
// The chart of the arena: held-out accuracy over the updates, of your run, the baseline and the leaders.
import { chart } from "../../chart.js";
import { h } from "../../dom.js";

const LEADERS = 3;
const EMPTY_UPDATES = 100; // number of updates on a chart that shows only the target
const LINES = [
  { label: "you", colour: "--data", width: 2.5 },
  { label: "target", colour: "--strong", dash: [2, 4], width: 1.2 },
  { label: "baseline", colour: "--gradient", dash: [8, 4], width: 1.6 },
  ...["first", "second", "third"].map((label, i) => ({ label, colour: ["--update", "--c3", "--c6"][i], dash: [[6, 2, 2, 2], [3, 3], [1, 3]][i], width: 1.6 })),
];

export function practiceChart() {
  const plot = chart({ title: "Held-out accuracy", lines: LINES, height: 260, x: "update", tools: false, span: [0, 1] });
  /** @type {[number, number, number][]} */
  let ownCurve = [];
  /** @type {{name: string, baseline: boolean, points: [number, number, number][]}[]} */
  let storedCurves = [];
  let target = 0;

  function draw() {
    const base = storedCurves.filter(({ baseline }) => baseline).map(({ points }) => points);
    const leaders = storedCurves.filter(({ baseline }) => !baseline).map(({ points }) => points);
    const curves = [ownCurve, base[0] ?? [], ...Array.from({ length: LEADERS }, (_, i) => leaders[i] ?? [])];
    const last = Math.max(0, ...curves.map((curve) => curve.at(-1)?.[0] ?? 0)) || EMPTY_UPDATES;
    const xs = Array.from({ length: last }, (_, i) => i + 1);
    const [ownValues, baseline, ...leaderValues] = curves.map((curve) => valuePerUpdate(curve, last));
    plot.set(xs, ownValues, xs.map(() => target), baseline, ...leaderValues);
    plot.describe(ownCurve.length ? `You: ${(100 * ownCurve[ownCurve.length - 1][2]).toFixed(1)} % after ${ownCurve[ownCurve.length - 1][0]} updates.` : "No practice run yet.");
  }

  return {
    element: h("div", { class: "race", title: "Drag across the chart to zoom, double-click to see all." }, plot.element),
    /** @param {any[]} points @param {number} goal */
    setOwnCurve(points, goal) { ownCurve = points; target = goal; draw(); },
    /** @param {any[]} curves @param {number} goal */
    setOtherCurves(curves, goal) { storedCurves = curves; target = goal; draw(); },
    isEmpty: () => !ownCurve.length && !storedCurves.length,
    unmount() { plot.unmount(); },
  };
}

/** Return a value for each update; between stored points, the value of the latest one. @param {[number, number, number][]} points @param {number} last */
function valuePerUpdate(points, last) {
  /** @type {(number | null)[]} */
  const column = Array(last).fill(null);
  points.forEach(([update, , accuracy], i) => {
    const until = points[i + 1]?.[0] ?? update + 1;
    column.fill(accuracy, update - 1, until - 1);
  });
  return column;
}
