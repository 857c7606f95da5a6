// @ts-check
// A switch for every failure of the catalogue that can be injected into the script.
import { fill, h } from "../../dom.js";
import { labelOf } from "./knobs.js";

/** @param {{onchange: (bugs: string[]) => void}} options */
export function bugs({ onchange }) {
  /** @type {string[]} */ let activeCodes = [];
  let shownState = "";
  const list = h("div", { class: "bugs", tabindex: "0", role: "group", "aria-label": "Failures to inject" });
  const countText = h("span", { class: "muted" });
  const fixAll = h("button", { type: "button", class: "quiet small", hidden: true, onclick: () => onchange([]) }, "Fix all");
  const element = h("section", { class: "bugs-panel" }, h("div", { class: "row" }, h("h2", {}, "Break it"), countText, fixAll), list);

  /** @param {any} bug */
  function row(bug) {
    const active = activeCodes.includes(bug.code), conflicts = !active && Boolean(bug.conflict), id = `bug-${bug.code}`;
    const changedSettings = Object.entries(bug.changes).map(([name, value]) => `${labelOf(name)} ${value}`).join(", ");
    const checkbox = h("input", {
      type: "checkbox", id, checked: active, disabled: conflicts, "aria-describedby": `${id}-why`, role: "switch",
      onchange: () => onchange(checkbox.checked ? [...activeCodes, bug.code] : activeCodes.filter((code) => code !== bug.code)),
    });
    return h("div", { class: `bug${conflicts ? " against" : ""}` }, checkbox,
      h("label", { for: id }, h("span", { class: "mono code-of" }, bug.code), ` ${bug.title}`),
      h("small", { class: "muted", id: `${id}-why` }, conflicts ? `Conflict: ${bug.conflict}` : bug.symptom, !conflicts && changedSettings && h("em", {}, ` Sets ${changedSettings}.`)));
  }

  return {
    element,
    /** @param {any[]} all the server's description of each failure @param {string[]} codes the active failures
     * @param {boolean} [redraw] redraw although nothing changed, because the server refused a switch */
    show(all, codes, redraw = false) {
      activeCodes = codes;
      const state = JSON.stringify([all, codes]);
      if (state === shownState && !redraw) return;
      shownState = state;
      const focusedId = document.activeElement?.id, top = list.scrollTop;
      const families = [...new Set(all.map(({ family }) => family))];
      fill(list, ...families.map((family) => h("div", { role: "group", "aria-label": family }, h("h3", {}, family), all.filter((bug) => bug.family === family).map(row))));
      list.scrollTop = top;
      if (focusedId?.startsWith("bug-")) document.getElementById(focusedId)?.focus({ preventScroll: true });
      countText.textContent = codes.length ? `${codes.length} active` : `${all.length} silent failures, none active`;
      fixAll.hidden = !codes.length;
    },
  };
}
