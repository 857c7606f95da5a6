// @ts-check
// Ten films of a run with one hidden failure: guess it, then read the sanitizer's evidence. The address holds the game.
import { block } from "../code.js";
import { downloadBlob, fill, h, prose } from "../dom.js";
import { ask, retryUntilAnswered } from "../net.js";
import { player, prefersReducedMotion } from "../player.js";
import { record, videoType } from "../recording.js";
import { filmHeight, prepare } from "./guess/film.js";

export const title = "Guess the bug";
export const lead = "Dashed: a correct run. Red: its copy with one line broken, and no error. Which bug is it?";

const PLAY_MS = 6000, HOLD_MS = 2500, VIDEO_WIDTH = 1120;
const MAX_SEED = 999_999;
const WAITING = "Both runs are being trained on this machine …";
const QUESTION = "Which bug is it?";

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, { params, setParams, announce }) {
  const code = params.get("code") ?? "";
  const seed = /^\d{1,6}$/.test(params.get("seed") ?? "") ? Number(params.get("seed")) : Math.floor(Math.random() * (MAX_SEED + 1));
  /** @type {("right" | "wrong")[]} */
  const results = [];
  /** @type {ReturnType<typeof prepare> | null} */
  let film = null;
  let round = 1, rounds = 10, caption = QUESTION, revealed = "", unmounted = false, isAnswered = false;
  /** @type {Promise<any> | null} */
  let upcoming = null;

  const canvas = h("canvas", { class: "film", role: "img", "aria-label": "The two runs" });
  const movie = player({ count: () => (film ? film.updates + 1 : 1), ready: () => film !== null, show: paint, label: "The run", perStep_ms: PLAY_MS / 182 });
  const status = h("p", { class: "muted", role: "status" }, WAITING);
  const answers = h("div", { class: "guess-answers", role: "group", "aria-label": "Answers" });
  const evidence = h("section", { class: "guess-evidence", "aria-live": "polite" });
  const score = h("ol", { class: "guess-score", "aria-label": "Rounds" });
  const saveStatus = h("span", { class: "muted", role: "status" });
  const others = code ? h("select", { "aria-label": "Another twin run", onchange: () => { location.hash = `#/guess?code=${others.value}`; } }) : h("a", { href: "#/guess?code=GRD001" }, "Watch a twin run of your choice");
  const save = h("button", { type: "button", class: "quiet", hidden: !videoType(), onclick: saveVideo }, "Save as video");
  const copy = h("button", { type: "button", class: "quiet", onclick: copyLink }, "Copy the link");
  fill(root, h("div", { class: "guess" },
    h("div", { class: "panel guess-film" }, canvas, movie.element),
    h("div", { class: "guess-side" }, score, status, answers, evidence, h("p", { class: "guess-other" }, others), h("div", { class: "row" }, save, copy, saveStatus))));

  function size() {
    const width = canvas.clientWidth, ratio = devicePixelRatio || 1, height = filmHeight(width, film?.charts ?? 6);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { context, width, height };
  }
  let surface = size();
  const repaint = () => { surface = size(); paint(movie.step); };
  const resizeObserver = new ResizeObserver(() => { if (canvas.clientWidth !== surface.width) repaint(); });
  resizeObserver.observe(canvas);
  addEventListener("colours", repaint);

  /** @param {number} update */
  function paint(update) {
    film?.draw(surface, update, caption);
  }

  const request = (/** @type {object} */ query) => retryUntilAnswered(() => ask("guess", code ? { code, ...query } : { seed, ...query }));

  /** Request a film until it is complete: a busy machine computes it over several requests. @param {object} query @returns {Promise<any>} */
  async function requestFilm(query) {
    const reply = await request(query);
    return reply.film || unmounted ? reply : requestFilm(query);
  }

  async function open() {
    movie.pause();
    isAnswered = false;
    caption = QUESTION;
    fill(evidence);
    fill(answers);
    showScore();
    status.hidden = false;
    status.textContent = WAITING;
    const reply = (await upcoming) ?? (await requestFilm(code ? {} : { round }));
    upcoming = null;
    if (unmounted) return;
    rounds = reply.rounds;
    film = prepare(reply.film);
    repaint();
    canvas.setAttribute("aria-label", film.words());
    status.hidden = true;
    if (code) {
      fill(others, reply.films.map((/** @type {{code: string, title: string}} */ each) => h("option", { value: each.code, selected: each.code === code }, `${each.code}: ${each.title}`)));
      return reveal("");
    }
    fill(answers, reply.answers.map((/** @type {{code: string, title: string}} */ each, /** @type {number} */ i) => h("button", { type: "button", class: "quiet", dataset: { code: each.code }, onclick: () => reveal(each.code) }, h("kbd", {}, i + 1), h("span", {}, each.title))));
    play();
    if (round < rounds) upcoming = requestFilm({ round: round + 1 }).catch(() => null);
  }

  /** Open the round; if it fails, offer to try again. */
  function start() {
    open().catch((error) => fill(status, String(error instanceof Error ? error.message : error), " ", h("button", { type: "button", class: "quiet", onclick: start }, "Try again")));
  }

  function play() {
    if (prefersReducedMotion()) return movie.go(film?.updates ?? 0);
    movie.go(0);
    movie.start();
  }

  /** @param {string} guess "" if there were no answers */
  async function reveal(guess) {
    if (isAnswered) return;
    isAnswered = true;
    for (const button of answers.children) button.disabled = true;
    const reply = await request({ ...(code ? {} : { round }), reveal: true });
    if (unmounted) return;
    const isRight = guess === reply.code;
    if (guess) results.push(isRight ? "right" : "wrong");
    for (const button of answers.children) {
      if (button.dataset.code === reply.code) mark(button, "right", "✓");
      else if (button.dataset.code === guess) mark(button, "wrong", "✗");
    }
    revealed = reply.code;
    caption = `${reply.code}: ${reply.title}`;
    paint(movie.step);
    showScore();
    const verdict = !guess ? reply.title : isRight ? `Right: ${reply.title}` : `It was: ${reply.title}`;
    fill(evidence,
      h("h2", {}, verdict),
      reply.finding && h("p", {}, h("code", { class: "guess-place" }, `${reply.finding.path}:${reply.line}`), " ", ...prose(reply.finding.message)),
      snippet(reply),
      h("p", {}, h("b", {}, "Fix: "), ...prose(reply.finding?.fix || reply.fix)),
      h("div", { class: "row" }, next(),
        h("a", { href: reply.address }, "Train both in the simulator"), h("a", { href: `#/signatures?code=${reply.code}` }, "Read more")));
    announce(verdict);
    if (guess) evidence.querySelector("button")?.focus({ preventScroll: true });
    if (code) play();
  }

  /** The lines around the finding. @param {any} reply */
  function snippet({ lines, start, line, broken }) {
    const marked = broken.filter((/** @type {number} */ each) => each >= start).map((/** @type {number} */ each) => each - start + 1);
    const code = block(lines, { marked, mark: "broken", hit: line - start + 1 });
    code.style.setProperty("counter-reset", `line ${start - 1}`);
    return code;
  }

  function next() {
    const button = (/** @type {string} */ text, /** @type {() => void} */ onclick) => h("button", { type: "button", onclick }, text);
    if (code) return button("Play ten rounds", () => { location.hash = "#/guess"; });
    if (round === rounds) return [h("p", { class: "guess-end" }, `${right()} of ${rounds} found. Send the link: it opens the same ten rounds.`), button("Another ten", () => { location.hash = `#/guess?seed=${Math.floor(Math.random() * (MAX_SEED + 1))}`; })];
    return button("Next round", () => { round += 1; start(); });
  }

  const right = () => results.filter((each) => each === "right").length;

  function showScore() {
    score.hidden = Boolean(code);
    fill(score, Array.from({ length: rounds }, (_, i) => {
      const result = results[i], words = result ?? (i + 1 === round ? "now" : "to come");
      return h("li", { class: result ?? (i + 1 === round ? "now" : ""), "aria-current": i + 1 === round ? "step" : null, title: `Round ${i + 1}: ${words}` }, h("span", { "aria-hidden": "true" }, { right: "✓", wrong: "✗" }[result] ?? i + 1), h("span", { class: "unseen" }, `Round ${i + 1}: ${words}`));
    }));
  }

  async function saveVideo() {
    const type = videoType();
    if (!film || !type) return;
    save.disabled = true;
    const shown = film, video = h("canvas"), height = filmHeight(VIDEO_WIDTH, shown.charts);
    video.width = VIDEO_WIDTH;
    video.height = height + (height % 2);
    const context = /** @type {CanvasRenderingContext2D} */ (video.getContext("2d"));
    const draw = (/** @type {number} */ share) => {
      saveStatus.textContent = share < 1 ? `Recording: ${Math.round(share * 100)} %` : "Recording the end …";
      shown.draw({ context, width: video.width, height: video.height }, share * shown.updates, caption);
    };
    try {
      downloadBlob(`twin-run${isAnswered ? `-${revealed}` : ""}.${type[1]}`, await record(video, draw, { play_ms: PLAY_MS, hold_ms: HOLD_MS }));
      saveStatus.textContent = "Saved.";
    } catch (error) {
      saveStatus.textContent = `The browser could not record it: ${error instanceof Error ? error.message : error}`;
    }
    save.disabled = false;
  }

  async function copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      saveStatus.textContent = "Copied.";
    } catch {
      saveStatus.textContent = location.href;
    }
  }

  /** @param {KeyboardEvent} event */
  function onkey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /** @type {Element} */ (event.target).closest("input, select, textarea, dialog, .tour")) return;
    const button = answers.children[Number(event.key) - 1];
    if (button && !button.disabled) button.click();
  }

  addEventListener("keydown", onkey);
  setParams(code ? { code } : { seed: String(seed) });
  start();
  return () => {
    unmounted = true;
    movie.unmount();
    resizeObserver.disconnect();
    removeEventListener("colours", repaint);
    removeEventListener("keydown", onkey);
  };
}

/** @param {HTMLElement} button @param {string} kind @param {string} sign */
function mark(button, kind, sign) {
  button.classList.add(kind);
  button.prepend(h("span", { class: "sign", "aria-hidden": "true" }, sign), h("span", { class: "unseen" }, kind === "right" ? "Right answer: " : "Your answer: "));
}
