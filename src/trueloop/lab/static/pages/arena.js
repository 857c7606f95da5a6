// @ts-check
// The arena: choose a track, configure a loop, practise, submit, compare with the leaderboard.
import { codePanel } from "../code.js";
import { form, mentions, valuesFrom } from "../controls.js";
import { fill, h, debounce, formatNumber } from "../dom.js";
import { prefersReducedMotion } from "../player.js";
import { ask, fetchFields, latestOnly, retryUntilAnswered } from "../net.js";
import { leaderboards } from "./arena/leaderboards.js";
import { entryPanel } from "./arena/entry.js";
import { submissionPanel } from "./arena/submission_panel.js";
import { practiceChart } from "./arena/practice_chart.js";

export const title = "Arena";
export const lead = "Choose the training loop that reaches the target in the fewest updates.";

const LABELS = { lr: "learning rate", beta1: "beta 1", beta2: "beta 2", warmup: "warm-up", updates: "planned updates", clip: "clip the norm at", initialisation: "initialisation" };
const SLIDERS = { lr: { log: true }, momentum: { step: 0.01 }, label_smoothing: { step: 0.01 }, input_noise: { step: 0.01 } };
const GROUPS = [
  ["Optimizer", ["optimizer", "lr", "momentum", "beta1", "beta2", "weight_decay"]],
  ["Batches and schedule", ["batch", "accumulation", "schedule", "warmup", "updates"]],
  ["Stability", ["clip", "label_smoothing", "initialisation", "input_noise"]],
];
const MOMENTUM = ["sgd", "nesterov", "rmsprop"], MOMENTS = ["adam", "adamw"];

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const [answer, fields] = await Promise.all([retryUntilAnswered(() => ask("arena", { do: "tracks" })), fetchFields("arena")]);
  /** @type {any[]} */
  const settings = fields.find(({ name }) => name === "entry").fields;
  const defaults = Object.fromEntries(settings.map((field) => [field.name, field.default]));
  let track = answer.tracks.find((/** @type {any} */ each) => each.name === params.get("track")) ?? answer.tracks[0];
  let values = { ...defaults, ...track.baseline, ...valuesFrom(settings, params) };
  let seed = Number(params.get("seed") ?? 1) || 0;
  let practiceId = 0;
  let starting = false; // true until a practice run shows its first point
  let refused = false; // true if the settings cannot be run
  /** @type {any} */
  let scriptLines = [];

  const updateLater = debounce(async () => {
    const changes = Object.entries(values).filter(([name, value]) => value !== track.baseline[name]).map(([name, value]) => [name, String(value)]);
    setParams({ track: track.name, seed: String(seed), ...Object.fromEntries(changes) });
    try {
      const answer = await fetchScript({ do: "script", track: track.name, entry: values, seed });
      if (answer) code.show((scriptLines = answer.script));
      refuse(null);
    } catch (error) {
      refuse(error);
    }
  }, 150);

  const cards = answer.tracks.map((/** @type {any} */ each) => h("button", { type: "button", class: "quiet track", title: each.description, onclick: () => choose(each) },
    h("b", {}, each.title), h("span", { class: "lead-now mono", dataset: { track: each.name } })));
  const groups = GROUPS.map(([name, only], i) => {
    const groupForm = form(settings, { values, labels: LABELS, sliders: SLIDERS, only: /** @type {string[]} */ (only), onchange: (_, changed) => change(changed, groupForm.values[changed]) });
    return { groupForm, only, element: h("details", { class: "group", open: i < 2 }, h("summary", {}, name), groupForm.element) };
  });
  const seedBox = h("input", { type: "number", id: "practice-seed", min: 0, max: 2 ** 31, step: 1, value: seed, oninput: () => { seed = Math.min(2 ** 31, Math.max(0, Math.round(Number(seedBox.value) || 0))); updateLater(); } });
  const practiseButton = h("button", { type: "button", onclick: practise }, "▶ Practise");
  const practiceStatus = h("p", { class: "says" }, "Practise as often as you like, on your own seed.");
  const refusal = h("p", { class: "error", role: "alert", hidden: true });
  const chart = practiceChart();
  const networkCode = codePanel({ title: "The network (fixed)", file: "network.py" });
  const code = codePanel({ title: "Show the code", file: "entry.py", note: "What practice runs: plain PyTorch. `trueloop run entry.py` checks it the same way. The judge runs this text too, with fresh seeds and the second held-out split." });
  const fetchScript = latestOnly("arena");
  const entryDetails = entryPanel({ onuse: (config, trackName) => loadSettings(config, trackName), onreplayed: () => refresh(), announce });
  const leaderboard = leaderboards({ open: (id) => entryDetails.show(id), announce });
  const submission = submissionPanel({ query: () => ({ track: track.name, entry: values }), onjudged: async (id) => { await refresh(); await entryDetails.show(id); }, onwithdrawn: () => refresh(), announce });

  fill(root,
    h("section", { class: "tracks", role: "group", "aria-label": "Track" }, cards),
    h("div", { class: "columns" },
      h("section", { class: "panel inputs compact", "aria-label": "Your loop" },
        h("h2", {}, "Your loop"),
        h("div", { class: "row begin" }, h("span", { class: "muted" }, "Start from"),
          h("button", { type: "button", class: "quiet", onclick: () => loadSettings(track.baseline) }, "baseline"),
          h("button", { type: "button", class: "quiet", onclick: () => loadSettings(defaults) }, "plain SGD")),
        groups.map(({ element }) => element), refusal),
      h("div", {},
        h("section", { class: "panel", "aria-label": "Practice" },
          h("div", { class: "row" }, h("h2", {}, "Practice"), h("label", { for: "practice-seed" }, "seed"), seedBox, practiseButton),
          practiceStatus, chart.element),
        submission.element,
        leaderboard.element)),
    entryDetails.element,
    networkCode.element,
    code.element,
    judgingRules(answer));
  markTrack();
  showFittingSettings();
  networkCode.show(track.model);
  updateLater();
  await refresh();
  if (chart.isEmpty() && !prefersReducedMotion()) practise(); // an empty leaderboard has no curve to show
  const timer = setInterval(() => { if (!document.hidden) refresh(); }, 5000);

  /** Show only the settings that the optimizer has. */
  function showFittingSettings() {
    const isUsed = (/** @type {string} */ name) => name === "momentum" ? MOMENTUM.includes(values.optimizer) : !["beta1", "beta2"].includes(name) || MOMENTS.includes(values.optimizer);
    groups.forEach(({ groupForm, only }) => { for (const name of only) groupForm.field(/** @type {string} */ (name)).hidden = !isUsed(/** @type {string} */ (name)); });
  }

  function markTrack() {
    cards.forEach((/** @type {HTMLElement} */ card, /** @type {number} */ i) => card.setAttribute("aria-pressed", String(answer.tracks[i] === track)));
  }

  /** @param {string} name @param {any} value */
  function change(name, value) {
    values = { ...values, [name]: value };
    showFittingSettings();
    updateLater();
  }

  /** Load the settings of an entry. @param {Record<string, any>} config @param {string} [trackName] the entry's track */
  function loadSettings(config, trackName) {
    const trackOfEntry = answer.tracks.find((/** @type {any} */ each) => each.name === trackName);
    if (trackOfEntry && trackOfEntry !== track) choose(trackOfEntry, config);
    values = { ...defaults, ...config };
    groups.forEach(({ groupForm }) => groupForm.set(values));
    showFittingSettings();
    updateLater();
    announce("The settings are loaded.");
  }

  /** @param {any} chosen @param {Record<string, any>} [config] */
  function choose(chosen, config) {
    track = chosen;
    markTrack();
    stop();
    chart.setOwnCurve([], track.target);
    practiceStatus.textContent = "Practise, or start from the baseline's settings.";
    networkCode.show(track.model);
    if (!config) loadSettings(track.baseline);
    entryDetails.hide();
    refresh();
  }

  /** @param {any} error */
  function refuse(error) {
    refusal.hidden = !error;
    refusal.textContent = error ? error.message : "";
    refused = Boolean(error);
    const isBaseline = Object.entries({ ...defaults, ...track.baseline }).every(([name, value]) => values[name] === value);
    submission.button.disabled = refused || isBaseline;
    submission.hint(isBaseline ? "These are the baseline's settings: change one to submit an entry." : "");
    updateButton();
    groups.forEach(({ groupForm, only }) => { for (const name of only) groupForm.field(/** @type {string} */ (name)).classList.toggle("refused", mentions(error?.problem?.what, /** @type {string} */ (name))); });
  }

  function stop() {
    practiceId = 0;
    starting = false;
    updateButton();
  }

  /** Update the text and state of the button: it is disabled while the judge starts. */
  function updateButton() {
    fill(practiseButton, starting ? "Starting …" : practiceId ? "↻ Practise again" : "▶ Practise");
    practiseButton.disabled = refused || starting;
    practiseButton.setAttribute("aria-busy", String(starting));
  }

  async function practise() {
    /** @type {any[]} */
    const points = [];
    const practisedTrack = track;
    starting = true;
    updateButton();
    practiceStatus.textContent = "The judge is starting: the first run waits for PyTorch.";
    announce(practiceStatus.textContent);
    try {
      const { id } = await ask("arena", { do: "practise", track: track.name, entry: values, seed, id: practiceId });
      practiceId = id;
      chart.setOwnCurve(points, track.target);
      for (let answer = null; practiceId === id; await new Promise((wake) => setTimeout(wake, 90))) {
        answer = await ask("arena", { do: "poll", id, since: points.length });
        if (practiceId !== id || practisedTrack !== track) return;
        points.push(...answer.points);
        chart.setOwnCurve(points, track.target);
        if (answer.done) return showResult(answer);
        const last = points.at(-1);
        if (last && starting) {
          starting = false;
          updateButton();
        }
        practiceStatus.textContent = last ? `Running: update ${last[0]}, ${formatPercent(last[2])} held out.` : "The judge is starting: the first run waits for PyTorch.";
      }
    } catch (error) {
      practiceStatus.textContent = /** @type {Error} */ (error).message;
      stop();
    }
  }

  /** @param {any} answer */
  function showResult({ trial, error }) {
    stop();
    if (error || !trial) fill(practiceStatus, h("span", { class: "badge error" }, "failed"), ` ${[error?.what ?? "The run ended without a message.", error?.why, error?.fix ?? "Start it again."].filter(Boolean).join(" ")}`);
    else if (trial.end === "reached") fill(practiceStatus, h("span", { class: "badge good" }, "✓ reached"), ` ${formatPercent(track.target)} after ${trial.updates} updates and ${trial.examples.toLocaleString("en-US")} examples, on seed ${trial.seed}. The judge uses other seeds.`);
    else if (trial.end === "found") {
      code.show(scriptLines, { hit: trial.found.line });
      fill(practiceStatus, h("span", { class: "badge error" }, `✗ ${trial.found.code}`), ` The sanitizer would disqualify this, at line ${trial.found.line} of the code below: ${trial.found.message} `, trial.found.fix);
    }
    else if (trial.end === "not reached") fill(practiceStatus, h("span", { class: "badge warning" }, "not reached"), ` ${formatPercent(trial.accuracy)} held out after ${trial.updates} updates and ${trial.examples.toLocaleString("en-US")} examples.`);
    else fill(practiceStatus, h("span", { class: "badge error" }, trial.end), ` ${trial.why}`);
    announce(practiceStatus.textContent ?? "");
  }

  async function refresh() {
    const refreshedTrack = track;
    try {
      const answer = await ask("arena", { do: "board", track: refreshedTrack.name });
      if (refreshedTrack !== track) return;
      leaderboard.show(answer, refreshedTrack);
      chart.setOtherCurves(answer.curves, refreshedTrack.target);
      for (const leadText of cards.map((/** @type {HTMLElement} */ card) => card.querySelector(".lead-now"))) {
        const best = answer.best[leadText.dataset.track];
        leadText.textContent = best === null ? "no entry yet" : `to beat: ${formatNumber(best, 3)} updates`;
      }
    } catch (error) {
      leaderboard.showError(/** @type {Error} */ (error).message);
    }
  }

  return () => {
    clearInterval(timer);
    practiceId = 0;
    submission.unmount();
    entryDetails.unmount();
    chart.unmount();
  };
}

/** @param {number} share */
const formatPercent = (share) => `${(100 * share).toFixed(1)} %`;

/** @param {{seeds: number, misses: number}} tracks */
function judgingRules({ seeds, misses }) {
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
