// @ts-check
// The panel "Show the code": the Python code that runs, highlighted by the server, with buttons to copy and to save it.
import { download, fill, h } from "./dom.js";

/** @typedef {[string, string][][]} Lines lines of tokens [kind, characters], from lab/highlight.py */

/** Return the text of highlighted lines. @param {Lines} lines */
export function textOf(lines) {
  return lines.map((line) => line.map(([, text]) => text).join("")).join("\n");
}

/** A block of code with its line numbers.
 * @param {Lines} lines
 * @param {{marked?: Iterable<number>, mark?: string, hit?: number | null, onpick?: (line: number) => void}} [options]
 *   marked: lines (from 1) with the style `mark` ("changed", "broken", "current"); hit: the line that is marked as the cause */
export function block(lines, { marked = [], mark = "changed", hit = null, onpick } = {}) {
  const markedLines = new Set(marked);
  return h("pre", { class: "code", tabindex: "0", role: "group", "aria-label": "Python code" }, h("code", {}, lines.map((line, i) => h("span", {
    class: ["line", markedLines.has(i + 1) && mark, hit === i + 1 && "hit"].filter(Boolean).join(" "),
    dataset: { line: i + 1 },
    onclick: onpick && (() => onpick(i + 1)),
  }, line.map(([kind, text]) => (kind ? h("span", { class: `t-${kind}` }, text) : text)), "\n"))));
}

/** A button that copies a text, and the note that says so. @param {() => string} text */
export function copyButton(text) {
  const status = h("span", { role: "status", class: "muted" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      status.textContent = "Copied.";
    } catch {
      status.textContent = "The browser refused to copy; select the text instead.";
    }
    setTimeout(() => { status.textContent = ""; }, 2500);
  };
  return { button: h("button", { type: "button", class: "quiet", onclick: copy }, "Copy"), status };
}

/** Create the panel: a heading that opens it, the code, and buttons to copy and to download it.
 * @param {{title?: string, file?: string, open?: boolean, note?: string}} [options] */
export function codePanel({ title = "Show the code", file = "script.py", open = false, note = "" } = {}) {
  /** @type {Lines} */
  let lines = [];
  const body = h("div", { class: "code-body" });
  const fileText = () => textOf(lines).replace(/\n*$/, "\n");
  const copy = copyButton(fileText);
  const element = h("details", { class: "panel code-panel", open },
    h("summary", {}, title),
    note && h("p", { class: "muted" }, note),
    h("div", { class: "row" },
      copy.button,
      h("button", { type: "button", class: "quiet", onclick: () => download(file, fileText()) }, `Save as ${file}`),
      copy.status),
    body);
  return {
    element,
    /** @param {Lines} newLines @param {Parameters<typeof block>[1]} [options] */
    show(newLines, options) {
      lines = newLines;
      fill(body, block(newLines, options));
    },
    get text() { return textOf(lines); },
  };
}
