// @ts-check
// The autograd graph of a result, drawn at the server's positions, and the bytes that it keeps after each step.
import { fill, h, svg } from "../../dom.js";
import { flows } from "./flow.js";

const BOX = { width: 128, height: 44 }, COLUMN = 156, ROW = 86, MIN_BEND = 9;
const MIN_SCALE = 0.85; // of the drawing; it scrolls where this is too wide

/** @param {{onpick: (step: number) => void}} options onpick: called with the step whose bar was clicked */
export function graphPanel({ onpick }) {
  /** @type {any} */
  let trace = null;
  /** @type {any} */
  let shownGraph = null;
  /** @type {(() => void) | null} stops the values that move along the edges */
  let moving = null;
  let maxBytes = 1;
  const drawing = h("div", { class: "scroll graph", tabindex: "0", role: "region", "aria-label": "The graph, drawn" });
  const detail = h("div", { class: "node-detail", "aria-live": "polite" });
  const facts = h("dl", { class: "numbers" });
  const byteBars = h("div", { class: "life", role: "group", "aria-label": "Bytes that the graph keeps, step by step" });
  const list = h("tbody");
  const element = h("section", { class: "panel graph-panel", "aria-labelledby": "graph-title" },
    h("h2", { id: "graph-title" }, "The graph of the loss"),
    drawing, facts, detail,
    h("h3", {}, "Bytes kept for backward"), byteBars,
    h("p", { class: "muted" }, "■ saved tensor, □ freed"),
    h("details", {}, h("summary", {}, "The graph as a table"), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["node", "of", "saved for backward", "passes its gradient to"].map((text) => h("th", { scope: "col" }, text)))), list))));

  /** @param {any} graph @param {number} aliveCount */
  function showFacts(graph, aliveCount) {
    fill(facts, [["alive", aliveCount], ["nodes", graph?.nodes.length ?? 0], ["bytes saved", graph?.saved_b ?? 0], ["state", !graph ? "not built" : graph.released ? "released" : "ready"]]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  /** @param {any} graph */
  function drawGraph(graph) {
    const width = highest(graph, "column") * COLUMN + BOX.width + 16, height = heightOf(graph);
    const positionOf = (/** @type {any} */ node) => ({ x: BOX.width / 2 + 8 + node.column * COLUMN, y: ROW / 2 - 6 + node.row * ROW });
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, style: { width: "100%", "max-width": `${width}px`, "min-width": `${Math.round(width * MIN_SCALE)}px` }, role: "group", "aria-label": `Graph of ${graph.root}: ${graph.nodes.length} nodes` },
      svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", class: "arrow-head" }))),
      graph.edges.map((/** @type {[number, number]} */ [from, to]) => edge(positionOf(graph.nodes[from]), positionOf(graph.nodes[to]), graph.released)),
      graph.nodes.map((/** @type {any} */ node) => box(node, positionOf(node))), svg("g", { class: "flows" }));
  }

  /** @param {any} node @param {{x: number, y: number}} position */
  function box(node, { x, y }) {
    const describeNode = () => fill(detail, h("p", {}, h("strong", {}, node.name), node.tensor_name && ` · ${node.tensor_name}`, node.description && `: ${node.description}.`), node.saved.length ? h("p", { class: "muted" }, node.saved.map(describeSaved).join(" · ")) : null);
    const name = node.leaf ? node.tensor_name : node.name;
    return svg("g", { class: `node${node.leaf ? " leaf" : ""}`, transform: `translate(${x - BOX.width / 2} ${y - BOX.height / 2})`, tabindex: 0, role: "img", "aria-label": `${node.name}${node.tensor_name ? ` of ${node.tensor_name}` : ""}. ${node.saved.map(describeSaved).join(", ")}`, onpointerenter: describeNode, onfocus: describeNode, onclick: describeNode },
      svg("rect", { width: BOX.width, height: BOX.height, rx: node.leaf ? 23 : 7 }),
      svg("text", { x: BOX.width / 2, y: node.tensor_name ? 19 : 26, class: "name" }, shorten(name)),
      svg("text", { x: BOX.width / 2, y: 35, class: "of" }, node.leaf ? "AccumulateGrad" : node.tensor_name ? `makes ${node.tensor_name}` : ""),
      node.saved.map((/** @type {any} */ saved, /** @type {number} */ i) => svg("rect", { class: `saved${saved.freed ? " freed" : ""}`, x: 10 + i * 17, y: BOX.height + 4, width: 11, height: 11 })),
      node.saved.length && svg("text", { class: "saved-text", x: 10 + node.saved.length * 17, y: BOX.height + 14 }, node.saved.every((/** @type {any} */ each) => each.freed) ? "freed" : `${node.saved.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.size_b, 0)} B`));
  }

  /** @param {any} step */
  function byteBar(step) {
    const state = trace.states[step], graph = state.graph === null ? null : trace.graphs[state.graph];
    const height = Math.round(((graph?.saved_b ?? 0) / maxBytes) * 44);
    return h("button", { type: "button", class: `bar${graph?.released ? " released" : ""}`, "aria-label": `Step ${step + 1}, ${state.operation}: ${graph?.saved_b ?? 0} bytes`, title: `${state.operation}: ${graph?.saved_b ?? 0} bytes`, onclick: () => onpick(step) }, h("i", { style: { height: `${Math.max(2, height)}px` } }));
  }

  /** @param {any} graph */
  function drawNew(graph) {
    shownGraph = graph;
    fill(detail, h("p", { class: "muted" }, graph ? "Point at a node." : ""));
    fill(drawing, graph ? drawGraph(graph) : h("p", { class: "muted" }, "There is no graph before the first forward."));
    drawing.scrollLeft = drawing.scrollWidth; // to the root
    fill(list, graph?.nodes.map((/** @type {any} */ node, /** @type {number} */ i) => h("tr", {}, h("td", {}, h("code", {}, node.name)), h("td", {}, node.tensor_name), h("td", {}, node.saved.map(describeSaved).join("; ")),
      h("td", {}, graph.edges.filter((/** @type {number[]} */ [from]) => from === i).map((/** @type {number[]} */ [, to]) => graph.nodes[to].leaf ? `AccumulateGrad of ${graph.nodes[to].tensor_name}` : graph.nodes[to].name).join(", ")))));
  }

  return {
    element,
    /** @param {any} newTrace */
    load(newTrace) {
      trace = newTrace;
      shownGraph = undefined;
      drawing.style.minHeight = `${MIN_SCALE * Math.max(0, ...trace.graphs.map(heightOf))}px`; // what is below stays where it is
      maxBytes = Math.max(1, ...trace.graphs.map((/** @type {any} */ graph) => graph.saved_b));
      fill(byteBars, trace.states.map((/** @type {any} */ _, /** @type {number} */ i) => byteBar(i)));
    },
    /** @param {number} step @param {Map<string, any>} tensors the tensors after the step, by name */
    draw(step, tensors) {
      const state = trace.states[step], graph = state.graph === null ? null : trace.graphs[state.graph];
      showFacts(graph, state.nodes_alive);
      [...byteBars.children].forEach((bar, i) => (i === step ? bar.setAttribute("aria-current", "step") : bar.removeAttribute("aria-current")));
      const hasChanged = shownGraph !== graph;
      if (hasChanged) drawNew(graph);
      moving?.();
      moving = graph && flows(drawing, graph, state.operation, tensors);
    },
    unmount() { moving?.(); },
  };
}

/** @param {any} graph @param {"row" | "column"} axis */
const highest = (graph, axis) => Math.max(...graph.nodes.map((/** @type {any} */ node) => node[axis]));

/** @param {any} graph */
const heightOf = (graph) => (highest(graph, "row") + 1) * ROW;

/** @param {any} saved */
const describeSaved = (saved) => (saved.freed ? `□ ${saved.name}: freed` : `■ ${saved.name}${saved.tensor_name ? ` = ${saved.tensor_name}` : ""}, ${saved.size_b} bytes`);

/** @param {string} name */
const shorten = (name) => (name.length > 20 ? `${name.slice(0, 19)}…` : name);

/** @param {{x: number, y: number}} from @param {{x: number, y: number}} to @param {boolean} released */
function edge(from, to, released) {
  const start = from.x - BOX.width / 2, end = to.x + BOX.width / 2 + 2, bend = Math.max(MIN_BEND, (start - end) / 2);
  return svg("path", { class: `edge${released ? " released" : ""}`, d: `M${start} ${from.y}C${start - bend} ${from.y} ${end + bend} ${to.y} ${end} ${to.y}`, "marker-end": "url(#arrow)" });
}
