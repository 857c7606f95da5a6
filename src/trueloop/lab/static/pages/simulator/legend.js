// @ts-check
// The legends of the plane and of the network.
import { h, svg } from "../../dom.js";

/** The legend of the points. */
export function pointLegend() {
  return h("span", { class: "muted marks" }, h("span", {}, h("i", { class: "mark", "aria-hidden": "true" }), "trained on"), h("span", {}, h("i", { class: "mark hollow", "aria-hidden": "true" }), "held out"));
}

/** The legend of the weights. */
export function weightLegend() {
  const sample = (/** @type {string} */ name, /** @type {string} */ dash) => svg("svg", { width: 26, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, y1: 4, x2: 26, y2: 4, class: name, "stroke-dasharray": dash, "stroke-width": 2.5 }));
  return h("p", { class: "muted net-legend" }, h("span", {}, sample("positive", ""), " +", h("span", { class: "unseen" }, "positive")), h("span", {}, sample("negative", "5 3"), " −", h("span", { class: "unseen" }, "negative")));
}
