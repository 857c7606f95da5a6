// @ts-check
// Inputs for the fields of a query, which the server describes (trueloop/core/untrusted_input.py: describe_fields).
import { equal, h } from "./dom.js";

/** @typedef {{name: string, kind: string, help?: string, default?: any, lowest?: number, highest?: number, choices?: any[], optional?: boolean, item?: any, fields?: Field[]}} Field */

/** Replace the underscores of a name: "weight_decay" -> "weight decay". @param {string} name */
export const withSpaces = (name) => name.replaceAll("_", " ");

/** Create a form for the fields of a query.
 * @param {Field[]} fields
 * @param {{values?: Record<string, any>, onchange: (values: Record<string, any>, name: string) => void, labels?: Record<string, string>,
 *          only?: string[], sliders?: Record<string, {log?: boolean, lowest?: number, highest?: number, step?: number}>}} options
 * @returns {{element: HTMLElement, values: Record<string, any>, set: (values: Record<string, any>) => void, change: (values: Record<string, any>) => void, refuse: (problem: {what: string, fix?: string} | null) => void, field: (name: string) => HTMLElement}} */
export function form(fields, { values = {}, onchange, labels = {}, only, sliders = {} }) {
  const formFields = fields.filter(({ name }) => !only || only.includes(name));
  /** @type {Record<string, any>} */
  const state = Object.fromEntries(fields.map((field) => [field.name, values[field.name] ?? field.default ?? null]));
  /** @type {Record<string, {element: HTMLElement, write: (value: any) => void}>} */
  const inputs = {};
  const refusal = h("p", { class: "error", role: "alert", hidden: true });
  for (const field of formFields) {
    const onvalue = (/** @type {any} */ value) => { state[field.name] = value; onchange(state, field.name); };
    inputs[field.name] = control(field, labels[field.name] ?? withSpaces(field.name), onvalue, sliders[field.name]);
    inputs[field.name].write(state[field.name]);
    if (field.help) inputs[field.name].element.title = field.help;
  }
  return {
    element: h("div", { class: "form" }, Object.values(inputs).map(({ element }) => element), refusal),
    values: state,
    set(newValues) {
      for (const [name, value] of Object.entries(newValues)) {
        state[name] = value;
        inputs[name]?.write(value);
      }
    },
    change(newValues) { // an unchanged input keeps its text, which the user may be typing
      this.set(Object.fromEntries(Object.entries(newValues).filter(([name, value]) => !equal(state[name], value))));
    },
    refuse(error) {
      refusal.hidden = !error;
      refusal.textContent = error ? [error.what, error.fix].filter(Boolean).join(" ") : "";
      const namedInputs = Object.entries(inputs).filter(([name]) => error && mentions(error.what, name)).map(([, { element }]) => element);
      for (const { element } of Object.values(inputs)) {
        element.classList.toggle("refused", namedInputs.includes(element));
        element.querySelector("input, select")?.setAttribute("aria-invalid", String(namedInputs.includes(element)));
      }
      (namedInputs[0] ?? refusal.parentElement)?.append(refusal); // next to the field that the error names
    },
    field: (name) => inputs[name].element,
  };
}

/** Parse the values that an address has for fields. @param {Field[]} fields @param {URLSearchParams} params @returns {Record<string, any>} */
export function valuesFrom(fields, params) {
  return Object.fromEntries(fields.filter(({ name }) => params.has(name)).map((field) => [field.name, fromText(field, params.get(field.name) ?? "")]));
}

/** Return true if an error names a setting. @param {string | undefined} error @param {string} name */
export const mentions = (error, name) => new RegExp(`(^|\\W)${name}\\b`).test(error ?? "");

/** Parse a field's value from an address; a text that is not a number is returned unchanged, so that the server's error quotes it.
 * @param {Field} field @param {string} text @returns {any} */
export function fromText({ kind }, text) {
  if (kind === "bool") return text === "true" || (text === "false" ? false : text);
  if (kind !== "int" && kind !== "float") return text;
  return text.trim() === "" || !Number.isFinite(Number(text)) ? text : Number(text);
}

let lastId = 0;

/** @param {Field} field @param {string} label @param {(value: any) => void} onvalue @param {any} slider */
function control(field, label, onvalue, slider) {
  const id = `field-${++lastId}`;
  const help = field.help ? h("small", { class: "muted", id: `${id}-help` }, field.help) : null;
  const helpAttributes = help ? { "aria-describedby": `${id}-help` } : {};
  if (field.kind === "bool") {
    const box = h("input", { type: "checkbox", id, ...helpAttributes, onchange: () => onvalue(box.checked) });
    return { element: h("div", { class: "field check" }, box, h("label", { for: id }, label), help), write: (/** @type {any} */ value) => { box.checked = Boolean(value); } };
  }
  if (field.kind === "choice") {
    const choices = field.choices ?? [];
    const select = h("select", { id, ...helpAttributes, onchange: () => onvalue(choices[select.selectedIndex]) }, choices.map((choice) => h("option", {}, withSpaces(String(choice)))));
    return { element: h("div", { class: "field" }, h("label", { for: id }, label), select, help), write: (/** @type {any} */ value) => { select.selectedIndex = choices.indexOf(value); } };
  }
  if (slider && (field.kind === "int" || field.kind === "float")) return range(field, label, id, help, onvalue, slider);
  const numeric = field.kind === "int" || field.kind === "float";
  const unparsed = h("p", { class: "unparsed", role: "alert", hidden: true }, field.kind === "list" ? "Numbers with commas between them." : "A number.");
  const input = h("input", {
    id, ...helpAttributes, type: numeric ? "number" : "text", autocomplete: "off",
    ...(numeric ? { min: field.lowest, max: field.highest, step: field.kind === "int" ? 1 : "any", inputmode: "decimal" } : field.kind === "text" ? { maxlength: field.highest } : {}),
    oninput: () => { const value = parseValue(field, input.value); if (value !== undefined) onvalue(value); },
    onchange: () => { unparsed.hidden = parseValue(field, input.value) !== undefined; },
  });
  return {
    element: h("div", { class: "field" }, h("label", { for: id }, label), input, unparsed, help),
    write: (/** @type {any} */ value) => { input.value = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value); },
  };
}

/** @param {Field} field @param {string} text @returns {any} undefined if the text cannot be parsed yet */
function parseValue(field, text) {
  if (field.optional && text.trim() === "") return null;
  if (field.kind === "int" || field.kind === "float") return text.trim() === "" || Number.isNaN(Number(text)) ? undefined : Number(text);
  if (field.kind === "list") {
    const items = text.split(/[\s,]+/).filter(Boolean).map((item) => parseValue(field.item, item));
    return items.includes(undefined) ? undefined : items;
  }
  return text;
}

/** @param {Field} field @param {string} label @param {string} id @param {any} help @param {(value: any) => void} onvalue @param {any} slider */
function range(field, label, id, help, onvalue, { log = false, lowest = field.lowest ?? 0, highest = field.highest ?? 1, step }) {
  const toPosition = (/** @type {number} */ value) => (log ? Math.log10(value) : value);
  const fromPosition = (/** @type {number} */ value) => {
    const raw = log ? Number((10 ** value).toPrecision(2)) : value;
    return field.kind === "int" ? Math.round(raw) : raw;
  };
  const valueText = h("output", { for: id, class: "mono" });
  const input = h("input", {
    id, type: "range", min: toPosition(lowest), max: toPosition(highest), step: log ? 0.05 : step ?? (field.kind === "int" ? 1 : "any"),
    ...(help ? { "aria-describedby": `${id}-help` } : {}),
    oninput: () => { const value = fromPosition(Number(input.value)); showValue(value); onvalue(value); },
  });
  const showValue = (/** @type {number} */ value) => { valueText.textContent = String(value); input.setAttribute("aria-valuetext", String(value)); };
  return {
    element: h("div", { class: "field slider" }, h("label", { for: id }, label), valueText, input, help),
    write: (/** @type {any} */ value) => { input.value = String(toPosition(Number(value))); showValue(Number(value)); },
  };
}
