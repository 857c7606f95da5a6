// @ts-check
// The list of runs, with a search and a box to choose each.
import { fill, h, debounce, formatNumber } from "../../dom.js";

/** The symbol and tone of each state: not everyone can tell the colours apart. @type {Record<string, [string, string]>} */
const STATES = {
  running: ["●", "good"], finished: ["✓", "good"], early_stop: ["✓", "good"], interrupted: ["‖", "warn"], preempted: ["‖", "warn"],
  failed: ["✕", "bad"], killed: ["■", "warn"], damaged: ["✕", "bad"], empty: ["○", "warn"],
};

/** @param {string} state @param {string} [tone] */
export function badge(state, tone) {
  const [sign, usualTone] = STATES[state] ?? ["?", "warn"];
  return h("span", { class: `watch-state ${tone ?? usualTone}` }, `${sign} ${state.replaceAll("_", " ")}`);
}

/** Format how long ago a time is. @param {number} time seconds since 1970 */
export function ago(time) {
  const s = Math.max(0, Date.now() / 1000 - time);
  const [size, unit] = s < 90 ? [1, "s"] : s < 5400 ? [60, "min"] : s < 129600 ? [3600, "h"] : [86400, "d"];
  return `${Math.round(s / size)} ${unit} ago`;
}

/** Return the time at which a run began, from the end of its id; "" if it has none. @param {string} id */
export const startTime = (id) => id.match(/\d{8}-(\d\d)(\d\d)(\d\d)/)?.slice(1).join(":") ?? "";

/** @param {{chosen: string[], maxRuns: number, onchoose: (ids: string[]) => void, onsearch: () => void, swatch: (index: number) => any}} options swatch: the colour of a chosen run */
export function list({ chosen, maxRuns, onchoose, onsearch, swatch }) {
  let ids = [...chosen], shownState = "";
  const search = h("input", { type: "search", id: "watch-search", placeholder: "name, recipe, state", maxlength: 80, oninput: debounce(onsearch, 150) });
  const items = h("ul", { class: "watch-runs", "aria-label": "Runs" });
  const note = h("p", { class: "muted", role: "status" });
  const element = h("div", {}, h("h2", {}, "Runs"), h("div", { class: "field" }, h("label", { for: "watch-search" }, "Search"), search), items, note);

  /** @param {any} run */
  function item(run) {
    const box = h("input", { type: "checkbox", checked: ids.includes(run.id), onchange: () => pick(run.id, box) });
    return h("li", { dataset: { id: run.id } }, h("label", {}, box, h("span", {}, h("b", {}, run.name), " ", badge(run.state), ids.length > 1 && ids.includes(run.id) && [" ", swatch(ids.indexOf(run.id))]),
      h("small", {}, [startTime(run.id), run.what !== run.name && run.what, run.update !== null && `update ${formatNumber(run.update)}`, run.changed && ago(run.changed)].filter(Boolean).join(" · "))));
  }
  /** @param {string} id @param {HTMLInputElement} box */
  function pick(id, box) {
    if (box.checked && ids.length >= maxRuns) {
      box.checked = false;
      note.textContent = `At most ${maxRuns} runs at once: remove one first.`;
      return;
    }
    ids = box.checked ? [...ids, id] : ids.filter((other) => other !== id);
    onchoose(ids);
  }
  return {
    element,
    /** Check the boxes of these runs. @param {string[]} newIds */
    choose(newIds) {
      ids = newIds;
      for (const each of /** @type {NodeListOf<HTMLElement>} */ (items.querySelectorAll("li"))) each.querySelector("input").checked = ids.includes(each.dataset.id ?? "");
    },
    get search() { return search.value.trim(); },
    /** @param {{runs: any[], more: number, folder: string}} runList */
    show(runList) {
      const state = JSON.stringify([runList, ids, Math.floor(Date.now() / 15000)]);
      if (state === shownState) return;
      shownState = state;
      const focused = /** @type {HTMLElement | null} */ (document.activeElement?.closest?.(".watch-runs li"))?.dataset.id;
      fill(items, ...runList.runs.map(item));
      const focusedItem = focused && [...items.children].find((each) => each.dataset.id === focused);
      focusedItem?.querySelector("input").focus();
      const emptyText = search.value ? "No run matches." : `No run in ${runList.folder} yet.`;
      note.textContent = runList.runs.length ? (runList.more ? `and ${formatNumber(runList.more)} more; search for them` : "") : emptyText;
    },
    /** @param {string} text */
    refuse(text) { note.textContent = text; shownState = ""; },
  };
}
