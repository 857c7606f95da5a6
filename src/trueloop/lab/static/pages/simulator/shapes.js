// @ts-check
// The colour and shape of each class; a class of the digits dataset is drawn as its digit.
import { colour } from "../../dom.js";

const SHAPES = ["circle", "square", "triangle"];

/** Return the name of a class. @param {number} label @param {number} classes */
export const className = (label, classes) => (classes > SHAPES.length ? `digit ${label}` : `class ${label} (${SHAPES[label]})`);

/** @param {number} label */
export const classColour = (label) => colour(`--c${label}`);

/** Draw a point of a class; a held-out point is hollow.
 * @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} size radius
 * @param {{label: number, classes: number, fill: string, edge: string, hollow?: boolean}} kind */
export function drawPoint(context, x, y, size, { label, classes, fill, edge, hollow = false }) {
  if (classes > SHAPES.length) return drawDigit(context, x, y, size, label, fill, edge, hollow);
  context.beginPath();
  if (label === 0) context.arc(x, y, size, 0, 2 * Math.PI);
  else if (label === 1) context.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
  else {
    context.moveTo(x, y - size * 1.25);
    context.lineTo(x + size * 1.15, y + size * 0.85);
    context.lineTo(x - size * 1.15, y + size * 0.85);
    context.closePath();
  }
  if (hollow) {
    context.lineWidth = 3.2;
    context.strokeStyle = edge;
    context.stroke();
    context.lineWidth = 1.5;
    context.strokeStyle = fill;
  } else {
    context.fillStyle = fill;
    context.fill();
    context.lineWidth = 1;
    context.strokeStyle = edge;
  }
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} size @param {number} label
 *  @param {string} fill @param {string} edge @param {boolean} hollow */
function drawDigit(context, x, y, size, label, fill, edge, hollow) {
  context.font = `${hollow ? 500 : 800} ${size * 3}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 1.6;
  context.strokeStyle = hollow ? fill : edge;
  context.strokeText(String(label), x, y);
  context.fillStyle = hollow ? edge : fill;
  context.fillText(String(label), x, y);
}

/** Convert "#rrggbb" to three numbers. @param {string} text @returns {[number, number, number]} */
export function rgb(text) {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** @param {[number, number, number]} a @param {[number, number, number]} b @param {number} weight weight of b, from 0 to 1 */
export const mixColours = (a, b, weight) => a.map((value, i) => Math.round(value + (b[i] - value) * weight));

/** Return the pixel value of each possible byte of a picture. @param {(byte: number) => number[]} colourOf */
export function palette(colourOf) {
  const pixels = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    const [red, green, blue] = colourOf(byte);
    pixels[byte] = (255 << 24) | (blue << 16) | (green << 8) | red;
  }
  return pixels;
}

/** Return the pixels of a neuron's map: orange where its output is negative, blue where it is positive. */
export function divergingPalette() {
  const background = rgb(colour("--panel")), high = rgb(colour("--data")), low = rgb(colour("--gradient"));
  return palette((byte) => (byte >= 128 ? mixColours(background, high, (byte - 128) / 127) : mixColours(background, low, (128 - byte) / 127)));
}

/** Draw a picture in bytes on a canvas. @param {HTMLCanvasElement} canvas @param {Uint8Array} bytes @param {number} width @param {Uint32Array} pixels */
export function putBytes(canvas, bytes, width, pixels) {
  const height = bytes.length / width;
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const imageData = new ImageData(width, height);
  const imagePixels = new Uint32Array(imageData.data.buffer);
  for (let i = 0; i < bytes.length; i++) imagePixels[i] = pixels[bytes[i]];
  context.putImageData(imageData, 0, 0);
}
