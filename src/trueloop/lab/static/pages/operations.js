// @ts-check
// The six operations: the server has traced a run line by line; the page steps through it forwards and backwards.
import { codePanel } from "../code.js";
import { form, valuesFrom } from "../controls.js";
import { fill, h, debounce } from "../dom.js";
import { fetchFields, latestOnly, RequestError } from "../net.js";
import { player, prefersReducedMotion } from "../player.js";
import { graphPanel } from "./operations/graph.js";
import { tensorCard } from "./operations/tensor.js";

export const title = "The six operations";
export const lead = "Values flow forward, gradients flow back.";

const SIX = ["forward", "loss", "backward", "update", "zero grad", "schedule"];
/** The kind of result of each operation, which has a colour: values, gradients, updates. @type {Record<string, string>} */
const KIND_OF_OPERATION = { forward: "data", loss: "data", batch: "data", backward: "gradient", update: "update", "zero grad": "gradient", schedule: "update", "second backward": "gradient" };
/** @type {Record<string, string>} */
const SIGN = { forward: "→", loss: "◎", backward: "←", update: "Δ", "zero grad": "∅", schedule: "↘" };
const LABELS = { lr: "learning rate", gamma: "schedule's gamma", hidden: "hidden units" };
const GROUPS = [["data", "Data"], ["rate", "Learning rate"], ["parameter", "Parameters"], ["result", "Results of forward"]];

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  /** @type {any} */
  let trace = null;
  let step = Number(params.get("step")) || 0;
  let hasPlayed = false;
  let requestedOperation = ""; // an operation that was requested before the trace arrived
  const fields = await fetchFields("operations");
  const fetchTrace = latestOnly("operations");

  const stations = SIX.map((name) => h("button", { type: "button", class: `station of-${KIND_OF_OPERATION[name]}`, onclick: () => jump(name) },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGN[name]), name));
  const explanation = h("p", { class: "says" }, "Computing …");
  const position = h("span", { class: "muted" });
  const currentLine = h("code", { class: "line-now" });
  const calculation = h("p", { class: "calculation", "aria-live": "polite" });
  const tensors = h("div", { class: "tensors" });
  const torchError = h("blockquote", { class: "error torch-words", hidden: true });
  const graph = graphPanel({ onpick: (at) => stepPlayer.go(at) });
  const code = codePanel({ file: "six_operations.py", open: innerWidth > 860, note: "The program that ran." });
  const stepPlayer = player({ count: () => trace?.states.length ?? 1, ready: () => Boolean(trace), show: draw, label: "Operations", perStep_ms: 1400 });
  const controls = form(fields, {
    values: valuesFrom(fields, params), labels: LABELS, sliders: { lr: { log: true, lowest: 0.001, highest: 3 }, gamma: { step: 0.05 }, updates: {}, hidden: {} },
    onchange: debounce((_, name) => { if (name === "example") step = 0; load(); }),
  });
  const settings = h("details", { class: "panel settings", open: innerWidth > 860 }, h("summary", {}, "What is trained, and how"), controls.element);

  fill(root,
    h("section", { class: "panel", "aria-label": "The six operations" },
      h("div", { class: "stations" }, stations),
      stepPlayer.element,
      h("div", { class: "now" }, h("div", { class: "row" }, currentLine, position), explanation, torchError)),
    h("div", { class: "side-by-side" },
      h("section", { class: "panel", "aria-label": "Tensors" }, h("h2", { class: "unseen" }, "Tensors"), calculation, tensors),
      graph.element),
    h("div", { class: "side-by-side" }, settings, code.element));

  function hideUnusedSettings() {
    controls.field("hidden").hidden = controls.field("seed").hidden = controls.values.example === "worked_example";
  }

  async function load() {
    hideUnusedSettings();
    try {
      const answer = await fetchTrace(controls.values);
      if (!answer) return;
      controls.refuse(null);
      trace = answer;
      graph.load(trace);
      stepPlayer.go(step);
      if (requestedOperation) jump(requestedOperation);
      else if (!hasPlayed && !params.has("step") && !prefersReducedMotion()) stepPlayer.start();
      requestedOperation = "";
      hasPlayed = true;
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      controls.refuse(error.problem);
      if (!trace) explanation.textContent = "";
    }
  }

  /** Go to an operation of the current update, or of the first one. @param {string} name */
  function jump(name) {
    if (!trace) {
      requestedOperation = name;
      return;
    }
    const update = Math.max(1, trace.states[step].update);
    const at = trace.states.findIndex((/** @type {any} */ state) => state.operation === name && state.update === update);
    stepPlayer.pause();
    if (at >= 0) stepPlayer.go(at);
  }

  /** @param {number} at */
  function draw(at) {
    if (!trace) return;
    step = at;
    const state = trace.states[at];
    const kind = KIND_OF_OPERATION[state.operation] ?? "data";
    stations.forEach((station, i) => {
      if (SIX[i] === state.operation) station.setAttribute("aria-current", "step");
      else station.removeAttribute("aria-current");
    });
    currentLine.textContent = state.code;
    currentLine.className = `line-now of-${kind}`;
    position.textContent = state.update ? `line ${state.line} · update ${state.update} of ${controls.values.updates}` : `line ${state.line} · before training`;
    explanation.textContent = state.description;
    torchError.hidden = state.operation !== "second backward";
    torchError.textContent = trace.refused;
    graph.draw(at, drawTensors(at, kind));
    code.show(trace.code, { marked: [state.line], mark: `of-${kind}` });
    scrollCode();
    announce(`${state.operation}: ${state.description}`);
    setParams({ ...Object.fromEntries(Object.entries(controls.values).map(([name, value]) => [name, String(value)])), step: String(at) });
  }

  /** Draw the tensors after a step, and return them by name. @param {number} at @param {string} kind @returns {Map<string, any>} */
  function drawTensors(at, kind) {
    const tensorsByName = new Map();
    for (const state of trace.states.slice(0, at + 1)) {
      for (const name of state.removed) tensorsByName.delete(name);
      for (const tensor of state.changes) tensorsByName.set(tensor.name, { ...tensor, by: state });
    }
    const state = trace.states[at];
    const changed = new Set(state.changes.map((/** @type {any} */ tensor) => tensor.name));
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.cell;
    fill(tensors, GROUPS.map(([role, heading]) => {
      const cards = trace.groups.filter((/** @type {any} */ card) => card.role === role && tensorsByName.has(card.name));
      return cards.length > 0 && h("section", { class: `group group-${role}` }, h("h3", {}, heading), h("div", { class: "cards" },
        cards.map((/** @type {any} */ card) => tensorCard(card, { tensors: tensorsByName, changed, kind, first: at === 0, onpoint: showCalculation }))));
    }));
    if (focused) /** @type {HTMLElement | null} */ (tensors.querySelector(`[data-cell="${CSS.escape(focused)}"]`))?.focus({ preventScroll: true });
    const firstComputed = state.changes.find((/** @type {any} */ tensor) => tensor.calculations.length);
    if (!focused) showCalculation(firstComputed, firstComputed && [0, 0]);
    return tensorsByName;
  }

  /** Show the calculation of a number, and highlight the numbers that it uses. @param {any} tensor @param {[number, number] | undefined} cell */
  function showCalculation(tensor, cell) {
    const text = tensor && cell && tensor.calculations[cell[0]]?.[cell[1]];
    fill(calculation, text
      ? [h("span", { class: "rule muted" }, `${tensor.name}${formatIndex(tensor, cell)} ← ${tensor.rule}`), h("span", { class: "numbers" }, text)]
      : h("span", { class: "rule muted" }, tensor ? `${tensor.name} is an input.` : "This step computed no numbers."));
    for (const highlighted of tensors.querySelectorAll(".source, .explained")) highlighted.classList.remove("source", "explained");
    if (!text) return;
    cellsOf(tensor.name, cell[0], cell[1]).forEach((each) => each.classList.add("explained"));
    /** @type {Record<string, number | null>} */
    const indexOfAxis = { row: cell[0], column: cell[1], "": null };
    for (const read of tensor.reads) cellsOf(read.name, indexOfAxis[read.row], indexOfAxis[read.column]).forEach((each) => each.classList.add("source"));
  }

  /** Return the table cells of a tensor; null = all rows, all columns. @param {string} name @param {number | null} row @param {number | null} column */
  function cellsOf(name, row, column) {
    const table = tensors.querySelector(`[data-name="${CSS.escape(name)}"] table.cells`);
    const rows = [...(table?.querySelectorAll("tr") ?? [])].filter((_, i) => row === null || i === row);
    return rows.flatMap((each) => [...each.children].filter((_, i) => column === null || i === column));
  }

  function scrollCode() {
    const pre = code.element.querySelector("pre"), at = pre?.querySelector(`[data-line="${trace.states[step].line}"]`);
    if (pre && at) pre.scrollTop = at.offsetTop - pre.offsetTop - pre.clientHeight / 2;
  }

  await load();
  return () => { stepPlayer.unmount(); graph.unmount(); };
}

/** @param {any} tensor @param {[number, number]} cell */
function formatIndex(tensor, [row, column]) {
  return tensor.shape.length === 2 ? `[${row}, ${column}]` : tensor.shape.length === 1 ? `[${column}]` : "";
}
