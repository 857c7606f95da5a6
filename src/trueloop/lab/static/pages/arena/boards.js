// @ts-check
// The three rankings of a track, with the spread over the seeds, and the queue. Names are shown as text, never as markup.
import { fill, h, number, svg } from "../../dom.js";

const BY = { updates: "Fewest updates", examples: "Fewest examples", time: "Least time per example" };
const UNITS = { updates: "updates", examples: "examples", time: "× the reference" };

/** @param {{open: (id: number) => void, announce: (text: string) => void}} handlers */
export function boards({ open, announce }) {
  let by = "updates", shown = "";
  /** @type {any} */
  let answer = null;
  const tabs = Object.entries(BY).map(([name, text]) => h("button", { type: "button", class: "quiet", onclick: () => { by = name; draw(); announce(text); } }, text));
  const body = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Board" });
  const queue = h("div", { class: "queue" }), refused = h("div", { class: "refused-rows" });
  const element = h("section", { class: "panel boards", "aria-label": "Scoreboard" },
    h("div", { class: "row" }, h("h2", {}, "Scoreboard"), h("div", { class: "row", role: "group", "aria-label": "Ranked by" }, tabs)), body, refused, queue);

  function draw() {
    tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(Object.keys(BY)[i] === by)));
    if (!answer) return;
    const rows = answer.boards[by];
    const most = Math.max(...rows.map((/** @type {any} */ row) => row[by]?.highest ?? 0));
    const others = Object.keys(BY).filter((name) => name !== by);
    fill(body, rows.length
      ? h("table", {},
        h("thead", {}, h("tr", {}, h("th", { class: "number", scope: "col" }, "#"), h("th", { scope: "col" }, "name"), h("th", { class: "number", scope: "col" }, `${UNITS[by]}, median`), h("th", { scope: "col" }, "over the seeds"),
          others.map((name) => h("th", { class: "number", scope: "col" }, UNITS[name])), h("th", { class: "number", scope: "col" }, "seeds"))),
        h("tbody", {}, rows.map((/** @type {any} */ row) => line(row, most, others))))
      : h("p", { class: "muted" }, "No entries on this track yet. The baseline is judged with the first entry."));
  }

  /** @param {any} row @param {number} most @param {string[]} others */
  function line(row, most, others) {
    const verdict = row.disqualified ? h("span", { class: "badge error" }, `✗ ${row.disqualified}`)
      : row.missed ? h("span", { class: "badge warning" }, `did not reach on ${row.missed} of ${row.seeds}`) : null;
    return h("tr", { class: row.rank ? "" : "unranked" },
      h("td", { class: "number" }, row.rank ?? "–"),
      h("td", {}, h("button", { type: "button", class: "quiet name", "aria-label": `${row.name}: show the entry`, onclick: () => open(row.ids.at(-1)) }, row.name), row.baseline && h("span", { class: "badge" }, "to beat"),
        h("small", { class: "settings mono" }, settings(row.changes, row.config))),
      h("td", { class: "number strong" }, row[by] ? number(row[by].median, 3) : "–"),
      h("td", {}, verdict ?? (row[by] && spread(row[by], most, by))),
      others.map((name) => h("td", { class: "number muted" }, row[name] ? number(row[name].median, 3) : "–")),
      h("td", { class: "number muted" }, row.seeds));
  }

  return {
    element,
    /** @param {any} given @param {any} track */
    show(given, track) {
      const text = JSON.stringify([given.boards, given.refused, track.name]);
      answer = given;
      if (text !== shown) {
        draw();
        fill(refused, (given.refused ?? []).length > 0 && h("details", {}, h("summary", {}, h("span", { class: "badge error" }, "✗ refused"), given.refused.length === 1 ? " One row is damaged and does not count." : ` ${given.refused.length} rows are damaged and do not count.`),
          h("ul", {}, given.refused.map((/** @type {any} */ row) => h("li", {}, row.why)))));
      }
      shown = text;
      fill(queue, given.queue.length > 0 && h("p", { class: "muted" }, h("b", {}, "Being judged: "), given.queue.map((/** @type {any} */ row, /** @type {number} */ i) => `${i ? ", " : ""}${row.name} (${row.track}${row.state === "judging" && row.progress.of ? `, seed ${row.progress.seed + 1} of ${row.progress.of}` : ""})`)));
    },
    /** @param {string} text */
    trouble(text) { fill(queue, h("p", { class: "error", role: "alert" }, text)); },
  };
}

/** A bar from the lowest to the highest value, with a mark at the median. @param {{median: number, lowest: number, highest: number}} of @param {number} most @param {string} by */
function spread({ median, lowest, highest }, most, by) {
  const at = (/** @type {number} */ value) => 2 + (96 * value) / (most || 1);
  return svg("svg", { class: "spread", viewBox: "0 0 100 12", preserveAspectRatio: "none", role: "img", "aria-label": `from ${number(lowest, 3)} to ${number(highest, 3)} ${UNITS[by]}` },
    svg("line", { x1: at(lowest), x2: at(highest), y1: 6, y2: 6, class: "range" }),
    svg("line", { x1: at(median), x2: at(median), y1: 1, y2: 11, class: "median" }));
}

/** @param {Record<string, any>} changes @param {Record<string, any>} config */
export function settings(changes, config) {
  const rest = Object.entries(changes).filter(([name]) => !["optimizer", "lr", "batch"].includes(name)).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  return [config.optimizer, `lr ${config.lr}`, `batch ${config.batch}`, ...rest].join(" · ");
}
