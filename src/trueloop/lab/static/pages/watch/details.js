// @ts-check
// Everything about one run except its curves: state, norms by layer, where the time goes, findings, notes, checkpoints, settings.
import { fill, h, formatNumber, prose } from "../../dom.js";
import { heatMap } from "../../heat_map.js";
import { ago, badge } from "./list.js";

/** @type {Record<string, string>} */
const PARTS = { data: "--c7", waiting: "--c7", forward: "--data", computing: "--data", backward: "--gradient", optimizer: "--update", evaluating: "--c3", saving: "--c5", other: "--ghost" };

/** @param {{announce: (text: string) => void}} options */
export function details({ announce }) {
  const map = heatMap({ title: "Gradient norm of each layer", unit: "norm" });
  const head = h("div", { class: "panel watch-head", hidden: true });
  const norms = h("div", { class: "panel" }), timePanel = h("div", { class: "panel" }), findings = h("div", { class: "panel" });
  const notes = h("details", { class: "panel" }), checkpointPanel = h("details", { class: "panel" }), settings = h("details", { class: "panel" }), verdictPanel = h("details", { class: "panel" });
  const element = h("div", { hidden: true }, findings, norms, timePanel, notes, checkpointPanel, verdictPanel, settings);
  let shownParts = "", announced = new Set(), announcedRun = "", announcedState = "";

  /** @param {any} run */
  function show(run) {
    head.hidden = !run;
    element.hidden = !run || run.loading || run.missing;
    if (!run) return;
    if (run.loading || run.missing) return fill(head, h("p", { class: run.missing ? "error" : "muted" }, run.missing ?? `Reading ${run.name} …`));
    fill(head, ...summary(run));
    if (run.layers) map.show(run.layers);
    const parts = JSON.stringify([run.id, Boolean(run.layers), run.spent, run.findings, run.notes, run.checkpoints, run.verdicts, run.settings, run.error, run.state]);
    if (parts === shownParts) return;
    shownParts = parts;
    fill(norms, run.layers ? map.element : [h("h2", {}, "Gradient norm of each layer"), h("p", { class: "muted" }, run.no_layers)]);
    fill(timePanel, ...timeSpent(run));
    timePanel.hidden = !run.spent.length;
    fill(findings, ...findingList(run));
    fillList(notes, "Notes", run.notes.map((/** @type {any} */ note) => h("li", {}, note.update !== null && h("span", { class: "mono" }, `update ${formatNumber(note.update)} `), h("span", { class: "badge" }, note.kind), " ", note.message)).reverse());
    checkpoints(checkpointPanel, run);
    verdicts(verdictPanel, run);
    fill(settings, h("summary", {}, run.kind === "trained" ? "Settings" : "The program"), h("dl", { class: "watch-settings" }, run.settings.map((/** @type {[string, string]} */ [name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value || "none")))));
    announceChanges(run);
  }

  /** @param {any} run */
  function announceChanges(run) {
    const findingTexts = run.findings.map((/** @type {any} */ each) => `${each.severity} ${each.code}: ${each.message}`);
    if (announcedRun === run.id) for (const each of findingTexts) if (!announced.has(each)) announce(`Found: ${each}`);
    if (announcedRun === run.id && announcedState !== run.state) announce(`${run.name}: ${run.state}. ${run.words}`);
    announcedRun = run.id;
    announcedState = run.state;
    announced = new Set(findingTexts);
  }
  return { head, element, show, unmount: map.unmount };
}

/** @param {any} run */
function summary(run) {
  const share = run.updates ? run.update / run.updates : null;
  const percentRead = run.size ? Math.floor((100 * run.read) / run.size) : 100;
  const numbers = [
    ["update", run.updates ? `${formatNumber(run.update)} of ${formatNumber(run.updates)}` : formatNumber(run.update)],
    ...(run.epochs ? [["epoch", `${formatNumber(run.epoch)} of ${formatNumber(run.epochs)}`]] : []),
    ["seconds", formatNumber(run.seconds, 3)],
    ["last update", run.changed ? ago(run.changed) : "–"],
  ];
  return [
    h("div", { class: "row" }, h("h2", {}, run.name), badge(run.state, run.tone), run.what && run.what !== run.name && h("span", { class: "muted" }, run.what), run.behind && h("span", { class: "muted" }, `reading its journal: ${percentRead} %`)),
    h("p", {}, run.words, run.state === "running" && run.findings.length > 0 && [" ", h("button", { type: "button", class: "small", onclick: () => document.querySelector(".watch-finding")?.scrollIntoView() }, `Found so far: ${run.findings.map((/** @type {any} */ each) => each.code).join(", ")} ↓`)]),
    run.problem && h("p", { class: "error" }, run.problem),
    share !== null && h("progress", { class: "watch-progress", max: 1, value: share, "aria-label": "Updates done" }),
    h("dl", { class: "numbers" }, numbers.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
  ];
}

/** @param {any} run */
function timeSpent(run) {
  const title = run.kind === "trained" ? "Where the time went" : "Where the time of an update goes";
  const formatSeconds = (/** @type {number} */ s) => (s < 1 ? `${formatNumber(1000 * s, 3)} ms` : `${formatNumber(s, 3)} s`);
  return [
    h("h2", {}, title),
    h("div", { class: "watch-bar", role: "img", "aria-label": run.spent.map((/** @type {any} */ part) => `${part.label} ${Math.round(100 * part.share)} %`).join(", ") },
      run.spent.map((/** @type {any} */ part) => h("span", { style: { "flex-grow": part.share, "flex-basis": 0, background: `var(${PARTS[part.name] ?? "--ghost"})` } }))),
    h("ul", { class: "watch-parts" }, run.spent.map((/** @type {any} */ part) => h("li", {}, h("i", { style: { background: `var(${PARTS[part.name] ?? "--ghost"})` } }), `${part.label}: ${formatNumber(100 * part.share, 3)} %, ${formatSeconds(part.seconds)}`))),
  ];
}

/** @param {any} run */
function findingList(run) {
  const error = run.error && h("article", { class: "watch-finding error-level" },
    h("h3", {}, h("span", { class: "badge error" }, run.error.type), " ", run.error.title), h("p", {}, h("code", {}, run.error.message)), h("p", {}, run.error.meaning),
    run.error.excerpts.map(excerpt), run.error.fix && h("p", {}, h("b", {}, "Fix: "), run.error.fix));
  const nothing = run.kind === "trained" && !run.findings.length
    ? "None: `trueloop train` runs are checked only under `trueloop run`."
    : "None so far.";
  return [h("h2", {}, "Findings"), error, run.findings.length ? run.findings.map(findingCard) : !error && h("p", { class: "muted" }, nothing)];
}

/** @param {any} finding */
function findingCard(finding) {
  const since = [finding.first_update !== null && `first at update ${formatNumber(finding.first_update)}`, finding.count > 1 && `seen ${formatNumber(finding.count)} times`].filter(Boolean).join("; ");
  return h("article", { class: `watch-finding ${finding.severity}-level` },
    h("h3", {}, h("span", { class: `badge ${finding.severity}` }, `${finding.severity} ${finding.code}`), " ", finding.title),
    h("p", {}, prose(finding.message)), finding.excerpts.length ? finding.excerpts.map(excerpt) : finding.path && h("p", {}, h("code", {}, `${finding.path}:${finding.line}`)),
    since && h("p", { class: "muted" }, since),
    finding.fix && h("p", {}, h("b", {}, "Fix: "), prose(finding.fix)),
    h("p", {}, h("a", { href: `#/signatures?code=${encodeURIComponent(finding.code)}` }, "Page and curves")));
}

/** @param {any} source */
function excerpt(source) {
  return h("div", {}, h("code", {}, source.path), source.function && ` in ${source.function}`,
    h("pre", { class: "code watch-plain", tabindex: "0", role: "region", "aria-label": `Lines of ${source.path}` }, h("code", {}, source.lines.map((/** @type {any} */ line) => (line
      ? [h("span", { class: line.fault ? "line hit" : line.words.length ? "line current" : "line", dataset: { line: line.number } }, line.text, "\n"), line.words.map((/** @type {string} */ words) => h("span", { class: "said" }, `↑ ${words}\n`))]
      : h("span", { class: "gap" }, "…\n"))))));
}

/** @param {HTMLElement} panel @param {string} name @param {any[]} items */
function fillList(panel, name, items) {
  panel.hidden = !items.length;
  fill(panel, h("summary", {}, `${name} (${items.length})`), h("ul", {}, items));
}

/** @param {HTMLElement} panel @param {any} run */
function checkpoints(panel, run) {
  panel.hidden = !run.checkpoints.length;
  const names = [...new Set(run.checkpoints.flatMap((/** @type {any} */ each) => Object.keys(each.metrics)))];
  fill(panel, h("summary", {}, `Checkpoints (${run.checkpoints.length})`), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Checkpoints" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "folder"), h("th", { scope: "col", class: "number" }, "update"), names.map((name) => h("th", { scope: "col", class: "number" }, name)), h("th", { scope: "col" }, "on disk"))),
    h("tbody", {}, run.checkpoints.map((/** @type {any} */ each) => h("tr", {}, h("td", {}, h("code", {}, each.name)), h("td", { class: "number" }, formatNumber(each.update)),
      names.map((name) => h("td", { class: "number" }, formatNumber(each.metrics[name]))), h("td", {}, each.there ? "yes" : "removed")))))));
}

/** @param {HTMLElement} panel @param {any} run */
function verdicts(panel, run) {
  panel.hidden = !run.verdicts.length;
  const counts = new Map();
  for (const { verdict } of run.verdicts) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  fill(panel, h("summary", {}, `Verdicts: ${[...counts].map(([verdict, count]) => `${count} ${verdict}`).join(", ")}`),
    h("ul", {}, run.verdicts.filter((/** @type {any} */ each) => each.verdict !== "passed").map((/** @type {any} */ each) => h("li", {}, h("code", {}, each.code), ` ${each.verdict}${each.reason ? `: ${each.reason}` : ""}`))));
}
