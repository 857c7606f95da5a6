// @ts-check
// The page of one failure: all its curves, the broken script, its description, and a failing and a corrected script side by side.
import { block, codePanel } from "../../code.js";
import { h, formatNumber } from "../../dom.js";
import { ask, retryUntilAnswered } from "../../net.js";
import { comparisonPlot } from "./plot.js";

/** Convert words, code and links to elements. @param {[string, string][]} pieces */
export function renderPieces(pieces) {
  return pieces.map(([kind, text]) => (kind === "code" ? h("code", {}, text) : kind === "link" ? h("a", { href: text, target: "_blank", rel: "noopener noreferrer" }, text) : text));
}

/** @param {any} failure @param {any} measured the server's answer with the curves, or null */
export async function failurePage(failure, measured) {
  const page = await retryUntilAnswered(() => ask("signatures", { what: "page", code: failure.code }));
  return h("div", { class: "sig-page" }, measured && curves(measured), page.sections.map(section),
    h("div", { class: "sig-two" },
      h("div", {}, h("h3", {}, "A script with the failure"), block(page.bad)),
      h("div", {}, h("h3", {}, "The corrected script"), block(page.good))));
}

/** @param {any} answer */
function curves(answer) {
  const { plots, raised, finding, found, seeds, updates } = answer.curves;
  const code = codePanel({ title: "Show the code", file: "broken.py", note: "The script that ran; the broken lines are marked." });
  code.show(answer.script, { marked: answer.lines, mark: "broken", hit: finding?.line ?? null });
  const sentences = [`${formatNumber(updates)} updates from each of ${seeds} seeds.`, finding ? `The sanitizer found it from ${found} of ${seeds} seeds` + (finding.first_update === null ? "." : `, first at update ${formatNumber(finding.first_update)}, line ${finding.line}.`) : "The sanitizer did not find it at run time.", raised && `The broken script ended with ${raised}.`];
  const changes = answer.changes.map((/** @type {any} */ each) => h("li", {}, `${each.kind}, line ${each.line}: `, each.before && h("code", {}, each.before), each.before && each.after && " became ", each.after && h("code", {}, each.after)));
  return [h("h3", {}, "All quantities, the most different first"), h("p", { class: "muted" }, sentences.filter(Boolean).join(" ")), h("div", { class: "sig-all" }, plots.map(comparisonPlot)), h("h3", {}, "What was changed"), h("ul", {}, changes), code.element];
}

/** Render a section of the failure's description. @param {any} section */
function section({ heading, blocks }) {
  return [heading && h("h3", {}, heading), blocks.map((/** @type {any} */ each) => (each.kind === "list" ? h("ul", {}, each.items.map((/** @type {any} */ item) => h("li", {}, renderPieces(item)))) : each.kind === "code" ? h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "Code" }, h("code", {}, each.text)) : h("p", {}, renderPieces(each.pieces))))];
}
