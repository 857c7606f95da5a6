// @ts-check
// A heat map: one row per layer, one column per update. Arrow keys move over its cells; a line of text describes the chosen cell.
import { colour, oncePerFrame, fill, h, formatNumber } from "./dom.js";

/** @typedef {{updates: number[], layers: string[], norms: (number | string | null)[][], shades: (number | null)[][], low: number, high: number}} Grid
 *   shades from 0 to 255; -1: the norm is not finite; null: no norm was read */

const ROW_HEIGHT = 18, MIN_ROW_HEIGHT = 7, MAX_HEIGHT = 420, NAME_HEIGHT = 13; // pixels

/** @param {{title: string, unit: string}} options */
export function heatMap({ title, unit }) {
  /** @type {Grid | null} */
  let grid = null;
  let row = 0, column = -1, height = ROW_HEIGHT;
  const canvas = h("canvas", { class: "heat-cells", role: "img", tabindex: "0", "aria-label": title, onkeydown: move, onpointermove: pointAtCell, onpointerleave: leave });
  const names = h("ol", { class: "heat-names", "aria-hidden": "true" });
  const axis = h("div", { class: "heat-axis muted", "aria-hidden": "true" });
  const cellText = h("output", { class: "heat-cell-text" });
  const low = h("span"), high = h("span");
  const element = h("figure", { class: "heat" },
    h("div", { class: "row chart-head" }, h("span", { class: "chart-title" }, title),
      h("span", { class: "legend heat-legend" }, low, h("i", { class: "heat-ramp" }), high, h("span", {}, "× not finite"))),
    h("div", { class: "heat-grid" }, names, h("div", { class: "heat-place" }, canvas, axis)), cellText);

  const draw = oncePerFrame(() => {
    if (!grid || !canvas.isConnected) return;
    const { layers, updates, shades } = grid, ratio = devicePixelRatio || 1;
    const width = Math.max(canvas.parentElement.clientWidth, 100);
    height = Math.max(MIN_ROW_HEIGHT, Math.min(ROW_HEIGHT, Math.floor(MAX_HEIGHT / layers.length)));
    canvas.style.setProperty("height", `${height * layers.length}px`);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * layers.length * ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const cell = canvas.width / updates.length, rowHeight = height * ratio;
    const ink = colour("--gradient"), bad = colour("--error");
    shades.forEach((rowShades, y) => rowShades.forEach((shade, x) => {
      if (shade === null) return;
      context.globalAlpha = shade < 0 ? 1 : 0.05 + (0.95 * shade) / 255;
      context.fillStyle = shade < 0 ? bad : ink;
      const from = Math.floor(x * cell);
      context.fillRect(from, y * rowHeight, Math.max(1, Math.floor((x + 1) * cell) - from), rowHeight - (rowHeight > 8 ? 1 : 0));
      if (shade < 0 && cell >= 3) {
        context.strokeStyle = colour("--panel");
        context.beginPath();
        context.moveTo(x * cell + 1, y * rowHeight + 2);
        context.lineTo((x + 1) * cell - 1, (y + 1) * rowHeight - 3);
        context.moveTo((x + 1) * cell - 1, y * rowHeight + 2);
        context.lineTo(x * cell + 1, (y + 1) * rowHeight - 3);
        context.stroke();
      }
    }));
    context.globalAlpha = 1;
    if (column >= 0 && row < layers.length && column < updates.length) {
      context.strokeStyle = colour("--ink");
      context.lineWidth = 2 * ratio;
      context.strokeRect(column * cell, row * rowHeight, Math.max(cell, 3), rowHeight);
    }
    const nameEvery = Math.ceil(NAME_HEIGHT / height);
    fill(names, ...layers.map((name, y) => h("li", { title: name, style: { height: `${height}px` } }, y % nameEvery ? "" : name)));
    const last = updates.length - 1, ticks = [...new Set([0, Math.round(last / 2), last])];
    fill(axis, ...ticks.map((x) => h("span", {}, `${x ? "" : "update "}${formatNumber(updates[x])}`)));
  });

  function describeCell() {
    if (!grid || column < 0) return fill(cellText, h("span", { class: "muted" }, "Point at a cell, or move over the map with the arrow keys."));
    const norm = grid.norms[row]?.[column];
    fill(cellText, h("b", {}, grid.layers[row]), `, update ${formatNumber(grid.updates[column])}: `,
      norm === null || norm === undefined ? "not updated" : `${unit} ${formatNumber(norm)}`);
  }
  /** @param {KeyboardEvent} event */
  function move(event) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!grid || (!down && !right && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    if (event.key === "Home") column = 0;
    else if (event.key === "End") column = grid.updates.length - 1;
    else if (column < 0) column = grid.updates.length - 1;
    else column = Math.max(0, Math.min(grid.updates.length - 1, column + right));
    row = Math.max(0, Math.min(grid.layers.length - 1, row + down));
    canvas.setAttribute("aria-label", `${title}. ${grid.layers[row]}, update ${grid.updates[column]}: ${unit} ${formatNumber(grid.norms[row][column])}`);
    describeCell();
    draw();
  }
  /** @param {PointerEvent} event */
  function pointAtCell(event) {
    if (!grid) return;
    const box = canvas.getBoundingClientRect();
    column = Math.max(0, Math.min(grid.updates.length - 1, Math.floor(((event.clientX - box.left) / box.width) * grid.updates.length)));
    row = Math.max(0, Math.min(grid.layers.length - 1, Math.floor((event.clientY - box.top) / height)));
    describeCell();
    draw();
  }
  function leave() {
    column = -1;
    describeCell();
    draw();
  }
  const resizeObserver = new ResizeObserver(draw);
  resizeObserver.observe(canvas.parentElement ?? element);
  addEventListener("colours", draw);
  describeCell();
  return {
    element,
    /** @param {Grid} newGrid */
    show(newGrid) {
      grid = newGrid;
      if (column >= newGrid.updates.length) column = -1;
      fill(low, formatNumber(newGrid.low, 2));
      fill(high, formatNumber(newGrid.high, 2));
      draw();
    },
    unmount() {
      resizeObserver.disconnect();
      removeEventListener("colours", draw);
    },
  };
}
