// @ts-check
// Tabs: one panel is visible at a time; arrow keys move between the tabs.
import { h } from "../../dom.js";

/** @param {{label: string, tabs: {key: string, title: string, panel: HTMLElement}[], onshow?: (key: string) => void}} options */
export function tabs({ label, tabs: all, onshow }) {
  let current = all[0].key;
  const buttons = all.map(({ key, title }) => h("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, onclick: () => select(key),
    onkeydown: (/** @type {KeyboardEvent} */ event) => move(event, key),
  }, title));
  const panels = all.map(({ key, panel }) => h("div", { class: "tab-panel", role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}`, tabindex: "0" }, panel));
  const element = h("div", { class: "tabs" }, h("div", { class: "tab-list", role: "tablist", "aria-label": label }, buttons), panels);

  /** @param {string} key */
  function select(key) {
    current = key;
    all.forEach((each, i) => {
      const isCurrent = each.key === key;
      buttons[i].setAttribute("aria-selected", String(isCurrent));
      buttons[i].tabIndex = isCurrent ? 0 : -1;
      panels[i].hidden = !isCurrent;
    });
    onshow?.(key);
  }

  /** @param {KeyboardEvent} event @param {string} key */
  function move(event, key) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (all.findIndex((each) => each.key === key) + step + all.length) % all.length;
    select(all[next].key);
    buttons[next].focus();
    event.preventDefault();
  }

  select(current);
  return { element, select, get current() { return current; } };
}
