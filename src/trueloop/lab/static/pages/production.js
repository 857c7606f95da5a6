// @ts-check
// Production loop: with each component that is switched on, the program and the flow chart grow.
import { codePanel } from "../code.js";
import { fill, formatNumber, h } from "../dom.js";
import { latestOnly } from "../net.js";
import { player } from "../player.js";
import { flowChart } from "../flowchart.js";

export const title = "Production loop";
export const lead = "A loop of five lines trains a network; switch on what a real run needs, and see the program grow.";

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const sendQuery = latestOnly("production");
  /** @type {Record<string, any>} */
  let requested = fromAddress(params);
  /** @type {Record<string, any> | null} */
  let shownSelection = null;
  let mounted = true;

  const switches = h("div", { class: "switches" });
  const summary = h("p", { class: "changes", role: "status" });
  const removedLines = h("div");
  const refusal = h("p", { class: "error", role: "alert", hidden: true });
  const program = codePanel({ title: "The program", file: "train.py", open: true, note: "Plain PyTorch and scikit-learn's digits; it runs unchanged." });
  const trainer = codePanel({ title: "The same with trueloop", file: "train_with_trueloop.py",
    note: "The equivalent Trainer call. It also keeps NaN out of the weights, resumes in the middle of an epoch and supports several processes; these have no switch." });
  const distributed = codePanel({ title: "The minimal loop on several processes", file: "train_distributed.py", note: "torchrun --nproc-per-node 2 train_distributed.py" });
  const chart = flowChart({ onpoint: highlightLines });
  const table = h("div");
  const growthPlayer = player({ count: () => (names.length ? names.length + 1 : 1), show: (step) => grow(step), label: "Grow the loop", perStep_ms: 2200 });
  /** @type {string[]} */
  let names = [];

  const presets = [
    h("button", { type: "button", class: "quiet", disabled: true, onclick: () => choose({}) }, "Minimal loop"),
    h("button", { type: "button", class: "quiet", disabled: true, onclick: () => choose(Object.fromEntries(names.map((name) => [name, name === "precision" ? "bf16" : true]))) }, "Everything"),
  ];
  fill(root,
    h("div", { class: "row panel growth" }, growthPlayer.element, presets),
    h("div", { class: "production" },
      h("section", { class: "panel components", "aria-label": "Components" }, h("h2", {}, "Components"), switches, refusal,
        h("p", {}, h("button", { type: "button", class: "quiet small", onclick: () => { distributed.element.open = true; distributed.element.scrollIntoView(); } }, "Several processes ↓"))),
      h("section", { class: "text", "aria-label": "Program" }, summary, removedLines, program.element, trainer.element),
      h("section", { class: "panel drawn", "aria-label": "Flow chart" }, h("h2", {}, "Flow chart"), chart.element)),
    h("section", { class: "panel", "aria-label": "What it costs" }, h("h2", {}, "What it costs"), table),
    distributed.element);

  /** @param {Record<string, any>} selection */
  function choose(selection) {
    growthPlayer.pause();
    return refresh(selection);
  }

  /** Switch on the first components. @param {number} step number of components */
  function grow(step) {
    if (!shownSelection) return;
    const switchedOn = names.slice(0, step);
    return refresh(Object.fromEntries(switchedOn.map((name) => [name, name === "precision" ? "bf16" : true])));
  }

  /** Show an error message; "" hides it. @param {string} message */
  function showRefusal(message) {
    refusal.hidden = !message;
    refusal.textContent = message;
  }

  /** @param {Record<string, any>} selection @param {string} [errorToKeep] error message to keep showing */
  async function refresh(selection, errorToKeep = "") {
    requested = selection;
    let answer;
    try {
      answer = await sendQuery({ selection, before: shownSelection });
    } catch (/** @type {any} */ error) {
      showRefusal(error.message);
      if (!shownSelection && Object.keys(selection).length) await refresh({}, error.message); // an invalid address
      return;
    }
    if (!answer || !mounted) return;
    showRefusal(errorToKeep);
    draw(answer, shownSelection === null);
    shownSelection = answer.selection;
    const addedNames = answer.added.map((/** @type {any} */ each) => each.name);
    const switchedOn = answer.on.filter((/** @type {string} */ name) => !addedNames.includes(name)).join(",");
    setParams({ ...(switchedOn && { on: switchedOn }), ...(answer.selection.precision !== "off" && { precision: answer.selection.precision }) });
  }

  /** @param {any} answer @param {boolean} first */
  function draw(answer, first) {
    names = answer.components.map((/** @type {any} */ each) => each.name);
    if (first) {
      fill(switches, answer.components.map((/** @type {any} */ each) => componentSwitch(each)));
      distributed.show(answer.distributed);
      growthPlayer.go(0);
      for (const button of presets) button.disabled = false;
    }
    for (const each of answer.components) update(each, answer);
    const summaryText = summarise(answer, first);
    summary.textContent = summaryText;
    if (!first) announce(summaryText);
    fill(removedLines, answer.program.removed.length > 0 && h("details", { class: "gone" },
      h("summary", {}, `${formatLineCount(answer.program.removed.length)} removed or changed`), h("pre", { tabindex: "0", role: "region", "aria-label": "Removed lines" }, answer.program.removed.join("\n"))));
    program.show(answer.program.lines, { marked: answer.program.new, mark: "changed", onpick: (line) => chart.point(line) });
    bringIntoView(program.element.querySelector(".changed"));
    trainer.show(answer.trainer.lines, { marked: answer.trainer.new, mark: "changed" });
    chart.show(answer.chart);
    fill(table, costTable(answer.costs));
  }

  /** @param {any} component */
  function componentSwitch(component) {
    const id = `component-${component.name}`;
    const box = h("input", { type: "checkbox", id, onchange: () => choose({ ...requested, [component.name]: component.name === "precision" ? (box.checked ? "bf16" : "off") : box.checked }) });
    const precisionSelect = component.name === "precision" && h("select", { "aria-label": "Precision of autocast", class: "kind", onchange: () => choose({ ...requested, precision: precisionSelect.value }) },
      h("option", { value: "bf16" }, "bfloat16"), h("option", { value: "fp16" }, "float16"));
    return h("div", { class: "component", dataset: { name: component.name } },
      h("div", { class: "row" }, box, h("label", { for: id }, component.title), precisionSelect, h("small", { class: "muted because" })),
      h("details", {}, h("summary", {}, "why?", h("span", { class: "unseen" }, ` ${component.title}`)),
        h("dl", {},
          h("dt", {}, "What for"), h("dd", {}, component.purpose),
          h("dt", {}, "What it costs"), h("dd", {}, component.cost),
          h("dt", {}, "Without it"), h("dd", {}, component.without),
          h("dt", {}, "Related failures"),
          h("dd", {}, h("ul", {}, component.codes.map((/** @type {any} */ { code, title: named }) =>
            h("li", {}, h("a", { href: `#/signatures?code=${code}` }, code), ` ${named}`)))))));
  }

  /** @param {any} component @param {any} answer */
  function update(component, answer) {
    const element = /** @type {HTMLElement} */ (switches.querySelector(`[data-name="${component.name}"]`));
    const because = answer.added.find((/** @type {any} */ each) => each.name === component.name)?.because ?? "";
    /** @type {HTMLInputElement} */ (element.querySelector("input")).checked = component.on;
    /** @type {HTMLElement} */ (element.querySelector(".because")).textContent = because;
    element.classList.toggle("on", component.on);
    const precisionSelect = element.querySelector("select");
    if (precisionSelect) {
      precisionSelect.disabled = !component.on;
      if (component.on) precisionSelect.value = answer.selection.precision;
    }
  }

  /** @param {[number, number][]} spans @param {boolean} chosen */
  function highlightLines(spans, chosen) {
    const all = program.element.querySelectorAll(".line");
    let top = /** @type {HTMLElement | null} */ (null);
    all.forEach((line, index) => {
      const inside = spans.some(([first, last]) => index + 1 >= first && index + 1 <= last);
      line.classList.toggle("pointed", inside);
      if (inside) top ??= /** @type {HTMLElement} */ (line);
    });
    bringIntoView(top);
    if (chosen) top?.scrollIntoView({ block: "nearest" }); // scroll the page as well, but never under a moving pointer
  }

  /** Scroll only the code panel, until a line is in its visible part. @param {Element | null} line */
  function bringIntoView(line) {
    const pane = program.element.querySelector(".code");
    if (!line || !pane) return;
    const { top, bottom } = pane.getBoundingClientRect();
    const from = Math.max(top, 0), to = Math.min(bottom, innerHeight), at = line.getBoundingClientRect().top;
    if (to - from > 60 && (at < from || at > to - 40)) pane.scrollTop += at - from - (to - from) / 3;
  }

  const isMinimal = !Object.keys(requested).length;
  await refresh(requested);
  if (isMinimal && shownSelection) growthPlayer.autoplay();
  return () => { mounted = false; growthPlayer.unmount(); };
}

/** @param {URLSearchParams} params */
function fromAddress(params) {
  /** @type {Record<string, any>} */
  const selection = {};
  for (const name of (params.get("on") ?? "").split(",").filter(Boolean)) selection[name] = true;
  if (selection.precision) selection.precision = params.get("precision") ?? "bf16";
  return selection;
}

/** @param {number} count */
const formatLineCount = (count) => `${count} line${count === 1 ? "" : "s"}`;

/** @param {any} answer @param {boolean} first */
function summarise(answer, first) {
  const { count, new: newLines, removed } = answer.program;
  const length = `The program has ${formatLineCount(count)}`;
  if (first || (!newLines.length && !removed.length)) return `${length}; with trueloop ${answer.trainer.count}.`;
  return `${length}: ${newLines.length} new, ${removed.length} removed; with trueloop ${answer.trainer.count}.`;
}

/** @param {any} measured */
function costTable(measured) {
  const models = Object.entries(measured.models);
  const number = (/** @type {any} */ text) => h("td", { class: "number" }, text);
  /** @param {any} row @param {string} model */
  const cells = (row, model) => {
    const { median, low, high } = row.ratios[model].cpu;
    return [h("td", { title: `${low.toFixed(2)} to ${high.toFixed(2)} in the middle 80 % of the rounds` }, bar(row.ratios[model].cpu), h("span", { class: "mono" }, `${median.toFixed(2)} ×`)),
      number(kib(row.memory_bytes[model], true)), number(kib(row.disk_bytes[model], false))];
  };
  return [
    h("p", { class: "muted" }, "Each component against the minimal loop: CPU time per update, peak memory of tensors, files after the run."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of costs" }, h("table", { class: "costs" },
      h("thead", {},
        h("tr", {}, h("td"), h("td"), models.map(([, name]) => h("th", { scope: "colgroup", colspan: 3 }, name))),
        h("tr", {}, h("th", { scope: "col" }, "Component"), h("th", { scope: "col", class: "number" }, "lines"),
          models.map(() => [h("th", { scope: "col" }, "time, ×"), h("th", { scope: "col", class: "number" }, "memory, KiB"), h("th", { scope: "col", class: "number" }, "disk, KiB")]))),
      h("tbody", {}, measured.rows.map((/** @type {any} */ row) => h("tr", { class: row.on ? "on" : "" },
        h("th", { scope: "row" }, row.title, row.on && h("span", { class: "badge" }, "on")), number(`+${row.lines}`), models.map(([model]) => cells(row, model))))))),
    h("p", { class: "muted measured" }, measured.measured_on),
  ];
}

/** Format a number of bytes in KiB. @param {number} bytes @param {boolean} signed */
function kib(bytes, signed) {
  const text = formatNumber(Math.round(10 * Math.abs(bytes) / 1024) / 10);
  if (text === "0") return text;
  return bytes < 0 ? `−${text}` : signed ? `+${text}` : text;
}

const HALVINGS = 1, DOUBLINGS = 3; // the bars range from half the time to eight times the time

/** @param {{median: number, low: number, high: number}} ratio */
function bar({ median, low, high }) {
  const at = (/** @type {number} */ value) => 100 * Math.min(1, Math.max(0, (Math.log2(value) + HALVINGS) / (HALVINGS + DOUBLINGS)));
  const from = (/** @type {number} */ a, /** @type {number} */ b) => ({ left: `${Math.min(at(a), at(b))}%`, width: `${Math.abs(at(b) - at(a))}%` });
  return h("span", { class: "bar", "aria-hidden": "true" },
    Array.from({ length: HALVINGS + DOUBLINGS + 1 }, (_, tick) => h("span", { class: tick === HALVINGS ? "one" : "tick", style: { left: `${(100 * tick) / (HALVINGS + DOUBLINGS)}%` } })),
    h("span", { class: median > 1 ? "fill dearer" : "fill", style: from(1, median) }),
    h("span", { class: "spread", style: from(low, high) }));
}
