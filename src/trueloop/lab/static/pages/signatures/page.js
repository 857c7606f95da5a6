// @ts-check
// The page of one failure: all its curves, the broken script, its description, and the two scripts side by side.
import { block, codePanel } from "../../code.js";
import { h, number } from "../../dom.js";
import { ask, patiently } from "../../net.js";
import { multiple } from "./plot.js";

/** Words, code and addresses as elements. @param {[string, string][]} given */
export function pieces(given) {
  return given.map(([kind, text]) => (kind === "code" ? h("code", {}, text) : kind === "link" ? h("a", { href: text, target: "_blank", rel: "noopener noreferrer" }, text) : text));
}

/** @param {any} failure @param {any} known what the server computed, or null */
export async function opened(failure, known) {
  const page = await patiently(() => ask("signatures", { what: "page", code: failure.code }));
  return h("div", { class: "sig-page" }, known && curves(known), page.sections.map(section),
    h("div", { class: "sig-two" },
      h("div", {}, h("h3", {}, "A script with the failure"), block(page.bad)),
      h("div", {}, h("h3", {}, "The corrected script"), block(page.good))));
}

/** @param {any} answer */
function curves(answer) {
  const { plots, raised, finding, found, seeds, updates } = answer.curves;
  const code = codePanel({ title: "Show the code", file: "broken.py", note: "The script that ran; the broken lines are marked." });
  code.show(answer.script, { marked: answer.lines, mark: "broken", hit: finding?.line ?? null });
  const words = [`${number(updates)} updates from each of ${seeds} seeds.`, finding ? `The sanitizer found it from ${found} of ${seeds} seeds` + (finding.first_update === null ? "." : `, first at update ${number(finding.first_update)}, line ${finding.line}.`) : "The sanitizer did not find it at run time.", raised && `The broken script ended with ${raised}.`];
  const changed = answer.changes.map((/** @type {any} */ each) => h("li", {}, `${each.kind}, line ${each.line}: `, each.before && h("code", {}, each.before), each.before && each.after && " became ", each.after && h("code", {}, each.after)));
  return [h("h3", {}, "All quantities, the most different first"), h("p", { class: "muted" }, words.filter(Boolean).join(" ")), h("div", { class: "sig-all" }, plots.map(multiple)), h("h3", {}, "What was changed"), h("ul", {}, changed), code.element];
}

/** @param {any} given */
function section({ heading, blocks }) {
  return [heading && h("h3", {}, heading), blocks.map((/** @type {any} */ each) => (each.kind === "list" ? h("ul", {}, each.items.map((/** @type {any} */ item) => h("li", {}, pieces(item)))) : each.kind === "code" ? h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "Code" }, h("code", {}, each.text)) : h("p", {}, pieces(each.pieces))))];
}
