// @ts-check
// The page of one failure: its curves, the broken script, its description, and a failing and a corrected script side by side.
import { block, codePanel } from "../../code.js";
import { fill, h, formatNumber, prose } from "../../dom.js";
import { ask, retryUntilAnswered } from "../../net.js";
import { comparisonPlot, plotLegend } from "./plot.js";

const RETRY_MS = 2000;

/** Convert words, code and links to elements. @param {[string, string][]} pieces */
export function renderPieces(pieces) {
  return pieces.map(([kind, text]) => (kind === "code" ? h("code", {}, text) : kind === "link" ? h("a", { href: text, target: "_blank", rel: "noopener noreferrer" }, text) : text));
}

/** @param {any[]} failures all failures, in the order in which one goes through them @param {any} failure @param {import("./plot.js").Curves} wallCurves */
export function failurePage(failures, failure, wallCurves) {
  let unmounted = false;
  const heading = h("h2", { tabindex: "-1" }, h("span", { class: `badge ${failure.severity}` }, `${failure.severity} ${failure.code}`), " ", failure.title);
  const measured = h("div", { class: "sig-measured" });
  const summary = h("div", {}), description = h("div", {});
  const at = failures.indexOf(failure);
  const step = (/** @type {any} */ other, /** @type {string} */ text) => other && h("a", { href: `#/signatures?code=${other.code}`, title: other.title }, text);
  const element = h("article", { class: "panel sig-page", id: `sig-${failure.code}` },
    h("nav", { class: "row", "aria-label": "Failures" }, h("a", { href: "#/signatures" }, "All signatures"), step(failures[at - 1], "← previous"), step(failures[at + 1], "next →")),
    heading, summary, measured, description);

  /** Show a text where the curves will be, and the one of the wall. @param {any} text */
  function wait(text) {
    const known = wallCurves.plots[failure.code];
    fill(measured, h("p", { class: "sig-wait", role: "status" }, text), known && [plotLegend(wallCurves.seeds), h("div", { class: "sig-all" }, comparisonPlot(known))]);
  }
  wait(failure.curves ? "Training on the first of three seeds …" : failure.why);

  /** Request the curves until all seeds are done. */
  async function measure() {
    while (!unmounted) {
      try {
        const answer = await retryUntilAnswered(() => ask("signature", { code: failure.code }));
        if (answer.done === undefined) return answer;
        wait(`${answer.done} of ${answer.of} seeds are done …`);
      } catch (error) {
        wait(`${error instanceof Error ? error.message : error} Trying again …`);
        await new Promise((wake) => setTimeout(wake, RETRY_MS));
      }
    }
  }

  return {
    element,
    async shown() {
      scrollTo(0, 0);
      heading.focus({ preventScroll: true });
      if (failure.curves) measure().then((answer) => answer && !unmounted && fill(measured, answer.curves ? curves(answer) : h("p", { class: "muted" }, answer.why)));
      try {
        const page = await retryUntilAnswered(() => ask("signatures", { what: "page", code: failure.code }));
        const [first, ...others] = page.sections;
        fill(summary, section(first));
        fill(description, others.map(section), h("div", { class: "sig-two" },
          h("div", {}, h("h3", {}, "A script with the failure"), block(page.bad)),
          h("div", {}, h("h3", {}, "The corrected script"), block(page.good))));
      } catch (error) {
        fill(description, h("p", { class: "error" }, String(error instanceof Error ? error.message : error)));
      }
    },
    unmount() { unmounted = true; },
  };
}

/** @param {any} answer */
function curves(answer) {
  const { plots, raised, finding, found, seeds, updates } = answer.curves;
  const code = codePanel({ title: "Show the code", file: "broken.py", note: `The script that ran for ${formatNumber(updates)} updates from each of ${seeds} seeds; the broken lines are marked.` });
  code.show(answer.script, { marked: answer.lines, mark: "broken", hit: finding?.line ?? null });
  const sentences = [finding ? `The sanitizer found it from ${found} of ${seeds} seeds` + (finding.first_update === null ? "." : `, first at update ${formatNumber(finding.first_update)}, line ${finding.line}.`) : "The sanitizer did not find it at run time.", raised && `The broken script ended with ${raised}.`];
  const changes = answer.changes.map((/** @type {any} */ each) => h("li", {}, `${each.kind}, line ${each.line}: `, each.before && h("code", {}, each.before), each.before && each.after && " became ", each.after && h("code", {}, each.after)));
  return [plotLegend(seeds), h("div", { class: "sig-all" }, plots.map(comparisonPlot)),
    finding && h("p", { class: "sig-finding-text" }, h("b", {}, "The sanitizer: "), prose(finding.message)),
    h("p", { class: "muted" }, sentences.filter(Boolean).join(" ")), h("ul", { "aria-label": "What was changed" }, changes), h("p", {}, h("a", { href: answer.address }, "Open in the simulator")),
    code.element];
}

/** Render a section of the failure's description. @param {any} section */
function section({ heading, blocks }) {
  return [heading && h("h3", {}, heading), blocks.map((/** @type {any} */ each) => (each.kind === "list" ? h("ul", {}, each.items.map((/** @type {any} */ item) => h("li", {}, renderPieces(item)))) : each.kind === "code" ? h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "Code" }, h("code", {}, each.text)) : h("p", {}, renderPieces(each.pieces))))];
}
