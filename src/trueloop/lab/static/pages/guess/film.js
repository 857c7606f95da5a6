// @ts-check
// Draws a twin run on one canvas: the decision planes of the correct and the broken script, and their curves, up to any update.
import { colour, formatNumber } from "../../dom.js";
import { classColour, drawPoint, mixColours, palette, putBytes, rgb } from "../simulator/shapes.js";

/** @typedef {{curves: Record<string, [number[], any[]]>, pictures: [number, string][], steps: number, side: number,
 *   points: [number, number, number][], span: number, raised: string}} Run
 * @typedef {{updates: number, classes: number, charts: {name: string, title: string, log: boolean, low: number, high: number}[], healthy: Run, broken: Run}} Film
 * @typedef {{context: CanvasRenderingContext2D, width: number, height: number}} Surface a canvas, and its size in CSS pixels */

const NOT_FINITE = 255; // the byte of a pixel where the network's output is not finite
const PORTRAIT_WIDTH = 620; // pixels; a narrower film has its charts below its planes
const GAP = 12, TEXT = 18, CAPTION = 26; // pixels between parts, for a line of text, and for the caption
const SMOOTHED = ["loss", "norm"]; // quantities of single batches, which scatter
const WINDOW = 12; // number of updates in a moving average: about one epoch

/** Return the height that suits a width. @param {number} width @param {number} charts */
export function filmHeight(width, charts) {
  if (width >= PORTRAIT_WIDTH) return Math.round(width * 0.62);
  return Math.round(CAPTION + (width - GAP) / 2 + TEXT + Math.ceil(charts / 2) * (96 + GAP));
}

/** Prepare a film. @param {Film} film */
export function prepare(film) {
  const runs = [film.healthy, film.broken].map((run) => ({ ...run, smooth: Object.fromEntries(SMOOTHED.map((name) => [name, movingAverage(run.curves[name][1])])), pictures: run.pictures.map(([update, text]) => /** @type {const} */ ([update, Uint8Array.from(atob(text), (each) => each.charCodeAt(0))])) }));
  const still = document.createElement("canvas");

  /** Draw the film up to an update. @param {Surface} surface @param {number} update @param {string} caption */
  function draw({ context, width, height }, update, caption) {
    const ink = colour("--ink"), isPortrait = width < PORTRAIT_WIDTH;
    context.fillStyle = colour("--panel");
    context.fillRect(0, 0, width, height);
    context.lineJoin = "round";
    label(context, caption, 0, 0, ink, 700, width, { size: 16 });
    const side = isPortrait ? (width - GAP) / 2 : (height - CAPTION - 2 * TEXT - GAP) / 2;
    runs.forEach((run, i) => {
      const x = isPortrait ? i * (side + GAP) : 0, y = CAPTION + (isPortrait ? 0 : i * (side + TEXT + GAP));
      label(context, i ? "with the bug" : "correct", x, y, colour(i ? "--error" : "--muted"), 600, side);
      drawPlane(context, run, update, x, y + TEXT, side);
    });
    const columns = isPortrait ? 2 : 3, rows = Math.ceil(film.charts.length / columns);
    const left = isPortrait ? 0 : side + 2 * GAP, top = CAPTION + (isPortrait ? side + TEXT + GAP : 0);
    const chartWidth = (width - left - (columns - 1) * GAP) / columns, chartHeight = (height - top - (rows - 1) * GAP) / rows;
    film.charts.forEach((chart, i) => drawChart(context, chart, update, left + (i % columns) * (chartWidth + GAP), top + Math.floor(i / columns) * (chartHeight + GAP), chartWidth, chartHeight, ink));
  }

  /** @param {CanvasRenderingContext2D} context @param {typeof runs[number]} run @param {number} update @param {number} x @param {number} y @param {number} side */
  function drawPlane(context, run, update, x, y, side) {
    const [, bytes] = run.pictures.findLast(([at]) => at <= update) ?? run.pictures[0] ?? [];
    if (!bytes) return;
    const background = rgb(colour("--panel")), inks = Array.from({ length: film.classes }, (_, i) => rgb(classColour(i))), lost = rgb(colour("--strong"));
    putBytes(still, bytes, run.side, palette((byte) => (byte === NOT_FINITE || byte >= run.steps * film.classes ? lost : mixColours(background, inks[Math.floor(byte / run.steps)], 0.1 + 0.5 * ((byte % run.steps) / run.steps)))));
    context.drawImage(still, x, y, side, side);
    for (const [px, py, kind] of run.points) {
      drawPoint(context, x + (px / run.span + 1) / 2 * side, y + (1 - py / run.span) / 2 * side, Math.max(1.6, side / 110), { label: kind, classes: film.classes, fill: classColour(kind), edge: colour("--panel") });
    }
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    if (bytes[0] === NOT_FINITE) label(context, "NaN everywhere", x + 8, y + 6, colour("--panel"), 600, side);
  }

  /** @param {CanvasRenderingContext2D} context @param {Film["charts"][number]} chart @param {number} update
   *  @param {number} x @param {number} y @param {number} width @param {number} height @param {string} ink */
  function drawChart(context, { name, title, log, low, high }, update, x, y, width, height, ink) {
    label(context, title, x, y, ink, 600, width);
    const top = y + TEXT, bottom = y + height - TEXT;
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, top + 0.5, width - 1, bottom - top - 1);
    label(context, formatNumber(high, 3), x + width - 2, y, colour("--muted"), 400, width / 3, { align: "right" });
    label(context, formatNumber(low, 3) + (log ? " (log)" : ""), x + 4, bottom + 2, colour("--muted"), 400, width);
    const scaled = (/** @type {number} */ value) => (high <= low ? 0.5 : log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    /** @param {number[]} updates @param {any[]} values */
    const line = (updates, values) => {
      let isDown = false;
      context.beginPath();
      for (let index = 0; index < updates.length && updates[index] <= update; index++) {
        const value = values[index];
        if (typeof value !== "number") { isDown = false; continue; }
        const at = x + 3 + (updates[index] / Math.max(1, film.updates)) * (width - 6);
        const level = bottom - 3 - scaled(Math.min(high, Math.max(low, value))) * (bottom - top - 6);
        if (isDown) context.lineTo(at, level);
        else context.moveTo(at, level);
        isDown = true;
      }
      context.stroke();
    };
    runs.forEach((run, i) => {
      const [updates, values] = run.curves[name], smooth = run.smooth[name];
      context.strokeStyle = colour(i ? "--error" : "--muted");
      if (smooth) {
        context.globalAlpha = 0.22;
        line(updates, values);
        context.globalAlpha = 1;
      }
      context.lineWidth = 2;
      context.setLineDash(i ? [] : [5, 3]);
      line(updates, smooth ?? values);
      context.setLineDash([]);
      context.lineWidth = 1;
    });
    const [updates, values] = runs[1].curves[name], lost = values.findIndex((value) => typeof value !== "number");
    if (lost >= 0 && updates[lost] <= update) label(context, `NaN from update ${formatNumber(updates[lost] + 1)}`, x + 6, top + 4, colour("--error"), 600, width);
  }

  /** Return what the charts show, in words. */
  function words() {
    return film.charts.map(({ name, title }) => {
      const [correct, broken] = runs.map((run) => run.curves[name][1].at(-1));
      return `${title}: correct ${formatNumber(correct, 3)}, with the bug ${formatNumber(broken, 3)}`;
    }).join(". ");
  }

  return { draw, words, updates: film.updates, charts: film.charts.length };
}

/** Average each value with those before it; a non-finite value remains a gap. @param {any[]} values */
function movingAverage(values) {
  return values.map((value, i) => {
    const several = values.slice(Math.max(0, i + 1 - WINDOW), i + 1).filter((each) => typeof each === "number");
    return typeof value === "number" ? several.reduce((sum, each) => sum + each, 0) / several.length : value;
  });
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y
 *  @param {string} fill @param {number} weight @param {number} width @param {{size?: number, align?: CanvasTextAlign}} [options] */
function label(context, text, x, y, fill, weight, width, { size = 12, align = "left" } = {}) {
  context.font = `${weight} ${size}px system-ui, sans-serif`;
  context.textAlign = align;
  context.textBaseline = "top";
  context.fillStyle = fill;
  context.fillText(text, x, y, width);
}
