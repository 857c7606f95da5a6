// @ts-check
// A guided tour that highlights one element after another on the real pages. The user starts it, can end it at any time,
// and can repeat it; the browser stores only that it was offered.
import { fill, h } from "./dom.js";
import { prefersReducedMotion } from "./player.js";

const OFFERED = "trueloop-tour";
const MIN_WIDE_WIDTH = 700; // pixels; on narrower screens the text is at the bottom, below the highlighted element
const TIMEOUT_MS = 8000; // time for a stop's element to appear after its page opens

/** The stops: page, selector (its first visible element is highlighted), title, text. @type {[string, string, string, string][]} */
const STOPS = [
  ["simulator", ".sim-bar .play", "Train a network", "A small network trains in real PyTorch on this machine; the page only draws."],
  ["simulator", ".board-place", "Decision regions", "Colours are predictions, points are data; hollow points are held out. Click to add one."],
  ["simulator", ".bugs-panel .bug", "Break it", "Each switch injects a silent failure. Switch on this one: gradients are never cleared."],
  ["simulator", ".sim-tabs, .findings", "Sanitizer findings", "The sanitizer does not know the switches. It names the failure, its line and the fix."],
  ["operations", ".stations", "Six operations", "A training step, line by line, with every tensor and the autograd graph."],
  ["guess", ".guess-film", "Guess the bug", "One of these runs has a hidden failure. Ten rounds, four answers each."],
  ["learn", ".learn-bar", "It does not learn", "Diagnose tries one change at a time and ranks what helps."],
  ["", "#tour", "End of the tour", "Start it again here."],
];

/** @param {{button: HTMLElement, announce: (text: string) => void}} options button: begins the tour; its text invites to it until the tour was offered once */
export function tour({ button, announce }) {
  let stopIndex = -1, startAddress = "", moveCount = 0, frame = 0;
  /** @type {Element | null} */ let target = null;
  const ring = h("div", { class: "tour-ring", "aria-hidden": "true", hidden: true });
  const heading = h("h2", { id: "tour-title" }), text = h("p", { id: "tour-text" }), progress = h("span", { class: "muted mono" });
  const back = h("button", { type: "button", class: "quiet", onclick: () => go(stopIndex - 1) }, "Back");
  const next = h("button", { type: "button", onclick: () => (stopIndex + 1 < STOPS.length ? go(stopIndex + 1) : end()) });
  const endButton = h("button", { type: "button", class: "quiet", onclick: () => end() }, "End the tour");
  const home = h("a", { href: "#", hidden: true, onclick: () => end() }, "Back to the first page");
  const panel = h("section", { class: "tour", role: "dialog", "aria-labelledby": "tour-title", "aria-describedby": "tour-text", tabindex: "-1", hidden: true }, heading, text, home, h("div", { class: "row" }, back, next, endButton, progress));
  const declineButton = h("button", { type: "button", class: "quiet small", "aria-label": "No tour, thank you", title: "No, thank you", onclick: () => { rememberOffer(); button.focus(); } }, "✕");

  function rememberOffer() {
    localStorage.setItem(OFFERED, "offered");
    button.textContent = "Tour";
    declineButton.remove();
  }

  function begin() {
    rememberOffer();
    startAddress = location.hash;
    document.body.append(ring, panel);
    document.body.classList.add("touring");
    panel.hidden = false;
    panel.focus({ preventScroll: true });
    go(0);
  }

  /** @param {number} stop */
  async function go(stop) {
    stopIndex = Math.max(0, stop);
    const thisMove = ++moveCount, [page, selector, title, explanation] = STOPS[stopIndex];
    fill(heading, title);
    fill(text, explanation);
    progress.textContent = `${stopIndex + 1} / ${STOPS.length}`;
    back.disabled = stopIndex === 0;
    next.textContent = stopIndex + 1 < STOPS.length ? "Next" : "Done";
    endButton.hidden = home.hidden = true;
    endButton.hidden = stopIndex + 1 === STOPS.length;
    home.hidden = !(stopIndex + 1 === STOPS.length && startAddress && startAddress !== location.hash);
    home.setAttribute("href", startAddress || "#");
    target = null;
    placeRing();
    if (page && !location.hash.startsWith(`#/${page}`) && !(page === "simulator" && !location.hash)) location.hash = `#/${page}`;
    const newTarget = await firstVisible(selector, () => thisMove === moveCount);
    if (thisMove !== moveCount) return;
    target = newTarget;
    target?.scrollIntoView({ block: innerWidth > MIN_WIDE_WIDTH ? "center" : "start", behavior: prefersReducedMotion() ? "auto" : "smooth" });
    placeRing();
    panel.focus({ preventScroll: true }); // screen readers read the panel's title and text
  }

  /** Wait for the first visible element of a selector. @param {string} selector @param {() => boolean} isCurrent @returns {Promise<Element | null>} */
  async function firstVisible(selector, isCurrent) {
    for (const deadline = performance.now() + TIMEOUT_MS; isCurrent() && performance.now() < deadline;) {
      const found = [...document.querySelectorAll(selector)].find((each) => each.getClientRects().length > 0);
      if (found) return found;
      await new Promise((wake) => setTimeout(wake, 80));
    }
    return null;
  }

  /** Keep the ring around the highlighted element, and the text next to it. */
  function placeRing() {
    cancelAnimationFrame(frame);
    if (stopIndex < 0) return;
    ring.hidden = !target?.isConnected;
    if (target?.isConnected) {
      const { left, top, width, height } = target.getBoundingClientRect();
      for (const [name, value] of Object.entries({ left: left - 5, top: top - 5, width: width + 10, height: height + 10 })) ring.style.setProperty(name, `${value}px`);
      const wide = innerWidth > MIN_WIDE_WIDTH;
      panel.classList.toggle("above", wide && top + height / 2 > innerHeight * 0.55);
      panel.classList.toggle("left", wide && left + width / 2 > innerWidth * 0.6);
    }
    frame = requestAnimationFrame(placeRing);
  }

  function end() {
    moveCount++;
    stopIndex = -1;
    cancelAnimationFrame(frame);
    ring.remove();
    panel.remove();
    document.body.classList.remove("touring");
    panel.hidden = true;
    button.focus();
    announce("The tour has ended.");
  }

  panel.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowRight") next.click();
    else if (event.key === "ArrowLeft") back.click();
    else return;
    event.preventDefault();
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape" && stopIndex >= 0) end(); });
  button.addEventListener("click", () => (stopIndex < 0 ? begin() : panel.focus()));
  button.textContent = "Tour";
  if (!localStorage.getItem(OFFERED)) {
    fill(button, h("span", { class: "wide" }, "New here? "), "Take the tour");
    button.after(declineButton);
  }
}
