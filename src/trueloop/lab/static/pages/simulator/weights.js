// @ts-check
// The chosen neuron or weight, which can be edited, and a table of all weights for keyboards and screen readers.
import { fill, h, formatNumber } from "../../dom.js";

/** @typedef {import("./network.js").Picked} Picked */

/** @param {{onedit: (parameter: string, index: number[], value: number) => void, isTableVisible: () => boolean, activation: () => string}} options */
export function weights({ onedit, isTableVisible, activation }) {
  /** @type {any[]} */ let layers = [];
  /** @type {Record<string, any> | null} */ let parameters = null;
  /** @type {Picked | null} */ let picked = null;
  /** @type {Picked | null} */ let hovered = null;
  let tableDrawnAt_ms = 0, painted = false;
  const description = h("p", { class: "what" });
  const input = h("input", { type: "number", step: "any", id: "weight-value", onchange: applyEdit });
  const slider = h("input", { type: "range", min: -4, max: 4, step: 0.05, "aria-label": "Value", oninput: () => { input.value = slider.value; applyEdit(); } });
  const form = h("form", { class: "weight-form", hidden: true, onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); applyEdit(); } },
    h("label", { for: "weight-value" }, "value"), input, h("button", { class: "quiet" }, "Set"), slider);
  const inspector = h("div", { class: "inspector" }, description, form);
  const layerSelect = h("select", { "aria-label": "Which weights", onchange: () => drawTable(true) });
  const tableContainer = h("div", { class: "scroll" });
  const table = h("div", {}, h("div", { class: "row" }, layerSelect, h("span", { class: "muted" }, "Pick a number to change it.")), tableContainer);

  /** @param {Picked} target @returns {{parameter: string, index: number[], text: string}} */
  function describeTarget(target) {
    const layer = layers[target.layer], head = target.layer === layers.length - 1;
    const to = head ? `the output of class ${target.to}` : `${activation()} neuron ${target.to + 1} of layer ${target.layer + 1}`;
    if (target.kind === "neuron") return { parameter: layer.bias, index: [target.to], text: `Bias of ${to}` };
    const from = target.layer === 0 ? `input ${"xy"[target.from]}` : `neuron ${target.from + 1} of layer ${target.layer}`;
    return { parameter: layer.weight, index: [target.to, target.from], text: `Weight from ${from} to ${to}` };
  }

  /** @param {Picked} target */
  function valueAt(target) {
    const { parameter, index } = describeTarget(target);
    return index.reduce((inner, i) => inner?.[i], parameters?.[parameter]);
  }

  function applyEdit() {
    if (!picked || input.value === "" || !Number.isFinite(Number(input.value))) return;
    const { parameter, index } = describeTarget(picked);
    onedit(parameter, index, Number(input.value));
  }

  function showTarget() {
    const target = hovered ?? picked;
    if (!target || !layers[target.layer]) {
      fill(description, h("span", { class: "muted" }, painted && !parameters ? "The weights of a network this large are not drawn." : "Point at units and weights."));
      form.hidden = true;
      return;
    }
    const { text } = describeTarget(target), value = valueAt(target);
    fill(description, text, ": ", h("strong", { class: "mono" }, value === undefined ? "not shown" : formatNumber(value, 4)));
    form.hidden = target !== picked || value === undefined;
    if (!form.hidden && document.activeElement !== input && document.activeElement !== slider && typeof value === "number") {
      input.value = String(Number(value.toPrecision(4)));
      slider.value = String(value);
    }
  }

  /** @param {boolean} [force] */
  function drawTable(force = false) {
    if (!isTableVisible() || (!force && performance.now() - tableDrawnAt_ms < 600) || (tableContainer.contains(document.activeElement) && !force)) return;
    const name = layerSelect.value, layer = layers.findIndex((each) => each.weight === name), rows = parameters?.[name], bias = parameters?.[layers[layer]?.bias];
    if (!rows) return fill(tableContainer, h("p", { class: "muted" }, "The weights of a network this large are not shown."));
    tableDrawnAt_ms = performance.now();
    const cell = (/** @type {any} */ value, /** @type {Picked} */ at) => h("td", { class: "number" }, h("button", { type: "button", class: "quiet cell", "aria-label": `${describeTarget(at).text}: ${formatNumber(value, 3)}`, onclick: () => pick(at, true) }, formatNumber(value, 3)));
    fill(tableContainer, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "to"), rows[0].map((/** @type {any} */ _, /** @type {number} */ i) => h("th", { scope: "col", class: "number" }, layer === 0 ? "xy"[i] : `from ${i + 1}`)), h("th", { scope: "col", class: "number" }, "bias"))),
      h("tbody", {}, rows.map((/** @type {any[]} */ row, /** @type {number} */ to) => h("tr", {}, h("th", { scope: "row" }, layer === layers.length - 1 ? `class ${to}` : `neuron ${to + 1}`),
        row.map((value, from) => cell(value, { kind: "weight", layer, to, from })), cell(bias?.[to], { kind: "neuron", layer, to }))))));
  }

  /** @param {Picked} at @param {boolean} [focus] */
  function pick(at, focus = false) {
    picked = at;
    hovered = null;
    showTarget();
    if (focus || at.kind === "weight") input.focus({ preventScroll: !focus });
  }

  showTarget();
  return {
    inspector, table, pick, showTable: () => drawTable(true),
    /** @param {any[]} newLayers */
    begin(newLayers) {
      layers = newLayers;
      parameters = null;
      painted = false;
      if (picked && !(layers[picked.layer]?.neurons > picked.to && (picked.kind === "neuron" || layers[picked.layer].inputs > picked.from))) picked = null;
      hovered = null;
      const chosenName = layerSelect.value;
      fill(layerSelect, ...layers.map(({ weight }) => h("option", { value: weight }, weight)));
      if (layers.some(({ weight }) => weight === chosenName)) layerSelect.value = chosenName;
      showTarget();
    },
    /** @param {Picked | null} at */
    hover(at) { hovered = at; showTarget(); },
    /** @param {Record<string, any> | null} newParameters */
    paint(newParameters) {
      parameters = newParameters;
      painted = true;
      showTarget();
      drawTable();
    },
  };
}
