// @ts-check
// The frame of all pages: list of pages, navigation, address (#/page?name=value), colours, live region.
import { classroom, decodeView, encodeView } from "./classroom.js";
import { fill, h } from "./dom.js";
import { serverBack, isServerUp } from "./outage.js";
import { tour } from "./tour.js";

/** @type {[string, [string, string][]][]} group -> its pages: [name, what the navigation says] */
const PAGES = [
  ["See", [["arithmetic", "Arithmetic"], ["pipeline", "Pipeline"], ["operations", "Six operations"], ["modes", "Train and eval"]]],
  ["Break", [["simulator", "Simulator"], ["race", "Race of runs"], ["signatures", "Bug signatures"]]],
  ["Build", [["production", "Production loop"], ["sheet", "Cheat sheet"]]],
  ["Race and watch", [["arena", "Arena"], ["watch", "Watch a run"]]],
];
const NAMES = PAGES.flatMap(([, pages]) => pages.map(([name]) => name));
const HOME = "simulator";
const LOADING_DELAY_MS = 250; // show no message before

const at = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
let unmount = () => {};
let shown = "";
let turn = 0;
let written = "";
/** @type {Record<string, string>} */
let said = {}; // parameters that the page has put into the address

/** Say something to a screen reader. @param {string} text */
export function announce(text) {
  at("said").textContent = text;
}

function address() {
  const [, name = "", query = ""] = /^#\/([a-z]*)\??(.*)$/.exec(location.hash) ?? [];
  const params = new URLSearchParams(query), lesson = params.has("class") ? decodeView(params.get("class") ?? "") : null;
  params.delete("class");
  return { name: NAMES.includes(name) ? name : HOME, params: lesson ? new URLSearchParams(lesson.params) : params, view: lesson?.view ?? null };
}

/** Put the page's state into the address, for sharing, without mounting the page again.
 * @param {string} name
 * @param {Record<string, string>} params */
function setParams(name, params) {
  if (name !== shown || location.hash !== written) return; // another page is being opened
  said = params;
  const query = new URLSearchParams(teaching.view ? { class: encodeView(teaching.view, params) } : params).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
  written = location.hash;
}

async function show() {
  if (location.hash === written && shown) return;
  const { name, params, view } = address();
  teaching.set(view);
  said = Object.fromEntries(params);
  const mine = ++turn;
  written = location.hash;
  unmount();
  unmount = () => {};
  const came = shown;
  shown = name;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  closeMenu();
  const root = h("div", { class: `page page-${name}` });
  fill(at("page"), root);
  const waits = setTimeout(() => { if (!root.childElementCount) root.before(waiting()); }, LOADING_DELAY_MS);
  new MutationObserver((_, seen) => { seen.disconnect(); at("waiting")?.remove(); }).observe(root, { childList: true });
  try {
    const [page] = await Promise.all([import(`./pages/${name}.js`), loadStyle(name)]);
    if (mine !== turn) return;
    at("title").textContent = page.title;
    document.title = `${page.title} · trueloop lab`;
    fill(at("lead"), ...[page.lead].flat().map((text) => (typeof text === "string" ? h("p", {}, text) : text)));
    if (came && came !== name) focusPage();
    const left = await page.mount(root, { params, setParams: (/** @type {Record<string, string>} */ p) => setParams(name, p), announce });
    if (mine !== turn) left?.();
    else unmount = left ?? (() => {});
  } catch (error) {
    if (mine !== turn) return;
    if (!(await isServerUp())) return reloadWhenBack(mine);
    console.error(error);
    fill(root, h("p", { class: "error", role: "alert" }, `This page could not be shown: ${error}`));
  } finally {
    clearTimeout(waits);
  }
}

/** Load the stylesheet of a page and remove that of the previous page. @param {string} name @returns {Promise<unknown>} */
function loadStyle(name) {
  document.head.querySelector("link[data-page]")?.remove();
  return new Promise((done) => {
    document.head.append(h("link", { rel: "stylesheet", href: `pages/${name}.css`, dataset: { page: name }, onload: done, onerror: done }));
  });
}

/** Reload when the server is back: a browser does not retry a module import. @param {number} mine */
async function reloadWhenBack(mine) {
  await serverBack();
  if (mine === turn) location.reload();
}

const waiting = () => h("p", { id: "waiting", class: "waiting", role: "status" }, "Loading the page …");

/** Show a message while the server is away. */
function outages() {
  const message = h("p", { class: "outage", role: "status" });
  at("lead").before(message);
  addEventListener("server", (event) => {
    const lost = /** @type {CustomEvent} */ (event).detail === "lost";
    message.textContent = lost ? "The lab's server does not answer. Is `trueloop lab` still running? The page reconnects by itself." : "";
    if (!lost) announce("The server is back.");
  });
}

function focusPage() {
  at("main").focus({ preventScroll: true });
  scrollTo(0, 0);
  announce(document.title);
}

function closeMenu() {
  at("nav").classList.remove("open");
  at("menu").setAttribute("aria-expanded", "false");
}

function navigation() {
  fill(at("nav"), ...PAGES.map(([group, pages]) => h("div", { class: "group" },
    h("h2", {}, group),
    h("ul", {}, ...pages.map(([name, text]) => h("li", {}, h("a", { href: `#/${name}` }, text)))))));
  at("menu").addEventListener("click", () => {
    const open = at("nav").classList.toggle("open");
    at("menu").setAttribute("aria-expanded", String(open));
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") closeMenu(); });
}

function colours() {
  const kinds = ["system", "light", "dark"];
  const button = at("theme");
  let kind = localStorage.getItem("trueloop-theme") ?? "system";
  const apply = () => {
    if (kind === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", kind);
    button.textContent = { system: "◐", light: "☀", dark: "☾" }[kind] ?? "◐";
    button.setAttribute("aria-label", `Colours: ${kind === "system" ? "follow the system" : kind}`);
    dispatchEvent(new Event("colours"));
  };
  button.addEventListener("click", () => {
    kind = kinds[(kinds.indexOf(kind) + 1) % kinds.length];
    localStorage.setItem("trueloop-theme", kind);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

navigation();
colours();
outages();
const teaching = classroom({ button: at("class"), steps: at("steps"), state: () => ({ name: shown, params: said }), announce });
tour({ button: at("tour"), announce });
addEventListener("hashchange", show);
show();
