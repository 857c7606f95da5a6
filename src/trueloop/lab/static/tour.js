// @ts-check
// A guided tour that highlights one element after another on the real pages. The user starts it, may end it at any time,
// and may repeat it; the browser stores only whether it was offered.
import { fill, h } from "./dom.js";
import { still } from "./player.js";

const OFFERED = "trueloop-tour";
const WIDE = 700; // pixels; on narrower screens the text is at the bottom, below the highlighted element
const PATIENCE_MS = 8000; // time for a stop's element to appear after its page opens

/** Stops: page, selector (of which the first visible element counts), title, text. @type {[string, string, string, string][]} */
const STOPS = [
  ["simulator", ".sim-bar .play", "Train a network", "Train starts a small network in real PyTorch on this machine; the page only draws. Step makes one update. You can press it now; the tour waits."],
  ["simulator", ".board-place", "Decision regions", "The colours are the predicted classes. The points are the training data; hollow ones are held out. Click to add a point, or use the arrow keys and Enter."],
  ["simulator", ".sim-curves", "Curves", "Loss and gradient norm after every update. Earlier runs stay as dotted curves: change one setting and compare."],
  ["simulator", ".bugs-panel", "Break it", "Each switch injects a silent failure into the loop. Try GRD001: gradients are never cleared."],
  ["simulator", ".findings", "Sanitizer findings", "The sanitizer checks this program like any other and does not know the switches. A finding has a line, evidence and a fix."],
  ["simulator", ".sim > details.panel", "The script", "This is the text that runs: plain PyTorch. Copy it; trueloop run reports the same findings."],
  ["race", ".lanes", "Race", "Up to four synchronised runs with one seed and different settings or failures."],
  ["operations", ".stations", "Six operations", "A training step, line by line, forwards and backwards, with every tensor, every sum and the autograd graph."],
  ["arithmetic", ".sizes", "Arithmetic", "The numbers of iterations, updates and examples, each with its formula."],
  ["arena", ".tracks", "The arena", "Data and network are fixed; you choose the loop. The judge runs every submission on fresh seeds."],
  ["", "#tour", "End of the tour", "Every page says what to look for and shows the code that ran. Start the tour again here."],
];

/** @param {{button: HTMLElement, announce: (text: string) => void}} shell button: begins the tour; says so loudly until it was offered once */
export function tour({ button, announce }) {
  let at = -1, from = "", turn = 0, frame = 0;
  /** @type {Element | null} */ let target = null;
  const ring = h("div", { class: "tour-ring", "aria-hidden": "true", hidden: true });
  const heading = h("h2", { id: "tour-title" }), text = h("p", { id: "tour-text" }), where = h("span", { class: "muted mono" });
  const back = h("button", { type: "button", class: "quiet", onclick: () => go(at - 1) }, "Back");
  const next = h("button", { type: "button", onclick: () => (at + 1 < STOPS.length ? go(at + 1) : end()) });
  const leave = h("button", { type: "button", class: "quiet", onclick: () => end() }, "End the tour");
  const home = h("a", { href: "#", hidden: true, onclick: () => end() }, "Back to the first page");
  const panel = h("section", { class: "tour", role: "dialog", "aria-labelledby": "tour-title", "aria-describedby": "tour-text", tabindex: "-1", hidden: true }, heading, text, home, h("div", { class: "row" }, back, next, leave, where));
  const no = h("button", { type: "button", class: "quiet small", "aria-label": "No tour, thank you", title: "No, thank you", onclick: () => { offered(); button.focus(); } }, "✕");

  function offered() {
    localStorage.setItem(OFFERED, "offered");
    button.textContent = "Tour";
    no.remove();
  }

  function begin() {
    offered();
    from = location.hash;
    document.body.append(ring, panel);
    panel.hidden = false;
    go(0);
  }

  /** @param {number} stop */
  async function go(stop) {
    at = Math.max(0, stop);
    const mine = ++turn, [page, selector, title, words] = STOPS[at];
    fill(heading, title);
    fill(text, words);
    where.textContent = `${at + 1} / ${STOPS.length}`;
    back.disabled = at === 0;
    next.textContent = at + 1 < STOPS.length ? "Next" : "Done";
    leave.hidden = home.hidden = true;
    leave.hidden = at + 1 === STOPS.length;
    home.hidden = !(at + 1 === STOPS.length && from && from !== location.hash);
    home.setAttribute("href", from || "#");
    target = null;
    place();
    if (page && !location.hash.startsWith(`#/${page}`) && !(page === "simulator" && !location.hash)) location.hash = `#/${page}`;
    const found = await seen(selector, () => mine === turn);
    if (mine !== turn) return;
    target = found;
    target?.scrollIntoView({ block: innerWidth > WIDE ? "center" : "start", behavior: still() ? "auto" : "smooth" });
    place();
    panel.focus({ preventScroll: true }); // screen readers read its title and text
  }

  /** Wait for the first visible element of a selector. @param {string} selector @param {() => boolean} wanted @returns {Promise<Element | null>} */
  async function seen(selector, wanted) {
    for (const end_ = performance.now() + PATIENCE_MS; wanted() && performance.now() < end_;) {
      const found = [...document.querySelectorAll(selector)].find((each) => each.getClientRects().length > 0);
      if (found) return found;
      await new Promise((wake) => setTimeout(wake, 80));
    }
    return null;
  }

  /** Keep the ring around the highlighted element, and the text next to it. */
  function place() {
    cancelAnimationFrame(frame);
    if (at < 0) return;
    ring.hidden = !target?.isConnected;
    if (target?.isConnected) {
      const { left, top, width, height } = target.getBoundingClientRect();
      for (const [name, value] of Object.entries({ left: left - 5, top: top - 5, width: width + 10, height: height + 10 })) ring.style.setProperty(name, `${value}px`);
      const wide = innerWidth > WIDE;
      panel.classList.toggle("above", wide && top + height / 2 > innerHeight * 0.55);
      panel.classList.toggle("left", wide && left + width / 2 > innerWidth * 0.6);
    }
    frame = requestAnimationFrame(place);
  }

  function end() {
    turn++;
    at = -1;
    cancelAnimationFrame(frame);
    ring.remove();
    panel.remove();
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
  addEventListener("keydown", (event) => { if (event.key === "Escape" && at >= 0) end(); });
  button.addEventListener("click", () => (at < 0 ? begin() : panel.focus()));
  button.textContent = "Tour";
  if (!localStorage.getItem(OFFERED)) {
    button.textContent = "New here? Take the tour";
    button.after(no);
  }
}
