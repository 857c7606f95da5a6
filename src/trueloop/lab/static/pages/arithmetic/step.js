// @ts-check
// One update in slow motion: pick examples, forward, loss, backward, change the weights.
import { codePanel } from "../../code.js";
import { fill, h, later, number, svg } from "../../dom.js";
import { Refused, newest } from "../../net.js";
import { fly } from "../../motion.js";
import { player } from "../../player.js";

const WIDTH = 300, HEIGHT = 200;

export const RATE = 0.3;

/** @param {{announce: (text: string) => void, next: () => any, lr: number, onrate: () => void}} page lr: the rate to begin with */
export function oneStep({ announce, next, lr, onrate }) {
  const asking = newest("one_step");
  /** @type {any} */
  let made = null;
  /** @type {any} */
  let sizes = null;
  let weights = { weight: 0, bias: 0 };
  let before = -1;
  const refused = h("p", { class: "muted", hidden: true });
  const says = h("p", { class: "says" });
  const field = h("div", { class: "dots", role: "img" });
  const fieldName = h("h3", {});
  const batch = h("div", { class: "chips" });
  const batchName = h("h3", {});
  const model = h("table", { class: "model" });
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "fit" });
  const code = codePanel({ title: "Show the code of this update", file: "one_update.py", note: "The numbers above are what this program computed." });
  const rate = h("input", { id: "step-lr", type: "range", min: 0.02, max: 1.4, step: 0.02, value: lr, oninput: () => { rateShown.textContent = rate.value; onrate(); again(); } });
  const rateShown = h("output", { for: "step-lr" }, rate.value);
  const stages = player({ count: () => made?.stages.length ?? 1, show: draw, label: "One update", perStep_ms: 1500 });
  const onward = h("button", { type: "button", class: "quiet", onclick: carryOn }, "Keep the weights, next update");
  const reset = h("button", { type: "button", class: "quiet", onclick: () => { weights = { weight: 0, bias: 0 }; fetchStep(); } }, "Reset the weights to 0");
  const waiting = h("p", { class: "muted" }, "Computing …");
  const body = h("div", { hidden: true },
    h("div", { class: "row" }, stages.element, onward, reset),
    h("div", { class: "row lr" }, h("label", { for: "step-lr" }, "Learning rate"), rate, rateShown),
    says,
    h("div", { class: "step-parts" },
      h("div", {}, fieldName, field),
      h("div", {}, batchName, batch),
      h("div", {}, h("h3", {}, "Model: y = weight · x + bias"), model, plot)),
    code.element);
  const element = h("section", { class: "panel one-step", "aria-labelledby": "step-title" },
    h("h2", { id: "step-title" }, "One update in slow motion"),
    h("p", { class: "muted" }, "The window of the timeline above, on a model of two weights. The data are synthetic, near the line y = 1.5 x − 0.5; the order is trueloop's shuffle for your dataset size."),
    refused, waiting, body);

  /** @param {any} asked @param {string} tooLarge */
  function ask(asked, tooLarge) {
    const key = JSON.stringify(asked);
    refused.hidden = !tooLarge;
    refused.textContent = tooLarge;
    if (tooLarge) body.hidden = waiting.hidden = true;
    else if (made) body.hidden = false;
    if (tooLarge || key === sizes) return;
    sizes = key;
    soon();
  }

  const soon = later(() => fetchStep(), 60);
  const again = later(() => fetchStep(true), 60);

  async function fetchStep(stay = false) {
    if (!sizes) return;
    try {
      const answer = await asking({ ...JSON.parse(sizes), ...weights, lr: Number(rate.value) });
      if (answer === null) return;
      refused.hidden = !answer.too_large;
      refused.textContent = answer.too_large;
      waiting.hidden = true;
      body.hidden = Boolean(answer.too_large);
      if (answer.too_large) return;
      made = answer;
      code.show(answer.code);
      if (!stay) stages.pause();
      stages.go(stay ? stages.step : 0);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      refused.hidden = false;
      refused.textContent = error.message;
      waiting.hidden = true;
      body.hidden = true;
    }
  }

  async function carryOn() {
    if (!made) return;
    weights = { weight: made.after[0], bias: made.after[1] };
    const before = sizes;
    await next();
    if (sizes === before) await fetchStep(); // a run of one update is where it was
    announce(`Weight ${number(weights.weight)}, bias ${number(weights.bias)}.`);
  }

  /** @param {number} at */
  function draw(at) {
    if (!made) return;
    const stage = made.stages[at];
    const shown = made.micro_batches[stage.batch];
    says.textContent = stage.says;
    if (stages.playing()) announce(stage.says);
    drawField(stage, shown);
    drawBatch(stage, shown);
    drawModel(stage, shown);
    drawFit(stage);
    if (stage.kind === "picked" && at === before + 1) {
      const dots = [...field.querySelectorAll(".picked")];
      fly([...batch.querySelectorAll(".chip")].map((chip, i) => [dots[i % dots.length], chip]));
    }
    before = at;
  }

  /** @param {any} stage @param {any} shown */
  function drawField(stage, shown) {
    const now = new Set(shown.dots);
    const earlier = new Set(made.micro_batches.slice(0, stage.batch).flatMap((/** @type {any} */ other) => other.dots));
    const each = made.examples_per_dot === 1 ? "one example per dot" : `${number(Math.round(made.examples_per_dot))} examples per dot`;
    fieldName.textContent = `Dataset: ${each}`;
    field.setAttribute("aria-label", `${shown.count} examples picked from the dataset, in ${shown.dots.length} of ${made.dots} dots.`);
    fill(field, ...Array.from({ length: made.dots }, (_, cell) => h("i", { class: now.has(cell) ? "dot picked" : earlier.has(cell) ? "dot before" : "dot" })));
  }

  /** @param {any} stage @param {any} shown */
  function drawBatch(stage, shown) {
    const ranks = JSON.parse(sizes).processes;
    batchName.textContent = `Micro-batch ${shown.index + 1} of ${made.total_micro_batches}${ranks > 1 ? `, over ${number(ranks)} processes` : ""}`;
    const more = shown.count - shown.indices.length;
    batch.className = `chips ${stage.kind}`;
    fill(batch, ...shown.indices.map((/** @type {number} */ example, /** @type {number} */ i) => h("span", { class: "chip" }, ranks > 1 && ranks <= 9 && h("sub", {}, String(i % ranks)), `#${example.toLocaleString("en-US")}`)),
      more > 0 && h("span", { class: "muted" }, `and ${number(more)} more`));
  }

  /** @param {any} stage @param {any} shown */
  function drawModel(stage, shown) {
    const updated = stage.kind === "update";
    const before = stage.batch > 0 ? made.micro_batches[stage.batch - 1] : { weight_gradient: 0, bias_gradient: 0 };
    const held = updated || stage.kind === "backward" ? shown : before;
    /** @param {string} name @param {number} i @param {number} sum */
    const row = (name, i, sum) => h("tr", {}, h("th", { scope: "row" }, name),
      h("td", { class: `number ${updated ? "is-update" : ""}` }, number(updated ? made.after[i] : made.before[i])),
      h("td", { class: "number is-gradient" }, number(updated ? made.gradient[i] : sum)));
    fill(model,
      h("thead", {}, h("tr", {}, h("td"), h("th", { class: "number" }, updated ? "✓ after the update" : "value"), h("th", { class: "number" }, updated ? ".grad, the mean" : ".grad, a sum"))),
      h("tbody", {}, row("weight", 0, held.weight_gradient), row("bias", 1, held.bias_gradient),
        h("tr", {}, h("th", { scope: "row" }, "loss, mean"), h("td", { class: "number" }, number(updated ? made.loss_after : made.loss_before)), h("td", { class: "number" }, ""))));
  }

  /** @param {any} stage */
  function drawFit(stage) {
    const x = (/** @type {number} */ value) => ((value + 1) / 2) * (WIDTH - 20) + 10;
    const y = (/** @type {number} */ value) => HEIGHT / 2 - ((value + 0.5) / 5.2) * HEIGHT;
    /** @param {[number, number]} weights_ @param {string} kind */
    const lineOf = ([w, b], kind) => svg("line", { class: kind, x1: x(-1), x2: x(1), y1: y(b - w), y2: y(b + w) });
    plot.setAttribute("aria-label", `Examples of the window and the model's line: before, weight ${number(made.before[0])}; after, ${number(made.after[0])}.`);
    fill(plot,
      svg("g", {}, made.points.map(([px, py]) => svg("circle", { cx: x(px), cy: y(py), r: 2.4, class: "point" }))),
      lineOf(made.before, "before"),
      stage.kind === "update" && lineOf(made.after, "after"),
      svg("text", { x: 14, y: 16, class: "label" }, stage.kind === "update" ? "dashed: before, solid: after" : "the model before the update"));
  }

  return { element, ask, get lr() { return Number(rate.value); }, unmount: () => stages.unmount() };
}
