// @ts-check
// The timeline of a run: epochs as blocks, the windows and iterations of one epoch, the shares of one iteration.
import { fill, h, formatNumber } from "../../dom.js";
import { prefersReducedMotion } from "../../player.js";

const TICK_PX = 11; // width of a mark with its margin
const AUTOPLAY_ITERATIONS = 16;

/** @param {{go: (position: {epoch: number, iteration: number}) => Promise<any> | any, announce: (text: string) => void, onplay: () => void}} page */
export function timeline({ go, announce, onplay }) {
  /** @type {any} */
  let answer = null;
  let playing = 0;
  let playCount = 0;
  const positionText = h("p", { class: "says", id: "timeline-says" });
  const coverage = h("p", { class: "unseen drawn" }); // the gaps in the picture say the same
  const epochs = h("div", { class: "epochs", role: "img" });
  const windows = h("div", { class: "windows", role: "img", "aria-labelledby": "timeline-says" });
  const shares = h("div", { class: "shares", role: "img" });
  const epochName = h("h3", {});
  const iterationName = h("h3", {});
  const progress = h("progress", { max: 1, value: 0, "aria-label": "How much of the run is done" });

  const play = h("button", { type: "button", onclick: () => (playing ? pause() : start()) }, "▶ Play the run");
  const rate = h("select", { "aria-label": "Speed" }, [[1000, "slow"], [350, "normal"], [90, "fast"]].map(([ms, name]) => h("option", { value: ms, selected: ms === 350 }, name)));
  /** @param {string} text @param {string} label @param {string} move */
  const button = (text, label, move) => h("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: () => { pause(); moveTo(move, true); } }, text);
  const element = h("section", { class: "panel timeline", "aria-labelledby": "timeline-title" },
    h("h2", { id: "timeline-title", class: "unseen" }, "The run, one iteration at a time"),
    h("div", { class: "row player" }, play,
      button("|◀", "To the beginning", "first"), button("◀", "One iteration back", "previous"), button("▶", "Next iteration", "next"),
      h("span", { class: "row farther" }, button("update", "To the next update", "update"), button("epoch", "To the next epoch", "epoch"),
        button("▶|", "To the last iteration of the epoch", "epochs_end"), button("▶▶|", "To the last iteration of the run", "last"), rate)),
    positionText, progress,
    epochs,
    epochName, windows, legend(),
    iterationName, shares, coverage);

  async function moveTo(/** @type {string} */ target, announceIt = false) {
    if (!answer) return;
    await go(answer.targets[target]);
    if (announceIt) announce(answer.timeline.position);
  }

  /** @param {number} [moves] number of iterations after which it pauses */
  async function start(moves = Infinity) {
    const thisPlay = ++playCount;
    playing = thisPlay;
    onplay();
    play.textContent = "‖ Pause";
    if (answer && answer.timeline.share_of_run === 1) await moveTo("first");
    while (playing === thisPlay && moves-- > 0) {
      await new Promise((done) => setTimeout(done, prefersReducedMotion() ? Number(rate.value) * 2 : Number(rate.value)));
      if (playing !== thisPlay) return;
      if (document.hidden) continue; // nothing moves while the page is hidden
      const before = answer.timeline;
      await moveTo("next");
      if (answer.timeline.epoch === before.epoch && answer.timeline.iteration === before.iteration) return pause();
    }
    if (playing === thisPlay) pause();
  }

  /** Play the first windows when the page opens, unless the user prefers reduced motion. */
  function autoplay() {
    if (!prefersReducedMotion()) start(AUTOPLAY_ITERATIONS);
  }

  function pause() {
    playing = 0;
    play.textContent = "▶ Play the run";
  }

  /** @param {any} newAnswer */
  function show(newAnswer) {
    answer = newAnswer;
    const line = newAnswer.timeline;
    positionText.textContent = line.position;
    coverage.textContent = line.coverage;
    progress.value = line.share_of_run;
    epochName.textContent = `Windows of epoch ${(line.epoch + 1).toLocaleString("en-US")}`;
    iterationName.textContent = `Examples ${line.examples} of the epoch`;
    epochs.setAttribute("aria-label", `Epoch ${line.epoch + 1}`);
    fill(epochs, ...line.epochs.map((/** @type {any} */ epoch) => ("hidden" in epoch ? gapMark(epoch.hidden) : h("span", {
      class: `epoch ${progressOf(epoch.index, line.epoch)}`, title: `Epoch ${epoch.name}`,
      onclick: () => { pause(); go({ epoch: epoch.index, iteration: 0 }); },
    }, epoch.name))));
    windows.style.setProperty("--tick", `${tickWidth(line.windows)}px`);
    fill(windows, ...line.windows.map((/** @type {any} */ window) => ("hidden" in window ? gapMark(window.hidden) : bracket(window, line))));
    shares.setAttribute("aria-label", line.position);
    fill(shares, ...line.shares.map((/** @type {any} */ share) => ("hidden" in share ? gapMark(`${share.hidden} more processes`) : h("span", { class: "share" },
      h("span", { class: "fill", style: { width: `${Math.min(100, share.share * 100)}%` } }),
      h("span", { class: "share-text" }, line.shares.length > 1 ? `process ${share.rank}: ${formatNumber(share.examples)}` : share.count)))));
  }

  /** Return the width of a mark: all marks fit, and few marks are wider, so that they are easy to click. @param {any[]} windowList */
  function tickWidth(windowList) {
    const marks = windowList.flatMap((window) => window.iterations ?? []);
    const gaps = windowList.length + marks.length - windowList.filter((window) => window.iterations).length - marks.filter((mark) => mark.index !== undefined).length;
    const missingCount = windowList.reduce((sum, window) => sum + (window.missing ?? 0), 0);
    const freeWidth = (windows.clientWidth || 660) - 14 * windowList.length - 56 * gaps;
    return Math.max(6, Math.min(26, freeWidth / (marks.length + missingCount) - 2));
  }

  /** @param {any} window @param {any} line */
  function bracket(window, line) {
    const windowState = progressOf(window.index, line.window);
    const isClosed = windowState === "done" || (windowState === "now" && line.closes_window);
    return h("span", { class: `window ${windowState} ${window.missing ? "short" : ""}`, title: `Window ${window.name}${window.missing ? `, short: ${window.missing_count} missing` : ""}` },
      h("span", { class: "ticks" },
        window.iterations.map((/** @type {any} */ mark) => ("hidden" in mark ? gapMark(mark.hidden) : tick(mark, line, windowState))),
        Array.from({ length: window.missing }, () => h("i", { class: "tick missing" }))),
      h("span", { class: "window-end" }, isClosed ? "✓" : ""));
  }

  /** @param {any} mark @param {any} line @param {string} when */
  function tick(mark, line, when) {
    const now = mark.index === line.iteration;
    const kind = now ? "now" : mark.index > line.iteration ? "ahead" : when === "now" && !line.closes_window ? "held" : "spent";
    return h("i", {
      class: `tick ${kind} ${mark.share < 1 ? "partial" : ""}`, style: { "--share": Math.max(mark.share, 0.12) },
      title: `Iteration ${(mark.index + 1).toLocaleString("en-US")}`,
      onclick: () => { pause(); go({ epoch: line.epoch, iteration: mark.index }); },
    });
  }

  return { element, show, pause, autoplay, unmount: pause, maxMarks: () => Math.max(8, Math.min(240, Math.floor((windows.clientWidth || 660) / TICK_PX))) };
}

/** @param {number} index @param {number} now */
const progressOf = (index, now) => (index < now ? "done" : index === now ? "now" : "ahead");

/** @param {string} text */
const gapMark = (text) => h("span", { class: "gap" }, `⋯ ${text} ⋯`);

function legend() {
  const entries = [["now", "now"], ["held", "waits in .grad"], ["spent", "in an update ✓"], ["ahead", "to come"], ["partial ahead", "partial"], ["missing", "missing"]];
  return h("p", { class: "legend timeline-legend" }, entries.map(([kind, text]) => h("span", {}, h("i", { class: `tick ${kind}`, style: { "--share": 0.5 } }), text)));
}
