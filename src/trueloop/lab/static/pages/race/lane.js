// @ts-check
// One run of a race: its settings, its plane, and the sanitizer's findings.
import { form, mentions } from "../../controls.js";
import { equal, fill, h, debounce, swatch } from "../../dom.js";
import { latestOnly } from "../../net.js";
import { decisionPlane } from "../simulator/decision_plane.js";
import { labelOf, LABELS, nameOptimizers, SLIDERS } from "../simulator/knobs.js";
import { Run } from "../simulator/run.js";

/** @typedef {import("../../controls.js").Field} Field */
/** @typedef {import("../simulator/run.js").Setup} Setup */

const MAIN = ["learning_rate", "batch", "optimizer"];

/** @param {{name: string, colour: string, dash: number[] | undefined, fields: Field[], setup: Setup, onchange: () => void, onremove: () => void,
 *   handlers: {onstarted: () => void, onframe: () => void, onfinding: (lane: any, message: any) => void, onended: () => void, onstate: (state: string, reason: string, reconnected: boolean) => void, onrefused: (text: string) => void}}} options
 *   fields: the settings that can differ between runners */
export function lane({ name, colour, dash, fields, setup, onchange, onremove, handlers }) {
  const sendQuery = latestOnly("simulator");
  const lessCommon = fields.map((field) => field.name).filter((each) => !MAIN.includes(each));
  const changeLater = debounce(onchange, 250);
  const settingChanged = (/** @type {Record<string, any>} */ values, /** @type {string} */ field) => { self.setup = { ...self.setup, config: { ...self.setup.config, [field]: values[field] } }; changeLater(); };
  const options = { values: setup.config, labels: LABELS, sliders: SLIDERS, onchange: settingChanged };
  const main = form(fields, { ...options, only: MAIN }), more = form(fields, { ...options, only: lessCommon });
  nameOptimizers(main.field("optimizer"));
  const failureSelect = h("select", { id: `race-bug-${name}`, onchange: () => { self.setup = { ...self.setup, bugs: failureSelect.value ? failureSelect.value.split("-") : [] }; onchange(); } });
  const plane = decisionPlane({ title: `Runner ${name}` });
  const alsoSet = h("p", { class: "needs muted", hidden: true }), verdict = h("p", { class: "verdict" });
  const removeButton = h("button", { type: "button", class: "quiet small", "aria-label": `Remove runner ${name}`, onclick: onremove }, "✕");
  const heading = h("h2", { class: "row" }, swatch({ colour, dash, width: 4 }), `Runner ${name}`, removeButton);
  const element = h("section", { class: "panel lane", "aria-label": `Runner ${name}` }, heading, plane.element, verdict,
    h("details", { class: "more settings", open: !matchMedia("(max-width: 700px)").matches }, h("summary", {}, "Settings"),
      main.element, h("div", { class: "field" }, h("label", { for: `race-bug-${name}` }, "failure"), failureSelect), alsoSet,
      h("details", { class: "more" }, h("summary", {}, "More settings"), more.element)));
  let listedFailures = "", preparedFor = "";

  const run = new Run({
    onstarted: () => { plane.begin(run.started); handlers.onstarted(); },
    onframe: handlers.onframe,
    onfinding: (_, message) => { showVerdict(); handlers.onfinding(self, message); },
    onended: () => { showVerdict(); handlers.onended(); },
    onrefused: ({ what, fix }) => handlers.onrefused(`Runner ${name}: ${what} ${fix ?? ""}`),
    onstate: (_, state, reason, reconnected) => handlers.onstate(state, reason, reconnected),
  });

  /** Show what the sanitizer has found so far. */
  function showVerdict() {
    const problems = run.findings.filter(({ finding }) => finding.severity !== "note");
    verdict.className = `verdict ${problems.length ? "bad" : run.window ? "good" : ""}`;
    fill(verdict, problems.length ? problems.map(({ finding }) => h("a", { href: `#/signatures?code=${finding.code}`, title: finding.message }, `✗ ${finding.code} ${finding.title}`))
      : run.window ? "✓ nothing found so far" : "checked by the sanitizer");
  }
  showVerdict();

  const self = {
    name, colour, dash, element, run, setup,
    /** Codes of the findings of severity warning or error. */
    get codes() { return run.findings.filter(({ finding }) => finding.severity !== "note").map(({ finding }) => finding.code); },
    /** Ask the server whether these settings and the shared settings can run together, and apply the changes that failures need. @param {Record<string, any>} sharedConfig @returns {Promise<boolean>} */
    async prepare(sharedConfig) {
      const config = { ...self.setup.config, ...sharedConfig };
      if (preparedFor === JSON.stringify([config, self.setup.bugs])) return true; // another run was changed
      try {
        const answer = await sendQuery({ config, bugs: self.setup.bugs });
        if (!answer) return false;
        const changedNames = Object.keys(answer.config).filter((each) => !equal(answer.config[each], config[each]));
        self.setup = { config: answer.config, bugs: self.setup.bugs, points: [] };
        preparedFor = JSON.stringify([answer.config, self.setup.bugs]);
        main.refuse(null);
        more.refuse(null);
        main.change(answer.config);
        more.change(answer.config);
        alsoSet.hidden = !changedNames.length;
        alsoSet.textContent = changedNames.length ? `Also set: ${changedNames.map((each) => `${labelOf(each)} ${answer.config[each]}`).join(", ")}.` : "";
        const state = JSON.stringify([answer.bugs.map((/** @type {any} */ each) => each.code), self.setup.bugs]);
        if (state !== listedFailures) {
          fill(failureSelect, h("option", { value: "" }, "nothing"), answer.bugs.map((/** @type {any} */ each) => h("option", { value: each.code }, `${each.code} ${each.title}`)), self.setup.bugs.length > 1 && h("option", { value: self.setup.bugs.join("-") }, self.setup.bugs.join(" and ")));
          failureSelect.value = self.setup.bugs.join("-");
        }
        listedFailures = state;
        return true;
      } catch (error) {
        const problem = /** @type {any} */ (error).problem ?? { what: String(error) };
        const isNamed = (/** @type {string} */ each) => mentions(problem.what, each);
        if (!Object.keys(sharedConfig).some(isNamed)) (lessCommon.some(isNamed) ? more : main).refuse(problem);
        throw error;
      }
    },
    begin() { run.begin(self.setup); showVerdict(); },
    /** @param {string} difference how the settings differ from those of the other runs */
    paint(difference) {
      removeButton.title = difference;
      if (!run.hasUnpaintedFrame) return;
      plane.paint(run.planes.get("boundary"));
      run.hasUnpaintedFrame = false;
      showVerdict();
    },
    /** @param {boolean} alone true if no other run is left, so that this one cannot be removed */
    setAlone(alone) { removeButton.hidden = alone; },
    unmount() { plane.unmount(); run.close(); },
  };
  return self;
}
