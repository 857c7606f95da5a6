// @ts-check
// The settings: dataset pictures, the main controls, and a fold with the others.
import { form, words } from "../../controls.js";
import { ask } from "../../net.js";
import { colour, eachFrame, h } from "../../dom.js";
import { drawPoint, ink } from "./shapes.js";

/** @typedef {import("../../controls.js").Field} Field */

const MAIN = ["learning_rate", "batch", "optimizer", "schedule", "hidden", "activation"];
export const LABELS = { learning_rate: "learning rate", batch: "batch size", accumulation: "batches per update", hidden: "hidden layers",
  clip: "clip the norm at", no_grad: "evaluate under no_grad", keep_best: "keep the best weights", batchnorm: "batch normalisation" };
export const SLIDERS = { learning_rate: { log: true, lowest: 1e-5, highest: 100 }, batch: { lowest: 1, highest: 128 }, noise: { lowest: 0, highest: 0.5, step: 0.01 },
  dropout: { step: 0.05 }, accumulation: { lowest: 1, highest: 16 }, samples: { lowest: 40, highest: 1000, step: 20 } };
export const CHOICES = /** @type {Record<string, string>} */ ({ sgd: "SGD", momentum: "SGD + momentum", nesterov: "SGD + Nesterov", adam: "Adam", adamw: "AdamW", rmsprop: "RMSprop", adagrad: "Adagrad" });

/** @param {Field[]} fields @param {{config: Record<string, any>, onchange: (name: string, value: any) => void}} options */
export function knobs(fields, { config, onchange }) {
  const datasets = fields.find(({ name }) => name === "dataset")?.choices ?? [];
  const rest = fields.map(({ name }) => name).filter((name) => name !== "dataset" && !MAIN.includes(name));
  const options = { values: config, labels: LABELS, sliders: SLIDERS };
  const main = form(fields, { ...options, only: MAIN, onchange: (values, name) => onchange(name, values[name]) });
  const more = form(fields, { ...options, only: rest, onchange: (values, name) => onchange(name, values[name]) });
  for (const option of main.field("optimizer").querySelectorAll("option")) option.textContent = CHOICES[option.textContent ?? ""] ?? option.textContent;
  /** @type {Record<string, HTMLCanvasElement>} */ const drawn = {};
  const group = h("fieldset", { class: "thumbs" }, h("legend", {}, "dataset"), datasets.map((/** @type {string} */ name) => {
    drawn[name] = h("canvas", { width: 96, height: 96, "aria-hidden": "true" });
    return h("label", { class: "thumb" },
      h("input", { type: "radio", name: "dataset", value: name, checked: name === config.dataset, onchange: () => onchange("dataset", name) }),
      drawn[name], h("span", {}, name));
  }));
  /** @type {Record<string, number[][]>} */ const pictures = {};
  const paint = eachFrame(() => {
    for (const [name, points] of Object.entries(pictures)) {
      const context = /** @type {CanvasRenderingContext2D} */ (drawn[name].getContext("2d"));
      const classes = 1 + Math.max(...points.map(([, , label]) => label));
      context.clearRect(0, 0, 96, 96);
      for (const [x, y, label] of points) drawPoint(context, 48 + 43 * x, 48 - 43 * y, classes > 3 ? 4 : 3, { label, classes, fill: ink(label), edge: colour("--panel") });
    }
  });
  for (const name of datasets) ask("datasets", { dataset: name }).then(({ points }) => { pictures[name] = points; paint(); }, () => {}); // without it there is still the name
  addEventListener("colours", paint);
  const moreSettings = h("details", { class: "panel more rarer" }, h("summary", {}, "More settings"), more.element);
  const element = h("div", { class: "knobs" }, group, main.element);

  return {
    element,
    /** Less common settings, as wide as the page. */ more: moreSettings,
    /** @param {Record<string, any>} given */
    set(given) {
      for (const each of [main, more]) {
        each.set(Object.fromEntries(Object.entries(given).filter(([name, value]) => JSON.stringify(each.values[name]) !== JSON.stringify(value))));
      }
      const radio = group.querySelector(`input[value="${given.dataset}"]`);
      if (radio) radio.checked = true;
    },
    /** @param {{what: string, fix?: string} | null} error */
    refuse(error) {
      const inside = error && rest.some((name) => new RegExp(`(^|\\W)${name}\\b`).test(error.what));
      main.refuse(inside ? null : error);
      more.refuse(inside ? error : null);
      if (inside) moreSettings.open = true;
    },
    unmount() { removeEventListener("colours", paint); },
  };
}

/** The label of a field. @param {string} name */
export const labelOf = (name) => /** @type {Record<string, string>} */ (LABELS)[name] ?? words(name);

/** @param {any} value */
function formatValue(value) {
  if (typeof value === "boolean") return value ? "on" : "off";
  return Array.isArray(value) ? value.join(", ") || "none" : value;
}

/** Describe how a setup differs from another. @param {import("./run.js").Setup} of @param {import("./run.js").Setup} from */
export function difference(of, from) {
  const parts = Object.keys(of.config).filter((name) => JSON.stringify(of.config[name]) !== JSON.stringify(from.config[name]))
    .map((name) => `${labelOf(name)} ${formatValue(of.config[name])}`);
  const more = of.bugs.filter((code) => !from.bugs.includes(code)), less = from.bugs.filter((code) => !of.bugs.includes(code));
  if (more.length) parts.push(`with ${more.join(", ")}`);
  if (less.length) parts.push(`without ${less.join(", ")}`);
  if (JSON.stringify(of.points) !== JSON.stringify(from.points)) parts.push(`${of.points.length || "no"} points added by hand`);
  return parts.join(" · ") || "same settings, earlier run";
}
