// @ts-check
// A switch for every failure of the catalogue that can be injected into the script.
import { fill, h } from "../../dom.js";
import { labelOf } from "./knobs.js";

/** @param {{onchange: (bugs: string[]) => void}} options */
export function bugs({ onchange }) {
  /** @type {string[]} */ let chosen = [];
  let shown = "";
  const list = h("div", { class: "bugs", tabindex: "0", role: "group", "aria-label": "Failures to inject" });
  const count = h("span", { class: "muted" });
  const none = h("button", { type: "button", class: "quiet small", hidden: true, onclick: () => onchange([]) }, "Fix all");
  const element = h("section", { class: "bugs-panel" }, h("div", { class: "row" }, h("h2", {}, "Break it"), count, none), list);

  /** @param {any} bug */
  function row(bug) {
    const on = chosen.includes(bug.code), against = !on && Boolean(bug.against), id = `bug-${bug.code}`;
    const needs = Object.entries(bug.changes).map(([name, value]) => `${labelOf(name)} ${value}`).join(", ");
    const box = h("input", {
      type: "checkbox", id, checked: on, disabled: against, "aria-describedby": `${id}-why`, role: "switch",
      onchange: () => onchange(box.checked ? [...chosen, bug.code] : chosen.filter((code) => code !== bug.code)),
    });
    return h("div", { class: `bug${against ? " against" : ""}` }, box,
      h("label", { for: id }, h("span", { class: "mono code-of" }, bug.code), ` ${bug.title}`),
      h("small", { class: "muted", id: `${id}-why` }, against ? `Conflict: ${bug.against}` : bug.symptom, !against && needs && h("em", {}, ` Sets ${needs}.`)));
  }

  return {
    element,
    /** @param {any[]} all as the server describes them @param {string[]} now the active codes @param {boolean} [again] redraw although nothing changed: a switch was refused */
    show(all, now, again = false) {
      chosen = now;
      const state = JSON.stringify([all, now]);
      if (state === shown && !again) return;
      shown = state;
      const active = document.activeElement?.id, top = list.scrollTop;
      const families = [...new Set(all.map(({ family }) => family))];
      fill(list, ...families.map((family) => h("div", { role: "group", "aria-label": family }, h("h3", {}, family), all.filter((bug) => bug.family === family).map(row))));
      list.scrollTop = top;
      if (active?.startsWith("bug-")) document.getElementById(active)?.focus({ preventScroll: true });
      count.textContent = now.length ? `${now.length} active` : `${all.length} silent failures, none active`;
      none.hidden = !now.length;
    },
  };
}
