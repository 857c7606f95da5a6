// @ts-check
// A race: up to four synchronised runs of one seed, each with its own settings or failures, on shared axes.
import { chart } from "../chart.js";
import { form } from "../controls.js";
import { eachFrame, fill, h, later, number } from "../dom.js";
import { hidden } from "../classroom.js";
import { described } from "../net.js";
import { lane } from "./race/lane.js";
import { averaged, examples, LATEST, standing } from "./race/standing.js";
import * as address from "./simulator/address.js";
import { together } from "./simulator/curves.js";
import { difference, LABELS, SLIDERS } from "./simulator/knobs.js";
import { pace as paced, SPEEDS } from "./simulator/pace.js";

export const title = "Race of runs";
export const lead = "Up to four runs with the same seed and points, each with its own settings or failure, side by side.";

const NAMES = ["A", "B", "C", "D"]; // each run has its own process, which limits their number
const { COMMON } = address;
const COLOURS = ["--c0", "--c1", "--c2", "--c3"];
const DASHES = [undefined, [8, 4], [2, 3], [9, 3, 2, 3]];
const FIRST = ["optimizer=adam", "optimizer=momentum&learning_rate=0.1", "optimizer=adam&bugs=GRD001"];
const CHARTS = /** @type {const} */ ([["loss", `Training loss, mean of the latest ${LATEST}`, 170], ["accuracy", "Held-out accuracy", 140], ["norm", "Gradient norm", 140]]);
const EVERY = 3; // frames: the charts and the table are drawn less often than the planes

/** @param {HTMLElement} root @param {{params: URLSearchParams, setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} page */
export async function mount(root, { params, setParams, announce }) {
  /** @type {import("../controls.js").Field[]} */
  const fields = (await described("simulator")).find(({ name }) => name === "config").fields;
  const shared = fields.filter(({ name }) => COMMON.includes(name)), own = fields.filter(({ name }) => !COMMON.includes(name));
  const rest = new URLSearchParams([...params].filter(([name]) => !NAMES.includes(name.toUpperCase()) && !["goal", "axis"].includes(name)));
  const read = address.read(shared, rest);
  let common = read.setup.config, goal = Math.min(1, Math.max(0.5, Number(params.get("goal")) || 0.95)), axis = params.get("axis") === "example" ? "example" : "update";
  let pending = false, owed = 0, frames = 0, turn = 0, going = true;
  /** @type {ReturnType<typeof lane>[]} */ let lanes = [];
  const pace = paced(() => lanes.map(({ run }) => run));
  const statusLine = h("p", { class: "sim-status", role: "status" });
  const say = (/** @type {string} */ text) => { statusLine.textContent = text; };
  const play = h("button", { type: "button", class: "play", onclick: () => (pace.goes || pending ? hold() : start()) }, "▶ Train all");
  const step = h("button", { type: "button", class: "quiet", title: "One update of each", onclick: () => { pending = false; if (ready()) pace.step(); else owed++; show(); } }, "▶| Step");
  const reset = h("button", { type: "button", class: "quiet", title: "Restart all", onclick: () => begin(false) }, "↺ Reset");
  const add = h("button", { type: "button", class: "quiet", onclick: () => { const last = lanes[lanes.length - 1]; enter({ ...last.setup, config: { ...last.setup.config } }); change(); } }, "+ Add a runner");
  const speed = h("select", { "aria-label": "Speed", onchange: () => pace.at(Number(speed.value)) }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
  const over = h("select", { id: "race-axis", onchange: () => { axis = over.value; remember(); build(); draw(true); } }, [["update", "updates"], ["example", "examples seen"]].map(([value, text]) => h("option", { value, selected: value === axis }, text)));
  const target = h("input", { type: "number", id: "race-goal", min: 50, max: 100, step: 1, value: Math.round(100 * goal), oninput: () => { const value = Number(target.value) / 100; if (value >= 0.5 && value <= 1) { goal = value; remember(); draw(true); } } });
  const state = h("span", { class: "state", dataset: { state: "waiting" } }, "starting");
  const settings = form(shared, { values: common, labels: LABELS, sliders: SLIDERS, onchange: later((values) => { common = Object.fromEntries(COMMON.map((name) => [name, values[name]])); change(); }, 250) });
  const places = Object.fromEntries(CHARTS.map(([key]) => [key, h("div", {})]));
  /** @type {Record<string, ReturnType<typeof chart>>} */ const charts = {};
  const table = standing(), track = h("div", { class: "lanes" });
  fill(root, h("div", { class: "race" },
    h("div", { class: "row sim-bar", role: "group", "aria-label": "The race" }, play, step, reset, speed, add, state), statusLine,
    track,
    h("section", { class: "panel", "aria-labelledby": "race-stand" }, h("div", { class: "row" }, h("h2", { id: "race-stand" }, "Standings"), h("label", { for: "race-goal" }, "accuracy to reach, %"), target, h("label", { for: "race-axis" }, "counted in"), over), table.element),
    h("section", { class: "panel", "aria-label": "Curves" }, Object.values(places)),
    h("details", { class: "panel common", open: true }, h("summary", {}, "Shared settings"), settings.element),
    h("section", { class: "panel" }, h("h2", {}, "What to look for"), h("ul", { class: "look" },
      h("li", {}, "All runs are synchronised by update. Count examples instead to compare different batch sizes fairly."),
      h("li", {}, "One seed is one race: change the seed before you trust the order."),
      h("li", {}, "Inject a failure into one of two equal runs: where their curves coincide, only the sanitizer shows the difference.")))));

  /** @param {import("./simulator/run.js").Setup} setup */
  function enter(setup) {
    const place = NAMES.findIndex((each) => !lanes.some(({ name }) => name === each));
    const made = lane({
      name: NAMES[place], colour: COLOURS[place], dash: DASHES[place], fields: own, setup, onchange: () => change(), onleave: () => leave(made),
      handlers: {
        onbegan: began, onframe: paint, onrefused: say,
        onended: () => { if (lanes.every(({ run }) => run.ended)) finish(); paint(); },
        onfinding: (/** @type {any} */ of, { finding }) => { announce(hidden("spoilers") ? `Runner ${of.name}: the sanitizer has found something.` : `Runner ${of.name}: the sanitizer found ${finding.code}, ${finding.title}.`); draw(true); },
        onstate: connection,
      },
    });
    lanes.push(made);
    lanes.sort((one, other) => (one.name < other.name ? -1 : 1));
  }

  /** @param {ReturnType<typeof lane>} gone */
  function leave(gone) {
    lanes = lanes.filter((each) => each !== gone);
    gone.unmount();
    change();
    add.focus();
  }

  /** @param {string} how @param {string} reason @param {boolean} again */
  function connection(how, reason, again) {
    if (how === "busy" || how === "idle") say(reason);
    else if (how === "lost") { pending ||= pace.goes; pace.stop(); say("The connection to the lab is lost. The page reconnects by itself."); }
    if (again) { say("Reconnected. The race is restarted."); begin(pending); } // all, so that they are in step
    show();
  }

  /** Check changed settings and restart. */
  async function change() {
    const mine = ++turn, goes = pace.goes || pending;
    fill(track, ...lanes.map(({ element }) => element));
    for (const each of lanes) each.alone(lanes.length < 2);
    add.disabled = lanes.length >= NAMES.length;
    add.title = add.disabled ? "Each runner has its own process; a page may have four." : "Starts with the settings of the last runner";
    try {
      const able = await Promise.all(lanes.map((each) => each.prepare(common)));
      if (mine !== turn || !going || !able.every(Boolean)) return;
    } catch (error) {
      if (mine !== turn || !going) return;
      settings.refuse(COMMON.some((name) => new RegExp(`(^|\\W)${name}\\b`).test(/** @type {any} */ (error).words?.what ?? "")) ? /** @type {any} */ (error).words : null);
      return say(/** @type {Error} */ (error).message);
    }
    settings.refuse(null);
    build();
    begin(goes);
  }

  /** @param {boolean} train */
  function begin(train) {
    pace.stop();
    pending = train;
    for (const each of lanes) each.begin();
    remember();
    draw(true);
    show();
  }

  const ready = () => lanes.length > 0 && lanes.every(({ run }) => run.began);

  function began() {
    if (ready()) {
      if (pending) pace.play();
      else if (owed) pace.step(owed);
      pending = false;
      owed = 0;
    }
    show();
  }

  function start() {
    if (lanes.every(({ run }) => run.ended)) return begin(true);
    if (ready()) pace.play();
    else pending = true;
    announce("The race is on.");
    show();
  }

  function hold() {
    pending = false;
    pace.pause();
    announce("Held.");
    show();
  }

  function finish() {
    pace.stop();
    const [first] = draw(true);
    const text = first.seen === null ? `No runner reached ${(100 * goal).toFixed(0)} %.` : `Runner ${first.lane.name} was first at ${(100 * goal).toFixed(0)} %, after ${number(first.seen)} ${axis}s.`;
    say(`The race is over. ${text}`);
    announce(`The race is over. ${text}`);
    show();
  }

  /** Describe the own settings of a run. @param {ReturnType<typeof lane>} of */
  function words(of) {
    const [first, second] = lanes;
    return !second ? "alone" : of === first ? difference(of.setup, second.setup) : difference(of.setup, first.setup).replace("same settings, earlier run", `the same as ${first.name}`);
  }

  const paint = eachFrame(() => {
    frames++;
    for (const each of lanes) each.paint(words(each));
    draw(!pace.goes || frames % EVERY === 0);
    pace.tick();
    show();
    for (const { run } of lanes) run.painted();
  });

  function build() {
    for (const [key, text, height] of CHARTS) {
      charts[key]?.unmount();
      charts[key] = chart({ title: text, height, x: axis, lines: lanes.map(({ name, colour, dash }) => ({ label: name, colour, dash, width: 1.6, joined: true, points: key === "accuracy" })), ...(key === "accuracy" ? { tools: false } : {}) });
      fill(places[key], charts[key].element);
    }
  }

  /** @param {boolean} now */
  function draw(now) {
    if (!now || !charts.loss) return [];
    /** @type {Record<string, [number[], any[]][]>} */ const all = { loss: [], accuracy: [], norm: [] };
    for (const { run, setup } of lanes) {
      const seen = examples(setup.config), x = (/** @type {number[]} */ updates) => (axis === "update" ? updates : updates.map(seen)), xs = x(run.series.update);
      all.loss.push([xs, averaged(run.series.loss)]);
      all.norm.push([xs, run.series.norm]);
      all.accuracy.push([x(run.series.evaluations.map(([update]) => update)), run.series.evaluations.map(([, , accuracy]) => accuracy)]);
    }
    const rows = table.show(lanes, { goal, axis, own: words });
    const summary = rows.map(({ lane: of, accuracy }) => `${of.name}: ${accuracy < 0 ? "not evaluated yet" : `accuracy ${(100 * accuracy).toFixed(1)} %`}`).join("; ");
    for (const [key] of CHARTS) {
      charts[key].set(...together(all[key]));
      if (!pace.goes) charts[key].describe(summary);
    }
    return rows;
  }

  function remember() {
    const mine = Object.fromEntries(lanes.map(({ name, setup }) => [name.toLowerCase(), new URLSearchParams(address.encode(own, setup, false)).toString() || "optimizer=adam"]));
    setParams({ ...address.encode(shared, { config: common, bugs: [], points: [] }, false), ...mine, ...(goal !== 0.95 && { goal: String(goal) }), ...(axis !== "update" && { axis }) });
  }

  function show() {
    const goes = pace.goes || pending, away = lanes.find(({ run }) => run.connection !== "open")?.run.connection;
    const over_ = lanes.length > 0 && lanes.every(({ run }) => run.ended);
    play.textContent = goes ? "‖ Pause" : "▶ Train all";
    play.disabled = step.disabled = Boolean(away) && away !== "connecting";
    const [kind, text] = away ? ["lost", away === "connecting" ? "starting PyTorch ..." : "not connected"] : !ready() ? ["waiting", "writing ..."] : over_ ? ["ended", "finished"] : pace.goes ? ["running", "training"] : ["paused", lanes.some(({ run }) => run.update) ? "paused" : "ready"];
    state.dataset.state = kind;
    if (state.textContent !== text) state.textContent = text;
  }

  const given = NAMES.map((name) => params.get(name.toLowerCase())).filter((text) => text !== null);
  const wrong = [...read.wrong];
  for (const text of given.length ? given : FIRST) {
    const { setup, wrong: bad } = address.read(own, new URLSearchParams(/** @type {string} */ (text)));
    wrong.push(...bad);
    enter({ ...setup, config: { ...setup.config, ...common }, points: [] });
  }
  if (wrong.length) say(`The address has ${wrong.join(", ")}, which is not a setting and was ignored.`);
  const clock = setInterval(() => { if (!document.hidden) pace.tick(); }, 60);
  const wake = () => { for (const { run } of lanes) if (run.connection === "idle" && !document.hidden) run.live.connect(); };
  for (const what of ["pointerdown", "keydown", "visibilitychange"]) document.addEventListener(what, wake);
  await change();
  return () => {
    going = false;
    clearInterval(clock);
    for (const what of ["pointerdown", "keydown", "visibilitychange"]) document.removeEventListener(what, wake);
    for (const each of lanes) each.unmount();
    for (const each of Object.values(charts)) each.unmount();
  };
}
