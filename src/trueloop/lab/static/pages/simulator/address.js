// @ts-check
// Converts the settings of a simulation to an address that can be shared, and back.

/** @typedef {import("../../controls.js").Field} Field */
/** @typedef {import("./run.js").Setup} Setup */

/** Settings that the runs of a race share; each run has its own other settings. */
export const COMMON = ["dataset", "samples", "noise", "seed", "epochs"];

/** Return the address of a race of a setup: with its failures against without, or two equal runs. @param {Field[]} fields @param {Setup} setup */
export function race(fields, setup) {
  const shared = fields.filter(({ name }) => COMMON.includes(name)), own = fields.filter(({ name }) => !COMMON.includes(name));
  const runner = (/** @type {string[]} */ bugs) => new URLSearchParams(encode(own, { ...setup, bugs, points: [] }, false)).toString();
  return `#/race?${new URLSearchParams({ ...encode(shared, { ...setup, bugs: [], points: [] }, false), a: runner(setup.bugs), b: runner([]) })}`;
}

/** Encode a setup as address parameters, without settings that have their default. @param {Field[]} fields @param {Setup} setup @param {boolean} twin @returns {Record<string, string>} */
export function encode(fields, { config, bugs, points }, twin) {
  /** @type {Record<string, string>} */
  const params = {};
  for (const field of fields) {
    const value = config[field.name];
    if (JSON.stringify(value) !== JSON.stringify(field.default)) params[field.name] = Array.isArray(value) ? value.join("-") : String(value);
  }
  if (bugs.length) params.bugs = bugs.join("-");
  if (points.length) params.points = points.map((point) => point.join("_")).join("~");
  if (twin) params.twin = "1";
  return params;
}

/** Parse an address; a parameter that cannot be parsed is reported and keeps its default. The server checks the values.
 * @param {Field[]} fields @param {URLSearchParams} params
 * @returns {{setup: Setup, twin: boolean, play: boolean, wrong: string[]}} */
export function read(fields, params) {
  const config = Object.fromEntries(fields.map((field) => [field.name, field.default]));
  const wrong = [];
  let bugs = /** @type {string[]} */ ([]), points = /** @type {[number, number, number][]} */ ([]);
  for (const [name, text] of params) {
    const field = fields.find((each) => each.name === name);
    if (field) {
      const value = valueOf(field, text);
      if (value === undefined) wrong.push(`${name}=${text}`);
      else config[name] = value;
    } else if (name === "bugs") bugs = text.split("-").filter(Boolean);
    else if (name === "points") {
      points = text.split("~").map((each) => /** @type {[number, number, number]} */ (each.split("_").map(Number)));
      if (!points.every((point) => point.length === 3 && point.every(Number.isFinite))) {
        wrong.push(`points=${text}`);
        points = [];
      }
    } else if (name !== "twin" && name !== "play") wrong.push(`${name}=${text}`);
  }
  return { setup: { config, bugs, points }, twin: params.get("twin") === "1", play: params.get("play") === "1", wrong };
}

/** @param {Field} field @param {string} text @returns {any} undefined: nothing of the kind */
function valueOf(field, text) {
  if (field.kind === "bool") return text === "true" ? true : text === "false" ? false : undefined;
  if (field.kind === "int" || field.kind === "float") return text.trim() && Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (field.kind === "list") {
    const items = text.split("-").filter(Boolean).map((item) => valueOf(field.item, item));
    return items.includes(undefined) ? undefined : items;
  }
  return text;
}
