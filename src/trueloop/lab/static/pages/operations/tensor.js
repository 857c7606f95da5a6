// @ts-check
// One tensor as a card: its numbers, its gradient and its optimizer state.
import { roving } from "../../cells.js";
import { h } from "../../dom.js";

/** @param {{name: string, role: string, parts: string[]}} card
 *  @param {{tensors: Map<string, any>, changed: Set<string>, kind: string, first: boolean, onpoint: (tensor: any, cell: [number, number]) => void}} step
 *    tensors: the current tensors by name; changed: names of the tensors that the line has changed; kind: the line's kind, which has a colour */
export function tensorCard(card, step) {
  const tensor = step.tensors.get(card.name);
  const isTouched = [card.name, ...card.parts].some((name) => changeLabel(name, step));
  return h("article", { class: `tensor role-${card.role}${isTouched ? " touched" : ""}`, dataset: { name: card.name } },
    h("h4", {}, h("code", {}, card.name), " ", h("span", { class: "shape muted" }, shape(tensor)), badge(card.name, step)),
    h("div", { class: "parts" }, values(tensor, step), card.parts.filter((name) => step.tensors.has(name)).map((name) => part(step.tensors.get(name), step))));
}

/** @param {any} tensor @param {Parameters<typeof tensorCard>[1]} step */
function part(tensor, step) {
  return h("div", { class: `part role-${tensor.role}`, dataset: { name: tensor.name } },
    h("h5", {}, h("code", {}, `.${tensor.name.split(".").at(-1)}`), " ", h("span", { class: "muted" }, tensor.role === "gradient" ? `∂loss/∂${tensor.owner.split(".").at(-1)}` : "optimizer state"), badge(tensor.name, step)),
    tensor.cells ? values(tensor, step) : h("p", { class: "none mono" }, "None"));
}

/** @param {string} name @param {Parameters<typeof tensorCard>[1]} step */
function badge(name, step) {
  const text = changeLabel(name, step);
  return text && h("span", { class: `badge of-${step.kind}` }, text);
}

/** Return a short label of the line's effect on a tensor; "" = no effect. @param {string} name @param {Parameters<typeof tensorCard>[1]} step */
function changeLabel(name, { tensors, changed, first }) {
  const tensor = tensors.get(name);
  if (first || !tensor || !changed.has(name)) return "";
  if (!tensor.cells) return tensor.replaces ? "set to None" : "";
  return !tensor.replaces ? "new" : tensor.moved.length ? "changed" : "new tensor";
}

/** @param {any} tensor */
const shape = (tensor) => (tensor.shape.length ? `[${tensor.shape.join(", ")}]` : "");

/** A table of numbers; arrow keys reach the calculated numbers, which show their calculation.
 * @param {any} tensor @param {Parameters<typeof tensorCard>[1]} step */
function values(tensor, { changed, first, kind, onpoint }) {
  const movedCells = new Set(!first && changed.has(tensor.name) ? tensor.moved.map(String) : []);
  const hasCalculations = tensor.calculations.length > 0;
  const table = h("table", { class: "cells", "aria-label": tensor.name }, h("tbody", {}, tensor.cells.map((/** @type {string[]} */ row, /** @type {number} */ r) => h("tr", {}, row.map((text, c) => {
    const cellClass = movedCells.has(`${r},${c}`) ? `moved of-${kind}` : "";
    if (!hasCalculations) return h("td", { class: cellClass }, text);
    const show = () => onpoint(tensor, [r, c]);
    return h("td", { class: cellClass }, h("button", {
      type: "button", class: "cell", dataset: { cell: `${tensor.name}:${r},${c}` },
      "aria-label": `${tensor.name} row ${r}, column ${c}: ${text}`, onfocus: show, onclick: show, onpointerenter: show,
    }, text));
  })))));
  return h("div", { class: "scroll" }, roving(table));
}
