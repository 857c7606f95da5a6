// @ts-check
// The settings: a picture of each dataset, the main controls, and the others in a section to unfold.
import { form, mentions, withSpaces } from "../../controls.js";
import { ask } from "../../net.js";
import { colour, oncePerFrame, equal, h } from "../../dom.js";
import { drawPoint, classColour } from "./shapes.js";

/** @typedef {import("../../controls.js").Field} Field */

const MAIN = ["learning_rate", "batch", "optimizer", "hidden", "activation"];
export const LABELS = { learning_rate: "learning rate", batch: "batch size", accumulation: "batches per update", hidden: "hidden layers",
  clip: "clip the norm at", no_grad: "evaluate under no_grad", keep_best: "keep the best weights", batchnorm: "batch normalisation" };
export const SLIDERS = { learning_rate: { log: true, lowest: 1e-5, highest: 100 }, batch: { lowest: 1, highest: 128 }, noise: { lowest: 0, highest: 0.5, step: 0.01 },
  dropout: { step: 0.05 }, accumulation: { lowest: 1, highest: 16 }, samples: { lowest: 40, highest: 1000, step: 20 } };
const OPTIMIZER_NAMES = /** @type {Record<string, string>} */ ({ sgd: "SGD", momentum: "SGD + momentum", nesterov: "SGD + Nesterov", adam: "Adam", adamw: "AdamW", rmsprop: "RMSprop", adagrad: "Adagrad" });

/** @param {Field[]} fields @param {{config: Record<string, any>, onchange: (name: string, value: any) => void, onrefusedrare: () => void}} options onrefusedrare: shows the less common settings, one of which was refused */
export function knobs(fields, { config, onchange, onrefusedrare }) {
  const datasets = fields.find(({ name }) => name === "dataset")?.choices ?? [];
  const lessCommon = fields.map(({ name }) => name).filter((name) => name !== "dataset" && !MAIN.includes(name));
  const options = { values: config, labels: LABELS, sliders: SLIDERS };
  const main = form(fields, { ...options, only: MAIN, onchange: (values, name) => onchange(name, values[name]) });
  const more = form(fields, { ...options, only: lessCommon, onchange: (values, name) => onchange(name, values[name]) });
  nameOptimizers(main.field("optimizer"));
  /** @type {Record<string, HTMLCanvasElement>} */ const thumbnails = {};
  const datasetGroup = h("fieldset", { class: "thumbs" }, h("legend", { class: "unseen" }, "dataset"), datasets.map((/** @type {string} */ name) => {
    thumbnails[name] = h("canvas", { width: 96, height: 96, "aria-hidden": "true" });
    return h("label", { class: "thumb" },
      h("input", { type: "radio", name: "dataset", value: name, checked: name === config.dataset, onchange: () => onchange("dataset", name) }),
      thumbnails[name], h("span", {}, name));
  }));
  /** @type {Record<string, number[][]>} */ const pointsOfDataset = {};
  const paint = oncePerFrame(() => {
    for (const [name, points] of Object.entries(pointsOfDataset)) {
      const context = /** @type {CanvasRenderingContext2D} */ (thumbnails[name].getContext("2d"));
      const classes = 1 + Math.max(...points.map(([, , label]) => label));
      context.clearRect(0, 0, 96, 96);
      for (const [x, y, label] of points) drawPoint(context, 48 + 43 * x, 48 - 43 * y, classes > 3 ? 4 : 3, { label, classes, fill: classColour(label), edge: colour("--panel") });
    }
  });
  requestPictures().catch(() => {}); // without its picture, the name of a dataset is still shown
  addEventListener("colours", paint);
  const moreSettings = h("div", { class: "rarer" }, more.element);
  const element = h("div", { class: "knobs" }, datasetGroup, main.element);

  /** Request one picture at a time: a browser has six connections, and a request waits until PyTorch has started. */
  async function requestPictures() {
    for (const name of datasets) {
      pointsOfDataset[name] = (await ask("datasets", { dataset: name })).points;
      paint();
    }
  }

  return {
    element,
    /** The less common settings. */ more: moreSettings,
    /** @param {Record<string, any>} newValues */
    set(newValues) {
      main.change(newValues);
      more.change(newValues);
      const radio = datasetGroup.querySelector(`input[value="${newValues.dataset}"]`);
      if (radio) radio.checked = true;
    },
    /** @param {{what: string, fix?: string} | null} error */
    refuse(error) {
      if (error && mentions(error.what, "hidden")) error = { what: "Hidden layers: up to four numbers from 1 to 64." };
      const inLessCommon = error && lessCommon.some((name) => mentions(error.what, name));
      main.refuse(inLessCommon ? null : error);
      more.refuse(inLessCommon ? error : null);
      if (inLessCommon) onrefusedrare();
    },
    unmount() { removeEventListener("colours", paint); },
  };
}

/** Show the usual spelling of each optimizer. @param {HTMLElement} field */
export function nameOptimizers(field) {
  for (const option of field.querySelectorAll("option")) option.textContent = OPTIMIZER_NAMES[option.textContent ?? ""] ?? option.textContent;
}

/** The label of a field. @param {string} name */
export const labelOf = (name) => /** @type {Record<string, string>} */ (LABELS)[name] ?? withSpaces(name);

/** @param {any} value */
function formatValue(value) {
  if (typeof value === "boolean") return value ? "on" : "off";
  return Array.isArray(value) ? value.join(", ") || "none" : value;
}

/** Describe how a setup differs from another. @param {import("./run.js").Setup} setup @param {import("./run.js").Setup} reference */
export function difference(setup, reference) {
  const parts = Object.keys(setup.config).filter((name) => !equal(setup.config[name], reference.config[name]))
    .map((name) => `${labelOf(name)} ${formatValue(setup.config[name])}`);
  const more = setup.bugs.filter((code) => !reference.bugs.includes(code)), less = reference.bugs.filter((code) => !setup.bugs.includes(code));
  if (more.length) parts.push(`with ${more.join(", ")}`);
  if (less.length) parts.push(`without ${less.join(", ")}`);
  if (!equal(setup.points, reference.points)) parts.push(`${setup.points.length || "no"} points added by hand`);
  return parts.join(" · ") || "same settings, earlier run";
}
