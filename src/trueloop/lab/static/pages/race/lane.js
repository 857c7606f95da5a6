// @ts-check
// One run of a race: its settings, its plane, and the sanitizer's findings.
import { form } from "../../controls.js";
import { fill, h, later } from "../../dom.js";
import { newest } from "../../net.js";
import { board } from "../simulator/board.js";
import { CHOICES, labelOf, LABELS, SLIDERS } from "../simulator/knobs.js";
import { Run } from "../simulator/run.js";

/** @typedef {import("../../controls.js").Field} Field */
/** @typedef {import("../simulator/run.js").Setup} Setup */

const MAIN = ["learning_rate", "batch", "optimizer"];

/** @param {{name: string, colour: string, dash: number[] | undefined, fields: Field[], setup: Setup, onchange: () => void, onleave: () => void,
 *   handlers: {onbegan: () => void, onframe: () => void, onfinding: (lane: any, found: any) => void, onended: () => void, onstate: (state: string, reason: string, again: boolean) => void, onrefused: (text: string) => void}}} options
 *   fields: those that each runner has for itself */
export function lane({ name, colour, dash, fields, setup, onchange, onleave, handlers }) {
  const asks = newest("simulator");
  const rest = fields.map((field) => field.name).filter((each) => !MAIN.includes(each));
  const changed = later(onchange, 250);
  const took = (/** @type {Record<string, any>} */ values, /** @type {string} */ field) => { self.setup = { ...self.setup, config: { ...self.setup.config, [field]: values[field] } }; changed(); };
  const options = { values: setup.config, labels: LABELS, sliders: SLIDERS, onchange: took };
  const main = form(fields, { ...options, only: MAIN }), more = form(fields, { ...options, only: rest });
  for (const option of main.field("optimizer").querySelectorAll("option")) option.textContent = CHOICES[option.textContent ?? ""] ?? option.textContent;
  const bug = h("select", { id: `race-bug-${name}`, onchange: () => { self.setup = { ...self.setup, bugs: bug.value ? bug.value.split("-") : [] }; onchange(); } });
  const plane = board({ title: `Runner ${name}` });
  const needs = h("p", { class: "needs muted", hidden: true }), verdict = h("p", { class: "verdict" });
  const leave = h("button", { type: "button", class: "quiet small", "aria-label": `Remove runner ${name}`, onclick: onleave }, "✕");
  const heading = h("h2", { class: "row" }, h("i", { class: "swatch", "aria-hidden": "true", style: { "border-top": `4px ${dash ? "dashed" : "solid"} var(${colour})` } }), `Runner ${name}`, leave);
  const element = h("section", { class: "panel lane", "aria-label": `Runner ${name}` }, heading, plane.element, verdict,
    main.element, h("div", { class: "field" }, h("label", { for: `race-bug-${name}` }, "failure"), bug), needs,
    h("details", { class: "more" }, h("summary", {}, "More settings"), more.element));
  let known = "", asked_ = "";

  const run = new Run({
    onbegan: () => { plane.begin(run.began); handlers.onbegan(); },
    onframe: handlers.onframe,
    onfinding: (_, found) => { judge(); handlers.onfinding(self, found); },
    onended: () => { judge(); handlers.onended(); },
    onrefused: ({ what, fix }) => handlers.onrefused(`Runner ${name}: ${what} ${fix ?? ""}`),
    onstate: (_, state, reason, again) => handlers.onstate(state, reason, again),
  });

  /** Show the sanitizer's findings so far. */
  function judge() {
    const graver = run.findings.filter(({ finding }) => finding.severity !== "note");
    verdict.className = `verdict ${graver.length ? "bad" : run.update ? "good" : ""}`;
    fill(verdict, graver.length ? graver.map(({ finding }) => h("a", { href: `#/signatures?code=${finding.code}`, title: finding.message }, `✗ ${finding.code} ${finding.title}`))
      : run.update ? "✓ nothing found so far" : "checked by the sanitizer");
  }
  judge();

  const self = {
    name, colour, dash, element, run, setup,
    /** Codes of the findings, without notes. */
    get codes() { return run.findings.filter(({ finding }) => finding.severity !== "note").map(({ finding }) => finding.code); },
    /** Ask the server whether these settings can run together with the shared ones, and apply the changes that failures need. @param {Record<string, any>} common @returns {Promise<boolean>} */
    async prepare(common) {
      const asked = { ...self.setup.config, ...common };
      if (asked_ === JSON.stringify([asked, self.setup.bugs])) return true; // another run was changed
      try {
        const answer = await asks({ config: asked, bugs: self.setup.bugs });
        if (!answer) return false;
        const set = Object.keys(answer.config).filter((each) => JSON.stringify(answer.config[each]) !== JSON.stringify(asked[each]));
        self.setup = { config: answer.config, bugs: self.setup.bugs, points: [] };
        asked_ = JSON.stringify([answer.config, self.setup.bugs]);
        main.refuse(null);
        more.refuse(null);
        for (const each of [main, more]) each.set(Object.fromEntries(Object.entries(answer.config).filter(([field, value]) => JSON.stringify(each.values[field]) !== JSON.stringify(value))));
        needs.hidden = !set.length;
        needs.textContent = set.length ? `Also set: ${set.map((each) => `${labelOf(each)} ${answer.config[each]}`).join(", ")}.` : "";
        const state = JSON.stringify([answer.bugs.map((/** @type {any} */ each) => each.code), self.setup.bugs]);
        if (state !== known) {
          fill(bug, h("option", { value: "" }, "nothing"), answer.bugs.map((/** @type {any} */ each) => h("option", { value: each.code }, `${each.code} ${each.title}`)), self.setup.bugs.length > 1 && h("option", { value: self.setup.bugs.join("-") }, self.setup.bugs.join(" and ")));
          bug.value = self.setup.bugs.join("-");
        }
        known = state;
        return true;
      } catch (error) {
        const words = /** @type {any} */ (error).words ?? { what: String(error) };
        const named = (/** @type {string} */ each) => new RegExp(`(^|\\W)${each}\\b`).test(words.what);
        if (!Object.keys(common).some(named)) (rest.some(named) ? more : main).refuse(words);
        throw error;
      }
    },
    begin() { run.begin(self.setup); judge(); },
    /** @param {string} what how it differs from the others */
    paint(what) {
      leave.title = what;
      if (!run.fresh) return;
      plane.paint(run.planes.get("boundary"));
      run.fresh = false;
      judge();
    },
    /** @param {boolean} alone the last one stays */
    alone(alone) { leave.hidden = alone; },
    unmount() { plane.unmount(); run.close(); },
  };
  return self;
}
