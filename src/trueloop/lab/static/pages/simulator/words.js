// @ts-check
// What does not change on the page: words, marks, its style.
import { h } from "../../dom.js";

/** What to look for. */
export function looks() {
  return h("section", { class: "panel" }, h("h2", {}, "What to look for"), h("ul", { class: "look" },
    h("li", {}, "Train, and watch which parts of the plane change hands first. Where hollow points lie on the wrong side while the filled ones do not, the network has learnt its points by heart."),
    h("li", {}, "Put a failure in. Most train on as if nothing were wrong: compare with the dotted curves of the runs before, or take the twin run. The sanitizer knows the program only, not the switches."),
    h("li", {}, "Raise the learning rate until the loss is no number any more, then look at the gradient norm: it knew some updates earlier.")));
}

/** What the points look like. */
export function marks() {
  return h("span", { class: "muted marks" }, h("span", {}, h("i", { class: "mark", "aria-hidden": "true" }), "trained on"), h("span", {}, h("i", { class: "mark hollow", "aria-hidden": "true" }), "held out"));
}

/** The page's own style, loaded once. */
export function styled() {
  const href = "pages/simulator.css";
  if (document.querySelector(`link[href="${href}"]`)) return null;
  return new Promise((done) => { document.head.append(h("link", { rel: "stylesheet", href, onload: done, onerror: done })); });
}
