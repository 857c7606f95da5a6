// @ts-check
// The arena: choose a track, configure a loop, practise, submit, compare with the leaderboard.
import { codePanel } from "../code.js";
import { fromText, form } from "../controls.js";
import { fill, h, later, number } from "../dom.js";
import { ask, described, newest, patiently } from "../net.js";
import { boards } from "./arena/boards.js";
import { entryPanel } from "./arena/entry.js";
import { handIn } from "./arena/hand_in.js";
import { race } from "./arena/race.js";

export const title = "Arena";
export const lead = "Data, network and target are fixed; you choose the loop. Reach the target in the fewest updates. Results cannot be self-reported: the judge reruns every entry from its configuration, on fresh seeds.";

const LABELS = { lr: "learning rate", beta1: "beta 1", beta2: "beta 2", warmup: "warm-up", updates: "planned updates", clip: "clip the norm at", initialisation: "initialisation" };
const SLIDERS = { lr: { log: true }, momentum: { step: 0.01 }, label_smoothing: { step: 0.01 }, input_noise: { step: 0.01 } };
const GROUPS = [
  ["Optimizer", ["optimizer", "lr", "momentum", "beta1", "beta2", "weight_decay"]],
  ["Batches and schedule", ["batch", "accumulation", "schedule", "warmup", "updates"]],
  ["Stability", ["clip", "label_smoothing", "initialisation", "input_noise"]],
];
const MOMENTUM = ["sgd", "nesterov", "rmsprop"], MOMENTS = ["adam", "adamw"];

/** @param {HTMLElement} root @param {{params: URLSearchParams, setParams: (p: Record<string, string>) => void, announce: (text: string) => void}} shell */
export async function mount(root, { params, setParams, announce }) {
  const [answer, fields] = await Promise.all([patiently(() => ask("arena", { do: "tracks" })), described("arena")]);
  /** @type {any[]} */
  const settings = fields.find(({ name }) => name === "entry").fields;
  const plain = Object.fromEntries(settings.map((field) => [field.name, field.default]));
  let track = answer.tracks.find((/** @type {any} */ each) => each.name === params.get("track")) ?? answer.tracks[0];
  let values = { ...plain, ...track.baseline, ...given(settings, params) };
  let seed = Number(params.get("seed") ?? 1) || 0;
  let watching = 0;
  let starting = false, refused = false; // a practice run that has not shown a point yet; settings that cannot be run
  /** @type {any} */
  let text = [];

  const settled = later(async () => {
    const changes = Object.entries(values).filter(([name, value]) => value !== track.baseline[name]).map(([name, value]) => [name, String(value)]);
    setParams({ track: track.name, seed: String(seed), ...Object.fromEntries(changes) });
    try {
      const answer = await script({ do: "script", track: track.name, entry: values, seed });
      if (answer) code.show((text = answer.script));
      refuse(null);
    } catch (error) {
      refuse(error);
    }
  }, 150);

  const cards = answer.tracks.map((/** @type {any} */ each) => h("button", { type: "button", class: "quiet track", onclick: () => choose(each) },
    h("b", {}, each.title), h("span", { class: "muted" }, each.description), h("span", { class: "lead-now mono", dataset: { track: each.name } })));
  const groups = GROUPS.map(([name, only], i) => {
    const made = form(settings, { values, labels: LABELS, sliders: SLIDERS, only: /** @type {string[]} */ (only), onchange: (_, changed) => change(changed, made.values[changed]) });
    return { made, only, element: h("details", { class: "group", open: i < 2 }, h("summary", {}, name), made.element) };
  });
  const seedBox = h("input", { type: "number", id: "practice-seed", min: 0, max: 2 ** 31, step: 1, value: seed, oninput: () => { seed = Math.min(2 ** 31, Math.max(0, Math.round(Number(seedBox.value) || 0))); settled(); } });
  const go = h("button", { type: "button", onclick: practise }, "▶ Practise");
  const says = h("p", { class: "says" }, "Practise as often as you like: on your own seed, judged by the first held-out split only.");
  const refusal = h("p", { class: "error", role: "alert", hidden: true });
  const chart = race();
  const model = codePanel({ title: "The network (fixed)", file: "network.py" });
  const code = codePanel({ title: "Show the code", file: "entry.py", note: "What practice runs: plain PyTorch. `trueloop run entry.py` checks it the same way. The judge runs this text too, with fresh seeds and the second held-out split." });
  const script = newest("arena");
  const entry = entryPanel({ take: (config, on) => take(config, on), announce });
  const table = boards({ open: (id) => entry.show(id), announce });
  const hand = handIn({ asked: () => ({ track: track.name, entry: values }), judged: async (id) => { await refresh(); await entry.show(id); }, announce });

  fill(root,
    h("p", { class: "look" }, "What to look for: large batches save updates and cost examples, so the leaderboards have different winners. A learning rate must work on every seed: the bar shows the spread over seeds. Warm-up, clipping and a good initialisation allow a higher rate."),
    h("section", { class: "tracks", role: "group", "aria-label": "Track" }, cards),
    h("div", { class: "columns" },
      h("section", { class: "panel", "aria-label": "Your loop" },
        h("h2", {}, "Your loop"),
        h("div", { class: "row begin" }, h("span", { class: "muted" }, "Start from"),
          h("button", { type: "button", class: "quiet", onclick: () => take(track.baseline) }, "baseline"),
          h("button", { type: "button", class: "quiet", onclick: () => take(plain) }, "plain SGD")),
        groups.map(({ element }) => element), refusal),
      h("div", {},
        h("section", { class: "panel", "aria-label": "Practice" },
          h("div", { class: "row" }, h("h2", {}, "Practice"), h("label", { for: "practice-seed" }, "seed"), seedBox, go),
          chart.element, says),
        hand.element,
        table.element)),
    entry.element,
    model.element,
    code.element,
    rules(answer));
  adapt();
  fitting();
  model.show(track.model);
  settled();
  await refresh();
  const timer = setInterval(() => { if (!document.hidden) refresh(); }, 5000);

  /** Show only the settings that the optimizer has. */
  function fitting() {
    const has = (/** @type {string} */ name) => name === "momentum" ? MOMENTUM.includes(values.optimizer) : !["beta1", "beta2"].includes(name) || MOMENTS.includes(values.optimizer);
    groups.forEach(({ made, only }) => { for (const name of only) made.field(/** @type {string} */ (name)).hidden = !has(/** @type {string} */ (name)); });
  }

  function adapt() {
    cards.forEach((/** @type {HTMLElement} */ card, /** @type {number} */ i) => card.setAttribute("aria-pressed", String(answer.tracks[i] === track)));
  }

  /** @param {string} name @param {any} value */
  function change(name, value) {
    values = { ...values, [name]: value };
    fitting();
    settled();
  }

  /** Load a configuration. @param {Record<string, any>} config @param {string} [on] its track */
  function take(config, on) {
    const other = answer.tracks.find((/** @type {any} */ each) => each.name === on);
    if (other && other !== track) choose(other, config);
    values = { ...plain, ...config };
    groups.forEach(({ made }) => made.set(values));
    fitting();
    settled();
    announce("The settings are loaded.");
  }

  /** @param {any} chosen @param {Record<string, any>} [config] */
  function choose(chosen, config) {
    track = chosen;
    adapt();
    stop();
    chart.mine([], track.target);
    says.textContent = "Practise, or start from the baseline's settings.";
    model.show(track.model);
    if (!config) take(track.baseline);
    entry.hide();
    refresh();
  }

  /** @param {any} error */
  function refuse(error) {
    refusal.hidden = !error;
    refusal.textContent = error ? error.message : "";
    refused = Boolean(error);
    hand.button.disabled = refused;
    button();
    groups.forEach(({ made, only }) => { for (const name of only) made.field(/** @type {string} */ (name)).classList.toggle("refused", Boolean(error && new RegExp(`(^|\\W)${name}\\b`).test(error.words?.what ?? ""))); });
  }

  function stop() {
    watching = 0;
    starting = false;
    button();
  }

  /** Update the text and state of the button: it is disabled while the judge starts. */
  function button() {
    fill(go, starting ? "Starting …" : watching ? "↻ Practise again" : "▶ Practise");
    go.disabled = refused || starting;
    go.setAttribute("aria-busy", String(starting));
  }

  async function practise() {
    /** @type {any[]} */
    const points = [];
    const mine = track;
    starting = true;
    button();
    says.textContent = "The judge is starting: the first run waits for PyTorch.";
    announce(says.textContent);
    try {
      const { id } = await ask("arena", { do: "practise", track: track.name, entry: values, seed, id: watching });
      watching = id;
      chart.mine(points, track.target);
      for (let answer = null; watching === id; await new Promise((wake) => setTimeout(wake, 90))) {
        answer = await ask("arena", { do: "poll", id, since: points.length });
        if (watching !== id || mine !== track) return;
        points.push(...answer.points);
        chart.mine(points, track.target);
        if (answer.done) return ended(answer);
        const last = points.at(-1);
        if (last && starting) {
          starting = false;
          button();
        }
        says.textContent = last ? `Running: update ${last[0]}, ${percent(last[2])} held out.` : "The judge is starting: the first run waits for PyTorch.";
      }
    } catch (error) {
      says.textContent = /** @type {Error} */ (error).message;
      stop();
    }
  }

  /** @param {any} answer */
  function ended({ trial, error }) {
    stop();
    if (error || !trial) fill(says, h("span", { class: "badge error" }, "failed"), ` ${[error?.what ?? "The run ended without a message.", error?.why, error?.fix ?? "Start it again."].filter(Boolean).join(" ")}`);
    else if (trial.end === "reached") fill(says, h("span", { class: "badge good" }, "✓ reached"), ` ${percent(track.target)} after ${trial.updates} updates and ${trial.examples.toLocaleString("en-US")} examples, on seed ${trial.seed}. The judge uses other seeds.`);
    else if (trial.end === "found") {
      code.show(text, { hit: trial.found.line });
      fill(says, h("span", { class: "badge error" }, `✗ ${trial.found.code}`), ` The sanitizer would disqualify this, at line ${trial.found.line} of the code below: ${trial.found.message} `, trial.found.fix);
    }
    else if (trial.end === "not reached") fill(says, h("span", { class: "badge warning" }, "not reached"), ` ${percent(trial.accuracy)} held out after ${trial.updates} updates and ${trial.examples.toLocaleString("en-US")} examples.`);
    else fill(says, h("span", { class: "badge error" }, trial.end), ` ${trial.why}`);
    announce(says.textContent ?? "");
  }

  async function refresh() {
    const now = track;
    try {
      const answer = await ask("arena", { do: "board", track: now.name });
      if (now !== track) return;
      table.show(answer, now);
      chart.others(answer.curves, now.target);
      for (const lead of cards.map((/** @type {HTMLElement} */ card) => card.querySelector(".lead-now"))) {
        const best = answer.best[lead.dataset.track];
        lead.textContent = best === null ? "no entry yet" : `to beat: ${number(best, 3)} updates`;
      }
    } catch (error) {
      table.trouble(/** @type {Error} */ (error).message);
    }
  }

  return () => {
    clearInterval(timer);
    watching = 0;
    hand.unmount();
    entry.unmount();
    chart.unmount();
  };
}

/** @param {number} share */
const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Parse the settings in the address. @param {any[]} settings @param {URLSearchParams} params */
function given(settings, params) {
  const found = settings.filter(({ name }) => params.has(name)).map((field) => [field.name, fromText(field, params.get(field.name) ?? "")]);
  return Object.fromEntries(found);
}

/** @param {{seeds: number, misses: number}} tracks */
function rules({ seeds, misses }) {
  return h("details", { class: "panel" }, h("summary", {}, "How entries are judged"),
    h("ul", {},
      h("li", {}, `An entry is a configuration. The judge draws ${seeds} fresh random seeds on submission, writes the script you can read below, and runs it on each seed in a separate process with limited time and memory.`),
      h("li", {}, "The sanitizer checks every run. A finding of severity warning or error disqualifies the entry; the leaderboard shows it."),
      h("li", {}, "A seed counts as reached at the first update after which both held-out splits reach the target. Practice never uses the second split. The data are public; fresh seeds and bounded settings limit overfitting to it."),
      h("li", {}, "The score is the median over all seeds; an entry that misses the target on one seed is not ranked",
        ` (after ${misses} misses the other seeds are skipped). Resubmitting a configuration adds its new seeds to the old ones, including failed entries, so repeated attempts cannot select lucky seeds; numbers have three significant digits.`),
      h("li", {}, "The first leaderboard counts optimizer updates, which do not depend on the machine. The second counts examples. The third compares CPU time per example with the track's baseline loop, run alternately with the entry; it is imprecise on a busy machine."),
      h("li", {}, "Each seed that reached the target is run again without the sanitizer: unless the weights are bitwise equal, the entry fails. Every row can be replayed, here or with `trueloop arena replay`.")));
}
