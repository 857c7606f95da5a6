// @ts-check
// Page 2, pipeline: numbered examples on their way through sampler, workers and collate into batches.
import { codePanel } from "../code.js";
import { fromText, form } from "../controls.js";
import { fill, h, later } from "../dom.js";
import { Refused, described, newest } from "../net.js";
import { fly } from "../motion.js";
import { player } from "../player.js";
import { CLASSES, bar, dataset, lane, matrix } from "./pipeline/parts.js";

export const title = "Data pipeline";
export const lead = [
  "A DataLoader gets indices from a sampler, reads those examples and collates them into a batch. PyTorch's own classes drew everything here on the server.",
  "What to look for: whether the partial batch at the end is kept, whether batches hold every class, whether the next epoch has another order, and how much of a batch of sequences is padding.",
];

const LABELS = {
  examples: "Examples", batch: "Batch size", sampler: "Sampler", made_by: "Made by", shuffle: "shuffle", drop_last: "drop_last", ranks: "Ranks",
  set_epoch: "Call set_epoch", balance: "Class balance", by_class: "Dataset sorted by class", workers: "Workers", sequences: "Sequences of different lengths",
  longest: "Longest sequence", buckets: "Batch similar lengths", seed: "Seed",
};
const PHASES = 3; // the sampler yields indices, examples are read, examples are collated

/** @param {HTMLElement} root @param {{params: URLSearchParams, setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} page */
export async function mount(root, { params, setParams, announce }) {
  const fields = await described("pipeline");
  const asking = newest("pipeline");
  /** @type {any} */
  let answer = null;
  let epoch = params.get("epoch") === "1" ? 1 : 0;
  let wanted = Number(params.get("step")) || 0; // the step in the address, then the current step
  let gone = false;
  let before = -1;
  const given = Object.fromEntries(fields.filter(({ name }) => params.has(name)).map((field) => [field.name, fromText(field, params.get(field.name) ?? "")]));
  const inputs = form(fields, {
    values: given, labels: LABELS, onchange: (_, name) => { settle(name); soon(); },
    sliders: { examples: {}, batch: {}, ranks: {}, workers: {}, longest: {} },
  });

  const epochs = [0, 1].map((number) => h("button", { type: "button", class: "quiet", onclick: () => { epoch = number; draw(0); } }, `Epoch ${number}`));
  const stages = player({ count: () => steps(), ready: () => Boolean(answer), show: (step) => drawStep(step), label: "The pipeline", perStep_ms: 1100 });
  const says = h("p", { class: "says" });
  const examples = h("div", { class: "examples", role: "img" });
  const lanes = h("div", { class: "lanes" });
  const batches = h("div", { class: "batches" });
  const padded = h("section", { class: "panel", "aria-labelledby": "pipeline-padded" });
  const facts = h("ul", { class: "notes" }, h("li", { class: "muted" }, "Loading …"));
  const code = codePanel({ file: "pipeline.py", note: "This program ran on the server; the pictures show its output. Needs pip install 'trueloop[train]'." });
  fill(root,
    h("div", { class: "columns" },
      h("form", { class: "panel", "aria-label": "Settings of the pipeline", onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, h("h2", {}, "Settings"), inputs.element),
      h("div", { class: "drawing" },
        h("section", { class: "panel", "aria-labelledby": "pipeline-facts" }, h("h2", { id: "pipeline-facts" }, "What happened"), facts),
        h("section", { class: "panel", "aria-labelledby": "pipeline-way" },
          h("h2", { id: "pipeline-way" }, "From examples to batches"),
          h("div", { class: "row" }, stages.element, h("div", { class: "row", role: "group", "aria-label": "Which epoch" }, epochs)),
          says, h("h3", {}, "Dataset"), examples, legend(), lanes),
        h("section", { class: "panel", "aria-labelledby": "pipeline-batches" }, h("h2", { id: "pipeline-batches" }, "Batches and their classes"), batches),
        padded, code.element)));

  /** Adjust the settings that depend on a changed setting. @param {string} name the changed setting */
  function settle(name) {
    const { sampler, sequences, made_by } = inputs.values;
    const decides = sampler === "none" || sampler === "distributed";
    if (name === "sampler") inputs.set({ shuffle: decides, ...(sampler === "none" && { made_by: "torch" }) });
    if (!sequences) inputs.set({ buckets: false });
    const shown = { shuffle: decides, made_by: sampler !== "none", ranks: sampler === "distributed", longest: sequences, buckets: sequences, set_epoch: sampler === "distributed" || made_by === "trueloop" };
    for (const [field, show] of Object.entries(shown)) inputs.field(field).hidden = !show;
  }

  async function update() {
    try {
      const found = await asking({ ...inputs.values });
      if (found === null || gone) return;
      answer = found;
      inputs.refuse(null);
      root.classList.remove("stale");
      fill(facts, ...answer.facts.map((/** @type {string} */ fact) => h("li", {}, fact)));
      code.show(answer.code);
      stages.pause();
      draw(Math.min(wanted, steps() - 1));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      stages.pause();
      root.classList.add("stale");
      inputs.refuse(error.words);
    }
  }

  function remember() {
    const said = fields.filter((field) => inputs.values[field.name] !== field.default).map(({ name }) => [name, String(inputs.values[name])]);
    setParams(Object.fromEntries([...said, ...(epoch ? [["epoch", "1"]] : []), ...(wanted ? [["step", String(wanted)]] : [])]));
  }

  const ranks = () => answer.epochs[epoch];
  const turns = () => Math.max(0, ...ranks().map((/** @type {any} */ draw_) => draw_.batches.length));
  const steps = () => (answer ? turns() * PHASES + 1 : 1);

  /** @param {number} step */
  function draw(step) {
    epochs.forEach((button, number) => button.setAttribute("aria-pressed", String(number === epoch)));
    stages.go(step);
  }

  /** @param {number} step */
  function drawStep(step) {
    if (!answer) return;
    wanted = step;
    if (!stages.playing()) remember();
    const turn = Math.min(Math.floor(step / PHASES), turns());
    const phase = turn === turns() ? -1 : step % PHASES;
    const text = sentence(ranks(), turn, phase);
    says.textContent = text;
    if (!stages.playing()) announce(text);
    const drawn = ranks().flatMap((/** @type {any} */ rank) => rank.batches.slice(0, turn + (phase > 0 ? 1 : 0)).flatMap((/** @type {any} */ batch) => batch.indices));
    const now = phase < 0 ? [] : ranks().flatMap((/** @type {any} */ rank) => rank.batches[turn]?.indices ?? []);
    const over = phase < 0;
    examples.setAttribute("aria-label", `${answer.examples.length} examples. ${text}`);
    fill(examples, ...dataset(answer.examples, { drawn, now, over }));
    fill(lanes, ...ranks().map((/** @type {any} */ rank, /** @type {number} */ place) => lane(rank, { place, several: ranks().length > 1, turn, phase, examples: answer.examples })));
    const widest = Math.max(1, inputs.values.batch);
    fill(batches, ...ranks().flatMap((/** @type {any} */ rank, /** @type {number} */ place) => [
      ranks().length > 1 && h("h3", {}, `Rank ${place}`),
      ...rank.batches.map((/** @type {any} */ batch, /** @type {number} */ number) => bar(batch, { number, widest, state: number < turn || (number === turn && phase === 2) ? "done" : number === turn && !over ? "now" : "ahead", go: () => { stages.pause(); stages.go(number * PHASES + 2); } })),
      rank.left_out.length > 0 && h("p", { class: "left-out" }, `left out: ${rank.left_out.map((/** @type {number} */ left) => `#${left}`).join(", ")}`),
    ]));
    if (step === before + 1) arrive(phase);
    before = step;
    const shown = Math.min(turn, turns() - 1);
    padded.hidden = !inputs.values.sequences || shown < 0;
    if (!padded.hidden) fill(padded, h("h2", { id: "pipeline-padded" }, `Batch ${shown}, padded`), ...ranks().map((/** @type {any} */ rank, /** @type {number} */ place) => rank.batches[shown] && matrix(rank.batches[shown], { title: ranks().length > 1 ? `Rank ${place}` : "", classes: answer.examples })));
  }

  /** Animate new elements from their origin: examples from the dataset, the tensor from the examples. @param {number} phase */
  function arrive(phase) {
    for (const way of lanes.querySelectorAll(".lane")) {
      const [, read, made] = [...way.querySelectorAll(".station")].map((station) => [...station.querySelectorAll(".chip, .tensor")]);
      if (phase === 1) fly(read.map((chip) => [examples.children[Number(chip.textContent)], chip]));
      if (phase === 2) fly([[read[0], made[0]]]);
    }
  }

  const soon = later(update, 100);
  settle("");
  await update();
  return () => {
    gone = true;
    stages.unmount();
  };
}

/** @param {any[]} ranks @param {number} turn @param {number} phase */
function sentence(ranks, turn, phase) {
  if (phase < 0) return "The epoch is over.";
  const batches = ranks.map((rank) => rank.batches[turn]).filter(Boolean);
  const first = batches[0];
  const whose = ranks.length > 1 ? `Step ${turn}, on every rank` : `Batch ${turn}`;
  if (phase === 0) return `${whose}: the sampler gives ${ranks.length > 1 ? "each its indices" : listed(first.indices)}.`;
  if (phase === 1) return `${whose}: the examples are read ${first.worker < 0 ? "by the main process" : `by worker ${first.worker}`}.`;
  return `${whose}: collate makes a tensor of shape [${first.shape.join(", ")}]${first.tokens.length ? `, ${Math.round(first.padding * 100)} % of it padding` : ""}.`;
}

/** @param {number[]} numbers */
function listed(numbers) {
  const more = numbers.length > 12 ? ` and ${numbers.length - 12} more` : "";
  return numbers.slice(0, 12).map((number) => `#${number}`).join(", ") + more;
}

function legend() {
  return h("p", { class: "legend" },
    CLASSES.map((name, i) => h("span", {}, h("i", { class: `example class-${i}` }, name), `class ${name}`)),
    [["now", "being drawn"], ["drawn", "drawn"], ["twice", "drawn twice or more"], ["never", "not in this epoch"]].map(([kind, text]) => h("span", {}, h("i", { class: `example class-0 ${kind}` }, "A"), text)),
    h("span", {}, h("i", { class: "chip class-0 repeated" }, "7↻"), "drawn again"));
}
