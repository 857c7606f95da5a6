// @ts-check
// The network, layers from left to right: a map of each neuron's output over the plane, and a line per weight.
import { colour, h, svg } from "../../dom.js";
import { mixed, palette, putBytes, rgb, ink } from "./shapes.js";

const NEAR = 6; // maximum distance of the pointer from a line, in pixels
const ROW = 23, LEAST = 150;
const HIGH = 20; // neurons per column; a wider layer has several columns

/** @typedef {{kind: "weight", layer: number, to: number, from: number} | {kind: "neuron", layer: number, to: number}} Picked layer: which weights, from 0; the head is the last */
/** @typedef {{x: number, y: number, size: number}} Node_ */

/** @param {{onhover: (picked: Picked | null) => void, onpick: (picked: Picked) => void}} options */
export function network({ onhover, onpick }) {
  /** @type {any[]} */ let layers = [];
  /** @type {Node_[][]} */ let columns = [];
  /** @type {any} */ let shown = null;
  /** @type {Picked | null} */ let hot = null;
  let pixels = new Uint32Array(256);
  const canvas = h("canvas", { class: "net", role: "img", "aria-label": "The network: maps of its neurons, weights as lines" });
  const small = h("canvas", {});
  const place = h("div", { class: "net-place" }, canvas);

  function arrange() {
    const width = place.clientWidth;
    if (!width || !layers.length) return;
    const counts = [layers[0].inputs, ...layers.map(({ neurons }) => neurons)];
    const most = Math.min(Math.max(...counts), HIGH), height = Math.max(LEAST, most * Math.max(ROW, Math.min(40, 320 / most)));
    columns = counts.map((count, column) => {
      const columns = Math.ceil(count / HIGH), rows = Math.ceil(count / columns), middle = 40 + (column / (counts.length - 1)) * (width - 80);
      const size = Math.max(5, Math.min(34, height / rows - 3, (width - 80) / counts.length / columns - 4));
      return Array.from({ length: count }, (_, i) => ({ x: middle + (Math.floor(i / rows) - (columns - 1) / 2) * (size + 3), y: (height / rows) * (i % rows + 0.5), size }));
    });
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    pixels = diverging();
    draw();
  }

  function draw() {
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")), ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (shown?.weights) layers.forEach((layer, i) => drawWeights(context, layer, i));
    const line = colour("--strong"), accent = colour("--accent");
    columns.forEach((nodes, column) => nodes.forEach((node, i) => {
      const { x, y, size } = node;
      context.fillStyle = colour("--panel");
      context.fillRect(x - size / 2, y - size / 2, size, size);
      if (column === columns.length - 1) {
        context.fillStyle = ink(i);
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
        const picture = shown?.planes.get(`${column - 1}:${i}`);
        if (picture) {
          putBytes(small, picture.bytes, picture.plane.width, pixels);
          context.drawImage(small, x - size / 2, y - size / 2, size, size);
        }
      }
      const isHot = hot?.kind === "neuron" && hot.layer === column - 1 && hot.to === i;
      context.strokeStyle = isHot ? accent : line;
      context.lineWidth = isHot ? 3 : 1;
      context.strokeRect(x - size / 2, y - size / 2, size, size);
    }));
  }

  /** @param {CanvasRenderingContext2D} context @param {any} layer @param {number} place_ */
  function drawWeights(context, layer, place_) {
    const weights = shown.weights[layer.weight];
    if (!weights) return;
    let most = 1e-9;
    for (const row of weights) for (const value of row) if (typeof value === "number") most = Math.max(most, Math.abs(value));
    for (const positive of [true, false]) {
      context.strokeStyle = colour(positive ? "--data" : "--gradient");
      context.setLineDash(positive ? [] : [5, 3]);
      weights.forEach((/** @type {any[]} */ row, /** @type {number} */ to) => row.forEach((value, from) => {
        if (typeof value === "number" && value >= 0 === positive && Math.abs(value) > most * 0.05) stroke(context, place_, to, from, 0.3 + 3.2 * (Math.abs(value) / most));
      }));
    }
    context.setLineDash([]);
    if (hot?.kind === "weight" && hot.layer === place_) {
      context.strokeStyle = colour("--accent");
      stroke(context, place_, hot.to, hot.from, 5);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} layer @param {number} to @param {number} from @param {number} width */
  function stroke(context, layer, to, from, width) {
    const a = columns[layer]?.[from], b = columns[layer + 1]?.[to];
    if (!a || !b) return;
    context.lineWidth = width;
    context.globalAlpha = Math.min(0.85, 0.1 + width / 4);
    context.beginPath();
    context.moveTo(a.x + a.size / 2, a.y);
    context.bezierCurveTo((a.x + b.x) / 2, a.y, (a.x + b.x) / 2, b.y, b.x - b.size / 2, b.y);
    context.stroke();
    context.globalAlpha = 1;
  }

  /** Return the weight or neuron under the pointer. @param {MouseEvent} event @returns {Picked | null} */
  function under(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    for (let column = 1; column < columns.length; column++) {
      const to = columns[column].findIndex((node) => Math.abs(node.x - x) <= node.size / 2 + 1 && Math.abs(node.y - y) <= node.size / 2 + 1);
      if (to >= 0) return { kind: "neuron", layer: column - 1, to };
    }
    const near = { far: NEAR, layer: -1, from: -1, to: -1 };
    layers.forEach(({ weight }, layer) => shown?.weights?.[weight] && columns[layer].forEach((a, from) => columns[layer + 1].forEach((b, to) => {
      const left = a.x + a.size / 2, right = b.x - b.size / 2;
      if (x < left || x > right) return;
      const far = Math.abs(a.y + (b.y - a.y) * bezierAt((x - left) / (right - left)) - y);
      if (far < near.far) Object.assign(near, { far, layer, from, to });
    })));
    return near.to < 0 ? null : { kind: "weight", layer: near.layer, to: near.to, from: near.from };
  }

  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => hover(under(event)));
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => { const picked = under(event); if (picked) onpick(picked); });
  function hover(/** @type {Picked | null} */ picked) {
    if (JSON.stringify(picked) === JSON.stringify(hot)) return;
    hot = picked;
    canvas.style.cursor = picked ? "pointer" : "";
    draw();
    onhover(picked);
  }
  const watcher = new ResizeObserver(arrange);
  watcher.observe(place);
  addEventListener("colours", arrange);

  return {
    element: place,
    /** @param {any[]} given */
    begin(given) { layers = given; arrange(); },
    /** @param {import("./run.js").Run} run */
    paint(run) { shown = run; draw(); },
    /** Draw one neuron's map on a canvas. @param {HTMLCanvasElement} into @param {string} name */
    enlarge(into, name) {
      const picture = shown?.planes.get(name);
      if (picture) putBytes(into, picture.bytes, picture.plane.width, pixels);
      return picture?.plane ?? null;
    },
    unmount() {
      watcher.disconnect();
      removeEventListener("colours", arrange);
    },
  };
}

/** Return the vertical progress of a weight's curve at a horizontal fraction; the curve is level at both ends. @param {number} share */
function bezierAt(share) {
  let low = 0, high = 1;
  for (let i = 0; i < 20; i++) {
    const t = (low + high) / 2, x = 1.5 * t * (1 - t) + t ** 3; // control points half way across
    if (x < share) low = t;
    else high = t;
  }
  const t = (low + high) / 2;
  return 3 * t * t - 2 * t ** 3;
}

function diverging() {
  const paper = rgb(colour("--panel")), high = rgb(colour("--data")), low = rgb(colour("--gradient"));
  return palette((byte) => (byte >= 128 ? mixed(paper, high, (byte - 128) / 127) : mixed(paper, low, (128 - byte) / 127)));
}

/** What the colours and lines mean. */
export function legend() {
  const sample = (/** @type {string} */ name, /** @type {string} */ dash) => svg("svg", { width: 26, height: 8, "aria-hidden": "true" },
    svg("line", { x1: 0, y1: 4, x2: 26, y2: 4, class: name, "stroke-dasharray": dash, "stroke-width": 2.5 }));
  return h("p", { class: "muted net-legend" }, h("span", {}, sample("positive", ""), " positive: blue, unbroken"), h("span", {}, sample("negative", "5 3"), " negative: orange, dashed"),
    h("span", {}, "wide = large"));
}
