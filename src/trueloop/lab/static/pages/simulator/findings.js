// @ts-check
// The findings of the run: one card per finding, with line, evidence and fix.
import { fill, h, prose } from "../../dom.js";

/** @param {{onpick: (line: number) => void}} options */
export function findings({ onpick }) {
  const verdict = h("p", { class: "verdict" }), verdictAtPlane = h("p", { class: "plane-verdict" }); // the latter on phones, where the plane stays in view
  const cards = h("div", { class: "cards" });
  const limitsNote = h("p", { class: "muted judged", hidden: true });
  const element = h("section", { class: "findings", "aria-label": "Sanitizer" }, cards, limitsNote);

  /** @param {any} message a finding from the worker */
  function card({ finding, line, excerpt }) {
    return h("article", { class: `finding ${finding.severity}`, dataset: { code: finding.code } },
      h("div", { class: "finding-head" },
        h("span", { class: `badge ${finding.severity}` }, finding.severity), " ",
        h("strong", {}, h("span", { class: "mono" }, finding.code), ` ${finding.title} `),
        line && h("button", { type: "button", class: "quiet small", onclick: () => onpick(line) }, `line ${line}`)),
      h("p", {}, prose(finding.message)),
      line && h("code", { class: "fault" }, excerpt.find((/** @type {any} */ each) => each.number === line)?.text.trim() ?? ""),
      h("p", {}, h("strong", {}, "Fix: "), prose(finding.fix)),
      h("p", { class: "muted" }, finding.first_update !== null && `First seen at update ${finding.first_update + 1}. `,
        h("a", { href: `#/signatures?code=${finding.code}` }, `Curves of ${finding.slug}`)));
  }

  /** Render the error that ended the script. @param {{title: string, meaning: string, fix: string, line: number | null}} explained @param {string} why the message of the error */
  function errorCard({ title, meaning, fix, line }, why) {
    return h("article", { class: "finding error raised" },
      h("div", { class: "finding-head" }, h("span", { class: "badge error" }, "ended"), " ", h("strong", {}, `${title} `), line && h("button", { type: "button", class: "quiet small", onclick: () => onpick(line) }, `line ${line}`)),
      h("code", { class: "fault" }, why), h("p", {}, prose(meaning)), fix && h("p", {}, h("strong", {}, "Fix: "), prose(fix)));
  }

  return {
    element, verdict, verdictAtPlane,
    /** @param {any} run */
    show(run) {
      this.showVerdict(run);
      fill(cards, ...run.findings.map(card), run.ended?.explained && errorCard(run.ended.explained, run.ended.why));
      limitsNote.hidden = !run.ended?.judged;
      limitsNote.textContent = run.ended?.judged ?? "";
    },
    /** @param {any} run @param {string} [late] why the finding comes late */
    showVerdict(run, late = "") {
      const isChecked = run.window && !run.recorded;
      const problemCount = run.findings.filter((/** @type {any} */ { finding }) => finding.severity !== "note").length;
      const unseen = (run.started?.bugs ?? []).filter((/** @type {string} */ code) => !run.findings.some((/** @type {any} */ { finding }) => finding.code === code)).join(", ");
      const isBad = Boolean(problemCount || run.ended?.explained), isGood = isChecked && !unseen && !isBad;
      const isRaised = Boolean(run.ended?.explained);
      const unseenText = run.ended ? `The sanitizer has not found ${unseen} in this run.` : `Not found yet: ${unseen}. ${late || "Some failures show only after two epochs, or at an evaluation."}`;
      const text = unseen && isChecked && !run.findings.length && !isRaised ? unseenText : run.findings.length ? `✗ ${run.findings[0].finding.code} ${run.findings[0].finding.title}${run.findings.length > 1 ? `, and ${run.findings.length - 1} more` : ""}`
        : run.ended?.explained ? `✗ ${run.ended.explained.title}`
        : run.ended ? `✓ ${run.ended.headline ?? "The sanitizer found nothing."}`
          : isChecked ? "✓ No findings so far." : "Not checked yet.";
      for (const each of [verdict, verdictAtPlane]) {
        each.classList.toggle("bad", isBad);
        each.classList.toggle("good", Boolean(isGood));
        if (each.textContent !== text) each.textContent = text;
      }
    },
  };
}
