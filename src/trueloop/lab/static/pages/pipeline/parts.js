// @ts-check
// The parts of the pipeline's picture: the dataset, the stations of a rank, the classes of a batch, a padded batch.
import { h } from "../../dom.js";

export const CLASSES = ["A", "B", "C"];

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

/** The stations of one rank: order, reading, collate.
 * @param {any} rank @param {{place: number, several: boolean, turn: number, phase: number, examples: any[]}} at */
export function lane(rank, { place, several, turn, phase, examples }) {
  const batch = phase < 0 ? null : rank.batches[turn];
  const taken = new Map();
  rank.batches.slice(0, phase < 0 ? rank.batches.length : turn).forEach((/** @type {any} */ { indices }) => indices.forEach((/** @type {number} */ number) => taken.set(number, (taken.get(number) ?? 0) + 1)));
  const now = new Map();
  batch?.indices.forEach((/** @type {number} */ number) => now.set(number, (now.get(number) ?? 0) + 1));
  const repeated = new Set(rank.repeated);
  const order = rank.order.map((/** @type {number} */ number, /** @type {number} */ i) => {
    const state = take(taken, number) ? "done" : take(now, number) ? "now" : phase < 0 ? "over" : "ahead";
    return h("span", { class: `chip class-${examples[number].label} ${state} ${repeated.has(i) ? "repeated" : ""}`, title: repeated.has(i) ? "already drawn in this epoch" : "" }, `${number}${repeated.has(i) ? "↻" : ""}`);
  });
  const idle = h("span", { class: "muted" }, phase < 0 ? "all done" : "nothing yet");
  return h("div", { class: "lane" },
    several && h("h3", {}, `Rank ${place}`),
    h("div", { class: "station order" }, h("h4", {}, `Sampler: the order of ${rank.order.length}`), h("div", { class: "chips", tabindex: "0", role: "group", "aria-label": `${several ? `Rank ${place}: ` : ""}the sampler's order` }, order)),
    h("div", { class: `station ${phase >= 1 ? "active" : ""}` }, h("h4", {}, reader(batch)), h("div", { class: "chips" }, batch && phase >= 1 ? batch.indices.map((/** @type {number} */ number) => chip(number, examples)) : idle.cloneNode(true))),
    h("div", { class: `station ${phase === 2 ? "active" : ""}` }, h("h4", {}, "collate"), batch && phase === 2
      ? h("p", { class: "tensor mono" }, `batch ${turn}: tensor [${batch.shape.join(", ")}]`)
      : idle.cloneNode(true)));
}

/** @param {any} batch */
function reader(batch) {
  if (!batch) return "Reading";
  return batch.worker < 0 ? "Reading: this process" : `Reading: worker ${batch.worker}`;
}

/** Decrement the count of an index; return false if it was 0. @param {Map<number, number>} left @param {number} number */
function take(left, number) {
  const count = left.get(number) ?? 0;
  if (count) left.set(number, count - 1);
  return count > 0;
}

/** @param {number} number @param {any[]} examples */
const chip = (number, examples) => h("span", { class: `chip class-${examples[number].label}` }, String(number));

/** A bar with the classes of a batch.
 * @param {any} batch @param {{number: number, widest: number, state: string, go: () => void}} at */
export function bar(batch, { number, widest, state, go }) {
  const parts = batch.composition.map((/** @type {number} */ count, /** @type {number} */ label) => [count, label]).filter((/** @type {number[]} */ [count]) => count > 0);
  const said = parts.map((/** @type {number[]} */ [count, label]) => `${count} of class ${CLASSES[label]}`).join(", ");
  return h("div", { class: `batch ${state}` },
    h("button", { type: "button", class: "quiet", "aria-label": `Show batch ${number}`, onclick: go }, `batch ${number}`),
    h("div", { class: "bar", role: "img", "aria-label": `Batch ${number}: ${said}` }, parts.map((/** @type {number[]} */ [count, label]) => h("span", { class: `part class-${label}`, style: { width: `${(100 * count) / widest}%` } }, `${CLASSES[label]} ${count}`))),
    h("span", { class: "mono shape" }, `[${batch.shape.join(", ")}]${batch.tokens.length ? ` ${Math.round(batch.padding * 100)} % pad` : ""}`));
}

/** A padded batch: a row per example, hatched where the mask is False.
 * @param {any} batch @param {{title: string, classes: any[]}} options */
export function matrix(batch, { title, classes }) {
  return h("figure", { class: "matrix" },
    h("figcaption", {}, [title, `tokens [${batch.shape.join(", ")}], ${Math.round(batch.padding * 100)} % padding: hatched, where attention_mask is False.`].filter(Boolean).join(": ")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title} padded batch`.trim() }, h("table", {}, h("tbody", {}, batch.tokens.map((/** @type {number[]} */ row, /** @type {number} */ i) => h("tr", {},
      h("th", { scope: "row" }, `#${batch.indices[i]} ${CLASSES[classes[batch.indices[i]].label]}`),
      row.map((token, place) => h("td", { class: place < batch.lengths[i] ? "token" : "pad" }, String(token)))))))));
}
