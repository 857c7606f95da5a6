// @ts-check
// The script of the run; its injected lines and the line of the first finding are marked.
import { codePanel } from "../../code.js";
import { fill, h } from "../../dom.js";

/** A panel for the script. @param {{onopen: () => void}} options onopen: makes the panel visible */
export function script({ onopen }) {
  const panel = codePanel({
    title: "Show the code: the script that runs", file: "simulation.py", open: true,
    note: "This script runs. trueloop run simulation.py reports the same findings.",
  });
  const lines = h("ul", { class: "broken-lines", "aria-label": "Injected failures" });
  panel.element.insertBefore(lines, panel.element.querySelector(".code-body"));

  /** @type {{message: any, hit: number | null} | null} */ let undrawn = null;
  /** @type {number | null} */ let unseenLine = null; // scrolled to when the panel becomes visible

  /** Open the panel at a line. @param {number} line */
  function toLine(line) {
    onopen();
    panel.element.querySelector(`[data-line="${line}"]`)?.scrollIntoView({ block: "center" });
    panel.element.querySelector("pre")?.focus({ preventScroll: true });
  }

  return {
    element: panel.element,
    toLine,
    /** Draw the script, or draw it later if the panel is hidden. @param {{script: any[], broken: {line: number, kind: string, before: string, after: string}[]}} message @param {number | null} hit the line of the first finding @param {boolean} isVisible */
    show(message, hit, isVisible) {
      undrawn = { message, hit };
      unseenLine = hit ?? message.broken[0]?.line ?? null;
      if (isVisible) this.draw();
    },
    /** Call this when the panel becomes visible. */
    shown() {
      this.draw();
      if (unseenLine !== null) panel.element.querySelector(`[data-line="${unseenLine}"]`)?.scrollIntoView({ block: "center" });
      unseenLine = null;
    },
    draw() {
      if (!undrawn) return;
      const { message: { script: tokens, broken }, hit } = undrawn;
      undrawn = null;
      fill(lines, ...broken.map((/** @type {any} */ { line, kind, before, after }) => h("li", {},
        h("button", { type: "button", class: "quiet small", onclick: () => toLine(line) }, `line ${line}`),
        ` ${kind}: `, before && h("del", {}, h("code", {}, before)), before && after && " → ", after && h("ins", {}, h("code", {}, after)))));
      panel.show(tokens, { marked: broken.map((/** @type {any} */ { line }) => line), mark: "broken", hit });
    },
  };
}
