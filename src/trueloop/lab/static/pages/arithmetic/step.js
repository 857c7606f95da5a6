// @ts-check
// One update in slow motion: pick examples, forward, loss, backward, change the weights.
import { codePanel } from "../../code.js";
import { fill, h, debounce, formatNumber, svg } from "../../dom.js";
import { RequestError, latestOnly } from "../../net.js";
import { fly } from "../../motion.js";
import { player } from "../../player.js";

const WIDTH = 300, HEIGHT = 200;

export const DEFAULT_RATE = 0.3;

/** @param {{announce: (text: string) => void, next: () => any, lr: number, onrate: () => void, onplay: () => void}} page lr: the initial learning rate; onplay is called when the slow motion starts */
export function oneStep({ announce, next, lr, onrate, onplay }) {
  const fetchUpdate = latestOnly("one_step");
  /** @type {any} */
  let computed = null;
  /** @type {any} */
  let requestedSizes = null;
  let weights = { weight: 0, bias: 0 };
  let previousStage = -1;
  const refused = h("p", { class: "muted", hidden: true });
  const explanation = h("p", { class: "says" });
  const datasetDots = h("div", { class: "dots", role: "img" });
  const datasetHeading = h("h3", {});
  const batch = h("div", { class: "chips" });
  const batchHeading = h("h3", {});
  const model = h("table", { class: "model" });
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "fit" });
  const code = codePanel({ title: "Show the code of this update", file: "one_update.py", note: "The numbers above are what this program computed." });
  const rate = h("input", { id: "step-lr", type: "range", min: 0.02, max: 1.4, step: 0.02, value: lr, oninput: () => { rateText.textContent = rate.value; onrate(); refetchLater(); } });
  const rateText = h("output", { for: "step-lr" }, rate.value);
  const stages = player({ count: () => computed?.stages.length ?? 1, show: draw, label: "One update", perStep_ms: 1500, onplay });
  const keepWeights = h("button", { type: "button", class: "quiet", onclick: keepWeightsAndContinue }, "Keep the weights, next update");
  const reset = h("button", { type: "button", class: "quiet", onclick: () => { weights = { weight: 0, bias: 0 }; fetchStep(); } }, "Reset the weights to 0");
  const waiting = h("p", { class: "muted" }, "Computing …");
  const body = h("div", { hidden: true },
    h("div", { class: "row" }, stages.element, keepWeights, reset),
    h("div", { class: "row lr" }, h("label", { for: "step-lr" }, "Learning rate"), rate, rateText),
    explanation,
    h("div", { class: "step-parts" },
      h("div", {}, datasetHeading, datasetDots),
      h("div", {}, batchHeading, batch),
      h("div", {}, h("h3", {}, "Model: y = weight · x + bias"), model, plot)),
    code.element);
  const element = h("section", { class: "panel one-step", "aria-labelledby": "step-title" },
    h("h2", { id: "step-title" }, "One update in slow motion"),
    h("p", { class: "muted" }, "The window of the timeline above, on a model of two weights. The data are synthetic, near the line y = 1.5 x − 0.5; the order is trueloop's shuffle for your dataset size."),
    refused, waiting, body);

  /** @param {any} newSizes @param {string} tooLarge */
  function setSizes(newSizes, tooLarge) {
    const key = JSON.stringify(newSizes);
    refused.hidden = !tooLarge;
    refused.textContent = tooLarge;
    if (tooLarge) body.hidden = waiting.hidden = true;
    else if (computed) body.hidden = false;
    if (tooLarge || key === requestedSizes) return;
    requestedSizes = key;
    fetchLater();
  }

  const fetchLater = debounce(() => fetchStep(), 60);
  const refetchLater = debounce(() => fetchStep(true), 60);

  async function fetchStep(keepStage = false) {
    if (!requestedSizes) return;
    try {
      const answer = await fetchUpdate({ ...JSON.parse(requestedSizes), ...weights, lr: Number(rate.value) });
      if (answer === null) return;
      refused.hidden = !answer.too_large;
      refused.textContent = answer.too_large;
      waiting.hidden = true;
      body.hidden = Boolean(answer.too_large);
      if (answer.too_large) return;
      computed = answer;
      code.show(answer.code);
      const playing = stages.playing();
      if (!keepStage) stages.pause();
      stages.go(keepStage ? stages.step : 0);
      if (playing && !keepStage) stages.start(); // the update was requested before the slow motion was started
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      refused.hidden = false;
      refused.textContent = error.message;
      waiting.hidden = true;
      body.hidden = true;
    }
  }

  async function keepWeightsAndContinue() {
    if (!computed) return;
    weights = { weight: computed.after[0], bias: computed.after[1] };
    const previousSizes = requestedSizes;
    await next();
    if (requestedSizes === previousSizes) await fetchStep(); // a run with only one update has no next update
    announce(`Weight ${formatNumber(weights.weight)}, bias ${formatNumber(weights.bias)}.`);
  }

  /** @param {number} at */
  function draw(at) {
    if (!computed) return;
    const stage = computed.stages[at];
    const microBatch = computed.micro_batches[stage.batch];
    explanation.textContent = stage.description;
    if (stages.playing()) announce(stage.description);
    drawDataset(stage, microBatch);
    drawBatch(stage, microBatch);
    drawModel(stage, microBatch);
    drawFit(stage);
    if (stage.kind === "picked" && at === previousStage + 1) {
      const dots = [...datasetDots.querySelectorAll(".picked")];
      fly([...batch.querySelectorAll(".chip")].map((chip, i) => [dots[i % dots.length], chip]));
    }
    previousStage = at;
  }

  /** @param {any} stage @param {any} microBatch */
  function drawDataset(stage, microBatch) {
    const currentDots = new Set(microBatch.dots);
    const earlierDots = new Set(computed.micro_batches.slice(0, stage.batch).flatMap((/** @type {any} */ other) => other.dots));
    const each = computed.examples_per_dot === 1 ? "one example per dot" : `${formatNumber(Math.round(computed.examples_per_dot))} examples per dot`;
    datasetHeading.textContent = `Dataset: ${each}`;
    datasetDots.setAttribute("aria-label", `${microBatch.count} examples picked from the dataset, in ${microBatch.dots.length} of ${computed.dots} dots.`);
    fill(datasetDots, ...Array.from({ length: computed.dots }, (_, cell) => h("i", { class: currentDots.has(cell) ? "dot picked" : earlierDots.has(cell) ? "dot before" : "dot" })));
  }

  /** @param {any} stage @param {any} microBatch */
  function drawBatch(stage, microBatch) {
    const ranks = JSON.parse(requestedSizes).processes;
    batchHeading.textContent = `Micro-batch ${microBatch.index + 1} of ${computed.total_micro_batches}${ranks > 1 ? `, over ${formatNumber(ranks)} processes` : ""}`;
    const more = microBatch.count - microBatch.indices.length;
    batch.className = `chips ${stage.kind}`;
    fill(batch, ...microBatch.indices.map((/** @type {number} */ example, /** @type {number} */ i) => h("span", { class: "chip" }, ranks > 1 && ranks <= 9 && h("sub", {}, String(i % ranks)), `#${example.toLocaleString("en-US")}`)),
      more > 0 && h("span", { class: "muted" }, `and ${formatNumber(more)} more`));
  }

  /** @param {any} stage @param {any} microBatch */
  function drawModel(stage, microBatch) {
    const updated = stage.kind === "update";
    const previousBatch = stage.batch > 0 ? computed.micro_batches[stage.batch - 1] : { weight_gradient: 0, bias_gradient: 0 };
    const gradients = updated || stage.kind === "backward" ? microBatch : previousBatch;
    /** @param {string} name @param {number} i @param {number} sum */
    const row = (name, i, sum) => h("tr", {}, h("th", { scope: "row" }, name),
      h("td", { class: `number ${updated ? "is-update" : ""}` }, formatNumber(updated ? computed.after[i] : computed.before[i])),
      h("td", { class: "number is-gradient" }, formatNumber(updated ? computed.gradient[i] : sum)));
    fill(model,
      h("thead", {}, h("tr", {}, h("td"), h("th", { class: "number" }, updated ? "✓ after the update" : "value"), h("th", { class: "number" }, updated ? ".grad, the mean" : ".grad, a sum"))),
      h("tbody", {}, row("weight", 0, gradients.weight_gradient), row("bias", 1, gradients.bias_gradient),
        h("tr", {}, h("th", { scope: "row" }, "loss, mean"), h("td", { class: "number" }, formatNumber(updated ? computed.loss_after : computed.loss_before)), h("td", { class: "number" }, ""))));
  }

  /** @param {any} stage */
  function drawFit(stage) {
    const x = (/** @type {number} */ value) => ((value + 1) / 2) * (WIDTH - 20) + 10;
    const y = (/** @type {number} */ value) => HEIGHT / 2 - ((value + 0.5) / 5.2) * HEIGHT;
    /** @param {[number, number]} line @param {string} kind */
    const lineOf = ([w, b], kind) => svg("line", { class: kind, x1: x(-1), x2: x(1), y1: y(b - w), y2: y(b + w) });
    plot.setAttribute("aria-label", `Examples of the window and the model's line: before, weight ${formatNumber(computed.before[0])}; after, ${formatNumber(computed.after[0])}.`);
    fill(plot,
      svg("g", {}, computed.points.map(([px, py]) => svg("circle", { cx: x(px), cy: y(py), r: 2.4, class: "point" }))),
      lineOf(computed.before, "before"),
      stage.kind === "update" && lineOf(computed.after, "after"),
      svg("text", { x: 14, y: 16, class: "label" }, stage.kind === "update" ? "dashed: before, solid: after" : "the model before the update"));
  }

  return { element, setSizes, get lr() { return Number(rate.value); }, pause: () => stages.pause(), unmount: () => stages.unmount() };
}
