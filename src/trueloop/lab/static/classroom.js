// @ts-check
// A view for a class in front of one screen: large letters, steps to follow, and hidden spoilers until they are
// revealed. The address contains all of this, encoded so that it cannot be read at a glance, but not secretly.
import { fill, h } from "./dom.js";

/** @typedef {{size: number, hide: string[], steps: string[]}} View */

const SIZES = /** @type {[number, string][]} */ ([[100, "normal"], [125, "large"], [150, "very large"]]);
const HIDES = /** @type {[string, string][]} */ ([["spoilers", "the injected failures and the findings, until revealed"], ["settings", "the settings"], ["rest", "everything below the curves"]]);
const MAX_STEPS = 12, MAX_STEP_LENGTH = 160, MAX_LENGTH = 8000;

/** True if a part of the page is hidden from the class now. @param {string} what */
export const hidden = (what) => (document.documentElement.dataset.hide ?? "").split(" ").includes(what);

/** Encode a view and the state of a page as one address parameter. @param {View} view @param {Record<string, string>} params */
export function encodeView(view, params) {
  const bytes = new TextEncoder().encode(JSON.stringify({ ...view, params }));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Decode a view from the address: bounded texts and numbers, or null. @param {string} word @returns {{view: View, params: Record<string, string>} | null} */
export function decodeView(word) {
  try {
    if (word.length > MAX_LENGTH) return null;
    const data = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(word.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0))));
    const texts = (/** @type {any} */ list) => (Array.isArray(list) ? list.filter((each) => typeof each === "string") : []);
    return {
      view: { size: SIZES.some(([size]) => size === data.size) ? data.size : 125, hide: texts(data.hide).filter((each) => HIDES.some(([name]) => name === each)), steps: texts(data.steps).slice(0, MAX_STEPS).map((each) => each.slice(0, MAX_STEP_LENGTH)) },
      params: Object.fromEntries(Object.entries(data.params ?? {}).filter(([, value]) => typeof value === "string")),
    };
  } catch {
    return null;
  }
}

/** @param {{button: HTMLElement, steps: HTMLElement, state: () => {name: string, params: Record<string, string>}, announce: (text: string) => void}} shell
 *   button: opens the teacher's settings; steps: where the class's steps are shown; state: the page that is open, as its address says */
export function classroom({ button, steps, state, announce }) {
  /** @type {View | null} */ let view = null;
  let revealed = false;
  const reveal = h("button", { type: "button", class: "small reveal", onclick: () => { revealed = !revealed; dress(); announce(revealed ? "The failures are shown." : "The failures are hidden."); } });
  const leave = h("button", { type: "button", class: "quiet small", onclick: () => { const { name, params } = state(); const query = new URLSearchParams(params).toString(); location.hash = `#/${name}${query && `?${query}`}`; } }, "Close the class view");

  const size = h("select", { id: "class-size" }, SIZES.map(([value, text]) => h("option", { value, selected: value === 125 }, text)));
  const boxes = HIDES.map(([name, text]) => ({ name, box: h("input", { type: "checkbox", id: `class-${name}`, checked: name === "spoilers" }), text }));
  const words = h("textarea", { id: "class-steps", rows: 5, maxlength: MAX_STEPS * MAX_STEP_LENGTH, placeholder: "Press Train and watch the loss.\nHow does the gradient norm change?\nWhat do you think is broken?" });
  const said = h("p", { class: "muted", role: "status" });
  const link = () => `#/${state().name}?class=${encodeView({ size: Number(size.value), hide: boxes.filter(({ box }) => box.checked).map(({ name }) => name), steps: words.value.split("\n").map((/** @type {string} */ each) => each.trim().slice(0, MAX_STEP_LENGTH)).filter(Boolean).slice(0, MAX_STEPS) }, state().params)}`;
  const dialog = h("dialog", { class: "class-dialog", "aria-labelledby": "class-title" },
    h("h2", { id: "class-title" }, "For a class"),
    h("p", {}, "Set up the page, including failures. The link opens the same state in any other lab, and on your own screen; other machines cannot reach your lab."),
    h("div", { class: "form" },
      h("div", { class: "field" }, h("label", { for: "class-size" }, "Text size"), size),
      h("fieldset", {}, h("legend", {}, "Hide"), boxes.map(({ box, text }) => h("div", { class: "field check" }, box, h("label", { for: box.id }, text)))),
      h("div", { class: "field" }, h("label", { for: "class-steps" }, "Steps, one per line"), words)),
    h("div", { class: "row" },
      h("button", { type: "button", onclick: () => { dialog.close(); location.hash = link(); } }, "Open the class view"),
      h("button", { type: "button", class: "quiet", onclick: async () => { said.textContent = await navigator.clipboard.writeText(new URL(link(), location.href).href).then(() => "The link is copied.", () => "The browser refused to copy; open the view and copy its address."); } }, "Copy the link"),
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")), said);
  button.addEventListener("click", () => { said.textContent = ""; if (!dialog.isConnected) document.body.append(dialog); dialog.showModal(); });

  function dress() {
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
    /** Show the page in the view of a link, or in the normal view. @param {View | null} asked */
    set(asked) {
      if (JSON.stringify(asked) === JSON.stringify(view)) return;
      view = asked;
      revealed = false;
      fill(steps, view && h("div", { class: "row" }, reveal, leave), view && view.steps.length > 0 && [h("h2", { id: "steps-title" }, "Steps"),
        h("ol", { "aria-labelledby": "steps-title" }, view.steps.map((text, i) => h("li", {}, h("input", { type: "checkbox", id: `class-step-${i}` }), h("label", { for: `class-step-${i}` }, text))))]);
      steps.hidden = !view;
      dress();
    },
  };
}
