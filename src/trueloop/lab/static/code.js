// @ts-check
// The panel "Show the code": Python code that runs, coloured by the server's tokens, to copy or to save.
import { download, fill, h } from "./dom.js";

/** @typedef {[string, string][][]} Lines lines of pieces [kind, characters], as lab/highlight.py makes them */

/** Return the text of highlighted lines. @param {Lines} lines */
export function textOf(lines) {
  return lines.map((line) => line.map(([, text]) => text).join("")).join("\n");
}

/** A block of code with its line numbers.
 * @param {Lines} lines
 * @param {{marked?: Iterable<number>, mark?: string, hit?: number | null, onpick?: (line: number) => void}} [options]
 *   marked: lines (from 1) that stand out as `mark` ("changed", "broken", "current"); hit: one line that is that is marked as the cause */
export function block(lines, { marked = [], mark = "changed", hit = null, onpick } = {}) {
  const stands = new Set(marked);
  return h("pre", { class: "code", tabindex: "0", role: "group", "aria-label": "Python code" }, h("code", {}, lines.map((line, i) => h("span", {
    class: ["line", stands.has(i + 1) && mark, hit === i + 1 && "hit"].filter(Boolean).join(" "),
    dataset: { line: i + 1 },
    onclick: onpick && (() => onpick(i + 1)),
  }, line.map(([kind, text]) => (kind ? h("span", { class: `t-${kind}` }, text) : text)), "\n"))));
}

/** The panel: a heading to open it, the code, buttons to copy and to download.
 * @param {{title?: string, file?: string, open?: boolean, note?: string}} [options] */
export function codePanel({ title = "Show the code", file = "script.py", open = false, note = "" } = {}) {
  /** @type {Lines} */
  let lines = [];
  const body = h("div", { class: "code-body" });
  const whole = () => textOf(lines).replace(/\n*$/, "\n");
  const copied = h("span", { role: "status", class: "muted" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(whole());
      copied.textContent = "Copied.";
    } catch {
      copied.textContent = "The browser refused to copy; select the text instead.";
    }
    setTimeout(() => { copied.textContent = ""; }, 2500);
  };
  const element = h("details", { class: "panel code-panel", open },
    h("summary", {}, title),
    note && h("p", { class: "muted" }, note),
    h("div", { class: "row" },
      h("button", { type: "button", class: "quiet", onclick: copy }, "Copy"),
      h("button", { type: "button", class: "quiet", onclick: () => download(file, whole()) }, `Save as ${file}`),
      copied),
    body);
  return {
    element,
    /** @param {Lines} given @param {Parameters<typeof block>[1]} [options] */
    show(given, options) {
      lines = given;
      fill(body, block(given, options));
    },
    get text() { return textOf(lines); },
  };
}
