// @ts-check
// Arithmetic: the counts of a run with their formulas, the run as a timeline, one update in slow motion.
import { codePanel } from "../code.js";
import { form, valuesFrom } from "../controls.js";
import { fill, h, debounce } from "../dom.js";
import { RequestError, fetchFields, latestOnly } from "../net.js";
import { DEFAULT_RATE, oneStep } from "./arithmetic/step.js";
import { timeline } from "./arithmetic/timeline.js";

export const title = "Arithmetic";
export const lead = "Five sizes decide every count of a run.";

const SIZES = ["dataset", "batch", "epochs", "accumulate", "processes", "drop_last"];
const GOALS = ["target_updates", "update_ms", "sample_bytes"];
const LABELS = {
  dataset: "Dataset size N", batch: "Batch size B", epochs: "Epochs", accumulate: "Accumulation K", processes: "Processes P",
  drop_last: "Drop the last partial batch", target_updates: "Updates wanted", update_ms: "Milliseconds per update", sample_bytes: "Bytes per example",
};
const GROUPS = [["update", "One update"], ["epoch", "One epoch"], ["run", "The whole run"]];

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const fields = await fetchFields("arithmetic");
  const shownFields = fields.filter(({ name }) => [...SIZES, ...GOALS].includes(name));
  const fetchCounts = latestOnly("arithmetic");
  const position = { epoch: Number(params.get("epoch")) || 0, iteration: Number(params.get("iteration")) || 0 };
  const inputs = form(shownFields, { values: valuesFrom(shownFields, params), labels: LABELS, only: [...SIZES, ...GOALS], onchange: () => updateLater() });
  const goals = h("details", { class: "goals" }, h("summary", {}, "Time, memory, a number of updates"), GOALS.map((name) => inputs.field(name)));
  goals.open = GOALS.some((name) => params.has(name));
  inputs.field("drop_last").after(goals);

  const placeholder = h("p", { class: "panel muted", role: "status" }, "Computing the counts …");
  const numbers = h("div", { class: "tiles numbers-tiles", "aria-live": "off" }, placeholder);
  const notes = h("ul", { class: "notes" });
  const notesPanel = h("details", { class: "panel" }, h("summary", {}, "To notice"), notes);
  const code = codePanel({ file: "counts.py", note: "Needs pip install 'trueloop[train]'. The last lines give the same sizes to a real DataLoader and check that it agrees." });
  const line = timeline({ go: (to) => { Object.assign(position, to); return update(); }, announce, onplay: () => step.pause() });
  const step = oneStep({
    announce,
    lr: Number(params.get("lr")) || DEFAULT_RATE,
    onrate: () => remember(),
    onplay: () => line.pause(), // the next iteration of the run would replace the update that is shown
    next: () => { Object.assign(position, latest.targets.update); return update(); },
  });
  fill(root,
    h("div", { class: "columns" },
      h("form", { class: "panel sizes compact", "aria-label": "Sizes of the run", onsubmit: (/** @type {Event} */ event) => event.preventDefault(), oninput: () => updateLater() }, h("h2", {}, "Sizes"), inputs.element),
      h("div", {}, line.element, numbers, notesPanel)),
    step.element, code.element);
  const panels = [notesPanel, line.element, step.element, code.element];
  for (const panel of panels) panel.hidden = true; // until the first answer

  /** @type {any} */
  let latest = null;
  let unmounted = false;
  let maxMarks = 0;

  async function update() {
    const sizeError = emptySizeError() ?? boundsError(shownFields, inputs.values);
    root.classList.toggle("stale", Boolean(sizeError));
    inputs.refuse(sizeError);
    placeholder.textContent = sizeError ? "The counts appear once the sizes are valid." : "Computing the counts …";
    if (sizeError) return line.pause();
    try {
      maxMarks = line.maxMarks();
      const answer = await fetchCounts({ ...inputs.values, ...position, max_marks: maxMarks });
      if (answer === null || unmounted) return;
      latest = answer;
      Object.assign(position, { epoch: answer.timeline.epoch, iteration: answer.timeline.iteration });
      show(answer);
      remember();
    } catch (error) {
      line.pause();
      if (!(error instanceof RequestError)) throw error;
      placeholder.textContent = "The counts appear once the sizes are valid.";
      root.classList.add("stale");
      inputs.refuse(error.problem);
    }
  }

  function remember() {
    setParams({ ...changedParams(shownFields, inputs.values, position), ...(step.lr !== DEFAULT_RATE && { lr: String(step.lr) }) });
  }

  /** Return the error of a size whose input is empty, or null. */
  function emptySizeError() {
    const name = SIZES.find((size) => typeof inputs.values[size] !== "string" && inputs.field(size).querySelector("input")?.value === "");
    return name ? { what: `${name} is empty.`, fix: "It must be a whole number." } : null;
  }

  /** @param {any} answer */
  function show(answer) {
    for (const panel of panels) panel.hidden = false;
    fill(numbers, ...GROUPS.map(([group, name]) => numberPanel(name, answer.rows.filter((/** @type {any} */ row) => row.group === group))));
    fill(notes, ...answer.notes.map((/** @type {string} */ note) => h("li", {}, note)));
    notesPanel.hidden = !answer.notes.length;
    line.show(answer);
    code.show(answer.code);
    const { dataset, batch, accumulate, processes, drop_last } = inputs.values;
    step.setSizes({ dataset, batch, accumulate, processes, drop_last, epoch: answer.timeline.epoch, update: answer.timeline.window }, answer.too_large);
  }

  const updateLater = debounce(update, 120);
  const onResize = debounce(() => latest && line.maxMarks() !== maxMarks && update(), 200);
  const resizeObserver = new ResizeObserver(onResize);
  resizeObserver.observe(line.element);
  await update();
  if (!params.has("iteration") && !params.has("epoch")) line.autoplay();
  return () => {
    unmounted = true;
    resizeObserver.disconnect();
    line.unmount();
    step.unmount();
  };
}

/** @param {string} name @param {any[]} rows */
function numberPanel(name, rows) {
  return h("section", { class: "panel" }, h("h2", {}, name), h("div", { class: "formulas" }, rows.map((row) => h("details", { class: row.inner ? "inner" : "", dataset: { key: row.key } },
    h("summary", {}, h("span", {}, row.name), h("span", { class: "value" }, row.value), h("span", { class: "formula mono" }, row.formula)), h("p", {}, row.explanation)))));
}

/** Return the address parameters that restore this page.
 * @param {any[]} fields @param {Record<string, any>} values @param {Record<string, number>} position */
function changedParams(fields, values, position) {
  const changedSettings = fields.filter((field) => values[field.name] !== field.default && values[field.name] !== null).map(({ name }) => [name, String(values[name])]);
  return Object.fromEntries([...changedSettings, ...Object.entries(position).filter(([, at]) => at > 0).map(([name, at]) => [name, String(at)])]);
}

/** Return the error of a size that is out of the server's bounds, or null; no request is needed.
 * @param {any[]} fields @param {Record<string, any>} values */
function boundsError(fields, values) {
  for (const { name, kind, lowest, highest, optional } of fields) {
    const value = values[name];
    if (kind === "bool" || (optional && value === null)) continue;
    const notWhole = kind === "int" && !Number.isInteger(value);
    if (!(value >= lowest && value <= highest) || notWhole) {
      return { what: `${name} is ${typeof value === "string" ? `'${value.slice(0, 60)}'` : value}.`, fix: `It must be a ${kind === "int" ? "whole " : ""}number from ${lowest} to ${highest.toLocaleString("en-US")}.` };
    }
  }
  return null;
}
