// @ts-check
// The static parts of the page: hints, the legend of the points, and the style sheet.
import { h } from "../../dom.js";

/** The list of hints. */
export function hints() {
  return h("section", { class: "panel" }, h("h2", {}, "What to look for"), h("ul", { class: "look" },
    h("li", {}, "Train, and watch the decision regions. Where hollow (held-out) points are misclassified and filled ones are not, the network overfits."),
    h("li", {}, "Inject a failure. Most runs still train: compare with the dotted curves of earlier runs, or use the twin run. The sanitizer sees only the program, not the switches."),
    h("li", {}, "Raise the learning rate until the loss is NaN, then look at the gradient norm: it explodes some updates earlier.")));
}

/** The legend of the points. */
export function pointLegend() {
  return h("span", { class: "muted marks" }, h("span", {}, h("i", { class: "mark", "aria-hidden": "true" }), "trained on"), h("span", {}, h("i", { class: "mark hollow", "aria-hidden": "true" }), "held out"));
}

/** Load the page's style once. */
export function loadStyle() {
  const href = "pages/simulator.css";
  if (document.querySelector(`link[href="${href}"]`)) return null;
  return new Promise((done) => { document.head.append(h("link", { rel: "stylesheet", href, onload: done, onerror: done })); });
}
