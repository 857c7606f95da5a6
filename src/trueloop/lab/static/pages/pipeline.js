// @ts-check
// The data pipeline: numbered examples on their way through sampler, workers and collate into batches.
import { codePanel } from "../code.js";
import { form, valuesFrom } from "../controls.js";
import { fill, h, debounce } from "../dom.js";
import { RequestError, fetchFields, latestOnly } from "../net.js";
import { fly } from "../motion.js";
import { player } from "../player.js";
import { CLASSES, COLLATE, EPOCH_OVER, PHASES, READ, SAMPLE, bar, dataset, lane, matrix } from "./pipeline/parts.js";

export const title = "Data pipeline";
export const lead = "A DataLoader takes indices from a sampler, reads these examples and collates them into a batch.";

const LABELS = {
  examples: "Examples", batch: "Batch size", sampler: "Sampler", made_by: "Made by", shuffle: "shuffle", drop_last: "drop_last", ranks: "Ranks",
  set_epoch: "Call set_epoch", balance: "Class balance", by_class: "Dataset sorted by class", workers: "Workers", sequences: "Sequences of different lengths",
  longest: "Longest sequence", buckets: "Batch similar lengths", seed: "Seed",
};

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const fields = await fetchFields("pipeline");
  const fetchRun = latestOnly("pipeline");
  /** @type {any} */
  let answer = null;
  let epoch = params.get("epoch") === "1" ? 1 : 0;
  let requestedStep = Number(params.get("step")) || 0; // from the address at first, then the current step
  let unmounted = false;
  let previousStep = -1;
  const inputs = form(fields, {
    values: valuesFrom(fields, params), labels: LABELS, onchange: (_, name) => { adjustSettings(name); updateLater(); },
    sliders: { examples: {}, batch: {}, ranks: {}, workers: {}, longest: {} },
  });

  const epochs = [0, 1].map((index) => h("button", { type: "button", class: "quiet", onclick: () => { epoch = index; draw(0); } }, `Epoch ${index}`));
  const stages = player({ count: () => steps(), ready: () => Boolean(answer), show: (step) => drawStep(step), label: "The pipeline", perStep_ms: 1100 });
  const stepText = h("p", { class: "says" });
  const examples = h("div", { class: "examples", role: "img" });
  const lanes = h("div", { class: "lanes" });
  const batches = h("div", { class: "batches" });
  const padded = h("section", { class: "panel", "aria-labelledby": "pipeline-padded" });
  const facts = h("ul", { class: "notes" }, h("li", { class: "muted" }, "Loading …"));
  const code = codePanel({ file: "pipeline.py", note: "This program ran on the server; the pictures show its output. Needs pip install 'trueloop[train]'." });
  fill(root,
    h("div", { class: "columns" },
      h("form", { class: "panel compact", "aria-label": "Settings of the pipeline", onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, h("h2", {}, "Settings"), inputs.element),
      h("div", { class: "drawing" },
        h("section", { class: "panel", "aria-labelledby": "pipeline-way" },
          h("h2", { id: "pipeline-way", class: "unseen" }, "From examples to batches"),
          stages.element, stepText,
          h("div", { class: "row dataset" }, h("h3", {}, "Dataset"), h("div", { class: "row", role: "group", "aria-label": "Which epoch" }, epochs)), examples, legend(), lanes),
        h("section", { class: "panel", "aria-labelledby": "pipeline-batches" }, h("h2", { id: "pipeline-batches" }, "Batches and their classes"), batches),
        h("section", { class: "panel", "aria-labelledby": "pipeline-facts" }, h("h2", { id: "pipeline-facts" }, "What happened"), facts),
        padded, code.element)));

  /** Adjust the settings that depend on a changed setting. @param {string} name the changed setting */
  function adjustSettings(name) {
    const { sampler, sequences, made_by } = inputs.values;
    const shuffleApplies = sampler === "none" || sampler === "distributed";
    if (name === "sampler") inputs.set({ shuffle: shuffleApplies, ...(sampler === "none" && { made_by: "torch" }) });
    if (!sequences) inputs.set({ buckets: false });
    const visible = { shuffle: shuffleApplies, made_by: sampler !== "none", ranks: sampler === "distributed", longest: sequences, buckets: sequences, set_epoch: sampler === "distributed" || made_by === "trueloop" };
    for (const [field, show] of Object.entries(visible)) inputs.field(field).hidden = !show;
  }

  async function update() {
    try {
      const newAnswer = await fetchRun({ ...inputs.values });
      if (newAnswer === null || unmounted) return;
      answer = newAnswer;
      inputs.refuse(null);
      root.classList.remove("stale");
      fill(facts, ...answer.facts.map((/** @type {string} */ fact) => h("li", {}, fact)));
      code.show(answer.code);
      stages.pause();
      draw(Math.min(requestedStep, steps() - 1));
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      stages.pause();
      root.classList.add("stale");
      inputs.refuse(error.problem);
    }
  }

  function remember() {
    const changedSettings = fields.filter((field) => inputs.values[field.name] !== field.default).map(({ name }) => [name, String(inputs.values[name])]);
    setParams(Object.fromEntries([...changedSettings, ...(epoch ? [["epoch", "1"]] : []), ...(requestedStep ? [["step", String(requestedStep)]] : [])]));
  }

  const ranks = () => answer.epochs[epoch];
  const batchCount = () => Math.max(0, ...ranks().map((/** @type {any} */ rank) => rank.batches.length));
  const steps = () => (answer ? batchCount() * PHASES + 1 : 1);

  /** @param {number} step */
  function draw(step) {
    epochs.forEach((button, index) => button.setAttribute("aria-pressed", String(index === epoch)));
    stages.go(step);
  }

  /** @param {number} step */
  function drawStep(step) {
    if (!answer) return;
    requestedStep = step;
    if (!stages.playing()) remember();
    const batchIndex = Math.min(Math.floor(step / PHASES), batchCount());
    const phase = batchIndex === batchCount() ? EPOCH_OVER : step % PHASES;
    const epochOver = phase === EPOCH_OVER, hasRanks = ranks().length > 1;
    const text = describeStep(ranks(), batchIndex, phase);
    stepText.textContent = text;
    if (!stages.playing()) announce(text);
    const drawnIndices = ranks().flatMap((/** @type {any} */ rank) => rank.batches.slice(0, batchIndex + (phase >= READ ? 1 : 0)).flatMap((/** @type {any} */ batch) => batch.indices));
    const currentIndices = epochOver ? [] : ranks().flatMap((/** @type {any} */ rank) => rank.batches[batchIndex]?.indices ?? []);
    examples.setAttribute("aria-label", `${answer.examples.length} examples. ${text}`);
    fill(examples, ...dataset(answer.examples, { drawnIndices, currentIndices, epochOver }));
    fill(lanes, ...ranks().map((/** @type {any} */ rank, /** @type {number} */ rankIndex) => lane(rank, { rankIndex, hasRanks, batchIndex, phase, examples: answer.examples })));
    const widest = Math.max(1, inputs.values.batch);
    fill(batches, ...ranks().flatMap((/** @type {any} */ rank, /** @type {number} */ rankIndex) => [
      hasRanks && h("h3", {}, `Rank ${rankIndex}`),
      ...rank.batches.map((/** @type {any} */ batch, /** @type {number} */ index) => bar(batch, { index, widest, state: index < batchIndex || (index === batchIndex && phase === COLLATE) ? "done" : index === batchIndex && !epochOver ? "now" : "ahead", go: () => { stages.pause(); stages.go(index * PHASES + COLLATE); } })),
      rank.left_out.length > 0 && h("p", { class: "left-out" }, `left out: ${rank.left_out.map((/** @type {number} */ index) => `#${index}`).join(", ")}`),
    ]));
    if (step === previousStep + 1) animateStep(phase);
    previousStep = step;
    const shownBatch = Math.min(batchIndex, batchCount() - 1);
    padded.hidden = !inputs.values.sequences || shownBatch < 0;
    if (!padded.hidden) fill(padded, h("h2", { id: "pipeline-padded" }, `Batch ${shownBatch}, padded`), ...ranks().map((/** @type {any} */ rank, /** @type {number} */ rankIndex) => rank.batches[shownBatch] && matrix(rank.batches[shownBatch], { title: hasRanks ? `Rank ${rankIndex}` : "", classes: answer.examples })));
  }

  /** Let new elements fly from their origin: examples from the dataset, the tensor from the examples. @param {number} phase */
  function animateStep(phase) {
    for (const laneElement of lanes.querySelectorAll(".lane")) {
      const [, read, collated] = [...laneElement.querySelectorAll(".station")].map((station) => [...station.querySelectorAll(".chip, .tensor")]);
      if (phase === READ) fly(read.map((chip) => [examples.children[Number(chip.textContent)], chip]));
      if (phase === COLLATE) fly([[read[0], collated[0]]]);
    }
  }

  const updateLater = debounce(update, 100);
  adjustSettings("");
  await update();
  if (!params.has("step")) stages.autoplay();
  return () => {
    unmounted = true;
    stages.unmount();
  };
}

/** @param {any[]} ranks @param {number} batchIndex @param {number} phase */
function describeStep(ranks, batchIndex, phase) {
  if (phase === EPOCH_OVER) return "The epoch is over.";
  const batches = ranks.map((rank) => rank.batches[batchIndex]).filter(Boolean);
  const first = batches[0];
  const subject = ranks.length > 1 ? `Step ${batchIndex}, on every rank` : `Batch ${batchIndex}`;
  if (phase === SAMPLE) return `${subject}: the sampler gives ${ranks.length > 1 ? "each its indices" : listIndices(first.indices)}.`;
  if (phase === READ) return `${subject}: the examples are read ${first.worker < 0 ? "by the main process" : `by worker ${first.worker}`}.`;
  return `${subject}: collate makes a tensor of shape [${first.shape.join(", ")}]${first.tokens.length ? `, ${Math.round(first.padding * 100)} % of it padding` : ""}.`;
}

/** @param {number[]} numbers */
function listIndices(numbers) {
  const more = numbers.length > 12 ? ` and ${numbers.length - 12} more` : "";
  return numbers.slice(0, 12).map((number) => `#${number}`).join(", ") + more;
}

function legend() {
  return h("p", { class: "legend" },
    CLASSES.map((name, i) => h("span", {}, h("i", { class: `example class-${i}` }, name), `class ${name}`)),
    [["now", "now"], ["drawn", "drawn"], ["twice", "twice or more"], ["never", "left out"]].map(([kind, text]) => h("span", {}, h("i", { class: `example class-0 ${kind}` }, "A"), text)),
    h("span", {}, h("i", { class: "chip class-0 repeated" }, "7↻"), "drawn again"));
}
