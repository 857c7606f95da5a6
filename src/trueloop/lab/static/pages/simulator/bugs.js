// @ts-check
// Switches for the failures that can be injected into the script: eight cards with a curve of what each does, and a search for the others.
import { fetchJson } from "../../net.js";
import { fill, h, svg } from "../../dom.js";
import { labelOf } from "./knobs.js";

const WIDTH = 120, HEIGHT = 34; // of a curve, in units of its drawing
const MAX_FOUND = 12; // maximum number of failures that a search shows at once

/** @typedef {{title: string, label: string, healthy: [number[], (number | null)[]], broken: [number[], (number | null)[]]}} Curves coordinates from 0 to 1, measured by `make signatures` */

/** @param {{onchange: (bugs: string[]) => void}} options */
export function bugs({ onchange }) {
  /** @type {string[]} */ let activeCodes = [];
  /** @type {any[]} */ let all = [];
  /** @type {Record<string, Curves>} */ let curvesOf = {};
  let shownState = "";
  const list = h("div", { class: "bugs", role: "group", "aria-label": "Failures to inject", tabindex: "0" });
  const search = h("input", { type: "search", "aria-label": "Search all failures", oninput: () => draw() });
  const fixAll = h("button", { type: "button", class: "small fix-all", hidden: true, onclick: () => onchange([]) }, "Fix all");
  const element = h("section", { class: "bugs-panel", "aria-labelledby": "bugs-title" }, h("div", { class: "row" }, h("h2", { id: "bugs-title" }, "Break it"), fixAll, search), list);
  fetchJson("pages/simulator/bug_curves.json", {}).then((answer) => { curvesOf = answer; draw(true); }, () => {}); // without curves, the cards show their titles

  /** @param {any} bug */
  function card(bug) {
    const active = activeCodes.includes(bug.code), conflicts = !active && Boolean(bug.conflict), id = `bug-${bug.code}`;
    const changedSettings = Object.entries(bug.changes).map(([name, value]) => `${labelOf(name)} ${value}`).join(", ");
    const checkbox = h("input", {
      type: "checkbox", id, checked: active, disabled: conflicts, "aria-describedby": `${id}-why`, role: "switch",
      onchange: () => onchange(checkbox.checked ? [...activeCodes, bug.code] : activeCodes.filter((code) => code !== bug.code)),
    });
    const why = conflicts ? `Cannot act now: ${bug.conflict}` : `${bug.symptom}${bug.late && ` ${bug.late}`}${changedSettings ? ` Sets ${changedSettings}.` : ""}`;
    return h("label", { class: `bug${active ? " active" : ""}${conflicts ? " against" : ""}`, title: why }, checkbox,
      h("span", { class: "bug-title" }, h("span", { class: "unseen" }, `${bug.code} `), bug.title),
      curvesOf[bug.code] && curve(curvesOf[bug.code]),
      h("small", { class: conflicts ? "bug-conflict" : "unseen", id: `${id}-why` }, why));
  }

  /** @param {boolean} [redraw] */
  function draw(redraw = false) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = JSON.stringify([all, activeCodes, words]);
    if (state === shownState && !redraw) return;
    shownState = state;
    const focusedId = document.activeElement?.id;
    const matches = (/** @type {any} */ bug) => words.every((word) => `${bug.code} ${bug.family} ${bug.title} ${bug.symptom}`.toLowerCase().includes(word));
    const found = words.length ? all.filter(matches) : Object.keys(curvesOf).flatMap((code) => all.filter((bug) => bug.code === code));
    const activeElsewhere = all.filter((bug) => activeCodes.includes(bug.code) && !found.includes(bug));
    fill(list, ...[...activeElsewhere, ...found.slice(0, MAX_FOUND)].map(card),
      words.length > 0 && found.length > MAX_FOUND && h("p", { class: "muted" }, `${found.length - MAX_FOUND} more: type another word.`),
      words.length > 0 && !found.length && h("p", { class: "muted" }, "No failure matches."));
    if (focusedId?.startsWith("bug-")) document.getElementById(focusedId)?.focus({ preventScroll: true });
    fixAll.hidden = !activeCodes.length;
    search.placeholder = `Search ${all.length || ""} failures`;
  }

  return {
    element,
    /** @param {any[]} newAll the server's description of each failure @param {string[]} codes the active failures
     * @param {boolean} [redraw] redraw although nothing changed, because the server refused a switch */
    show(newAll, codes, redraw = false) {
      all = newAll;
      activeCodes = codes;
      draw(redraw);
    },
  };
}

/** Draw what a failure does to one curve. @param {Curves} curves */
function curve({ title, label, healthy, broken }) {
  const line = (/** @type {[number[], (number | null)[]]} */ [xs, ys], /** @type {string} */ name) => {
    const points = xs.flatMap((x, i) => (ys[i] === null ? [] : [`${(x * WIDTH).toFixed(1)} ${((1 - /** @type {number} */ (ys[i])) * HEIGHT).toFixed(1)}`]));
    return svg("path", { class: name, d: `M${points.join("L")}` });
  };
  return h("span", { class: "bug-curve" }, h("span", { class: "bug-quantity" }, label), svg("svg", { viewBox: `-1 -2 ${WIDTH + 2} ${HEIGHT + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, with and without the failure` }, line(healthy, "healthy"), line(broken, "broken")));
}
