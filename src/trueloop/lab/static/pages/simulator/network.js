// @ts-check
// The network with its layers from left to right: each neuron is a map of its output over the plane, each weight a line.
import { colour, equal, h } from "../../dom.js";
import { classColour, divergingPalette, putBytes } from "./shapes.js";

const MAX_POINTER_DISTANCE = 6; // maximum distance of the pointer from a line, in pixels
const MAX_ROWS = 16; // maximum number of neurons in a column; a wider layer has several columns

/** @typedef {{kind: "weight", layer: number, to: number, from: number} | {kind: "neuron", layer: number, to: number}} Picked layer: index of a layer's weights, from 0; the last layer is the head */
/** @typedef {{x: number, y: number, size: number}} NetworkNode */

/** @param {{onhover: (picked: Picked | null) => void, onpick: (picked: Picked) => void}} options */
export function network({ onhover, onpick }) {
  /** @type {any[]} */ let layers = [];
  /** @type {NetworkNode[][]} */ let columns = [];
  /** @type {any} */ let shownRun = null;
  /** @type {Picked | null} */ let highlighted = null;
  let pixels = new Uint32Array(256);
  const canvas = h("canvas", { class: "net", role: "img", "aria-label": "The network: maps of its neurons, weights as lines" });
  const mapCanvas = h("canvas", {});
  const container = h("div", { class: "net-place" }, canvas);

  function arrange() {
    const width = container.clientWidth, height = container.clientHeight;
    if (!width || !height || !layers.length) return;
    const counts = [layers[0].inputs, ...layers.map(({ neurons }) => neurons)], edge = Math.min(30, width / 10);
    columns = counts.map((count, column) => {
      const subcolumns = Math.ceil(count / MAX_ROWS), rows = Math.ceil(count / subcolumns), middle = edge + (column / (counts.length - 1)) * (width - 2 * edge);
      const size = Math.max(5, Math.min(44, height / rows - 4, (width - 2 * edge) / counts.length / subcolumns - 4));
      const pitch = Math.min(height / rows, size + 24);
      return Array.from({ length: count }, (_, i) => ({ x: middle + (Math.floor(i / rows) - (subcolumns - 1) / 2) * (size + 3), y: height / 2 + pitch * (i % rows - (rows - 1) / 2), size }));
    });
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pixels = divergingPalette();
    draw();
  }

  function draw() {
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")), ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (shownRun?.weights) layers.forEach((layer, i) => drawWeights(context, layer, i));
    const line = colour("--strong"), accent = colour("--accent");
    columns.forEach((nodes, column) => nodes.forEach((node, i) => {
      const { x, y, size } = node;
      context.fillStyle = colour("--panel");
      context.fillRect(x - size / 2, y - size / 2, size, size);
      if (column === columns.length - 1) {
        context.fillStyle = classColour(i);
        context.fillRect(x - size / 2, y - size / 2, size, size);
        context.fillStyle = colour("--panel");
        context.font = `600 ${Math.min(14, size * 0.6)}px system-ui, sans-serif`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(String(i), x, y);
      } else if (column === 0) {
        context.fillStyle = colour("--ink");
        context.font = "italic 14px serif";
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText("xy"[i], x, y);
      } else {
        const map = shownRun?.planes.get(`${column - 1}:${i}`);
        if (map) {
          putBytes(mapCanvas, map.bytes, map.plane.width, pixels);
          context.drawImage(mapCanvas, x - size / 2, y - size / 2, size, size);
        }
      }
      const isHighlighted = highlighted?.kind === "neuron" && highlighted.layer === column - 1 && highlighted.to === i;
      context.strokeStyle = isHighlighted ? accent : line;
      context.lineWidth = isHighlighted ? 3 : 1;
      context.strokeRect(x - size / 2, y - size / 2, size, size);
    }));
  }

  /** @param {CanvasRenderingContext2D} context @param {any} layer @param {number} layerIndex */
  function drawWeights(context, layer, layerIndex) {
    const weights = shownRun.weights[layer.weight];
    if (!weights) return;
    let largest = 1e-9;
    for (const row of weights) for (const value of row) if (typeof value === "number") largest = Math.max(largest, Math.abs(value));
    for (const positive of [true, false]) {
      context.strokeStyle = colour(positive ? "--data" : "--gradient");
      context.setLineDash(positive ? [] : [5, 3]);
      weights.forEach((/** @type {any[]} */ row, /** @type {number} */ to) => row.forEach((value, from) => {
        if (typeof value === "number" && value >= 0 === positive && Math.abs(value) > largest * 0.05) stroke(context, layerIndex, to, from, 0.3 + 3.2 * (Math.abs(value) / largest));
      }));
    }
    context.setLineDash([]);
    if (highlighted?.kind === "weight" && highlighted.layer === layerIndex) {
      context.strokeStyle = colour("--accent");
      stroke(context, layerIndex, highlighted.to, highlighted.from, 5);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} layer @param {number} to @param {number} from @param {number} width */
  function stroke(context, layer, to, from, width) {
    const start = columns[layer]?.[from], end = columns[layer + 1]?.[to];
    if (!start || !end) return;
    context.lineWidth = width;
    context.globalAlpha = Math.min(0.85, 0.1 + width / 4);
    context.beginPath();
    context.moveTo(start.x + start.size / 2, start.y);
    context.bezierCurveTo((start.x + end.x) / 2, start.y, (start.x + end.x) / 2, end.y, end.x - end.size / 2, end.y);
    context.stroke();
    context.globalAlpha = 1;
  }

  /** Return the weight or neuron under the pointer. @param {MouseEvent} event @returns {Picked | null} */
  function elementAt(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    for (let column = 1; column < columns.length; column++) {
      const to = columns[column].findIndex((node) => Math.abs(node.x - x) <= node.size / 2 + 1 && Math.abs(node.y - y) <= node.size / 2 + 1);
      if (to >= 0) return { kind: "neuron", layer: column - 1, to };
    }
    const nearest = { distance: MAX_POINTER_DISTANCE, layer: -1, from: -1, to: -1 };
    layers.forEach(({ weight }, layer) => shownRun?.weights?.[weight] && columns[layer].forEach((a, from) => columns[layer + 1].forEach((b, to) => {
      const left = a.x + a.size / 2, right = b.x - b.size / 2;
      if (x < left || x > right) return;
      const distance = Math.abs(a.y + (b.y - a.y) * bezierAt((x - left) / (right - left)) - y);
      if (distance < nearest.distance) Object.assign(nearest, { distance, layer, from, to });
    })));
    return nearest.to < 0 ? null : { kind: "weight", layer: nearest.layer, to: nearest.to, from: nearest.from };
  }

  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => hover(elementAt(event)));
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => { const picked = elementAt(event); if (picked) onpick(picked); });
  function hover(/** @type {Picked | null} */ picked) {
    if (equal(picked, highlighted)) return;
    highlighted = picked;
    canvas.style.cursor = picked ? "pointer" : "";
    draw();
    onhover(picked);
  }
  const resizeObserver = new ResizeObserver(arrange);
  resizeObserver.observe(container);
  addEventListener("colours", arrange);

  return {
    element: container,
    /** @param {any[]} newLayers */
    begin(newLayers) { layers = newLayers; arrange(); },
    /** @param {import("./run.js").Run} run */
    paint(run) { shownRun = run; draw(); },
    unmount() {
      resizeObserver.disconnect();
      removeEventListener("colours", arrange);
    },
  };
}

/** Return the vertical progress of a weight's curve at a horizontal fraction; the curve is level at both ends. @param {number} fraction */
function bezierAt(fraction) {
  let low = 0, high = 1;
  for (let i = 0; i < 20; i++) {
    const t = (low + high) / 2, x = 1.5 * t * (1 - t) + t ** 3; // control points half way across
    if (x < fraction) low = t;
    else high = t;
  }
  const t = (low + high) / 2;
  return 3 * t * t - 2 * t ** 3;
}
