// @ts-check
// The wall: a tile with the curve of each failure that can be injected, and a list of the others.
import { fill, h, debounce } from "../../dom.js";
import { prefersReducedMotion } from "../../player.js";
import { renderPieces } from "./page.js";
import { comparisonPlot, plotLegend, thumbnail } from "./plot.js";

const NEXT_MS = 2600; // NEXT_MS: time until the wall shows the next failure by itself
const LISTED = 150; // failures without curves that are listed at once; the families after them are folded
let leftAt = ""; // code of the failure that was opened last, to which the user comes back

/** @param {any[]} failures @param {import("./plot.js").Curves} curves @param {import("../../app.js").Page} page */
export function wall(failures, { seeds, plots }, { params, setParams, announce }) {
  const tiles = failures.filter(({ code }) => plots[code]).map(tile);
  const others = failures.filter(({ code }) => !plots[code]).map((failure) => ({ failure, element: h("li", {}, h("a", { href: address(failure) }, failure.title)) }));
  let listed = 0;
  const families = [...new Set(others.map(({ failure }) => failure.family))].map((name) => {
    const own = others.filter(({ failure }) => failure.family === name);
    listed += own.length;
    return h("details", { dataset: { open: listed <= LISTED ? "1" : "" } }, h("summary", {}, h("h3", {}, name), ` ${own.length}`), h("ul", {}, own.map(({ element }) => element)));
  });
  const search = h("input", { type: "search", id: "sig-search", placeholder: "title, symptom or fix", maxlength: 80, value: params.get("search") ?? "", oninput: debounce(filter) });
  const count = h("span", { class: "muted" });
  const about = h("aside", { class: "panel sig-about", "aria-label": "The failure under the pointer" });
  const grid = h("ul", { class: "sig-wall", onpointerenter: () => { following = true; }, onfocusin: () => { following = true; } }, tiles.map(({ element }) => element));
  const rest = h("section", { class: "sig-others", "aria-labelledby": "sig-others" }, h("h2", { id: "sig-others" }, "Without curves"), h("div", { class: "sig-families" }, families));
  const element = h("div", {},
    h("div", { class: "row sig-bar" }, h("p", {}, "One run, without and with a silent failure."), plotLegend(seeds), h("label", { for: "sig-search", class: "unseen" }, "Search"), search, count),
    h("div", { class: "sig-columns" }, grid, about), rest);
  let following = false, shown = -1, timer = 0; // following: the user has chosen a tile

  /** @param {any} failure */
  function tile(failure) {
    const link = h("a", { class: "sig-tile", href: address(failure), "aria-label": `${failure.code}: ${failure.title}`, onpointerenter: () => describe(failure), onfocus: () => describe(failure), onclick: () => { leftAt = failure.code; } },
      h("span", { class: "sig-picture" }, thumbnail(plots[failure.code])), h("b", {}, failure.code), h("span", { class: "sig-title" }, failure.title));
    return { failure, link, element: h("li", {}, link) };
  }

  /** Show what a failure does next to the wall. @param {any} failure */
  function describe(failure) {
    shown = tiles.findIndex((each) => each.failure === failure);
    tiles.forEach(({ link }, index) => link.classList.toggle("shown", index === shown));
    fill(about, h("span", { class: `badge ${failure.severity}` }, failure.code), h("h2", {}, failure.title),
      comparisonPlot(plots[failure.code]), h("p", {}, renderPieces(firstSentence(failure.symptom))));
  }

  function showNext() {
    const ready = tiles.map((each, index) => (each.element.hidden ? -1 : index)).filter((index) => index >= 0);
    if (!following && ready.length) describe(tiles[ready.find((index) => index > shown) ?? ready[0]].failure);
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { failure, element: item } of [...tiles, ...others]) item.hidden = !words.every((/** @type {string} */ word) => textOf(failure).includes(word));
    for (const family of families) {
      family.hidden = [...family.querySelectorAll("li")].every((item) => item.hidden);
      family.open = words.length > 0 || family.dataset.open === "1";
    }
    rest.hidden = families.every((family) => family.hidden);
    const found = [...tiles, ...others].filter(({ element: item }) => !item.hidden).length;
    count.textContent = !words.length ? "" : found ? `${found} found` : "Nothing found: try one word, such as memory.";
    about.hidden = words.length > 0 && tiles.every(({ element: item }) => item.hidden);
    if (words.length && !about.hidden) describe(tiles.find(({ element: item }) => !item.hidden)?.failure);
    if (words.length) announce(`${found} of ${failures.length} failures`);
    setParams(search.value ? { search: search.value } : {});
  }

  return {
    element,
    shown() {
      filter();
      showNext();
      if (!prefersReducedMotion()) timer = setInterval(showNext, NEXT_MS);
      const back = tiles.find(({ failure }) => failure.code === leftAt);
      leftAt = "";
      back?.link.focus();
    },
    unmount() { clearInterval(timer); },
  };
}

/** @param {any} failure */
const address = (failure) => `#/signatures?code=${failure.code}`;

/** Return the words in which the search looks. @param {any} failure */
const textOf = (failure) => [failure.code, failure.slug, failure.title, failure.family, ...[...failure.symptom, ...failure.fix].map(([, words]) => words)].join(" ").toLowerCase();

/** @param {[string, string][]} pieces @returns {[string, string][]} */
function firstSentence(pieces) {
  const end = pieces.findIndex(([kind, text]) => !kind && /\.(\s|$)/.test(text));
  return end < 0 ? pieces : [...pieces.slice(0, end), ["", pieces[end][1].split(/(?<=\.)(?:\s|$)/)[0]]];
}
