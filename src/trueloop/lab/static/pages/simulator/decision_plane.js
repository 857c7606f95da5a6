// @ts-check
// The plane: the predicted classes and the points. A click or Enter adds a point; shift-click or Delete removes the nearest.
import { colour, h, formatNumber } from "../../dom.js";
import { drawPoint, classColour, divergingPalette, mixColours, className, palette, putBytes, rgb } from "./shapes.js";

const NOT_FINITE = 255; // the byte of a pixel where the network's output is not finite
const STEP = 1 / 16; // distance that an arrow key moves the cross, as a fraction of half the width

/** @typedef {[number, number, number]} Point x, y, class */

/** @param {{title?: string, onadd?: (point: Point) => void, onremove?: (x: number, y: number) => void, chosenClass?: () => number}} options */
export function decisionPlane({ title = "", onadd, onremove, chosenClass = () => 0 }) {
  let classes = 2, span = 1, steps = 127, pixels = new Uint32Array(256), paletteKey = "";
  /** @type {Point[]} */ let train = [];
  /** @type {Point[]} */ let heldOut = [];
  /** @type {[number, number] | null} */ let cursor = null;
  const decision = h("canvas", { class: "board-decision", "aria-hidden": "true" });
  const points = h("canvas", {
    class: "board-points", tabindex: onadd ? "0" : null, role: onadd ? "application" : "img", "aria-label": `${title || "The plane"}: decision and points`,
    ...(onadd ? { "aria-describedby": "board-keys" } : {}),
  });
  const nanNote = h("div", { class: "board-word", hidden: true });
  const heading = h("div", { class: "board-title" });
  const canvases = h("div", { class: "board-place" }, decision, points, nanNote);
  const element = h("figure", { class: "board" }, heading, canvases);

  function paintPoints() {
    const side = canvases.clientWidth, ratio = devicePixelRatio || 1;
    if (!side) return;
    if (points.width !== Math.round(side * ratio)) points.width = points.height = Math.round(side * ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (points.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, side, side);
    const edge = colour("--panel"), inks = Array.from({ length: classes }, (_, label) => classColour(label));
    const size = Math.max(1.8, Math.min(4, (side / 90) * Math.sqrt(400 / Math.max(train.length + heldOut.length, 100))));
    const at = (/** @type {number} */ x, /** @type {number} */ y) => /** @type {[number, number]} */ ([(x / span + 1) / 2 * side, (1 - y / span) / 2 * side]);
    for (const [list, hollow] of /** @type {[Point[], boolean][]} */ ([[train, false], [heldOut, true]])) {
      for (const [x, y, label] of list) drawPoint(context, ...at(x, y), size, { label, classes, fill: inks[label], edge, hollow });
    }
    if (cursor) {
      const [x, y] = at(...cursor);
      context.strokeStyle = colour("--ink");
      context.lineWidth = 1.5;
      context.strokeRect(x - 7, y - 7, 14, 14);
      context.beginPath();
      context.moveTo(x - 13, y); context.lineTo(x + 13, y);
      context.moveTo(x, y - 13); context.lineTo(x, y + 13);
      context.stroke();
    }
  }

  function paintPalette() {
    const background = rgb(colour("--panel")), classColours = Array.from({ length: classes }, (_, label) => rgb(classColour(label))), nonFiniteColour = rgb(colour("--strong"));
    pixels = palette((byte) => (byte === NOT_FINITE || byte >= steps * classes ? nonFiniteColour : mixColours(background, classColours[Math.floor(byte / steps)], 0.1 + 0.5 * ((byte % steps) / steps))));
  }

  /** @param {MouseEvent | PointerEvent} event @returns {[number, number]} */
  function pointAt(event) {
    const box = points.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width * 2 - 1) * span, (1 - (event.clientY - box.top) / box.height * 2) * span];
  }

  const rounded = (/** @type {number} */ value) => Number(value.toFixed(3));
  if (onadd) {
    points.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const [x, y] = pointAt(event).map(rounded);
      if (event.shiftKey) onremove?.(x, y);
      else onadd([x, y, chosenClass()]);
    });
    points.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const moves = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] })[event.key];
      const [x, y] = cursor ?? [0, 0];
      if (moves) cursor = [clamped(x + moves[0] * STEP * span), clamped(y + moves[1] * STEP * span)];
      else if (event.key === "Enter" || event.key === " ") onadd([rounded(x), rounded(y), chosenClass()]);
      else if (event.key === "Delete" || event.key === "Backspace") onremove?.(rounded(x), rounded(y));
      else return;
      event.preventDefault();
      paintPoints();
      points.setAttribute("aria-label", `At ${formatNumber(rounded(cursor?.[0] ?? 0))}, ${formatNumber(rounded(cursor?.[1] ?? 0))}: Enter adds a point of ${className(chosenClass(), classes)}`);
    });
    points.addEventListener("focus", () => { cursor ??= points.matches(":focus-visible") ? [0, 0] : null; paintPoints(); });
    points.addEventListener("blur", () => { cursor = null; paintPoints(); });
  }
  const clamped = (/** @type {number} */ value) => Math.max(-span, Math.min(span, value));
  const recolour = () => { paletteKey = ""; paintPoints(); };
  const resizeObserver = new ResizeObserver(paintPoints);
  resizeObserver.observe(canvases);
  addEventListener("colours", recolour);

  return {
    element,
    /** @param {any} started */
    begin(started) {
      classes = started.classes;
      span = started.span[1];
      train = started.points.train.slice();
      heldOut = started.points.held_out.slice();
      paletteKey = "";
      paintPoints();
    },
    /** @param {Point} point */
    add(point) { train.push(point); paintPoints(); },
    /** @param {number} x @param {number} y @returns {Point | null} the removed point, the nearest one */
    remove(x, y) {
      let nearest = -1, smallestDistance = Infinity;
      train.forEach(([px, py], i) => { const distance = Math.hypot(px - x, py - y); if (distance < smallestDistance) { smallestDistance = distance; nearest = i; } });
      const [removed] = nearest < 0 ? [null] : train.splice(nearest, 1);
      paintPoints();
      return removed;
    },
    /** Paint the decision, or the map of a neuron. @param {{plane: any, bytes: Uint8Array} | undefined} picture */
    paint(picture) {
      if (!picture) return;
      const isNeuron = picture.plane.name !== "boundary";
      points.classList.toggle("faded", isNeuron);
      if (isNeuron) return putBytes(decision, picture.bytes, picture.plane.width, divergingPalette());
      if (paletteKey !== `${classes} ${picture.plane.steps}`) {
        steps = picture.plane.steps;
        paletteKey = `${classes} ${steps}`;
        paintPalette();
      }
      putBytes(decision, picture.bytes, picture.plane.width, pixels);
      nanNote.hidden = picture.bytes[0] !== NOT_FINITE || picture.bytes[picture.bytes.length >> 1] !== NOT_FINITE;
      if (!nanNote.hidden) nanNote.textContent = "The network outputs NaN everywhere";
      decision.classList.toggle("not-finite", !nanNote.hidden);
    },
    /** @param {string} text */
    title(text) { heading.textContent = text; },
    describe(/** @type {string} */ text) { points.setAttribute("aria-label", text); },
    unmount() {
      resizeObserver.disconnect();
      removeEventListener("colours", recolour);
    },
  };
}
