// @ts-check
// Several runs side by side: their different settings, progress and metrics.
import { fill, h, formatNumber } from "../../dom.js";
import { startTime } from "./list.js";

export function compare() {
  const element = h("div", { class: "panel", hidden: true });
  let shownState = "";

  /** @param {any[]} runs @param {(index: number) => any} swatch */
  function show(runs, swatch) {
    element.hidden = runs.length < 2;
    const rows = [...progressRows(runs), ...differingSettings(runs)];
    const state = JSON.stringify([runs.map((run) => run.id), rows]);
    if (element.hidden || state === shownState) return;
    shownState = state;
    fill(element, h("h2", {}, "Side by side"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Side by side" }, h("table", { class: "watch-compare" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "what")), runs.map((run, index) => h("th", { scope: "col" }, swatch(index), `${run.name} ${startTime(run.id)}`)))),
      h("tbody", {}, rows.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((/** @type {any} */ value) => h("td", { class: "mono" }, typeof value === "number" ? formatNumber(value) : value ?? "–"))))))),
      differingSettings(runs).length ? null : h("p", { class: "muted" }, "No setting differs."));
  }
  return { element, show };
}

/** Return the progress of each run, and the newest value of every metric. @param {any[]} runs @returns {[string, any[]][]} */
function progressRows(runs) {
  const newestValues = (/** @type {any} */ run) => Object.fromEntries(run.panels.flatMap((/** @type {any} */ panel) => panel.curves
    .filter((/** @type {any} */ curve) => curve.kind === "points" && curve.y.length)
    .map((/** @type {any} */ curve) => [`${panel.title.toLowerCase()}, ${curve.label}`, curve.y[curve.y.length - 1]])));
  const valuesOfRuns = runs.map(newestValues), names = [...new Set(valuesOfRuns.flatMap(Object.keys))];
  return [["state", runs.map((run) => run.state.replaceAll("_", " "))], ["update", runs.map((run) => run.update)], ...names.map((name) => /** @type {[string, any[]]} */ ([name, valuesOfRuns.map((each) => each[name])])),
    ["findings", runs.map((run) => run.findings.length)]];
}

/** Return the settings that differ between the runs. @param {any[]} runs @returns {[string, any[]][]} */
function differingSettings(runs) {
  const settingsOfRuns = runs.map((run) => Object.fromEntries(run.settings)), names = [...new Set(settingsOfRuns.flatMap(Object.keys))];
  return names.map((name) => /** @type {[string, any[]]} */ ([name, settingsOfRuns.map((each) => each[name])]))
    .filter(([name, values]) => name !== "run_id" && name !== "pid" && new Set(values).size > 1);
}
