// @ts-check
// Converts the settings of a simulation to an address that can be shared, and back.

import { equal } from "../../dom.js";

/** @typedef {import("../../controls.js").Field} Field */
/** @typedef {import("./run.js").Setup} Setup */

/** Settings that all runs of a race share; the other settings belong to each run. */
export const SHARED_SETTINGS = ["dataset", "samples", "noise", "seed", "epochs"];

/** Return the address of a race between a setup and the same setup without failures. @param {Field[]} fields @param {Setup} setup */
export function race(fields, setup) {
  const sharedFields = fields.filter(({ name }) => SHARED_SETTINGS.includes(name)), runFields = fields.filter(({ name }) => !SHARED_SETTINGS.includes(name));
  const encodeRun = (/** @type {string[]} */ bugs) => new URLSearchParams(encode(runFields, { ...setup, bugs, points: [] }, false)).toString();
  return `#/race?${new URLSearchParams({ ...encode(sharedFields, { ...setup, bugs: [], points: [] }, false), a: encodeRun(setup.bugs), b: encodeRun([]) })}`;
}

/** Encode a setup as address parameters, without settings that have their default. @param {Field[]} fields @param {Setup} setup @param {boolean} twin @returns {Record<string, string>} */
export function encode(fields, { config, bugs, points }, twin) {
  /** @type {Record<string, string>} */
  const params = {};
  for (const field of fields) {
    const value = config[field.name];
    if (!equal(value, field.default)) params[field.name] = Array.isArray(value) ? value.join("-") : String(value);
  }
  if (bugs.length) params.bugs = bugs.join("-");
  if (points.length) params.points = points.map((point) => point.join("_")).join("~");
  if (twin) params.twin = "1";
  return params;
}

/** Parse an address; a parameter that cannot be parsed is reported and keeps its default. The server checks the values.
 * @param {Field[]} fields @param {URLSearchParams} params
 * @returns {{setup: Setup, twin: boolean, play: boolean | null, invalid: string[]}} */
export function decode(fields, params) {
  const config = Object.fromEntries(fields.map((field) => [field.name, field.default]));
  const invalid = [];
  let bugs = /** @type {string[]} */ ([]), points = /** @type {[number, number, number][]} */ ([]);
  for (const [name, text] of params) {
    const field = fields.find((each) => each.name === name);
    if (field) {
      const value = valueOf(field, text);
      if (value === undefined) invalid.push(`${name}=${text}`);
      else config[name] = value;
    } else if (name === "bugs") bugs = text.split("-").filter(Boolean);
    else if (name === "points") {
      points = text.split("~").map((each) => /** @type {[number, number, number]} */ (each.split("_").map(Number)));
      if (!points.every((point) => point.length === 3 && point.every(Number.isFinite))) {
        invalid.push(`points=${text}`);
        points = [];
      }
    } else if (name !== "twin" && name !== "play") invalid.push(`${name}=${text}`);
  }
  return { setup: { config, bugs, points }, twin: params.get("twin") === "1", play: params.has("play") ? params.get("play") === "1" : null, invalid };
}

/** @param {Field} field @param {string} text @returns {any} undefined if the text is no value of this field */
function valueOf(field, text) {
  if (field.kind === "bool") return text === "true" ? true : text === "false" ? false : undefined;
  if (field.kind === "int" || field.kind === "float") return text.trim() && Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (field.kind === "list") {
    const items = text.split("-").filter(Boolean).map((item) => valueOf(field.item, item));
    return items.includes(undefined) ? undefined : items;
  }
  return text;
}
