// @ts-check
// Parts of the pipeline's picture: the dataset, the stations of a rank, the classes of a batch, a padded batch.
import { h } from "../../dom.js";

export const CLASSES = ["A", "B", "C"];
/** Phases of a batch: the sampler yields its indices, its examples are read, they are collated. */
export const SAMPLE = 0, READ = 1, COLLATE = 2, PHASES = 3;
export const EPOCH_OVER = -1; // the phase after the last batch

/** @param {any[]} examples @param {{drawn: number[], now: number[], over: boolean}} state */
export function dataset(examples, { drawn, now, over }) {
  const counts = new Map();
  for (const number of drawn) counts.set(number, (counts.get(number) ?? 0) + 1);
  const current = new Set(now);
  const longest = Math.max(...examples.map(({ length }) => length ?? 0));
  return examples.map(({ label, length }, number) => {
    const count = counts.get(number) ?? 0;
    const state = current.has(number) ? "now" : count > 1 ? "twice" : count ? "drawn" : over ? "never" : "";
    return h("span", { class: `example class-${label} ${state}`, title: `#${number}, class ${CLASSES[label]}${length ? `, ${length} tokens` : ""}${count > 1 ? `, drawn ${count} times` : ""}` },
      h("b", {}, CLASSES[label]), String(number), count > 1 && h("sup", {}, `×${count}`),
      longest > 0 && h("i", { class: "length", style: { width: `${(100 * (length ?? 0)) / longest}%` } }));
  });
}

/** Draw the stations of one rank: order of the sampler, reading, collate.
 * @param {any} rank @param {{place: number, several: boolean, batchIndex: number, phase: number, examples: any[]}} position */
export function lane(rank, { place, several, batchIndex, phase, examples }) {
  const batch = phase === EPOCH_OVER ? null : rank.batches[batchIndex];
  const earlierCounts = new Map();
  rank.batches.slice(0, phase === EPOCH_OVER ? rank.batches.length : batchIndex).forEach((/** @type {any} */ { indices }) => indices.forEach((/** @type {number} */ number) => earlierCounts.set(number, (earlierCounts.get(number) ?? 0) + 1)));
  const currentCounts = new Map();
  batch?.indices.forEach((/** @type {number} */ number) => currentCounts.set(number, (currentCounts.get(number) ?? 0) + 1));
  const repeated = new Set(rank.repeated);
  const order = rank.order.map((/** @type {number} */ number, /** @type {number} */ i) => {
    const state = decrement(earlierCounts, number) ? "done" : decrement(currentCounts, number) ? "now" : phase === EPOCH_OVER ? "over" : "ahead";
    return h("span", { class: `chip class-${examples[number].label} ${state} ${repeated.has(i) ? "repeated" : ""}`, title: repeated.has(i) ? "already drawn in this epoch" : "" }, `${number}${repeated.has(i) ? "↻" : ""}`);
  });
  const idle = h("span", { class: "muted" }, phase === EPOCH_OVER ? "all done" : "nothing yet");
  return h("div", { class: "lane" },
    several && h("h3", {}, `Rank ${place}`),
    h("div", { class: "station order" }, h("h4", {}, `Sampler: the order of ${rank.order.length}`), h("div", { class: "chips", tabindex: "0", role: "group", "aria-label": `${several ? `Rank ${place}: ` : ""}the sampler's order` }, order)),
    h("div", { class: `station ${phase >= READ ? "active" : ""}` }, h("h4", {}, reader(batch)), h("div", { class: "chips" }, batch && phase >= READ ? batch.indices.map((/** @type {number} */ number) => chip(number, examples)) : idle.cloneNode(true))),
    h("div", { class: `station ${phase === COLLATE ? "active" : ""}` }, h("h4", {}, "collate"), batch && phase === COLLATE
      ? h("p", { class: "tensor mono" }, `batch ${batchIndex}: tensor [${batch.shape.join(", ")}]`)
      : idle.cloneNode(true)));
}

/** @param {any} batch */
function reader(batch) {
  if (!batch) return "Reading";
  return batch.worker < 0 ? "Reading: this process" : `Reading: worker ${batch.worker}`;
}

/** Decrement the count of an index; return false if it was 0. @param {Map<number, number>} counts @param {number} number */
function decrement(counts, number) {
  const count = counts.get(number) ?? 0;
  if (count) counts.set(number, count - 1);
  return count > 0;
}

/** @param {number} number @param {any[]} examples */
const chip = (number, examples) => h("span", { class: `chip class-${examples[number].label}` }, String(number));

/** Draw a bar with the number of examples of each class in a batch.
 * @param {any} batch @param {{number: number, widest: number, state: string, go: () => void}} options widest: number of examples in the largest batch */
export function bar(batch, { number, widest, state, go }) {
  const parts = batch.composition.map((/** @type {number} */ count, /** @type {number} */ label) => [count, label]).filter((/** @type {number[]} */ [count]) => count > 0);
  const summary = parts.map((/** @type {number[]} */ [count, label]) => `${count} of class ${CLASSES[label]}`).join(", ");
  return h("div", { class: `batch ${state}` },
    h("button", { type: "button", class: "quiet", "aria-label": `Show batch ${number}`, onclick: go }, `batch ${number}`),
    h("div", { class: "bar", role: "img", "aria-label": `Batch ${number}: ${summary}` }, parts.map((/** @type {number[]} */ [count, label]) => h("span", { class: `part class-${label}`, style: { width: `${(100 * count) / widest}%` } }, `${CLASSES[label]} ${count}`))),
    h("span", { class: "mono shape" }, `[${batch.shape.join(", ")}]${batch.tokens.length ? ` ${Math.round(batch.padding * 100)} % pad` : ""}`));
}

/** Draw a padded batch: a row per example, hatched where the mask is False.
 * @param {any} batch @param {{title: string, classes: any[]}} options */
export function matrix(batch, { title, classes }) {
  return h("figure", { class: "matrix" },
    h("figcaption", {}, [title, `tokens [${batch.shape.join(", ")}], ${Math.round(batch.padding * 100)} % padding: hatched, where attention_mask is False.`].filter(Boolean).join(": ")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title} padded batch`.trim() }, h("table", {}, h("tbody", {}, batch.tokens.map((/** @type {number[]} */ row, /** @type {number} */ i) => h("tr", {},
      h("th", { scope: "row" }, `#${batch.indices[i]} ${CLASSES[classes[batch.indices[i]].label]}`),
      row.map((token, place) => h("td", { class: place < batch.lengths[i] ? "token" : "pad" }, String(token)))))))));
}
