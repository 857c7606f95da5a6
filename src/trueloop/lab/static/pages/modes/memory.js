// @ts-check
// The memory that a forward pass keeps, measured for four modes of calling the same model.
import { chart } from "../../chart.js";
import { codePanel } from "../../code.js";
import { form } from "../../controls.js";
import { fill, h } from "../../dom.js";
import { fetchFields, latestOnly, RequestError } from "../../net.js";

const STYLES = [["--c4", undefined], ["--c1", [8, 4]], ["--c2", [2, 3]], ["--c0", [10, 3, 2, 3]]];

/** @param {{announce: (text: string) => void}} options */
export function memoryPanel({ announce }) {
  const fetchMeasurements = latestOnly("memory");
  const controls = h("div", { class: "memory-controls" });
  const bars = h("div", { class: "bars" });
  const explanation = h("div");
  const result = h("div", { hidden: true });
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const measure = h("button", { type: "button", onclick: async () => announce(await measureNow()) }, "Measure");
  const code = codePanel({ title: "Show how it is measured", file: "what_a_forward_keeps.py", note: "The program that ran." });
  const curves = chart({ title: "Memory alive after each operation of the forward", x: "operation", y: "MiB", height: 200, tools: false, lines: ["train()", "eval()", "eval(), no_grad", "eval(), inference_mode"].map((label, i) => ({ label, colour: /** @type {string} */ (STYLES[i][0]), dash: /** @type {number[] | undefined} */ (STYLES[i][1]) })) });
  /** @type {Record<string, any>} */
  let values = {};
  fill(result, bars, h("details", {}, h("summary", {}, "After each operation, and how it is measured"), curves.element, explanation, code.element));
  const element = h("section", { class: "panel memory", "aria-labelledby": "memory-title", id: "memory" },
    h("h2", { id: "memory-title" }, "With and without a graph"),
    h("p", {}, "Eval mode still builds a graph; ", h("code", {}, "no_grad"), " does not."),
    error, result, controls, h("div", { class: "row" }, measure));
  const described = fetchFields("memory").then((fields) => {
    values = Object.fromEntries(fields.map((field) => [field.name, field.default]));
    fill(controls, form(fields, { onchange: (newValues) => { values = newValues; }, sliders: { depth: {} } }).element);
  }).catch(showRefusal);

  /** @param {unknown} reason */
  function showRefusal(reason) {
    if (!(reason instanceof RequestError)) throw reason;
    error.hidden = false;
    error.textContent = reason.message;
  }

  /** @returns {Promise<string>} what was measured, or an empty text. The page also measures on arrival, which must not replace what a screen reader says about the passes of the user. */
  async function measureNow() {
    measure.disabled = true;
    await described;
    measure.textContent = "Measuring …";
    try {
      const data = await fetchMeasurements(values);
      if (!data) return "";
      error.hidden = true;
      result.hidden = false;
      draw(data);
      return data.description;
    } catch (reason) {
      showRefusal(reason);
      return "";
    } finally {
      measure.disabled = false;
      measure.textContent = "Measure again";
    }
  }

  /** @param {any} data */
  function draw(data) {
    const maxPeak_b = Math.max(...data.modes.map((/** @type {any} */ mode) => mode.peak_b));
    fill(bars, h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "unseen" }, "Memory and time of one forward pass by mode"), h("thead", {}, h("tr", {}, ["mode", "kept", "", "peak", "saved for backward", "time, median", "backward"].map((text, i) => h("th", { scope: "col", class: [3, 4, 5].includes(i) ? "number" : "" }, text)))), h("tbody", {}, data.modes.map((/** @type {any} */ mode, /** @type {number} */ i) => h("tr", {},
      h("th", { scope: "row" }, h("code", {}, mode.name)),
      h("td", { class: "bar-place" }, h("span", { class: `bar mode-${i}`, style: { width: `${(100 * mode.kept_b) / maxPeak_b}%` } })),
      h("td", { class: "number" }, mode.kept), h("td", { class: "number" }, mode.peak), h("td", { class: "number" }, mode.for_backward), h("td", { class: "number" }, mode.median),
      h("td", {}, mode.refused ? h("details", {}, h("summary", {}, "refused"), h("p", { class: "mono" }, mode.refused)) : "possible")))))));
    const operationCount = Math.max(...data.modes.map((/** @type {any} */ mode) => mode.alive_mib.length));
    curves.set(Array.from({ length: operationCount }, (_, i) => i + 1), ...data.modes.map((/** @type {any} */ mode) => Array.from({ length: operationCount }, (_, i) => mode.alive_mib[i] ?? null)));
    curves.describe(data.description);
    fill(explanation, h("p", {}, data.description), h("p", { class: "muted" }, data.how));
    code.show(data.code);
  }

  return { element, measure: measureNow, unmount() { curves.unmount(); } };
}
