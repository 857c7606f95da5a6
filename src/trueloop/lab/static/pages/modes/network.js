// @ts-check
// One of the two networks, drawn: masked units fade, and the marks of the statistics move along their scales.
import { fill, h, svg } from "../../dom.js";

const WIDTH = 520, ROW = 38, TOP = 26, INPUTS_X = 34, SCALE_X = 96, SCALE_WIDTH = 110, UNITS_X = 300, OUTPUTS_X = 450, RADIUS = 13;
const FAINT = 0.12; // lowest opacity of a unit's colour

/** @param {string} text */
const number = (text) => Number(text.replace("−", "-"));

/** @param {{name: "left" | "right"}} options */
export function network({ name }) {
  /** @type {any} */
  let data = null;
  /** @type {{group: Element, disc: Element, text: Element, edges: Element[], batch: any, running: any}[]} */
  let units = [];
  /** @type {Element[]} */
  let outputs = [];
  let toScale = (/** @type {number} */ _) => 0;
  const element = h("div", { class: "drawn" });

  /** Draw the network before its first pass. @param {any} answer */
  function load(answer) {
    data = answer;
    const count = data.running_means[0]?.length ?? data.right[0].means.length, height = TOP + count * ROW + 14;
    const means = [0, ...[...data.left, ...data.right].flatMap((pass) => pass.means.flatMap((/** @type {any} */ unit) => [number(unit.batch), number(unit.running)]))];
    const low = Math.min(...means), span = Math.max(...means) - low || 1;
    toScale = (value) => SCALE_X + (value - low) / span * SCALE_WIDTH;
    const spread = (/** @type {number} */ i, /** @type {number} */ of) => TOP + (i + 0.5) / of * count * ROW;
    const inputPlaces = data.inputs[0].map((/** @type {string} */ _, /** @type {number} */ i) => spread(i, data.inputs[0].length));
    outputs = [0, 1].map((i) => svg("text", { x: OUTPUTS_X, y: spread(i, 2) + 4, class: "value" }));
    units = Array.from({ length: count }, (_, i) => {
      const y = TOP + (i + 0.5) * ROW, disc = svg("circle", { cx: UNITS_X, cy: y, r: RADIUS }), text = svg("text", { x: UNITS_X + RADIUS + 5, y: y + 4, class: "value" });
      const edges = [0, 1].map((to) => svg("line", { x1: UNITS_X + RADIUS, y1: y, x2: OUTPUTS_X - 32, y2: spread(to, 2) }));
      const batch = svg("path", { class: "batch-mark", d: "M0 -3L-5 -12L5 -12Z" }), running = svg("circle", { class: "running-mark", r: 4.5 });
      const group = svg("g", { class: "unit" }, inputPlaces.map((/** @type {number} */ from) => svg("line", { x1: INPUTS_X + 24, y1: from, x2: SCALE_X - 8, y2: y })), edges,
        svg("line", { class: "scale", x1: SCALE_X, x2: SCALE_X + SCALE_WIDTH, y1: y, y2: y }), svg("line", { x1: SCALE_X + SCALE_WIDTH + 8, x2: UNITS_X - RADIUS, y1: y, y2: y }),
        svg("g", { transform: `translate(0 ${y})` }, batch, running), disc, svg("path", { class: "cross", d: `M${UNITS_X - 5} ${y - 5}l10 10m0 -10l-10 10` }), text);
      return { group, disc, text, edges, batch, running };
    });
    const heading = (/** @type {number} */ x, /** @type {string} */ words) => svg("text", { x, y: 13, class: "heading" }, words);
    fill(element, svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": name === "left" ? "The network in train mode" : "The network in eval mode" },
      heading(INPUTS_X, "inputs"), heading(SCALE_X + SCALE_WIDTH / 2, "BatchNorm: means"), heading(UNITS_X, "Dropout"), heading(OUTPUTS_X, "outputs"),
      units.map(({ group }) => group),
      data.inputs[0].map((/** @type {string} */ text, /** @type {number} */ i) => svg("text", { x: INPUTS_X, y: inputPlaces[i] + 4, class: "value" }, text)), outputs));
  }

  /** Show the first example of a pass. @param {number} pass from 1; 0 = before the first */
  function draw(pass) {
    const recorded = data[name][pass - 1];
    element.hidden = Boolean(pass && !recorded);
    const activations = recorded?.activations[0].map(number) ?? [], most = Math.max(1e-9, ...activations);
    units.forEach(({ group, disc, text, batch, running }, i) => {
      const isMasked = Boolean(recorded) && !recorded.mask[0][i];
      group.classList.toggle("masked", isMasked);
      disc.setAttribute("fill-opacity", String(recorded && !isMasked ? FAINT + (1 - FAINT) * activations[i] / most : FAINT));
      text.textContent = !recorded ? "" : isMasked ? "masked" : recorded.activations[0][i];
      const mean = recorded?.means[i];
      batch.classList.toggle("absent", !mean);
      batch.style.transform = `translateX(${toScale(mean ? number(mean.batch) : 0)}px)`;
      running.style.transform = `translateX(${toScale(mean ? number(mean.running) : 0)}px)`;
      batch.classList.toggle("used", mean?.used === "batch");
      running.classList.toggle("used", mean?.used === "running");
    });
    outputs.forEach((text, i) => { text.textContent = recorded?.outputs[0][i] ?? "–"; });
  }

  return { element, load, draw };
}

/** The legend of both drawings. */
export function networkLegend() {
  const sign = (/** @type {Element} */ mark) => svg("svg", { viewBox: "-8 -14 16 20", width: 16, height: 18, "aria-hidden": "true" }, mark);
  return h("p", { class: "legend-modes muted" },
    h("span", {}, sign(svg("path", { class: "batch-mark used", d: "M0 2L-5 -8L5 -8Z" })), "mean of this batch"),
    h("span", {}, sign(svg("circle", { class: "running-mark used", r: 5, cy: -3 })), "running mean"),
    h("span", {}, "filled: used to normalise"));
}
