// @ts-check
// The cheat sheet, which prints on four pages.
import { block, textOf } from "../code.js";
import { fill, h } from "../dom.js";
import { ask, retryUntilAnswered } from "../net.js";

export const title = "Cheat sheet";
export const lead = "Terms, counts, loops, silent failures and DataLoader arguments, on four pages to print.";

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const matchCount = h("span", { class: "muted", role: "status" });
  const search = h("input", { type: "search", id: "sheet-search", value: params.get("find") ?? "", autocomplete: "off", oninput: () => filter(true) });
  const sheetContainer = h("div", { class: "sheet" }, h("p", { class: "muted" }, "One moment …"));
  fill(root,
    h("div", { class: "row tools" },
      h("label", { for: "sheet-search" }, "Find"), search, matchCount,
      h("button", { type: "button", class: "quiet", onclick: () => print() }, "Print")),
    sheetContainer);
  const loader = h("div", {}, h("p", { class: "muted" }, "Reading the installed PyTorch …"));
  const errorText = (/** @type {any} */ error) => h("p", { class: "error", role: "alert" }, error.message);
  let mounted = true;
  try {
    fill(sheetContainer, sheetSections(await retryUntilAnswered(() => ask("sheet", {})), loader));
  } catch (error) {
    fill(sheetContainer, errorText(error));
    return () => {};
  }
  retryUntilAnswered(() => ask("loader_arguments", {})).then((data) => fill(loader, argumentTable(data)), (error) => fill(loader, errorText(error))).then(() => mounted && filter());
  announce("The cheat sheet is loaded.");

  /** @param {boolean} [updateAddress] */
  function filter(updateAddress = false) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let matches = 0;
    for (const item of sheetContainer.querySelectorAll(".item")) {
      const text = (item.textContent ?? "").toLowerCase();
      const isMatch = words.every((/** @type {string} */ word) => text.includes(word));
      /** @type {HTMLElement} */ (item).hidden = !isMatch;
      matches += Number(isMatch);
    }
    for (const part of sheetContainer.querySelectorAll("section")) /** @type {HTMLElement} */ (part).hidden = words.length > 0 && !part.querySelector(".item:not([hidden])");
    matchCount.textContent = words.length ? `${matches} found` : "";
    if (updateAddress) setParams(search.value ? { find: search.value } : {});
  }
  if (search.value) filter();
  return () => { mounted = false; };
}

/** @param {{torch: string, arguments: {name: string, default: string, description: string}[]}} data */
function argumentTable(data) {
  return [
    h("p", { class: "muted" }, `The arguments of torch ${data.torch}.`),
    table(["argument", "default", "what for"], data.arguments.map((each) =>
      [h("code", {}, each.name), each.default && h("code", {}, each.default), each.description]), "DataLoader arguments"),
  ];
}

/** @param {any} sheet @param {HTMLElement} loader */
function sheetSections(sheet, loader) {
  return [
    section("terms", "Words", h("dl", { class: "words" }, sheet.terms.map((/** @type {any} */ { word, description }) =>
      h("div", { class: "item" }, h("dt", {}, word), h("dd", {}, description))))),
    section("counts", "Counts", [
      h("p", { class: "muted" }, sheet.sizes),
      table(["count", "what it is", "example"], sheet.counts.map((/** @type {any} */ each) => [each.name, each.description, each.example]), "Counts", 2)]),
    section("arguments", "DataLoader arguments", loader),
    section("templates", "Loops", h("div", { class: "loops" }, sheet.templates.map((/** @type {any} */ each) =>
      h("div", { class: "item loop" }, h("div", { class: "row" }, h("h3", {}, each.title), copyButton(each)), block(each.lines))))),
    section("bugs", "Silent failures", table(["code", "symptom", "what to do"], sheet.bugs.map((/** @type {any} */ bug) => [
      h("a", { href: `#/signatures?code=${bug.code}`, title: bug.title }, bug.code),
      [h("strong", {}, bug.title), h("br"), h("span", { "data-severity": bug.severity }, bug.symptom)], bug.fix]), "Silent failures")),
  ];
}

/** @param {{title: string, lines: [string, string][][]}} loop */
function copyButton(loop) {
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Copy: ${loop.title}`, onclick: async () => {
    const done = await navigator.clipboard.writeText(`${textOf(loop.lines)}\n`).then(() => "Copied", () => "Refused");
    button.textContent = done;
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return button;
}

/** @param {string} name @param {string} heading @param {any} content */
function section(name, heading, content) {
  return h("section", { class: `panel ${name}`, "aria-labelledby": `sheet-${name}` }, h("h2", { id: `sheet-${name}` }, heading), content);
}

/** @param {string[]} head @param {any[][]} rows @param {string} name @param {number} [numberColumn] index of the column with numbers */
function table(head, rows, name, numberColumn = -1) {
  const numberClass = (/** @type {number} */ column) => (column === numberColumn ? { class: "number" } : {});
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${name}` }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((text, column) => h("th", { scope: "col", ...numberClass(column) }, text)))),
    h("tbody", {}, rows.map((cells) => h("tr", { class: "item" }, cells.map((cell, column) =>
      (column === 0 ? h("th", { scope: "row" }, cell) : h("td", numberClass(column), cell))))))));
}
