// @ts-check
// One neuron or weight, enlarged and editable; and all weights as a table, for keyboards and screen readers.
import { fill, h, number } from "../../dom.js";

/** @typedef {import("./network.js").Picked} Picked */

/** @param {{onedit: (parameter: string, index: number[], value: number) => void, enlarge: (into: HTMLCanvasElement, name: string) => any, activation: () => string}} options */
export function weights({ onedit, enlarge, activation }) {
  /** @type {any[]} */ let layers = [];
  /** @type {Record<string, any> | null} */ let values = null;
  /** @type {Picked | null} */ let picked = null;
  /** @type {Picked | null} */ let hovered = null;
  let tabled = 0, painted = false;
  const picture = h("canvas", { class: "neuron", width: 22, height: 22, "aria-hidden": "true" });
  const what = h("p", { class: "what" });
  const input = h("input", { type: "number", step: "any", id: "weight-value", onchange: set });
  const slider = h("input", { type: "range", min: -4, max: 4, step: 0.05, "aria-label": "Value", oninput: () => { input.value = slider.value; set(); } });
  const form = h("form", { class: "weight-form", hidden: true, onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); set(); } },
    h("label", { for: "weight-value" }, "value"), input, h("button", { class: "quiet" }, "Set"), slider);
  const inspector = h("div", { class: "inspector" }, picture, h("div", {}, what, form));
  const which = h("select", { "aria-label": "Which weights", onchange: () => table(true) });
  const body = h("div", { class: "scroll" });
  const details = h("details", { class: "more", ontoggle: () => table(true) }, h("summary", {}, "All weights as a table"), h("div", { class: "row" }, which, h("span", { class: "muted" }, "Pick a number to change it above.")), body);

  /** @param {Picked} at @returns {{parameter: string, index: number[], text: string}} */
  function named(at) {
    const layer = layers[at.layer], head = at.layer === layers.length - 1;
    const to = head ? `the output of class ${at.to}` : `${activation()} neuron ${at.to + 1} of layer ${at.layer + 1}`;
    if (at.kind === "neuron") return { parameter: layer.bias, index: [at.to], text: `Bias of ${to}` };
    const from = at.layer === 0 ? `input ${"xy"[at.from]}` : `neuron ${at.from + 1} of layer ${at.layer}`;
    return { parameter: layer.weight, index: [at.to, at.from], text: `Weight from ${from} to ${to}` };
  }

  /** @param {Picked} at */
  function valueAt(at) {
    const { parameter, index } = named(at);
    return index.reduce((inner, i) => inner?.[i], values?.[parameter]);
  }

  function set() {
    if (!picked || input.value === "" || !Number.isFinite(Number(input.value))) return;
    const { parameter, index } = named(picked);
    onedit(parameter, index, Number(input.value));
  }

  function show() {
    const at = hovered ?? picked;
    picture.hidden = true;
    if (!at || !layers[at.layer]) {
      fill(what, painted && !values ? "The weights of a network this large are not drawn. Point at a neuron to enlarge its map."
        : "Point at a neuron to enlarge its map, or at a line to read its weight; click one to change it.");
      form.hidden = true;
      return;
    }
    const { text } = named(at), value = valueAt(at);
    const plane = at.kind === "neuron" && at.layer < layers.length - 1 ? enlarge(picture, `${at.layer}:${at.to}`) : null;
    picture.hidden = !plane;
    fill(what, text, ": ", h("strong", { class: "mono" }, value === undefined ? "not shown" : number(value, 4)),
      plane && h("span", { class: "muted" }, ` · its map goes from ${number(-plane.scale, 3)} (orange) to ${number(plane.scale, 3)} (blue)`));
    form.hidden = at !== picked || value === undefined;
    if (!form.hidden && document.activeElement !== input && document.activeElement !== slider && typeof value === "number") {
      input.value = String(Number(value.toPrecision(4)));
      slider.value = String(value);
    }
  }

  /** @param {boolean} [now] */
  function table(now = false) {
    if (!details.open || (!now && performance.now() - tabled < 600) || (body.contains(document.activeElement) && !now)) return;
    const name = which.value, layer = layers.findIndex((each) => each.weight === name), own = values?.[name], bias = values?.[layers[layer]?.bias];
    if (!own) return fill(body, h("p", { class: "muted" }, "The weights of a network this large are not shown."));
    tabled = performance.now();
    const cell = (/** @type {any} */ value, /** @type {Picked} */ at) => h("td", { class: "number" }, h("button", { type: "button", class: "quiet cell", "aria-label": `${named(at).text}: ${number(value, 3)}`, onclick: () => pick(at, true) }, number(value, 3)));
    fill(body, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "to"), own[0].map((/** @type {any} */ _, /** @type {number} */ i) => h("th", { scope: "col", class: "number" }, layer === 0 ? "xy"[i] : `from ${i + 1}`)), h("th", { scope: "col", class: "number" }, "bias"))),
      h("tbody", {}, own.map((/** @type {any[]} */ row, /** @type {number} */ to) => h("tr", {}, h("th", { scope: "row" }, layer === layers.length - 1 ? `class ${to}` : `neuron ${to + 1}`),
        row.map((value, from) => cell(value, { kind: "weight", layer, to, from })), cell(bias?.[to], { kind: "neuron", layer, to }))))));
  }

  /** @param {Picked} at @param {boolean} [focus] */
  function pick(at, focus = false) {
    picked = at;
    hovered = null;
    show();
    if (focus || at.kind === "weight") input.focus({ preventScroll: !focus });
  }

  show();
  return {
    inspector, details, pick,
    /** @param {any[]} given */
    begin(given) {
      layers = given;
      values = null;
      painted = false;
      if (picked && !(layers[picked.layer]?.neurons > picked.to && (picked.kind === "neuron" || layers[picked.layer].inputs > picked.from))) picked = null;
      hovered = null;
      const before = which.value;
      fill(which, ...layers.map(({ weight }) => h("option", { value: weight }, weight)));
      if (layers.some(({ weight }) => weight === before)) which.value = before;
      show();
    },
    /** @param {Picked | null} at */
    hover(at) { hovered = at; show(); },
    /** @param {Record<string, any> | null} given */
    paint(given) {
      values = given;
      painted = true;
      show();
      table();
    },
  };
}
