// @ts-check
// The standings of a race: comparable numbers of all runs in a table.
import { fill, h, formatNumber, swatch } from "../../dom.js";

export const SMOOTHING_UPDATES = 20; // number of updates over which losses are runningMean before a comparison

/** @typedef {import("../simulator/run.js").Run} Run */

/** Return a function from a number of updates to the number of examples seen; the last batch and window of an epoch may be short.
 * @param {Record<string, any>} config @returns {(update: number) => number} */
export function examplesAfterUpdates({ samples, batch, accumulation }) {
  const trained = samples - Math.ceil(samples / 5), epoch = Math.ceil(Math.ceil(trained / batch) / accumulation);
  return (update) => Math.floor(update / epoch) * trained + Math.min(trained, (update % epoch) * batch * accumulation);
}

/** Return the running mean of the latest `SMOOTHING_UPDATES` values; null from the first non-finite value on. @param {any[]} values @returns {(number | null)[]} */
export function runningMean(values) {
  let sum = 0;
  return values.map((value, i) => {
    sum += typeof value === "number" ? value : NaN;
    if (i >= SMOOTHING_UPDATES) sum -= values[i - SMOOTHING_UPDATES];
    return Number.isFinite(sum) ? sum / Math.min(i + 1, SMOOTHING_UPDATES) : null;
  });
}

/** Return the number of updates until the held-out accuracy first reached the goal, or null. @param {Run} run @param {number} goal */
export const updatesToReach = ({ series }, goal) => series.evaluations.find(([, , accuracy]) => typeof accuracy === "number" && accuracy >= goal)?.[0] ?? null;

/** Create the table of all runs, with the leading run first. */
export function standings() {
  const body = h("tbody", {});
  const head = h("th", { scope: "col", class: "number" });
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Standings" }, h("table", { class: "standing" },
    h("thead", {}, h("tr", {}, ["#", "runner", "settings"].map((text) => h("th", { scope: "col" }, text)), ["updates", `loss, mean of ${SMOOTHING_UPDATES}`, "held-out loss", "accuracy"].map((text) => h("th", { scope: "col", class: "number" }, text)), head, h("th", { scope: "col" }, "sanitizer"))), body));
  return {
    element,
    /** @param {any[]} lanes @param {{goal: number, axis: string, describeSettings: (lane: any) => string}} options */
    show(lanes, { goal, axis, describeSettings }) {
      head.textContent = `${(100 * goal).toFixed(0)} % after`;
      const rows = lanes.map((lane) => {
        const { series, setup } = lane.run, updates = updatesToReach(lane.run, goal), evaluation = series.evaluations[series.evaluations.length - 1];
        const countToGoal = updates === null || !setup ? null : axis === "update" ? updates : examplesAfterUpdates(setup.config)(updates);
        return { lane, countToGoal, accuracy: evaluation?.[2] ?? -1, heldOutLoss: evaluation?.[1], loss: runningMean(series.loss.slice(-SMOOTHING_UPDATES))[Math.min(series.loss.length, SMOOTHING_UPDATES) - 1] };
      });
      rows.sort((one, other) => (one.countToGoal ?? Infinity) - (other.countToGoal ?? Infinity) || other.accuracy - one.accuracy);
      fill(body, ...rows.map(({ lane, countToGoal, accuracy, heldOutLoss, loss }, i) => h("tr", {},
        h("td", { class: "number" }, lane.run.update ? i + 1 : "–"), h("th", { scope: "row" }, swatch({ colour: lane.colour, dash: lane.dash, width: 4 }), lane.name), h("td", {}, describeSettings(lane)),
        h("td", { class: "number" }, formatNumber(lane.run.update)), h("td", { class: "number" }, lane.run.series.loss.length ? loss === null ? "NaN" : formatNumber(loss, 3) : "–"), h("td", { class: "number" }, formatNumber(heldOutLoss, 3)), h("td", { class: "number" }, accuracy < 0 ? "–" : `${(100 * accuracy).toFixed(1)} %`),
        h("td", { class: "number" }, countToGoal === null ? "not yet" : `${formatNumber(countToGoal)} ${axis === "update" ? "updates" : "examples"}`), h("td", {}, lane.codes.length ? h("span", { class: "badge error" }, lane.codes.join(", ")) : lane.run.update ? "✓" : "–"))));
      return rows;
    },
  };
}
