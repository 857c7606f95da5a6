// @ts-check
// The three leaderboards of a track, with the spread over the seeds, and the queue. Names are shown as text, never as markup.
import { fill, h, formatNumber, svg } from "../../dom.js";

const CRITERIA = { updates: "Fewest updates", examples: "Fewest examples", time: "Least time per example" };
const UNITS = { updates: "steps to target", examples: "examples to target", time: "time per example, × a baseline run next to it" };
/** The other columns: title with its unit, and text of a row. @type {[string, (row: any) => string][]} */
const COLUMNS = [
  ["final accuracy, %", (row) => row.accuracy ? (100 * row.accuracy.median).toFixed(1) : "–"],
  ["time per step, ms", (row) => row.step_ms ? formatNumber(row.step_ms.median, 2) : "–"],
  ["peak memory, MiB", (row) => row.memory_mib ? formatNumber(row.memory_mib.median, 3) : "–"],
  ["lines", (row) => String(row.lines)],
  ["seeds", (row) => String(row.seeds)],
];

/** @param {{open: (id: number) => void, announce: (text: string) => void}} handlers */
export function leaderboards({ open, announce }) {
  let criterion = "updates", shownState = "";
  /** @type {any} */
  let answer = null;
  const tabs = Object.entries(CRITERIA).map(([name, text]) => h("button", { type: "button", class: "quiet", onclick: () => { criterion = name; draw(); announce(text); } }, text));
  const body = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Entries" });
  const queue = h("div", { class: "queue" }), damagedRows = h("div", { class: "refused-rows" });
  const element = h("section", { class: "panel boards", "aria-label": "Leaderboard" },
    h("div", { class: "row" }, h("h2", {}, "Leaderboard"), h("div", { class: "row", role: "group", "aria-label": "Ranked by" }, tabs)), body, damagedRows, queue);

  function draw() {
    tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(Object.keys(CRITERIA)[i] === criterion)));
    if (!answer) return;
    const rows = answer.boards[criterion];
    const scaleMax = Math.max(...rows.map((/** @type {any} */ row) => row[criterion]?.highest ?? 0));
    fill(body, rows.length
      ? h("table", {},
        h("thead", {}, h("tr", {}, h("th", { class: "number", scope: "col" }, "#"), h("th", { scope: "col" }, "name"), h("th", { class: "number", scope: "col" }, UNITS[criterion]), h("th", { scope: "col" }, "over the seeds"),
          COLUMNS.map(([name]) => h("th", { class: "number", scope: "col" }, name)))),
        h("tbody", {}, rows.map((/** @type {any} */ row) => line(row, scaleMax))))
      : h("p", { class: "muted" }, "No entries on this track yet. The baseline is judged with the first entry."));
  }

  /** @param {any} row @param {number} scaleMax */
  function line(row, scaleMax) {
    const verdict = row.disqualified ? h("span", { class: "badge error" }, `✗ ${row.disqualified}`)
      : row.missed ? h("span", { class: "badge warning" }, `did not reach on ${row.missed} of ${row.seeds}`) 
        : row.confirmed ? null : h("span", { class: "badge warning" }, "not confirmed: replay it");
    return h("tr", { class: row.rank ? "" : "unranked" },
      h("td", { class: "number" }, row.rank ?? "–"),
      h("td", {}, h("button", { type: "button", class: "quiet name", "aria-label": `${row.name}: show the entry`, onclick: () => open(row.ids.at(-1)) }, row.name), row.baseline && h("span", { class: "badge" }, "to beat"),
        h("small", { class: "settings mono" }, formatSettings(row.changes, row.config))),
      h("td", { class: "number strong" }, row[criterion] ? formatNumber(row[criterion].median, 3) : "–"),
      h("td", {}, verdict ?? (row[criterion] && spread(row[criterion], scaleMax, criterion))),
      COLUMNS.map(([, text]) => h("td", { class: "number muted" }, text(row))));
  }

  return {
    element,
    /** @param {any} newAnswer @param {any} track */
    show(newAnswer, track) {
      const state = JSON.stringify([newAnswer.boards, newAnswer.refused, track.name]);
      answer = newAnswer;
      if (state !== shownState) {
        draw();
        fill(damagedRows, (newAnswer.refused ?? []).length > 0 && h("details", {}, h("summary", {}, h("span", { class: "badge error" }, "✗ refused"), newAnswer.refused.length === 1 ? " One row is damaged and does not count." : ` ${newAnswer.refused.length} rows are damaged and do not count.`),
          h("ul", {}, newAnswer.refused.map((/** @type {any} */ row) => h("li", {}, row.why)))));
      }
      shownState = state;
      fill(queue, newAnswer.queue.length > 0 && h("p", { class: "muted" }, h("b", {}, "Being judged: "), newAnswer.queue.map((/** @type {any} */ row, /** @type {number} */ i) => `${i ? ", " : ""}${row.name} (${row.track}${row.state === "judging" && row.progress.of ? `, seed ${row.progress.seed + 1} of ${row.progress.of}` : ""})`)));
    },
    /** @param {string} text */
    showError(text) { fill(queue, h("p", { class: "error", role: "alert" }, text)); },
  };
}

/** Draw a bar from the lowest to the highest value with a mark at the median. @param {{median: number, lowest: number, highest: number}} values @param {number} scaleMax @param {string} criterion */
function spread({ median, lowest, highest }, scaleMax, criterion) {
  const at = (/** @type {number} */ value) => 2 + (96 * value) / (scaleMax || 1);
  return svg("svg", { class: "spread", viewBox: "0 0 100 12", preserveAspectRatio: "none", role: "img", "aria-label": `from ${formatNumber(lowest, 3)} to ${formatNumber(highest, 3)} ${UNITS[criterion]}` },
    svg("line", { x1: at(lowest), x2: at(highest), y1: 6, y2: 6, class: "range" }),
    svg("line", { x1: at(median), x2: at(median), y1: 1, y2: 11, class: "median" }));
}

/** Describe the settings of an entry. @param {Record<string, any>} changes settings that differ from the defaults @param {Record<string, any>} config */
export function formatSettings(changes, config) {
  const otherChanges = Object.entries(changes).filter(([name]) => !["optimizer", "lr", "batch"].includes(name)).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  return [config.optimizer, `lr ${config.lr}`, `batch ${config.batch}`, ...otherChanges].join(" · ");
}
