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
  return dress(document.createElement(tag), props, children);
}

/** Create an SVG element, with the same props as `h`.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Child | Child[])} children
 * @returns {any} */
export function svg(tag, props = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), props, children);
}

/** Replace the children of an element.
 * @param {Element} element
 * @param {...(Child | Child[])} children */
export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
}

/** Draw at most once per frame: returns a function that requests drawing.
 * @param {() => void} draw */
export function eachFrame(draw) {
  let asked = 0;
  return () => {
    asked ||= requestAnimationFrame(() => { asked = 0; draw(); });
  };
}

/** Call a function once typing pauses.
 * @template {any[]} A
 * @param {(...args: A) => void} act
 * @param {number} [ms] */
export function later(act, ms = 120) {
  let timer = 0;
  return (/** @type {A} */ ...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...args), ms);
  };
}

/** Return the current value of a CSS variable: colour("--data"). @param {string} name */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Format a number for reading; the server's "nan" and "inf" stay words. @param {number | string | null | undefined} value @param {number} [digits] */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "nan" ? "NaN" : value.replace("inf", "∞").replace("-", "−");
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? value.toLocaleString("en-US").replace("-", "−") : value.toExponential(2);
  const size = Math.abs(value);
  return (size >= 1e6 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(digits)))).replace("-", "−");
}

/** Download a text as a file. @param {string} name @param {string} text */
export function download(name, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @param {any} element @param {Record<string, any>} props @param {(Child | Child[])[]} children */
function dress(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, css] of Object.entries(value)) element.style.setProperty(key, css);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...kept(children));
  return element;
}

/** @param {(Child | Child[])[]} children @returns {(Node | string)[]} */
function kept(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false).map((child) => (child instanceof Node ? child : String(child)));
}
