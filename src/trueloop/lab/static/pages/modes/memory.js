// @ts-check
// The memory that a forward pass keeps, measured for four ways of calling the same model.
import { chart } from "../../chart.js";
import { codePanel } from "../../code.js";
import { form } from "../../controls.js";
import { fill, h } from "../../dom.js";
import { described, newest, Refused } from "../../net.js";

const WAYS = [["--c4", undefined], ["--c1", [8, 4]], ["--c2", [2, 3]], ["--c0", [10, 3, 2, 3]]];

/** @param {{announce: (text: string) => void}} shell */
export function memoryPanel({ announce }) {
  const question = newest("memory");
  const place = h("div", { class: "memory-controls" });
  const bars = h("div", { class: "bars" });
  const words = h("div");
  const result = h("div", { hidden: true });
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const measure = h("button", { type: "button", onclick: ask }, "Measure");
  const code = codePanel({ title: "Show how it is measured", file: "what_a_forward_keeps.py", note: "The program that ran." });
  const curves = chart({ title: "Memory alive after each operation of the forward", x: "operation", y: "MiB", height: 200, tools: false, lines: ["train()", "eval()", "eval(), no_grad", "eval(), inference_mode"].map((label, i) => ({ label, colour: /** @type {string} */ (WAYS[i][0]), dash: /** @type {number[] | undefined} */ (WAYS[i][1]) })) });
  /** @type {Record<string, any>} */
  let values = {};
  fill(result, bars, curves.element, words, code.element);
  const element = h("section", { class: "panel memory", "aria-labelledby": "memory-title", id: "memory" },
    h("h2", { id: "memory-title" }, "With and without a graph"),
    h("p", {}, "Eval mode does not stop PyTorch from building a graph, and a graph keeps every tensor that backward needs. ", h("code", {}, "no_grad"), " and ", h("code", {}, "inference_mode"), " do. Measured on this machine, now:"),
    place, h("div", { class: "row" }, measure), error, result);
  const seen = new IntersectionObserver(([{ isIntersecting }]) => {
    if (!isIntersecting) return;
    seen.disconnect();
    ask();
  });
  described("memory").then((fields) => {
    values = Object.fromEntries(fields.map((field) => [field.name, field.default]));
    fill(place, form(fields, { onchange: (given) => { values = given; }, sliders: { depth: {} } }).element);
    seen.observe(measure);
  }).catch(refused);

  /** @param {unknown} reason */
  function refused(reason) {
    if (!(reason instanceof Refused)) throw reason;
    error.hidden = false;
    error.textContent = reason.message;
  }

  async function ask() {
    measure.disabled = true;
    measure.textContent = "Measuring …";
    try {
      const data = await question(values);
      if (!data) return;
      error.hidden = true;
      result.hidden = false;
      draw(data);
    } catch (reason) {
      refused(reason);
    } finally {
      measure.disabled = false;
      measure.textContent = "Measure again";
    }
  }

  /** @param {any} data */
  function draw(data) {
    const most = Math.max(...data.ways.map((/** @type {any} */ way) => way.peak_b));
    fill(bars, h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "unseen" }, "Memory and time of one forward pass by mode"), h("thead", {}, h("tr", {}, ["way", "kept after the forward", "", "peak", "saved for backward", "time, median", "backward afterwards"].map((text, i) => h("th", { scope: "col", class: [3, 4, 5].includes(i) ? "number" : "" }, text)))), h("tbody", {}, data.ways.map((/** @type {any} */ way, /** @type {number} */ i) => h("tr", {},
      h("th", { scope: "row" }, h("code", {}, way.name)),
      h("td", { class: "bar-place" }, h("span", { class: `bar way-${i}`, style: { width: `${(100 * way.kept_b) / most}%` } })),
      h("td", { class: "number" }, way.kept), h("td", { class: "number" }, way.peak), h("td", { class: "number" }, way.for_backward), h("td", { class: "number" }, way.median),
      h("td", {}, way.refused ? h("details", {}, h("summary", {}, "refused"), h("p", { class: "mono" }, way.refused)) : "possible")))))));
    const most_ = Math.max(...data.ways.map((/** @type {any} */ way) => way.alive_mib.length));
    curves.set(Array.from({ length: most_ }, (_, i) => i + 1), ...data.ways.map((/** @type {any} */ way) => Array.from({ length: most_ }, (_, i) => way.alive_mib[i] ?? null)));
    curves.describe(data.says);
    fill(words, h("p", {}, data.says), h("p", { class: "muted" }, data.how));
    code.show(data.code);
    announce(data.says);
  }

  return { element, unmount() { seen.disconnect(); curves.unmount(); } };
}
