// @ts-check
// Functions that create elements. Text is never parsed as HTML.

/** @typedef {Node | string | number | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: h("button", { class: "quiet", onclick: go, disabled: true }, "Go").
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; `on...` are listeners, `style` an object of CSS properties, `dataset` an object
 * @param {...(Child | Child[])} children
 * @returns {any} */
export function h(tag, props = {}, ...children) {
  return initialise(document.createElement(tag), props, children);
}

/** Create an SVG element, with the same props as `h`.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Child | Child[])} children
 * @returns {any} */
export function svg(tag, props = {}, ...children) {
  return initialise(document.createElementNS(SVG, tag), props, children);
}

/** Create a short line that shows the colour and dashes of a curve.
 * @param {{colour: string, dash?: number[], width?: number}} curve colour: a CSS variable; width: in pixels */
export function swatch({ colour: name, dash, width = 2 }) {
  return h("i", { class: "swatch", "aria-hidden": "true", style: { "border-top": `${width}px ${dash ? "dashed" : "solid"} var(${name})` } });
}

/** Replace the children of an element.
 * @param {Element} element
 * @param {...(Child | Child[])} children */
export function fill(element, ...children) {
  element.replaceChildren(...renderable(children));
}

/** Return the parts of a text, with what stands between backticks as code.
 * @param {string} text */
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

/** Return a function that requests drawing; `draw` is called at most once per frame.
 * @param {() => void} draw */
export function oncePerFrame(draw) {
  let frameRequest = 0;
  return () => {
    frameRequest ||= requestAnimationFrame(() => { frameRequest = 0; draw(); });
  };
}

/** Return a function that calls `callback` once it was not called for `ms` milliseconds, such as when typing pauses.
 * @template {any[]} A
 * @param {(...args: A) => void} callback
 * @param {number} [ms] */
export function debounce(callback, ms = 120) {
  let timer = 0;
  return (/** @type {A} */ ...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...args), ms);
  };
}

/** Return the current value of a CSS variable: colour("--data"). @param {string} name */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return true if two values are equal as JSON. @param {any} one @param {any} other */
export const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Format a number for display; the server's "nan" and "inf" become NaN and ∞. @param {number | string | null | undefined} value @param {number} [digits] */
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "nan" ? "NaN" : value.replace("inf", "∞").replace("-", "−");
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? value.toLocaleString("en-US").replace("-", "−") : value.toExponential(2);
  const magnitude = Math.abs(value);
  return (magnitude >= 1e6 || magnitude < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(digits)))).replace("-", "−");
}

/** Download a text as a file. @param {string} name @param {string} text */
export const download = (name, text) => downloadBlob(name, new Blob([text], { type: "text/plain" }));

/** Download data as a file. @param {string} name @param {Blob} blob */
export function downloadBlob(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @param {any} element @param {Record<string, any>} props @param {(Child | Child[])[]} children */
function initialise(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, css] of Object.entries(value)) element.style.setProperty(key, css);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...renderable(children));
  return element;
}

/** @param {(Child | Child[])[]} children @returns {(Node | string)[]} */
function renderable(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false).map((child) => (child instanceof Node ? child : String(child)));
}
