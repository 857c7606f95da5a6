// @ts-check
// Watch runs: choose runs from a list, follow one live or compare several.
import { codePanel, copyButton } from "../code.js";
import { fill, h } from "../dom.js";
import { ask } from "../net.js";
import { prefersReducedMotion } from "../player.js";
import { compare } from "./watch/compare.js";
import { details } from "./watch/details.js";
import { list, startTime } from "./watch/list.js";
import { plots } from "./watch/plots.js";

export const title = "Watch a run";
export const lead = "Choose a run to follow it, or several to overlay their curves.";

const MAX_RUNS = 6, LIST_MS = 3000, RETRY_MS = 2000;

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  /** @type {string[]} */
  let chosen = (params.get("runs") ?? "").split(",").filter(Boolean).map(decodeName).slice(0, MAX_RUNS);
  /** @type {Map<string, any>} */
  const runsById = new Map();
  /** @type {any} */ let newestRun = null;
  let focusedId = chosen[0] ?? "", timer = 0, listTimer = 0, unmounted = false, pollCount = 0, hasChosen = chosen.length > 0, isAwaiting = false; // isAwaiting: an example was started, and its run is not in the list yet

  const smoothing = h("select", { id: "watch-smoothing", onchange: () => { runsById.forEach((run) => { run.version = ""; }); follow(); } },
    [[1, "default"], [0, "none"], [5, "strong"], [20, "very strong"]].map(([factor, text]) => h("option", { value: factor }, text)));
  const plotPanel = plots(), comparison = compare();
  const runs = list({ chosen, maxRuns: MAX_RUNS, onchoose: choose, onsearch: refreshList, swatch: (index) => plotPanel.swatch(index) });
  const detailPanel = details({ announce });
  const code = codePanel({ title: "Show the code", file: "read_run.py", note: "Everything drawn here comes from a file with one JSON object per line." });
  const focusSelect = h("select", { id: "watch-focus", onchange: () => { focusedId = focusSelect.value; show(); showCode(); } });
  const legend = h("span", { class: "row" });
  const tools = h("div", { class: "row watch-chosen", hidden: true }, legend, h("span", { class: "row" }, h("label", { for: "watch-smoothing" }, "Smoothing"), smoothing));
  const errorNote = h("p", { class: "error", role: "alert", hidden: true });
  const emptyPanel = invitation({ onstarted: () => { if (newestRun?.state === "running") chooseOnly(newestRun.id); else isAwaiting = true; refreshList(); }, announce });
  const main = h("div", {}, errorNote, emptyPanel.element, detailPanel.head, tools, plotPanel.element, comparison.element, detailPanel.element, code.element);
  fill(root, h("div", { class: "columns" }, h("div", { class: "panel inputs watch-side" }, runs.element, emptyPanel.again), main));

  function choose(/** @type {string[]} */ ids) {
    hasChosen ||= ids.length > 0;
    chosen = ids;
    for (const id of [...runsById.keys()]) if (!ids.includes(id)) runsById.delete(id);
    if (!ids.includes(focusedId)) focusedId = ids[0] ?? "";
    setParams(/** @type {Record<string, string>} */ (ids.length ? { runs: ids.map((id) => encodeURIComponent(id).replaceAll("%2F", "/")).join(",") } : {}));
    show();
    showCode();
    follow();
  }

  /** @param {string} id */
  function chooseOnly(id) {
    runs.choose([id]);
    choose([id]);
  }

  async function refreshList() {
    clearTimeout(listTimer);
    try {
      const runList = await ask("watch", { what: "list", search: runs.search });
      if (unmounted) return;
      runs.show(runList);
      const [newest] = runList.runs; // those that are running are the first
      if (!newest && !runs.search && !isAwaiting && !prefersReducedMotion()) emptyPanel.start(); // a page without a run has nothing to show
      emptyPanel.show(runList.runs.length > 0);
      const isNew = newest && newest.id !== newestRun?.id;
      if (newest && !runs.search && (isAwaiting ? isNew : !hasChosen)) {
        isAwaiting = false;
        emptyPanel.ready();
        chooseOnly(newest.id);
      }
      if (!runs.search) newestRun = newest ?? null;
    } catch (error) {
      if (!unmounted) runs.refuse(String(error instanceof Error ? error.message : error));
    }
    if (!unmounted && !document.hidden) listTimer = setTimeout(refreshList, LIST_MS);
  }

  async function follow() {
    clearTimeout(timer);
    const thisPoll = ++pollCount, ids = chosen;
    if (!ids.length || document.hidden || unmounted) return;
    let wait = RETRY_MS;
    try {
      const answer = await ask("watch", { what: "poll", runs: ids, versions: ids.map((id) => runsById.get(id)?.version ?? ""), smoothing: Number(smoothing.value) });
      if (unmounted || thisPoll !== pollCount) return;
      wait = answer.poll_interval_ms;
      errorNote.hidden = true;
      const changedRuns = answer.runs.filter((/** @type {any} */ run) => !run.same);
      for (const run of changedRuns) runsById.set(run.id, run);
      if (changedRuns.length) show();
    } catch (error) {
      if (unmounted || thisPoll !== pollCount) return;
      errorNote.hidden = false;
      errorNote.textContent = `${error instanceof Error ? error.message : error} Trying again …`;
    }
    timer = setTimeout(follow, wait);
  }

  function show() {
    const loadedRuns = chosen.map((id) => runsById.get(id)).filter(Boolean);
    emptyPanel.element.hidden = chosen.length > 0;
    const existingRuns = loadedRuns.filter((run) => !run.missing);
    plotPanel.show(existingRuns, chosen);
    comparison.show(existingRuns, (index) => plotPanel.swatch(chosen.indexOf(existingRuns[index].id)));
    detailPanel.show(runsById.get(focusedId) ?? (chosen.length ? { loading: true, name: focusedId } : null));
    code.element.hidden = !chosen.length;
    tools.hidden = !existingRuns.length;
    fill(legend);
    if (chosen.length > 1) {
      fill(focusSelect, ...chosen.map((id) => h("option", { value: id, selected: id === focusedId }, runsById.get(id)?.name ? `${runsById.get(id).name} (${startTime(id)})` : id)));
      fill(legend, ...chosen.map((id, index) => h("span", {}, plotPanel.swatch(index), `${runsById.get(id)?.name ?? ""} ${startTime(id)}`)), h("span", { class: "row" }, h("label", { for: "watch-focus" }, "Details of"), focusSelect));
    }
  }

  async function showCode() {
    if (!focusedId) return;
    const requestedId = focusedId;
    const answer = await ask("watch", { what: "code", runs: [focusedId] }).catch(() => null);
    if (answer && !unmounted && requestedId === focusedId) code.show(answer.code);
  }

  const onVisible = () => {
    if (document.hidden) return;
    refreshList();
    follow();
  };
  document.addEventListener("visibilitychange", onVisible);
  choose(chosen);
  await refreshList();
  return () => {
    unmounted = true;
    clearTimeout(timer);
    clearTimeout(listTimer);
    document.removeEventListener("visibilitychange", onVisible);
    plotPanel.unmount();
    detailPanel.unmount();
  };
}

/** The ways to a run: an example of the page, which `start` runs, and commands to copy. @param {{onstarted: () => void, announce: (text: string) => void}} handlers */
function invitation({ onstarted, announce }) {
  const status = h("p", { role: "status" });
  const button = h("button", { type: "button", onclick: start }, "▶ Run an example");
  const again = h("button", { type: "button", class: "quiet small", hidden: true, onclick: start }, "▶ Run an example");
  const heading = h("h2", {}, "No run yet");
  async function start() {
    button.disabled = true;
    status.textContent = "Starting PyTorch; the run appears here in a few seconds …";
    announce(status.textContent);
    try {
      await ask("watch", { what: "example" });
      onstarted();
    } catch (error) {
      ready();
      status.textContent = String(error instanceof Error ? error.message : error);
    }
  }
  function ready() {
    button.disabled = false;
    status.textContent = "";
  }
  const ways = [
    ["trueloop run --lab train.py", "Your script, unchanged, with its findings."],
    ["trueloop train digits", "A recipe, in the folder runs."],
    ["trueloop lab runs", "This page, with the runs of a folder."],
  ].map(([command, text]) => {
    const copy = copyButton(() => command);
    return h("li", {}, h("div", { class: "row" }, h("code", {}, command), copy.button, copy.status), h("p", { class: "muted" }, text));
  });
  const element = h("div", { class: "panel" }, heading, h("div", { class: "row" }, button, h("span", {}, "A small network with a silent failure, under the sanitizer.")), status,
    h("h3", {}, "Or start your own"), h("ul", { class: "watch-ways" }, ways));
  /** @param {boolean} hasRuns whether there are runs to choose from */
  function show(hasRuns) {
    heading.textContent = hasRuns ? "No run chosen" : "No run yet";
    again.hidden = !hasRuns;
  }
  return { element, again, start, ready, show };
}

/** Decode a name in an address; a name that cannot be decoded is returned unchanged. @param {string} text */
function decodeName(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
