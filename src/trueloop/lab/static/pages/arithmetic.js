// @ts-check
// Page 1, arithmetic: the counts of a run with their formulas, the run as a timeline, one update in slow motion.
import { codePanel } from "../code.js";
import { fromText, form } from "../controls.js";
import { fill, h, later } from "../dom.js";
import { Refused, described, newest } from "../net.js";
import { RATE, oneStep } from "./arithmetic/step.js";
import { timeline } from "./arithmetic/timeline.js";

export const title = "Arithmetic";
export const lead = [
  "Six sizes determine how many iterations, updates and examples a run has. Every number is shown with its formula.",
  "What to look for: iterations are not updates once gradients accumulate; the last batch and the last window of an epoch are often smaller; and a learning rate schedule counts updates.",
];

const SIZES = ["dataset", "batch", "epochs", "accumulate", "processes", "drop_last"];
const GOALS = ["target_updates", "update_ms", "sample_bytes"];
const LABELS = {
  dataset: "Dataset size N", batch: "Batch size B", epochs: "Epochs", accumulate: "Accumulation K", processes: "Processes P",
  drop_last: "Drop the last partial batch", target_updates: "Updates wanted", update_ms: "Milliseconds per update", sample_bytes: "Bytes per example",
};
const GROUPS = [["update", "One update"], ["epoch", "One epoch"], ["run", "The whole run"]];

/** @param {HTMLElement} root @param {{params: URLSearchParams, setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} page */
export async function mount(root, { params, setParams, announce }) {
  const fields = await described("arithmetic");
  const own = fields.filter(({ name }) => [...SIZES, ...GOALS].includes(name));
  const asking = newest("arithmetic");
  const place = { epoch: Number(params.get("epoch")) || 0, iteration: Number(params.get("iteration")) || 0 };
  const inputs = form(own, { values: from(own, params), labels: LABELS, only: [...SIZES, ...GOALS], onchange: () => soon() });
  const goals = h("details", { class: "goals" }, h("summary", {}, "Time, memory, a number of updates"), GOALS.map((name) => inputs.field(name)));
  goals.open = GOALS.some((name) => params.has(name));
  inputs.field("drop_last").after(goals);

  const awaited = h("p", { class: "panel muted", role: "status" }, "Computing the counts …");
  const numbers = h("div", { class: "tiles numbers-tiles", "aria-live": "off" }, awaited);
  const notes = h("ul", { class: "notes" });
  const notesPanel = h("section", { class: "panel", "aria-labelledby": "arithmetic-notes" }, h("h2", { id: "arithmetic-notes" }, "To notice"), notes);
  const code = codePanel({ file: "counts.py", note: "Needs pip install 'trueloop[train]'. The last lines give the same sizes to a real DataLoader and check that it agrees." });
  const line = timeline({ go: (to) => { Object.assign(place, to); return update(); }, announce });
  const step = oneStep({
    announce,
    lr: Number(params.get("lr")) || RATE,
    onrate: () => remember(),
    next: () => { Object.assign(place, latest.targets.update); return update(); },
  });
  fill(root,
    h("div", { class: "columns" },
      h("form", { class: "panel sizes", "aria-label": "Sizes of the run", onsubmit: (/** @type {Event} */ event) => event.preventDefault(), oninput: () => soon() }, h("h2", {}, "Sizes"), inputs.element),
      h("div", {}, numbers, notesPanel)),
    line.element, step.element, code.element);
  const below = [notesPanel, line.element, step.element, code.element];
  for (const part of below) part.hidden = true; // until there is something to show

  /** @type {any} */
  let latest = null;
  let gone = false;
  let maxMarks = 0;

  async function update() {
    const wrong = empty() ?? outOfBounds(own, inputs.values);
    root.classList.toggle("stale", Boolean(wrong));
    inputs.refuse(wrong);
    awaited.textContent = wrong ? "The counts appear once the sizes are valid." : "Computing the counts …";
    if (wrong) return line.pause();
    try {
      maxMarks = line.maxMarks();
      const answer = await asking({ ...inputs.values, ...place, max_marks: maxMarks });
      if (answer === null || gone) return;
      latest = answer;
      Object.assign(place, { epoch: answer.timeline.epoch, iteration: answer.timeline.iteration });
      show(answer);
      remember();
    } catch (error) {
      line.pause();
      if (!(error instanceof Refused)) throw error;
      awaited.textContent = "The counts appear once the sizes are valid.";
      root.classList.add("stale");
      inputs.refuse(error.words);
    }
  }

  function remember() {
    setParams({ ...changed(own, inputs.values, place), ...(step.lr !== RATE && { lr: String(step.lr) }) });
  }

  /** Return the error of a size whose input is empty, or null. */
  function empty() {
    const name = SIZES.find((size) => typeof inputs.values[size] !== "string" && inputs.field(size).querySelector("input")?.value === "");
    return name ? { what: `${name} is empty.`, fix: "It must be a whole number." } : null;
  }

  /** @param {any} answer */
  function show(answer) {
    for (const part of below) part.hidden = false;
    fill(numbers, ...GROUPS.map(([group, name]) => numbersOf(name, answer.rows.filter((/** @type {any} */ row) => row.group === group))));
    fill(notes, ...answer.notes.map((/** @type {string} */ note) => h("li", {}, note)));
    notesPanel.hidden = !answer.notes.length;
    line.show(answer);
    code.show(answer.code);
    const { dataset, batch, accumulate, processes, drop_last } = inputs.values;
    step.ask({ dataset, batch, accumulate, processes, drop_last, epoch: answer.timeline.epoch, update: answer.timeline.window }, answer.too_large);
  }

  const soon = later(update, 120);
  const resized = later(() => latest && line.maxMarks() !== maxMarks && update(), 200);
  const watching = new ResizeObserver(resized);
  watching.observe(line.element);
  await update();
  return () => {
    gone = true;
    watching.disconnect();
    line.unmount();
    step.unmount();
  };
}

/** @param {string} name @param {any[]} rows */
function numbersOf(name, rows) {
  return h("section", { class: "panel" }, h("h2", {}, name), h("dl", { class: "formulas" }, rows.map((row) => h("div", { class: row.inner ? "inner" : "", dataset: { key: row.key } },
    h("dt", {}, row.name), h("dd", { class: "value" }, row.value), h("dd", { class: "formula mono" }, row.formula), h("dd", { class: "says" }, row.explanation)))));
}

/** Parse the settings in an address; an invalid value is refused like a typed one.
 * @param {any[]} fields @param {URLSearchParams} params */
function from(fields, params) {
  /** @type {Record<string, any>} */
  const values = {};
  for (const field of fields) {
    const text = params.get(field.name);
    if (text !== null) values[field.name] = fromText(field, text);
  }
  return values;
}

/** The address parameters that restore this page.
 * @param {any[]} fields @param {Record<string, any>} values @param {Record<string, number>} place */
function changed(fields, values, place) {
  const said = fields.filter((field) => values[field.name] !== field.default && values[field.name] !== null).map(({ name }) => [name, String(values[name])]);
  return Object.fromEntries([...said, ...Object.entries(place).filter(([, at]) => at > 0).map(([name, at]) => [name, String(at)])]);
}

/** Return the error of a size that is out of the server's bounds, or null, without a request.
 * @param {any[]} fields @param {Record<string, any>} values */
function outOfBounds(fields, values) {
  for (const { name, kind, lowest, highest, optional } of fields) {
    const value = values[name];
    if (kind === "bool" || (optional && value === null)) continue;
    const whole = kind === "int" && !Number.isInteger(value);
    if (!(value >= lowest && value <= highest) || whole) {
      return { what: `${name} is ${typeof value === "string" ? `'${value.slice(0, 60)}'` : value}.`, fix: `It must be a ${kind === "int" ? "whole " : ""}number from ${lowest} to ${highest.toLocaleString("en-US")}.` };
    }
  }
  return null;
}
