// @ts-check
// Train and eval: two copies of a network on the same inputs, and the memory that a forward pass keeps.
import { codePanel } from "../code.js";
import { form, valuesFrom } from "../controls.js";
import { fill, h, debounce } from "../dom.js";
import { fetchFields, latestOnly, RequestError } from "../net.js";
import { player, prefersReducedMotion } from "../player.js";
import { memoryPanel } from "./modes/memory.js";
import { networkLegend } from "./modes/network.js";
import { side } from "./modes/side.js";

export const title = "Train and eval";
export const lead = "One network and the same inputs, in both modes.";

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  /** @type {any} */
  let data = null;
  let requestedPass = Number(params.get("pass") ?? 1) || 0;
  let hasPlayed = false;
  const fields = (await fetchFields("modes")).filter(({ name }) => name !== "passes");
  const fetchPasses = latestOnly("modes");

  const inputs = h("div", { class: "scroll" });
  const status = h("p", { class: "status" }, "Computing …");
  const left = side({ name: "left", title: "left.train()", caption: "Each pass: a new mask, and the running mean moves." });
  const right = side({ name: "right", title: "right.eval()", caption: "Nothing is masked, and nothing moves." });
  const code = codePanel({ file: "train_and_eval.py", note: "The program that ran. Forward hooks recorded the values shown." });
  const passPlayer = player({ count: () => (data ? data.right.length + 1 : 1), ready: () => Boolean(data), show: draw, label: "Passes", perStep_ms: 1100 });
  const forward = h("button", { type: "button", class: "forward", onclick: () => { passPlayer.pause(); passPlayer.go(passPlayer.step + 1); } }, "→ Forward both");
  const restart = h("button", { type: "button", class: "quiet", onclick: () => { passPlayer.pause(); passPlayer.go(0); } }, "Begin again");
  const controls = form(fields, { values: valuesFrom(fields, params), sliders: { dropout: { step: 0.05 }, momentum: { step: 0.05 }, width: {}, batch: {} }, onchange: debounce(load) });
  const memory = memoryPanel({ announce });

  fill(root,
    h("section", { class: "panel passes", "aria-label": "Passes" }, h("div", { class: "row" }, forward, restart, passPlayer.element), status),
    h("div", { class: "sides" }, left.element, right.element), networkLegend(),
    memory.element,
    h("details", { class: "panel settings", open: innerWidth > 860 }, h("summary", {}, "The network"), controls.element,
      h("details", { class: "inputs" }, h("summary", {}, "The inputs of both"), inputs)),
    code.element);

  async function load() {
    try {
      const answer = await fetchPasses(Object.fromEntries(fields.map(({ name }) => [name, controls.values[name]])));
      if (!answer) return;
      controls.refuse(null);
      data = answer;
      fill(inputs, h("table", { class: "cells" }, h("tbody", {}, data.inputs.map((/** @type {string[]} */ row, /** @type {number} */ i) => h("tr", {}, h("th", { scope: "row" }, `example ${i}`), row.map((cell) => h("td", {}, cell)))))));
      left.load(data);
      right.load(data);
      passPlayer.go(requestedPass);
      if (hasPlayed) return;
      hasPlayed = true;
      if (!params.has("pass") && !prefersReducedMotion()) passPlayer.start();
      memory.measure();
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      controls.refuse(error.problem);
      if (!data) status.textContent = "";
    }
  }

  /** @param {number} pass number of the pass, from 1; 0 = before the first */
  function draw(pass) {
    if (!data) return;
    requestedPass = pass;
    left.draw(pass);
    right.draw(pass);
    forward.disabled = pass >= data.right.length;
    status.textContent = describePass(pass);
    code.show(data.code, { marked: pass ? data.lines : [], mark: "current" });
    announce(status.textContent ?? "");
    setParams({ ...Object.fromEntries(fields.map(({ name }) => [name, String(controls.values[name])])), pass: String(pass) });
  }

  /** @param {number} pass */
  function describePass(pass) {
    if (!pass) return "Both have the same weights. No forward pass yet.";
    if (data.refused) return `Pass ${pass}: train mode refuses a batch of one, eval mode accepts it.`;
    if (pass === 1) return "Pass 1: the outputs differ, because train mode used batch statistics and masked units.";
    const [leftPass, rightPass] = [data.left[pass - 1], data.right[pass - 1]];
    return `Pass ${pass}: the left outputs ${leftPass.same_as_before ? "are bitwise equal to the previous pass" : `differ from the previous pass by up to ${leftPass.max_difference}`}; the right ones ${rightPass.same_as_before ? "are bitwise equal" : `differ by up to ${rightPass.max_difference}`}.`;
  }

  await load();
  return () => { passPlayer.unmount(); left.unmount(); memory.unmount(); };
}
