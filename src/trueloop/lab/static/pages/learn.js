// @ts-check
// Scripts that do not learn: their loss, what the sanitizer says, and the changes that `trueloop diagnose` tries, ranked.
import { block } from "../code.js";
import { fill, formatNumber, h, prose } from "../dom.js";
import { Live, ask, retryUntilAnswered } from "../net.js";
import { prefersReducedMotion } from "../player.js";
import { lossPlot } from "./learn/curve.js";

export const title = "It does not learn";
export const lead = "No error, and a loss no better than always giving the same answer. Which change helps?";

const FAMILY = "learning", FIRST = "LRN004", MOVE_MS = 350; // FIRST: its loss is flat at once
/** @type {Record<string, string>} */ const SYMBOLS = { helps: "✓ ", raises: "✗ ", diverges: "✗ " };

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const { failures } = await retryUntilAnswered(() => ask("signatures", { what: "table" }));
  /** @type {{code: string, title: string}[]} */
  const programs = failures.filter((/** @type {{family: string}} */ each) => each.family === FAMILY);
  let code = programs.some((each) => each.code === params.get("code")) ? /** @type {string} */ (params.get("code")) : FIRST;
  /** @type {Live | null} */ let live = null;
  /** @type {Map<string, any>} */ let curves = new Map();
  /** @type {any} */ let run = null;
  let isDiagnosing = false;

  const choices = h("fieldset", { class: "learn-programs" }, h("legend", { class: "unseen" }, "A script that does not learn"),
    programs.map((each) => h("label", {}, h("input", { type: "radio", name: "program", value: each.code, checked: each.code === code, onchange: () => open(each.code) }), h("span", {}, each.title))));
  const script = h("div", { class: "panel learn-script" });
  const loss = h("div", { class: "panel learn-run" });
  const button = h("button", { type: "button", class: "learn-diagnose", disabled: true, onclick: diagnose }, "Diagnose");
  const status = h("p", { class: "muted learn-status", role: "status" });
  const headline = h("h2", { class: "learn-headline" });
  const advice = h("div", { class: "learn-advice" });
  const list = h("ol", { class: "learn-list" });
  fill(root, h("div", { class: "learn" }, choices, loss, script), h("div", { class: "row learn-bar" }, button, status), headline, advice, list);

  /** @param {string} newCode */
  function open(newCode) {
    code = newCode;
    setParams({ code });
    live?.close();
    reset();
    fill(loss, h("p", { class: "muted" }, "The script is running …"));
    fill(script);
    live = new Live("diagnosis", { ontext, onopen: () => { reset(); live?.send({ do: "open", code }); }, onstate });
  }

  function reset() {
    curves = new Map();
    run = null;
    isDiagnosing = false;
    button.disabled = true;
    status.textContent = "";
    for (const part of [headline, advice, list]) fill(part);
  }

  /** @param {string} state @param {string} reason */
  function onstate(state, reason) {
    if (state === "busy" || state === "idle") status.textContent = reason;
    if (state !== "idle") return;
    live = null; // a press of the button opens the script again
    button.disabled = false;
  }

  /** @type {Record<string, (message: any) => void>} */
  const handlers = {
    script({ lines }) { fill(script, block(lines)); },
    run(message) {
      run = message;
      const { finding } = message;
      fill(loss, h("h2", {}, "Its loss"),
        lossPlot({ curves: [{ curve: message, kind: "before" }], level: message.constant, label: `Loss of the script. ${message.says}`, width: 340, height: 150 }),
        h("p", { class: "learn-key muted" }, h("span", {}, key("before"), "loss"), h("span", {}, key("level"), "always the same answer")),
        finding && h("p", {}, h("b", {}, "The sanitizer: "), h("code", { class: "learn-place" }, `${finding.path}:${finding.line}`), " ", ...prose(firstSentence(finding.message))));
      const hit = finding && script.querySelector(`[data-line="${finding.line}"]`);
      hit?.classList.add("hit");
      button.disabled = false;
      status.textContent = "Copies of the script run again, each with one change.";
    },
    trying({ title, left }) {
      status.textContent = `Trying: ${title}${left > 1 ? `; ${left - 1} more` : ""} …`;
    },
    trial({ key: name, curve }) { curves.set(name, curve); },
    ranking({ outcomes, done, headline: words, notes }) {
      show(outcomes);
      if (!done) return;
      isDiagnosing = false;
      button.disabled = false;
      button.textContent = "Diagnose again";
      status.textContent = `${outcomes.length} changes tried, each with two seeds.`;
      fill(headline, words);
      headline.classList.toggle("good", outcomes[0]?.effect === "helps");
      fill(advice, notes.map((/** @type {string} */ note) => h("p", {}, note)));
      announce(words);
    },
    refused({ what, fix }) { status.textContent = [what, fix].filter(Boolean).join(" "); },
  };
  const ontext = (/** @type {any} */ message) => handlers[message.kind]?.(message);

  function diagnose() {
    if (!live) return open(code);
    if (isDiagnosing || !live.send({ do: "diagnose" })) return;
    isDiagnosing = true;
    curves = new Map();
    button.disabled = true;
    status.textContent = "The script runs again, up to its first update …";
    for (const part of [headline, advice, list]) fill(part);
  }

  /** Show the changes tried so far; those that others overtake move down. @param {any[]} outcomes */
  function show(outcomes) {
    const before = new Map([...list.children].map((tile) => [tile.dataset.key, tile.getBoundingClientRect()]));
    fill(list, outcomes.map((outcome, i) => tile(outcome, i)));
    if (prefersReducedMotion()) return;
    for (const element of list.children) {
      const old = before.get(element.dataset.key), now = element.getBoundingClientRect();
      element.animate(old ? [{ transform: `translate(${old.left - now.left}px, ${old.top - now.top}px)` }, { transform: "none" }] : [{ opacity: 0 }, { opacity: 1 }], { duration: MOVE_MS, easing: "ease-out" });
    }
  }

  /** @param {any} outcome @param {number} rank */
  function tile({ key: name, title, effect, words, says, line, code: source, advice: change, before, after }, rank) {
    const number = (/** @type {number | null} */ value) => (value === null ? "NaN" : formatNumber(value, 3));
    return h("li", { class: `panel learn-tile of-${effect}`, dataset: { key: name } },
      h("h3", {}, h("span", { class: "rank" }, rank + 1), title),
      lossPlot({ curves: [{ curve: curves.get(""), kind: "before" }, { curve: curves.get(name), kind: "after" }], level: run?.constant ?? null, label: says }),
      h("p", {}, h("b", { class: "verdict" }, SYMBOLS[effect] ?? "", words), h("span", { class: "mono" }, ` ${number(before)} → ${number(after)}`)),
      effect === "helps" && h("p", { class: "change" }, line && [h("code", { class: "learn-place", title: source }, line), " "], change));
  }

  open(code);
  return () => live?.close();
}

/** @param {string} text */
const firstSentence = (text) => `${text.split(". ")[0].replace(/\.$/, "")}.`;

/** @param {string} kind */
const key = (kind) => h("i", { class: `swatch ${kind}`, "aria-hidden": "true" });
