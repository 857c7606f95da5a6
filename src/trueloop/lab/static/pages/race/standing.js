// @ts-check
// The state of the runs of a race: comparable numbers over a shared axis.
import { fill, h, number } from "../../dom.js";

export const LATEST = 20; // number of updates over which losses are averaged before a comparison

/** @typedef {import("../simulator/run.js").Run} Run */

/** Examples seen after some updates, the short batch and window at the end of each epoch included.
 * @param {Record<string, any>} config @returns {(update: number) => number} */
export function examples({ samples, batch, accumulation }) {
  const trained = samples - Math.ceil(samples / 5), epoch = Math.ceil(Math.ceil(trained / batch) / accumulation);
  return (update) => Math.floor(update / epoch) * trained + Math.min(trained, (update % epoch) * batch * accumulation);
}

/** Running mean of the latest `LATEST` values; null from the first non-finite value on. @param {any[]} values @returns {(number | null)[]} */
export function averaged(values) {
  let sum = 0;
  return values.map((value, i) => {
    sum += typeof value === "number" ? value : NaN;
    if (i >= LATEST) sum -= values[i - LATEST];
    return Number.isFinite(sum) ? sum / Math.min(i + 1, LATEST) : null;
  });
}

/** Number of updates until the held-out accuracy first reached the goal; null = not yet. @param {Run} run @param {number} goal */
export const reached = ({ series }, goal) => series.evaluations.find(([, , accuracy]) => typeof accuracy === "number" && accuracy >= goal)?.[0] ?? null;

/** A table of all runs, the leading run first. */
export function standing() {
  const body = h("tbody", {});
  const head = h("th", { scope: "col", class: "number" });
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Standings" }, h("table", { class: "standing" },
    h("thead", {}, h("tr", {}, ["#", "runner", "settings"].map((text) => h("th", { scope: "col" }, text)), ["updates", `loss, mean of ${LATEST}`, "held-out loss", "accuracy"].map((text) => h("th", { scope: "col", class: "number" }, text)), head, h("th", { scope: "col" }, "sanitizer"))), body));
  return {
    element,
    /** @param {any[]} lanes @param {{goal: number, axis: string, own: (lane: any) => string}} how */
    show(lanes, { goal, axis, own }) {
      head.textContent = `${(100 * goal).toFixed(0)} % after`;
      const rows = lanes.map((lane) => {
        const { series, setup } = lane.run, at = reached(lane.run, goal), evaluation = series.evaluations[series.evaluations.length - 1];
        const seen = at === null || !setup ? null : axis === "update" ? at : examples(setup.config)(at);
        return { lane, seen, accuracy: evaluation?.[2] ?? -1, held: evaluation?.[1], loss: averaged(series.loss.slice(-LATEST))[Math.min(series.loss.length, LATEST) - 1] };
      });
      rows.sort((one, other) => (one.seen ?? Infinity) - (other.seen ?? Infinity) || other.accuracy - one.accuracy);
      fill(body, ...rows.map(({ lane, seen, accuracy, held, loss }, i) => h("tr", {},
        h("td", { class: "number" }, lane.run.update ? i + 1 : "–"), h("th", { scope: "row" }, h("i", { class: "swatch", "aria-hidden": "true", style: { "border-top": `4px ${lane.dash ? "dashed" : "solid"} var(${lane.colour})` } }), lane.name), h("td", {}, own(lane)),
        h("td", { class: "number" }, number(lane.run.update)), h("td", { class: "number" }, lane.run.series.loss.length ? loss === null ? "NaN" : number(loss, 3) : "–"), h("td", { class: "number" }, number(held, 3)), h("td", { class: "number" }, accuracy < 0 ? "–" : `${(100 * accuracy).toFixed(1)} %`),
        h("td", { class: "number" }, seen === null ? "not yet" : `${number(seen)} ${axis === "update" ? "updates" : "examples"}`), h("td", {}, lane.codes.length ? h("span", { class: "badge error" }, lane.codes.join(", ")) : lane.run.update ? "✓" : "–"))));
      return rows;
    },
  };
}
