// @ts-check
// A view for a class in front of one screen: large letters, steps to follow, and parts that are hidden until the
// teacher reveals them. The address contains the view, encoded (not encrypted) so that it is not readable at a glance.
import { equal, fill, h } from "./dom.js";

/** @typedef {{size: number, hide: string[], steps: string[]}} View */

const SIZES = /** @type {[number, string][]} */ ([[100, "normal"], [125, "large"], [150, "very large"]]);
const HIDEABLE = /** @type {[string, string][]} */ ([["spoilers", "the injected failures and the findings, until revealed"], ["settings", "the settings"], ["rest", "the network, gradients and experiments"]]);
const MAX_STEPS = 12, MAX_STEP_LENGTH = 160, MAX_LENGTH = 8000;

/** Return true if a part of the page is hidden from the class now. @param {string} part */
export const isHidden = (part) => (document.documentElement.dataset.hide ?? "").split(" ").includes(part);

/** Encode a view and the state of a page as one address parameter. @param {View} view @param {Record<string, string>} params */
export function encodeView(view, params) {
  const bytes = new TextEncoder().encode(JSON.stringify({ ...view, params }));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Decode a view from the address: bounded texts and numbers, or null. @param {string} encoded @returns {{view: View, params: Record<string, string>} | null} */
export function decodeView(encoded) {
  try {
    if (encoded.length > MAX_LENGTH) return null;
    const data = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(encoded.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0))));
    const strings = (/** @type {any} */ list) => (Array.isArray(list) ? list.filter((each) => typeof each === "string") : []);
    return {
      view: { size: SIZES.some(([size]) => size === data.size) ? data.size : 125, hide: strings(data.hide).filter((each) => HIDEABLE.some(([name]) => name === each)), steps: strings(data.steps).slice(0, MAX_STEPS).map((each) => each.slice(0, MAX_STEP_LENGTH)) },
      params: Object.fromEntries(Object.entries(data.params ?? {}).filter(([, value]) => typeof value === "string")),
    };
  } catch {
    return null;
  }
}

/** @param {{button: HTMLElement, steps: HTMLElement, state: () => {name: string, params: Record<string, string>}, announce: (text: string) => void}} options
 *   button: opens the teacher's settings; steps: element that shows the steps; state: returns the open page and its parameters */
export function classroom({ button, steps, state, announce }) {
  /** @type {View | null} */ let view = null;
  let revealed = false;
  const reveal = h("button", { type: "button", class: "small reveal", onclick: () => { revealed = !revealed; applyView(); announce(revealed ? "The failures are shown." : "The failures are hidden."); } });
  const leave = h("button", { type: "button", class: "quiet small", onclick: () => { const { name, params } = state(); const query = new URLSearchParams(params).toString(); location.hash = `#/${name}${query && `?${query}`}`; } }, "Close the class view");

  const size = h("select", { id: "class-size" }, SIZES.map(([value, text]) => h("option", { value, selected: value === 125 }, text)));
  const boxes = HIDEABLE.map(([name, text]) => ({ name, box: h("input", { type: "checkbox", id: `class-${name}`, checked: name === "spoilers" }), text }));
  const stepsInput = h("textarea", { id: "class-steps", rows: 5, maxlength: MAX_STEPS * MAX_STEP_LENGTH, placeholder: "Press Train and watch the loss.\nHow does the gradient norm change?\nWhat do you think is broken?" });
  const linkStatus = h("p", { class: "muted", role: "status" });
  const chosenView = () => ({
    size: Number(size.value), hide: boxes.filter(({ box }) => box.checked).map(({ name }) => name),
    steps: stepsInput.value.split("\n").map((/** @type {string} */ each) => each.trim().slice(0, MAX_STEP_LENGTH)).filter(Boolean).slice(0, MAX_STEPS),
  });
  const link = () => `#/${state().name}?class=${encodeView(chosenView(), state().params)}`;
  const dialog = h("dialog", { class: "class-dialog", "aria-labelledby": "class-title" },
    h("h2", { id: "class-title" }, "For a class"),
    h("p", {}, "Set up the page, including failures. The link opens the same state in any other lab, and on your own screen; other machines cannot reach your lab."),
    h("div", { class: "form" },
      h("div", { class: "field" }, h("label", { for: "class-size" }, "Text size"), size),
      h("fieldset", {}, h("legend", {}, "Hide"), boxes.map(({ box, text }) => h("div", { class: "field check" }, box, h("label", { for: box.id }, text)))),
      h("div", { class: "field" }, h("label", { for: "class-steps" }, "Steps, one per line"), stepsInput)),
    h("div", { class: "row" },
      h("button", { type: "button", onclick: () => { dialog.close(); location.hash = link(); } }, "Open the class view"),
      h("button", { type: "button", class: "quiet", onclick: async () => { linkStatus.textContent = await navigator.clipboard.writeText(new URL(link(), location.href).href).then(() => "The link is copied.", () => "The browser refused to copy; open the view and copy its address."); } }, "Copy the link"),
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")), linkStatus);
  button.addEventListener("click", () => { linkStatus.textContent = ""; if (!dialog.isConnected) document.body.append(dialog); dialog.showModal(); });

  function applyView() {
    const root = document.documentElement;
    if (!view) {
      delete root.dataset.class;
      delete root.dataset.hide;
    } else {
      root.dataset.class = String(view.size);
      root.dataset.hide = view.hide.filter((each) => !(revealed && each === "spoilers")).join(" ");
    }
    reveal.textContent = revealed ? "Hide the failures again" : "Reveal the failures";
    reveal.setAttribute("aria-pressed", String(revealed));
    reveal.hidden = !view?.hide.includes("spoilers");
    dispatchEvent(new Event("colours")); // charts are redrawn with the new font size
    dispatchEvent(new Event("revealed"));
  }

  return {
    get view() { return view; },
    /** Show the page in the view of a link, or in the normal view. @param {View | null} newView */
    set(newView) {
      if (equal(newView, view)) return;
      view = newView;
      revealed = false;
      fill(steps, view && h("div", { class: "row" }, reveal, leave), view && view.steps.length > 0 && [h("h2", { id: "steps-title" }, "Steps"),
        h("ol", { "aria-labelledby": "steps-title" }, view.steps.map((text, i) => h("li", {}, h("input", { type: "checkbox", id: `class-step-${i}` }), h("label", { for: `class-step-${i}` }, text))))]);
      steps.hidden = !view;
      applyView();
    },
  };
}
