// @ts-check
// The details of an entry: seeds, curves, versions and script. The entry can be replayed, and its settings can be loaded.
import { chart } from "../../chart.js";
import { codePanel } from "../../code.js";
import { fill, h, formatNumber } from "../../dom.js";
import { ask } from "../../net.js";
import { formatSettings } from "./leaderboards.js";
import { describeResult } from "./submission_panel.js";

const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c6"];
const DASHES = [undefined, [8, 4], [3, 3], [8, 3, 2, 3], [1, 3]];

/** @param {{onuse: (config: Record<string, any>, track: string) => void, onreplayed: () => Promise<void>, announce: (text: string) => void}} handlers */
export function entryPanel({ onuse, onreplayed, announce }) {
  let shownId = 0, replayId = 0;
  /** @type {ReturnType<typeof chart> | null} */
  let plot = null;
  const element = h("section", { class: "panel entry", hidden: true, tabindex: "-1", "aria-label": "Entry" });

  function hide() {
    element.hidden = true;
    shownId = replayId = 0;
    plot?.unmount();
    plot = null;
  }

  /** @param {number} id */
  async function show(id) {
    const row = await ask("arena", { do: "entry", id });
    hide();
    shownId = id;
    element.hidden = false;
    const code = row.script && codePanel({ title: "The script that was run", file: `entry_${id}.py`, note: "With its first seed; the others differ in the line SEED." });
    code?.show(row.script, { hit: row.trials.find((/** @type {any} */ trial) => trial.found)?.found.line });
    const replayStatus = h("div", { class: "again", role: "status" });
    const button = h("button", { type: "button", class: "quiet", disabled: row.open || !row.trials.length, onclick: () => replay(id, button, replayStatus) }, "↻ Replay");
    fill(element,
      h("div", { class: "row" }, h("h2", {}, `Entry ${id}: ${row.name}`), h("span", { class: "badge" }, row.track),
        h("button", { type: "button", class: "quiet", onclick: () => onuse(row.config, row.track) }, "Use these settings"), button,
        h("button", { type: "button", class: "quiet", onclick: hide }, "Close")),
      h("p", {}, describeResult(row)),
      h("p", { class: "mono settings" }, formatSettings(row.changes, row.config)),
      h("div", { class: "tiles" }, drawCurves(row), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Seeds" }, seedTable(row))),
      replayStatus,
      h("p", { class: "muted versions" }, `Submitted ${new Date(1000 * row.submitted).toLocaleString()}; ${Object.entries(row.versions).map(([name, version]) => `${name} ${version}`).join(", ")}.`),
      code ? code.element : h("p", { class: "muted" }, "The track has changed since; this entry no longer counts."));
    element.scrollIntoView({ block: "nearest" });
    element.focus({ preventScroll: true });
    announce(`Entry ${id} of ${row.name}`);
  }

  /** @param {any} row */
  function drawCurves(row) {
    if (!row.curves.length) return null;
    const sorted = row.seeds.map((/** @type {number} */ seed) => row.curves.find((/** @type {any} */ curve) => curve.seed === seed)).filter(Boolean);
    plot = chart({ title: "Held-out accuracy on each seed", height: 200, x: "update", tools: false, lines: sorted.map((/** @type {any} */ _, /** @type {number} */ i) => ({ label: `${i + 1}`, colour: COLOURS[i % COLOURS.length], dash: DASHES[i % DASHES.length], width: 1.6 })) });
    const xs = [...new Set(sorted.flatMap((/** @type {any} */ curve) => curve.points.map((/** @type {any} */ point) => point[0])))].sort((a, b) => a - b);
    plot.set(xs, ...sorted.map((/** @type {any} */ curve) => stepValues(curve.points, xs)));
    return plot.element;
  }

  /** @param {number} id @param {HTMLButtonElement} button @param {HTMLElement} status */
  async function replay(id, button, status) {
    button.disabled = true;
    try {
      const started = await ask("arena", { do: "replay", id });
      replayId = started.id;
      for (;;) {
        const answer = await ask("arena", { do: "poll", id: started.id });
        if (shownId !== id || replayId !== started.id) return;
        fill(status, h("ul", {}, answer.seeds.map(replayResult)), answer.done && replaySummary(answer));
        if (answer.done) {
          await onreplayed();
          break;
        }
        await new Promise((wake) => setTimeout(wake, 250));
      }
    } catch (error) {
      fill(status, h("p", { class: "error", role: "alert" }, /** @type {Error} */ (error).message));
    }
    button.disabled = false;
  }

  return { element, show, hide, unmount: hide };
}

/** @param {any} row */
function seedTable(row) {
  return h("table", {},
    h("thead", {}, h("tr", {}, ["", "seed", "result", "updates", "examples", "held out", "time", "weights"].map((name, i) => h("th", { scope: "col", class: i > 2 && i < 7 ? "number" : "" }, name)))),
    h("tbody", {}, row.trials.map((/** @type {any} */ trial, /** @type {number} */ i) => h("tr", {},
      h("td", { class: "muted" }, i + 1),
      h("td", { class: "mono" }, trial.seed),
      h("td", {}, trial.end === "reached" ? "✓ reached" : `✗ ${trial.found?.code ?? trial.end}`),
      h("td", { class: "number" }, formatNumber(trial.updates)), h("td", { class: "number" }, formatNumber(trial.examples)),
      h("td", { class: "number" }, `${(100 * trial.accuracy).toFixed(1)} %`), h("td", { class: "number" }, trial.time === null ? "–" : `${formatNumber(trial.time, 2)}×`),
      h("td", { class: "mono muted", title: trial.digest }, trial.digest.slice(0, 8) || "–")))));
}

/** @param {any} seed */
function replayResult({ stored, repeated, same }) {
  return h("li", {}, same ? `✓ seed ${stored.seed}: ${stored.end} at update ${repeated.updates} again, bitwise equal weights` : `✗ seed ${stored.seed}: ${stored.end} at update ${stored.updates} then, ${repeated.end} at update ${repeated.updates} now`);
}

/** @param {any} answer */
function replaySummary({ same, error, differing }) {
  if (error) return h("p", { class: "error" }, `${error.what} ${error.fix}`);
  const versionChanges = Object.entries(differing).map(([name, [stored, current]]) => ` ${name} was ${stored}, now ${current}.`);
  return h("p", {}, h("span", { class: same ? "badge good" : "badge error" }, same ? "✓ bitwise equal" : "✗ different"), versionChanges, !same && !versionChanges.length && " This entry is no longer ranked.");
}

/** Return a value for each x: the latest point's, or null outside the curve. @param {[number, number, number][]} points @param {number[]} xs */
function stepValues(points, xs) {
  let i = -1;
  return xs.map((x) => {
    while (i + 1 < points.length && points[i + 1][0] <= x) i += 1;
    return i < 0 || x > points[points.length - 1][0] ? null : points[i][2];
  });
}
