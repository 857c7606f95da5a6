// @ts-check
// Parts of the pipeline's picture: the dataset, the stations of a rank, the classes of a batch, a padded batch.
import { h } from "../../dom.js";

export const CLASSES = ["A", "B", "C"];
/** Phases of a batch: the sampler yields its indices, its examples are read, they are collated. */
export const SAMPLE = 0, READ = 1, COLLATE = 2, PHASES = 3;
export const EPOCH_OVER = -1; // the phase after the last batch

/** @param {any[]} examples @param {{drawnIndices: number[], currentIndices: number[], epochOver: boolean}} state */
export function dataset(examples, { drawnIndices, currentIndices, epochOver }) {
  const counts = new Map();
  for (const index of drawnIndices) counts.set(index, (counts.get(index) ?? 0) + 1);
  const current = new Set(currentIndices);
  const longest = Math.max(...examples.map(({ length }) => length ?? 0));
  return examples.map(({ label, length }, index) => {
    const count = counts.get(index) ?? 0;
    const state = current.has(index) ? "now" : count > 1 ? "twice" : count ? "drawn" : epochOver ? "never" : "";
    return h("span", { class: `example class-${label} ${state}`, title: `#${index}, class ${CLASSES[label]}${length ? `, ${length} tokens` : ""}${count > 1 ? `, drawn ${count} times` : ""}` },
      h("b", {}, CLASSES[label]), String(index), count > 1 && h("sup", {}, `×${count}`),
      longest > 0 && h("i", { class: "length", style: { width: `${(100 * (length ?? 0)) / longest}%` } }));
  });
}

/** Draw the stations of one rank: order of the sampler, reading, collate.
 * @param {any} rank @param {{rankIndex: number, hasRanks: boolean, batchIndex: number, phase: number, examples: any[]}} position */
export function lane(rank, { rankIndex, hasRanks, batchIndex, phase, examples }) {
  const batch = phase === EPOCH_OVER ? null : rank.batches[batchIndex];
  const earlierCounts = new Map();
  rank.batches.slice(0, phase === EPOCH_OVER ? rank.batches.length : batchIndex).forEach((/** @type {any} */ { indices }) => indices.forEach((/** @type {number} */ index) => earlierCounts.set(index, (earlierCounts.get(index) ?? 0) + 1)));
  const currentCounts = new Map();
  batch?.indices.forEach((/** @type {number} */ index) => currentCounts.set(index, (currentCounts.get(index) ?? 0) + 1));
  const repeated = new Set(rank.repeated);
  const order = rank.order.map((/** @type {number} */ index, /** @type {number} */ position) => {
    const state = decrement(earlierCounts, index) ? "done" : decrement(currentCounts, index) ? "now" : phase === EPOCH_OVER ? "over" : "ahead";
    return h("span", { class: `chip class-${examples[index].label} ${state} ${repeated.has(position) ? "repeated" : ""}`, title: repeated.has(position) ? "already drawn in this epoch" : "" }, `${index}${repeated.has(position) ? "↻" : ""}`);
  });
  const idle = h("span", { class: "muted" }, phase === EPOCH_OVER ? "all done" : "nothing yet");
  return h("div", { class: "lane" },
    hasRanks && h("h3", {}, `Rank ${rankIndex}`),
    h("div", { class: "station order" }, h("h4", {}, `Sampler: the order of ${rank.order.length}`), h("div", { class: "chips", tabindex: "0", role: "group", "aria-label": `${hasRanks ? `Rank ${rankIndex}: ` : ""}the sampler's order` }, order)),
    h("div", { class: `station ${phase >= READ ? "active" : ""}` }, h("h4", {}, reader(batch)), h("div", { class: "chips" }, batch && phase >= READ ? batch.indices.map((/** @type {number} */ index) => chip(index, examples)) : idle.cloneNode(true))),
    h("div", { class: `station ${phase === COLLATE ? "active" : ""}` }, h("h4", {}, "collate"), batch && phase === COLLATE
      ? h("p", { class: "tensor mono" }, `batch ${batchIndex}: tensor [${batch.shape.join(", ")}]`)
      : idle.cloneNode(true)));
}

/** @param {any} batch */
function reader(batch) {
  if (!batch) return "Reading";
  return batch.worker < 0 ? "Reading: this process" : `Reading: worker ${batch.worker}`;
}

/** Decrement the count of an index; return false if it was 0. @param {Map<number, number>} counts @param {number} index */
function decrement(counts, index) {
  const count = counts.get(index) ?? 0;
  if (count) counts.set(index, count - 1);
  return count > 0;
}

/** @param {number} index @param {any[]} examples */
const chip = (index, examples) => h("span", { class: `chip class-${examples[index].label}` }, String(index));

/** Draw a bar with the number of examples of each class in a batch.
 * @param {any} batch @param {{index: number, widest: number, state: string, go: () => void}} options widest: number of examples in the largest batch */
export function bar(batch, { index, widest, state, go }) {
  const parts = batch.composition.map((/** @type {number} */ count, /** @type {number} */ label) => [count, label]).filter((/** @type {number[]} */ [count]) => count > 0);
  const summary = parts.map((/** @type {number[]} */ [count, label]) => `${count} of class ${CLASSES[label]}`).join(", ");
  return h("div", { class: `batch ${state}` },
    h("button", { type: "button", class: "quiet", "aria-label": `Show batch ${index}`, onclick: go }, `batch ${index}`),
    h("div", { class: "bar", role: "img", "aria-label": `Batch ${index}: ${summary}` }, parts.map((/** @type {number[]} */ [count, label]) => h("span", { class: `part class-${label}`, style: { width: `${(100 * count) / widest}%` } }, `${CLASSES[label]} ${count}`))),
    h("span", { class: "mono shape" }, `[${batch.shape.join(", ")}]${batch.tokens.length ? ` ${Math.round(batch.padding * 100)} % pad` : ""}`));
}

/** Draw a padded batch: a row per example, hatched where the mask is False.
 * @param {any} batch @param {{title: string, classes: any[]}} options */
export function matrix(batch, { title, classes }) {
  return h("figure", { class: "matrix" },
    h("figcaption", {}, [title, `tokens [${batch.shape.join(", ")}], ${Math.round(batch.padding * 100)} % padding: hatched, where attention_mask is False.`].filter(Boolean).join(": ")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title} padded batch`.trim() }, h("table", {}, h("tbody", {}, batch.tokens.map((/** @type {number[]} */ row, /** @type {number} */ i) => h("tr", {},
      h("th", { scope: "row" }, `#${batch.indices[i]} ${CLASSES[classes[batch.indices[i]].label]}`),
      row.map((token, column) => h("td", { class: column < batch.lengths[i] ? "token" : "pad" }, String(token)))))))));
}
