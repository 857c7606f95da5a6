// @ts-check
// The list of silent failures, each with its curves, the sanitizer's finding and its page.
import { fill, h, debounce, prose } from "../dom.js";
import { ask, retryUntilAnswered } from "../net.js";
import { failurePage, renderPieces } from "./signatures/page.js";
import { plotLegend, comparisonPlot } from "./signatures/plot.js";

export const title = "Bug signatures";
export const lead = [
  "None of these raises an error. Each is run here on three seeds: the simulator's correct script, and the same script with one operation broken.",
];

const RETRY_MS = 2000;

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const { families, failures } = await retryUntilAnswered(() => ask("signatures", { what: "table" }));
  const runnable = failures.filter((/** @type {any} */ each) => each.curves).length;
  let unmounted = false, openCode = params.get("code") ?? "", computed = 0;
  /** @type {Map<string, ReturnType<typeof row>>} */
  const rows = new Map(failures.map((/** @type {any} */ failure) => [failure.code, row(failure, toggle)]));

  const family = h("select", { id: "sig-family", onchange: filter }, h("option", { value: "" }, "all families"), families.map((/** @type {string} */ name) => h("option", { value: name, selected: name === params.get("family") }, name)));
  const search = h("input", { type: "search", id: "sig-search", placeholder: "words of title, symptom or fix", maxlength: 80, value: params.get("search") ?? "", oninput: debounce(filter) });
  const only = h("input", { type: "checkbox", id: "sig-only", checked: params.get("curves") === "1", onchange: filter });
  const bar = h("progress", { max: runnable, value: 0, "aria-label": "Curves computed" });
  const progressText = h("span", { class: "muted", role: "status" });
  const count = h("p", { class: "muted", role: "status" });
  fill(root,
    h("p", { class: "look" }, "What to look for: how small the difference is. Most of these losses still fall, and some equal the correct ones to the last digit; often another quantity shows the failure."),
    h("div", { class: "row sig-bar" },
      h("div", { class: "field" }, h("label", { for: "sig-family" }, "Family"), family), h("div", { class: "field" }, h("label", { for: "sig-search" }, "Search"), search),
      h("div", { class: "row" }, only, h("label", { for: "sig-only" }, "with curves only")), h("div", { class: "row" }, bar, progressText)),
    plotLegend(), count, h("ol", { class: "sig-list" }, [...rows.values()].map(({ element }) => element)));

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { failure, element, text } of rows.values()) {
      element.hidden = Boolean((family.value && failure.family !== family.value) || (only.checked && !failure.curves) || !words.every((/** @type {string} */ word) => text.includes(word)));
      if (!element.hidden) shown += 1;
    }
    count.textContent = `${shown} of ${failures.length} silent failures`;
    updateAddress();
  }
  function updateAddress() {
    setParams(Object.fromEntries(Object.entries({ code: openCode, family: family.value, search: search.value, curves: only.checked ? "1" : "" }).filter(([, value]) => value)));
  }
  /** @param {string} code @param {boolean} open */
  function toggle(code, open) {
    if (open) openCode = code;
    else if (openCode === code) openCode = "";
    updateAddress();
  }

  async function compute() {
    const remaining = new Set(failures.filter((/** @type {any} */ each) => each.curves).map((/** @type {any} */ each) => each.code));
    while (remaining.size && !unmounted) {
      if (document.hidden) {
        await pause(RETRY_MS);
        continue;
      }
      const visible = [...remaining].filter((code) => !rows.get(code)?.element.hidden);
      const code = remaining.has(openCode) ? openCode : visible[0] ?? [...remaining][0];
      const currentRow = /** @type {ReturnType<typeof row>} */ (rows.get(code));
      try {
        const answer = await ask("signature", { code });
        if (unmounted) return;
        if (answer.done !== undefined) {
          currentRow.wait(`${answer.done} of ${answer.of} seeds are done …`);
          continue;
        }
        currentRow.show(answer);
        remaining.delete(code);
        computed += 1;
      } catch (error) {
        if (unmounted) return;
        currentRow.wait(`${error instanceof Error ? error.message : error} Trying again …`);
        if (!(await pause(RETRY_MS))) return;
      }
      bar.value = computed;
      progressText.textContent = computed < runnable ? `${computed} of ${runnable} computed` : `all ${runnable} computed`;
    }
    if (!unmounted) announce("All curves are loaded.");
  }
  const pause = (/** @type {number} */ ms) => new Promise((resolve) => { setTimeout(() => resolve(!unmounted), ms); });

  filter();
  const first = [...rows.values()].find(({ failure }) => [failure.code, failure.slug].includes(openCode));
  if (first) {
    openCode = first.failure.code;
    await first.open();
    first.element.scrollIntoView();
  }
  compute();
  return () => { unmounted = true; };
}

/** @param {any} failure @param {(code: string, open: boolean) => void} ontoggle */
function row(failure, ontoggle) {
  const id = `sig-${failure.code}`;
  /** @type {any} */
  let measured = null;
  let page = h("div", { class: "sig-open", id: `${id}-page`, hidden: true });
  const waiting = h("div", { class: "sig-wait" }, "waiting …");
  const firstPlot = h("div", {}, waiting), secondPlot = h("div");
  const findingText = h("p", { class: "sig-finding-text", hidden: true });
  const link = h("a", { href: `#/simulator?bugs=${failure.code}&twin=1` }, "Open in the simulator");
  const button = h("button", { type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": `${id}-page`, onclick: () => (page.hidden ? open() : close()) }, "Open details");
  const element = h("li", { class: "panel sig", id },
    h("div", {}, h("h2", {}, h("span", { class: `badge ${failure.severity}` }, `${failure.severity} ${failure.code}`), " ", failure.title),
      h("p", {}, renderPieces(failure.symptom)), h("p", {}, h("b", {}, "Fix: "), renderPieces(failure.fix)), findingText),
    failure.curves ? [firstPlot, secondPlot] : h("p", { class: "sig-none muted" }, failure.why),
    h("div", { class: "row sig-more" }, button, failure.curves && link,
      h("span", { class: "muted" }, [failure.run && "found at run time", failure.lint && "found by the linter"].filter(Boolean).join(", "))),
    h("div", { class: "sig-more" }, page));
  const text = [failure.code, failure.slug, failure.title, failure.family, ...failure.symptom.map((/** @type {string[]} */ [, words]) => words), ...failure.fix.map((/** @type {string[]} */ [, words]) => words)].join(" ").toLowerCase();

  async function open() {
    page.hidden = false;
    button.setAttribute("aria-expanded", "true");
    button.textContent = "Close details";
    ontoggle(failure.code, true);
    if (page.childElementCount) return;
    try {
      fill(page, await failurePage(failure, measured));
    } catch (error) {
      fill(page, h("p", { class: "error" }, String(error instanceof Error ? error.message : error)));
    }
  }
  function close() {
    page.hidden = true;
    button.setAttribute("aria-expanded", "false");
    button.textContent = "Open details";
    ontoggle(failure.code, false);
  }
  return {
    failure, element, text, open,
    /** @param {string} text */
    wait(text) { fill(firstPlot, h("div", { class: "sig-wait" }, text)); },
    /** @param {any} answer */
    async show(answer) {
      if (!answer.curves) {
        fill(firstPlot, h("p", { class: "muted" }, answer.why ?? failure.why));
        return;
      }
      measured = answer;
      link.href = answer.address;
      const [loss, other] = answer.curves.plots;
      fill(firstPlot, comparisonPlot(loss));
      fill(secondPlot, other && comparisonPlot(other));
      if (answer.curves.finding) {
        findingText.hidden = false;
        fill(findingText, h("b", {}, "The sanitizer: "), ...prose(answer.curves.finding.message));
      }
      if (!page.hidden) fill(page, await failurePage(failure, measured));
    },
  };
}
