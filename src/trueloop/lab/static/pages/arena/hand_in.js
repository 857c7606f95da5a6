// @ts-check
// Submitting: a name, the position in the queue, the judge's progress.
import { fill, h } from "../../dom.js";
import { ask } from "../../net.js";

/** @param {{asked: () => {track: string, entry: object}, judged: (id: number) => Promise<void>, announce: (text: string) => void}} handlers */
export function handIn({ asked, judged, announce }) {
  let waiting = 0, previous = "";
  const name = h("input", { type: "text", id: "arena-name", maxlength: 32, autocomplete: "nickname", value: localStorage.getItem("trueloop-arena-name") ?? "", placeholder: "anonymous" });
  const button = h("button", { type: "button", onclick: submit }, "Hand in");
  const seeds = h("ol", { class: "seeds", hidden: true });
  const says = h("p", { class: "says", role: "status" });
  const element = h("section", { class: "panel", "aria-label": "Hand in" },
    h("div", { class: "row" }, h("h2", {}, "Hand in"), h("label", { for: "arena-name" }, "name on the leaderboard"), name, button), says, seeds);

  async function submit() {
    button.disabled = true;
    try {
      if (name.value) localStorage.setItem("trueloop-arena-name", name.value);
      const { id } = await ask("arena", { do: "submit", ...asked(), ...(name.value ? { name: name.value } : {}) });
      await follow(id);
    } catch (error) {
      fill(says, h("span", { class: "error", role: "alert" }, /** @type {Error} */ (error).message));
    }
    button.disabled = false;
  }

  /** @param {number} id */
  async function follow(id) {
    waiting = id;
    while (waiting === id) {
      const row = await ask("arena", { do: "entry", id });
      if (waiting !== id) return;
      if (!row.open) {
        seeds.hidden = true;
        fill(says, ...verdict(row));
        announce(says.textContent ?? "");
        waiting = 0;
        return judged(id);
      }
      progress(row);
      await new Promise((wake) => setTimeout(wake, 250));
    }
  }

  /** @param {any} row */
  function progress({ id, ahead, progress: { seed, of, done = [], update, accuracy, again } }) {
    const place = of === undefined ? (ahead ? `Entry ${id} is in the queue, ${ahead} ahead.` : `Entry ${id}: the judge is starting.`) : `Entry ${id}: judging seed ${seed + 1} of ${of}.`;
    if (place !== previous) says.textContent = place;
    previous = place;
    seeds.hidden = of === undefined;
    if (of === undefined) return;
    fill(seeds, Array.from({ length: of }, (_, i) => {
      const ended = done[i];
      const text = ended ? (ended.end === "reached" ? `✓ ${ended.updates}` : `✗ ${ended.end}`) : i === seed ? again ? `${update}: run again` : `${update}: ${(100 * accuracy).toFixed(0)} %` : "–";
      return h("li", { class: ended ? (ended.end === "reached" ? "good" : "bad") : i === seed ? "now" : "" }, text);
    }));
  }

  return { element, button, unmount() { waiting = 0; } };
}

/** Describe the result of an entry, with a symbol. @param {any} row @returns {any[]} */
export function verdict({ id, state, why, trials, rank, together }) {
  const reached = trials.filter((/** @type {any} */ trial) => trial.end === "reached").map((/** @type {any} */ trial) => trial.updates);
  const shared = together > 1 ? ` ${together} entries have this configuration; their seeds are pooled.` : "";
  const place = rank ? ` Rank ${rank} in fewest updates.` : "";
  if (state === "reached") return [h("span", { class: "badge good" }, "✓ reached"), ` Entry ${id} reached the target on all ${reached.length} seeds, after ${reached.join(", ")} updates.${place}${shared}`];
  if (state === "disqualified") return [h("span", { class: "badge error" }, "✗ disqualified"), ` Entry ${id}: the sanitizer found ${why}`];
  if (state === "not reached") return [h("span", { class: "badge warning" }, "not reached"), ` Entry ${id}: ${why} It is listed but not ranked.${shared}`];
  return [h("span", { class: "badge error" }, state), ` Entry ${id}: ${why}`];
}
