// @ts-check
// The panel to submit an entry: its name, its position in the queue, the judge's progress.
import { fill, h } from "../../dom.js";
import { ask } from "../../net.js";

/** @param {{query: () => {track: string, entry: object}, onjudged: (id: number) => Promise<void>, onwithdrawn: () => void, announce: (text: string) => void}} handlers */
export function submissionPanel({ query, onjudged, onwithdrawn, announce }) {
  let waitingForId = 0, previousText = "";
  const name = h("input", { type: "text", id: "arena-name", maxlength: 32, autocomplete: "nickname", value: localStorage.getItem("trueloop-arena-name") ?? "", placeholder: "anonymous" });
  const button = h("button", { type: "button", onclick: submit }, "Submit");
  const withdrawButton = h("button", { type: "button", class: "quiet", hidden: true, onclick: withdraw }, "Withdraw");
  const seedList = h("ol", { class: "seeds", hidden: true });
  const statusText = h("p", { class: "says", role: "status" });
  const element = h("section", { class: "panel", "aria-label": "Submit" },
    h("div", { class: "row" }, h("h2", {}, "Submit"), h("label", { for: "arena-name" }, "name on the leaderboard"), name, button, withdrawButton), statusText, seedList);

  async function submit() {
    button.disabled = true;
    try {
      if (name.value) localStorage.setItem("trueloop-arena-name", name.value);
      const { id } = await ask("arena", { do: "submit", ...query(), ...(name.value ? { name: name.value } : {}) });
      await follow(id);
    } catch (error) {
      fill(statusText, h("span", { class: "error", role: "alert" }, /** @type {Error} */ (error).message));
    }
    button.disabled = false;
  }

  async function withdraw() {
    const id = waitingForId;
    withdrawButton.hidden = true;
    try {
      await ask("arena", { do: "withdraw", id });
      waitingForId = 0;
      statusText.textContent = `Entry ${id} is withdrawn.`;
      onwithdrawn();
    } catch (error) {
      statusText.textContent = /** @type {Error} */ (error).message;
    }
  }

  /** @param {number} id */
  async function follow(id) {
    waitingForId = id;
    while (waitingForId === id) {
      const row = await ask("arena", { do: "entry", id }).catch((error) => {
        if (waitingForId === id) throw error; // not if it was withdrawn meanwhile
      });
      if (waitingForId !== id) return;
      withdrawButton.hidden = row.state !== "queued";
      if (!row.open) {
        seedList.hidden = true;
        fill(statusText, ...describeResult(row));
        announce(statusText.textContent ?? "");
        waitingForId = 0;
        return onjudged(id);
      }
      progress(row);
      await new Promise((wake) => setTimeout(wake, 250));
    }
  }

  /** @param {any} row */
  function progress({ id, ahead, progress: { seed, of, done = [], update, accuracy, again } }) {
    const stateText = of === undefined ? (ahead ? `Entry ${id} is in the queue, ${ahead} ahead.` : `Entry ${id}: the judge is starting.`) : `Entry ${id}: judging seed ${seed + 1} of ${of}.`;
    if (stateText !== previousText) statusText.textContent = stateText;
    previousText = stateText;
    seedList.hidden = of === undefined;
    if (of === undefined) return;
    fill(seedList, Array.from({ length: of }, (_, i) => {
      const result = done[i];
      const text = result ? (result.end === "reached" ? `✓ ${result.updates}` : `✗ ${result.end}`) : i === seed ? again ? `${update}: run again` : `${update}: ${(100 * accuracy).toFixed(0)} %` : "–";
      return h("li", { class: result ? (result.end === "reached" ? "good" : "bad") : i === seed ? "now" : "" }, text);
    }));
  }

  return {
    element, button,
    /** Say why nothing can be submitted. @param {string} text */
    hint(text) { if (!waitingForId && (text || statusText.textContent?.startsWith("These are"))) statusText.textContent = text; },
    unmount() { waitingForId = 0; },
  };
}

/** Describe the result of an entry. @param {any} row @returns {any[]} */
export function describeResult({ id, name, row_name: rowName, confirmed, state, why, trials, rank, pooled_entries: entryCount }) {
  const reached = trials.filter((/** @type {any} */ trial) => trial.end === "reached").map((/** @type {any} */ trial) => trial.updates);
  const pooled = entryCount > 1 ? ` ${entryCount} entries have this configuration; their seeds are pooled${rowName === name ? "" : ` under the first name, ${rowName}`}.` : "";
  const rankText = !confirmed ? " It is not ranked: its row was not written by the judge, or a replay had another result. Replay it." : rank ? ` Rank ${rank} in fewest updates.` : "";
  if (state === "reached") return [h("span", { class: "badge good" }, "✓ reached"), ` Entry ${id} reached the target on all ${reached.length} seeds, after ${reached.join(", ")} updates.${rankText}${pooled}`];
  if (state === "disqualified") return [h("span", { class: "badge error" }, "✗ disqualified"), ` Entry ${id}: the sanitizer found ${why}`];
  if (state === "not reached") return [h("span", { class: "badge warning" }, "not reached"), ` Entry ${id}: ${why} It is listed but not ranked.${pooled}`];
  return [h("span", { class: "badge error" }, state), ` Entry ${id}: ${why}`];
}
