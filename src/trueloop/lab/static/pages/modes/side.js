// @ts-check
// One of the two networks with its statistics, its mask and its outputs, pass by pass.
import { roving } from "../../cells.js";
import { chart } from "../../chart.js";
import { fill, h } from "../../dom.js";
import { network } from "./network.js";

const COLOURS = 10;

/** @param {{name: "left" | "right", title: string, caption: string}} options */
export function side({ name, title, caption }) {
  /** @type {any} */
  let data = null;
  /** @type {ReturnType<typeof chart> | null} */
  let curves = null;
  const body = h("div");
  const calculationText = h("p", { class: "calculation-text mono", "aria-live": "polite" }, "Point at a number to see how it was computed.");
  const history = h("div");
  const drawing = network({ name });
  const element = h("section", { class: `panel side ${name}`, "aria-labelledby": `side-${name}` },
    h("h2", { id: `side-${name}` }, h("code", {}, title)), h("p", { class: "muted" }, caption), drawing.element,
    h("details", { class: "all-numbers" }, h("summary", {}, "All numbers"), calculationText, body, history));
  const refusal = h("div", { hidden: true });
  drawing.element.after(refusal);

  const showCalculation = (/** @type {string} */ text) => { calculationText.textContent = text; };

  /** Return a table cell with a number that shows its calculation when it is pointed at. @param {string} text @param {string} calculation @param {string} [kind] @param {string} [label] */
  function numberCell(text, calculation, kind = "", label = "") {
    return h("td", { class: kind }, h("button", { type: "button", class: "cell", "aria-label": `${label}: ${text}`, onfocus: () => showCalculation(calculation), onclick: () => showCalculation(calculation), onpointerenter: () => showCalculation(calculation) }, text));
  }

  /** @param {any} pass */
  function statistics(pass) {
    const rows = [["mean", pass.means], ["variance", pass.variances]].flatMap(([kind, units]) => {
      const used = units[0].used, moved = units.some((/** @type {any} */ unit) => unit.moved);
      return [
        h("tr", { class: used === "batch" ? "used" : "" }, head(`batch ${kind}`, used === "batch" && "used"), units.map((/** @type {any} */ unit) => h("td", {}, unit.batch))),
        h("tr", { class: used === "running" ? "used" : "" }, head(`running ${kind}`, [used === "running" && "used", moved ? "moved" : "still"].filter(Boolean).join(", "), moved ? "moved" : ""),
          units.map((/** @type {any} */ unit, /** @type {number} */ i) => numberCell(unit.running, unit.calculation, unit.moved ? "moved" : "", `running ${kind} of unit ${i}`))),
      ];
    });
    return table("BatchNorm", "statistics per unit", pass.means.length, rows);
  }

  /** @param {any} pass */
  function normalised(pass) {
    return table("normalised", "output of BatchNorm per example", pass.means.length, pass.normalised.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, h("th", { scope: "row" }, `example ${r}`),
      row.map((text, c) => numberCell(text, pass.norm_calculations[r][c], "", `example ${r}, unit ${c}`)))));
  }

  /** @param {any} pass */
  function masked(pass) {
    const dropped = pass.mask.flat().filter((/** @type {boolean} */ keep) => !keep).length;
    const all = pass.mask.flat().length;
    return table("Dropout", name === "left" ? `${dropped} of ${all} masked (×); the others are multiplied by ${data.scale}` : "nothing is masked or scaled", pass.means.length, pass.activations.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, h("th", { scope: "row" }, `example ${r}`),
      row.map((text, c) => numberCell(pass.mask[r][c] ? text : "×", pass.dropout_calculations[r][c], pass.mask[r][c] ? (name === "left" && text !== "0" ? "scaled" : "") : "masked", `example ${r}, unit ${c}${pass.mask[r][c] ? "" : ", masked"}`)))));
  }

  /** @param {any} pass */
  function outputs(pass) {
    const comparison = pass.same_as_before === null ? null : pass.same_as_before ? h("span", { class: "badge same" }, "= bitwise equal to the previous pass") : h("span", { class: "badge differs" }, `≠ by up to ${pass.max_difference}`);
    return h("div", { class: "block" }, h("h3", {}, "outputs ", comparison), h("div", { class: "scroll" }, h("table", { class: "cells" }, h("tbody", {}, pass.outputs.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, h("th", { scope: "row" }, `example ${r}`), row.map((text) => h("td", {}, text))))))));
  }

  return {
    element,
    /** @param {any} answer */
    load(answer) {
      data = answer;
      drawing.load(data);
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
      const recorded = data[name][pass - 1];
      drawing.draw(pass);
      refusal.hidden = !(pass && name === "left" && data.refused);
      fill(refusal, h("p", { class: "error" }, data.refused), h("p", {}, "One example has no variance. A last batch of one ends a training run this way; drop_last=True avoids it."));
      if (!recorded) fill(body, h("p", { class: "muted nothing" }, "No forward pass yet."));
      else fill(body, statistics(recorded), normalised(recorded), masked(recorded), outputs(recorded));
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

/** @param {string} text @param {string | false} badgeText @param {string} [kind] */
const head = (text, badgeText, kind = "") => h("th", { scope: "row" }, text, badgeText && h("span", { class: `badge ${kind}` }, badgeText));

/** @param {string} title @param {string} caption @param {number} units @param {any[]} rows */
function table(title, caption, units, rows) {
  return h("div", { class: "block" }, h("h3", {}, title, " ", h("span", { class: "muted" }, caption)), h("div", { class: "scroll" }, roving(h("table", { class: "cells units", style: { "min-width": `${96 + 56 * units}px` } },
    h("thead", {}, h("tr", {}, h("td"), Array.from({ length: units }, (_, i) => h("th", { scope: "col" }, `unit ${i}`)))), h("tbody", {}, rows)))));
}
