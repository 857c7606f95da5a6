// @ts-check
// The current numbers of a run.
import { fill, h, formatNumber } from "../../dom.js";

/** Keys and names of the numbers that are always visible, and of those next to the curves. */
export const MAIN_NUMBERS = /** @type {[string, string][]} */ ([["update", "update"], ["epoch", "epoch"], ["speed", "updates/s"], ["loss", "loss"], ["held", "held-out loss"], ["accuracy", "accuracy"]]);
export const MORE_NUMBERS = /** @type {[string, string][]} */ ([["norm", "gradient norm"], ["rate", "learning rate"], ["memory", "memory, MiB"], ["graphs", "live graphs"]]);

/** The current numbers of one run, or of two. @param {[string, string][]} which */
export function numbers(which) {
  const cells = Object.fromEntries(which.map(([key]) => [key, h("dd", { dataset: { k: key } }, "–")]));
  const runNames = h("div", { hidden: true }, h("dt", {}, "run"), h("dd", {}, h("span", {}, "broken"), h("span", {}, "without")));
  const element = h("dl", { class: "numbers live" }, runNames, which.map(([key, text]) => h("div", {}, h("dt", {}, text), cells[key])));
  return {
    element,
    /** @param {import("./run.js").Run[]} runs @param {boolean} training true if the runs train; a run's own state says "paused" whenever a synchronised run waits for the other */
    show(runs, training) {
      const valuesOfRuns = runs.map((run) => formatNumbers(run, training));
      runNames.hidden = valuesOfRuns.length < 2;
      element.classList.toggle("of-two", !runNames.hidden);
      for (const [key] of which) {
        const text = valuesOfRuns.map((each) => each[key]).join("\n");
        if (cells[key].dataset.text === text) continue;
        cells[key].dataset.text = text;
        fill(cells[key], ...valuesOfRuns.map((each) => h("span", { class: /NaN|∞/.test(each[key]) ? "bad" : null }, each[key])));
      }
    },
  };
}

/** @param {import("./run.js").Run} run @param {boolean} training @returns {Record<string, string>} */
export function formatNumbers({ header, series, started, ended }, training) {
  const evaluation = series.evaluations[series.evaluations.length - 1], at = series.last;
  return {
    update: `${formatNumber(header ? header.update : started && 0)}${started?.updates ? `/${formatNumber(started.updates)}` : ""}`,
    epoch: formatNumber(header?.epoch),
    loss: formatNumber(series.loss[at], 3),
    held: formatNumber(evaluation?.[1], 3),
    accuracy: typeof evaluation?.[2] === "number" ? `${(100 * evaluation[2]).toFixed(1)} %` : "–",
    norm: formatNumber(series.norm[at], 3),
    rate: formatNumber(series.rate[at], 3),
    memory: formatNumber(header?.memory_mib, 3),
    graphs: formatNumber(header?.graphs),
    speed: training && !ended ? formatNumber(header?.updates_per_s, 3) : "–",
  };
}
