// @ts-check
// Watch runs: choose runs from a list, and see one live or compare several.
import { codePanel } from "../code.js";
import { fill, h } from "../dom.js";
import { ask } from "../net.js";
import { compare } from "./watch/compare.js";
import { details } from "./watch/details.js";
import { list } from "./watch/list.js";
import { plots } from "./watch/plots.js";

export const title = "Watch a run";
export const lead = [
  "Every run of a folder and every script under trueloop run --lab, live. Choose one to follow it, or several to overlay their curves.",
];

const MOST = 6, LIST_MS = 3000, LOST_MS = 2000;

/** @param {HTMLElement} root @param {{params: URLSearchParams, setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} shell */
export async function mount(root, { params, setParams, announce }) {
  /** @type {string[]} */
  let chosen = (params.get("runs") ?? "").split(",").filter(Boolean).map(decoded).slice(0, MOST);
  /** @type {Map<string, any>} */
  const known = new Map();
  let focus = chosen[0] ?? "", timer = 0, listTimer = 0, ended = false, turn = 0;

  const runs = list({ chosen, most: MOST, onchoose: choose, onsearch: refreshList });
  const drawn = plots(), comparison = compare();
  const shown = details({ announce });
  const code = codePanel({ title: "Show the code", file: "read_run.py", note: "Everything drawn here comes from a file with one JSON object per line." });
  const pick = h("select", { id: "watch-focus", onchange: () => { focus = pick.value; show(); showCode(); } });
  const legend = h("div", { class: "row watch-chosen", hidden: true });
  const trouble = h("p", { class: "error", role: "alert", hidden: true });
  const nothing = h("div", { class: "panel" }, h("h2", {}, "No run chosen"),
    h("p", {}, "Choose a run on the left, or start one: ", h("code", {}, "trueloop run --lab train.py"), " shows an unmodified script here while it runs under the sanitizer; ",
      h("code", {}, "trueloop train digits"), " trains a recipe; the lab shows its runs when started with their folder: ", h("code", {}, "trueloop lab runs"), "."));
  const look = h("p", { class: "look" }, "What to look for: does the held-out loss still follow the training loss? Does the gradient norm stay within one order of magnitude, in every layer? How much of an update is spent waiting for data?");
  const main = h("div", {}, look, trouble, legend, nothing, shown.head, drawn.element, comparison.element, shown.element, code.element);
  fill(root, h("div", { class: "columns" }, h("div", { class: "panel watch-side" }, runs.element), main));

  function choose(/** @type {string[]} */ ids) {
    chosen = ids;
    for (const id of [...known.keys()]) if (!ids.includes(id)) known.delete(id);
    if (!ids.includes(focus)) focus = ids[0] ?? "";
    setParams(/** @type {Record<string, string>} */ (ids.length ? { runs: ids.map((id) => encodeURIComponent(id).replaceAll("%2F", "/")).join(",") } : {}));
    show();
    showCode();
    follow();
  }

  async function refreshList() {
    clearTimeout(listTimer);
    try {
      const found = await ask("watch", { what: "list", search: runs.search });
      if (!ended) runs.show(found);
    } catch (error) {
      if (!ended) runs.refuse(String(error instanceof Error ? error.message : error));
    }
    if (!ended && !document.hidden) listTimer = setTimeout(refreshList, LIST_MS);
  }

  async function follow() {
    clearTimeout(timer);
    const mine = ++turn, ids = chosen;
    if (!ids.length || document.hidden || ended) return;
    let wait = LOST_MS;
    try {
      const answer = await ask("watch", { what: "poll", runs: ids, versions: ids.map((id) => known.get(id)?.version ?? "") });
      if (ended || mine !== turn) return;
      wait = answer.poll_interval_ms;
      trouble.hidden = true;
      const fresh = answer.runs.filter((/** @type {any} */ run) => !run.same);
      for (const run of fresh) known.set(run.id, run);
      if (fresh.length) show();
    } catch (error) {
      if (ended || mine !== turn) return;
      trouble.hidden = false;
      trouble.textContent = `${error instanceof Error ? error.message : error} Trying again …`;
    }
    timer = setTimeout(follow, wait);
  }

  function show() {
    const several = chosen.map((id) => known.get(id)).filter(Boolean);
    nothing.hidden = chosen.length > 0;
    const there = several.filter((run) => !run.missing);
    drawn.show(there, chosen);
    comparison.show(there, (place) => drawn.swatch(chosen.indexOf(there[place].id)));
    shown.show(known.get(focus) ?? (chosen.length ? { loading: true, name: focus } : null));
    code.element.hidden = !chosen.length;
    legend.hidden = chosen.length < 2;
    if (chosen.length > 1) {
      fill(pick, ...chosen.map((id) => h("option", { value: id, selected: id === focus }, known.get(id)?.name ? `${known.get(id).name} (${id.split("/")[1]})` : id)));
      fill(legend, ...chosen.map((id, place) => h("span", {}, drawn.swatch(place), id.split("/")[1])), h("span", { class: "row" }, h("label", { for: "watch-focus" }, "Details of"), pick));
    }
  }

  async function showCode() {
    if (!focus) return;
    const asked = focus;
    const answer = await ask("watch", { what: "code", runs: [focus] }).catch(() => null);
    if (answer && !ended && asked === focus) code.show(answer.code);
  }

  const seen = () => {
    if (document.hidden) return;
    refreshList();
    follow();
  };
  document.addEventListener("visibilitychange", seen);
  await refreshList();
  choose(chosen);
  return () => {
    ended = true;
    clearTimeout(timer);
    clearTimeout(listTimer);
    document.removeEventListener("visibilitychange", seen);
    drawn.unmount();
    shown.unmount();
  };
}

/** Decode a name in an address; a name that is not encoded stays unchanged. @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
