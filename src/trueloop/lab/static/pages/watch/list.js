// @ts-check
// The list of runs: search, choose some.
import { fill, h, later, number } from "../../dom.js";

/** A symbol for each state next to its name: never colour alone. @type {Record<string, [string, string]>} */
const STATES = {
  running: ["●", "good"], finished: ["✓", "good"], early_stop: ["✓", "good"], interrupted: ["‖", "warn"], preempted: ["‖", "warn"],
  failed: ["✕", "bad"], killed: ["■", "warn"], damaged: ["✕", "bad"], empty: ["○", "warn"],
};

/** @param {string} state @param {string} [tone] */
export function badge(state, tone) {
  const [sign, usual] = STATES[state] ?? ["?", "warn"];
  return h("span", { class: `watch-state ${tone ?? usual}` }, `${sign} ${state.replaceAll("_", " ")}`);
}

/** How long ago. @param {number} then seconds since 1970 */
export function ago(then) {
  const s = Math.max(0, Date.now() / 1000 - then);
  const [size, unit] = s < 90 ? [1, "s"] : s < 5400 ? [60, "min"] : s < 129600 ? [3600, "h"] : [86400, "d"];
  return `${Math.round(s / size)} ${unit} ago`;
}

/** @param {{chosen: string[], most: number, onchoose: (ids: string[]) => void, onsearch: () => void}} options */
export function list({ chosen, most, onchoose, onsearch }) {
  let ids = [...chosen], before = "";
  const search = h("input", { type: "search", id: "watch-search", placeholder: "name, recipe, state", maxlength: 80, oninput: later(onsearch, 150) });
  const items = h("ul", { class: "watch-runs", "aria-label": "Runs" });
  const note = h("p", { class: "muted", role: "status" });
  const element = h("div", {}, h("h2", {}, "Runs"), h("div", { class: "field" }, h("label", { for: "watch-search" }, "Search"), search), items, note);

  /** @param {any} run */
  function item(run) {
    const box = h("input", { type: "checkbox", checked: ids.includes(run.id), onchange: () => pick(run.id, box) });
    return h("li", { dataset: { id: run.id } }, h("label", {}, box, h("span", {}, h("b", {}, run.name), " ", badge(run.state)),
      h("small", {}, [run.what !== run.name && run.what, run.update !== null && `update ${number(run.update)}`, run.changed && ago(run.changed)].filter(Boolean).join(" · "))));
  }
  /** @param {string} id @param {HTMLInputElement} box */
  function pick(id, box) {
    if (box.checked && ids.length >= most) {
      box.checked = false;
      note.textContent = `At most ${most} runs at once: remove one first.`;
      return;
    }
    ids = box.checked ? [...ids, id] : ids.filter((other) => other !== id);
    onchoose(ids);
  }
  return {
    element,
    get search() { return search.value.trim(); },
    /** @param {{runs: any[], more: number, folder: string}} found */
    show(found) {
      const now = JSON.stringify([found, Math.floor(Date.now() / 15000)]);
      if (now === before) return;
      before = now;
      const focused = /** @type {HTMLElement | null} */ (document.activeElement?.closest?.(".watch-runs li"))?.dataset.id;
      fill(items, ...found.runs.map(item));
      const again = focused && [...items.children].find((each) => each.dataset.id === focused);
      again?.querySelector("input").focus();
      const none = search.value ? "No run matches." : `There is no run in ${found.folder} yet, and no script under trueloop run --lab.`;
      note.textContent = found.runs.length ? (found.more ? `and ${number(found.more)} more; search for them` : "") : none;
    },
    /** @param {string} text */
    refuse(text) { note.textContent = text; before = ""; },
  };
}
