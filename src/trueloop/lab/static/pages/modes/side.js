// @ts-check
// One of the two networks: its statistics, its mask, its outputs, pass by pass.
import { roving } from "../../cells.js";
import { chart } from "../../chart.js";
import { fill, h } from "../../dom.js";

const COLOURS = 10;

/** @param {{name: "left" | "right", title: string, words: string}} given */
export function side({ name, title, words }) {
  /** @type {any} */
  let data = null;
  /** @type {ReturnType<typeof chart> | null} */
  let curves = null;
  const body = h("div");
  const sum = h("p", { class: "sum-small mono", "aria-live": "polite" }, "Point at a number to see how it was computed.");
  const history = h("div");
  const element = h("section", { class: `panel side ${name}`, "aria-labelledby": `side-${name}` },
    h("h2", { id: `side-${name}` }, h("code", {}, title)), h("p", { class: "muted" }, words), sum, body, history);

  const tell = (/** @type {string} */ text) => { sum.textContent = text; };

  /** A number that shows its calculation. @param {string} text @param {string} how @param {string} [kind] @param {string} [label] */
  function number(text, how, kind = "", label = "") {
    return h("td", { class: kind }, h("button", { type: "button", class: "cell", "aria-label": `${label}: ${text}`, onfocus: () => tell(how), onclick: () => tell(how), onpointerenter: () => tell(how) }, text));
  }

  /** @param {any} passed */
  function statistics(passed) {
    const rows = [["mean", passed.means], ["variance", passed.variances]].flatMap(([kind, units]) => {
      const used = units[0].used, moved = units.some((/** @type {any} */ unit) => unit.moved);
      return [
        h("tr", { class: used === "batch" ? "used" : "" }, head(`batch ${kind}`, used === "batch" && "used"), units.map((/** @type {any} */ unit) => h("td", {}, unit.batch))),
        h("tr", { class: used === "running" ? "used" : "" }, head(`running ${kind}`, [used === "running" && "used", moved ? "moved" : "still"].filter(Boolean).join(", "), moved ? "moved" : ""),
          units.map((/** @type {any} */ unit, /** @type {number} */ i) => number(unit.running, unit.sum, unit.moved ? "moved" : "", `running ${kind} of unit ${i}`))),
      ];
    });
    return table("BatchNorm", "statistics per unit", passed.means.length, rows);
  }

  /** @param {any} passed */
  function normalised(passed) {
    return table("normalised", "output of BatchNorm per example", passed.means.length, passed.normalised.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, h("th", { scope: "row" }, `example ${r}`),
      row.map((text, c) => number(text, passed.norm_sums[r][c], "", `example ${r}, unit ${c}`)))));
  }

  /** @param {any} passed */
  function masked(passed) {
    const dropped = passed.mask.flat().filter((/** @type {boolean} */ keep) => !keep).length;
    const all = passed.mask.flat().length;
    return table("Dropout", name === "left" ? `${dropped} of ${all} masked (×); the others are multiplied by ${data.scale}` : "nothing is masked or scaled", passed.means.length, passed.activations.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, h("th", { scope: "row" }, `example ${r}`),
      row.map((text, c) => number(passed.mask[r][c] ? text : "×", passed.dropout_sums[r][c], passed.mask[r][c] ? (name === "left" && text !== "0" ? "scaled" : "") : "masked", `example ${r}, unit ${c}${passed.mask[r][c] ? "" : ", masked"}`)))));
  }

  /** @param {any} passed */
  function outputs(passed) {
    const verdict = passed.same_as_before === null ? null : passed.same_as_before ? h("span", { class: "badge same" }, "= bitwise equal to the previous pass") : h("span", { class: "badge differs" }, `≠ by up to ${passed.max_difference}`);
    return h("div", { class: "block" }, h("h3", {}, "outputs ", verdict), h("div", { class: "scroll" }, h("table", { class: "cells" }, h("tbody", {}, passed.outputs.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, h("th", { scope: "row" }, `example ${r}`), row.map((text) => h("td", {}, text))))))));
  }

  return {
    element,
    /** @param {any} answer */
    load(answer) {
      data = answer;
      curves?.unmount();
      curves = null;
      fill(history);
      if (name === "left" && data.running_means.length) {
        const units = data.running_means[0].map((/** @type {number} */ _, /** @type {number} */ i) => ({ label: `unit ${i}`, colour: `--c${i % COLOURS}`, points: true }));
        curves = chart({ title: "Running means, pass by pass", lines: units, x: "pass", height: 170, tools: false });
        fill(history, curves.element);
      }
    },
    /** @param {number} pass */
    draw(pass) {
      const passed = data[name][pass - 1];
      if (pass && name === "left" && data.refused) fill(body, h("p", { class: "error" }, data.refused), h("p", {}, "The variance of one example is 0, so PyTorch refuses to normalise it. A last batch of one ends a training run this way; drop_last=True or another batch size avoids it."));
      else if (!passed) fill(body, h("p", { class: "muted nothing" }, "No forward pass yet."));
      else fill(body, statistics(passed), normalised(passed), masked(passed), outputs(passed));
      if (curves) {
        const means = [data.running_means[0].map(() => 0), ...data.running_means];
        curves.set(means.map((_, i) => i), ...data.running_means[0].map((/** @type {number} */ _, /** @type {number} */ unit) => means.map((row, i) => (i <= pass ? row[unit] : null))));
        history.hidden = !pass;
        curves.describe(`The running mean of each unit after ${pass} passes: it approaches the mean of the batch.`);
      }
    },
    unmount() { curves?.unmount(); },
  };
}

/** @param {string} text @param {string | false} said @param {string} [kind] */
const head = (text, said, kind = "") => h("th", { scope: "row" }, text, said && h("span", { class: `badge ${kind}` }, said));

/** @param {string} title @param {string} words @param {number} units @param {any[]} rows */
function table(title, words, units, rows) {
  return h("div", { class: "block" }, h("h3", {}, title, " ", h("span", { class: "muted" }, words)), h("div", { class: "scroll" }, roving(h("table", { class: "cells units", style: { "min-width": `${96 + 56 * units}px` } },
    h("thead", {}, h("tr", {}, h("td"), Array.from({ length: units }, (_, i) => h("th", { scope: "col" }, `unit ${i}`)))), h("tbody", {}, rows)))));
}
