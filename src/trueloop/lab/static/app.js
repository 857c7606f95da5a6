// @ts-check
// The frame around all pages: navigation, address (#/page?name=value), colours, announcements to screen readers.
import { classroom, decodeView, encodeView } from "./classroom.js";
import { fill, h } from "./dom.js";
import { untilServerAnswers, isServerUp } from "./outage.js";
import { tour } from "./tour.js";

/** @type {[string, [string, string][]][]} the groups of the navigation, each with its pages: [name, link text] */
const PAGES = [
  ["See", [["arithmetic", "Arithmetic"], ["pipeline", "Pipeline"], ["operations", "Six operations"], ["modes", "Train and eval"]]],
  ["Break", [["simulator", "Simulator"], ["guess", "Guess the bug"], ["learn", "It does not learn"], ["race", "Race of runs"], ["signatures", "Bug signatures"]]],
  ["Build", [["production", "Production loop"], ["sheet", "Cheat sheet"]]],
  ["Race and watch", [["arena", "Arena"], ["watch", "Watch a run"]]],
];
const NAMES = PAGES.flatMap(([, pages]) => pages.map(([name]) => name));
const HOME = "simulator";
const LOADING_DELAY_MS = 250; // a page that loads faster shows no loading message

/** @typedef {{params: URLSearchParams, setParams: (params: Record<string, string>) => void, announce: (text: string) => void}} Page
 *  what the frame gives a page: its parameters in the address, and functions to change them and to tell screen readers something */

const elementById = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
let unmount = () => {};
let pageName = "";
let openCount = 0;
let ownAddress = ""; // the address that is already shown
/** @type {Record<string, string>} */
let pageParams = {}; // the open page's parameters in the address

/** Announce a text to screen readers. @param {string} text */
export function announce(text) {
  elementById("announcements").textContent = text;
}

function address() {
  const [, name = "", query = ""] = /^#\/([a-z]*)\??(.*)$/.exec(location.hash) ?? [];
  const params = new URLSearchParams(query), decoded = params.has("class") ? decodeView(params.get("class") ?? "") : null;
  params.delete("class");
  return { name: NAMES.includes(name) ? name : HOME, params: decoded ? new URLSearchParams(decoded.params) : params, view: decoded?.view ?? null };
}

/** Write the page's state into the address, so that it can be shared, without mounting the page again.
 * @param {string} name
 * @param {Record<string, string>} params */
function setParams(name, params) {
  if (name !== pageName || location.hash !== ownAddress) return; // the user is opening another page
  pageParams = params;
  const query = new URLSearchParams(classView.view ? { class: encodeView(classView.view, params) } : params).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
  ownAddress = location.hash;
}

async function show() {
  if (location.hash === ownAddress && pageName) return;
  const { name, params, view } = address();
  classView.set(view);
  pageParams = Object.fromEntries(params);
  const thisOpen = ++openCount, focusedBefore = document.activeElement;
  ownAddress = location.hash;
  unmount();
  unmount = () => {};
  const previousPage = pageName;
  pageName = name;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  closeMenu();
  const root = h("div", { class: `page page-${name}` });
  fill(elementById("page"), root);
  const loadingTimer = setTimeout(() => { if (!root.childElementCount) root.before(loadingNote()); }, LOADING_DELAY_MS);
  new MutationObserver((_, observer) => { observer.disconnect(); elementById("waiting")?.remove(); }).observe(root, { childList: true });
  try {
    const [page] = await Promise.all([import(`./pages/${name}.js`), loadStyle(name)]);
    if (thisOpen !== openCount) return;
    elementById("title").textContent = page.title;
    document.title = `${page.title} · trueloop lab`;
    fill(elementById("lead"), ...[page.lead].flat().map((text) => (typeof text === "string" ? h("p", {}, text) : text)));
    const focusStayed = [focusedBefore, document.body].includes(document.activeElement); // else the user has moved on
    if (previousPage && previousPage !== name && focusStayed) focusPage();
    const unmountPage = await page.mount(root, { params, setParams: (/** @type {Record<string, string>} */ newParams) => setParams(name, newParams), announce });
    if (thisOpen !== openCount) unmountPage?.();
    else unmount = unmountPage ?? (() => {});
  } catch (error) {
    if (thisOpen !== openCount) return;
    if (!(await isServerUp())) return reloadWhenBack(thisOpen);
    console.error(error);
    fill(root, h("p", { class: "error", role: "alert" }, `This page could not be shown: ${error}`));
  } finally {
    clearTimeout(loadingTimer);
  }
}

/** Load the stylesheet of a page and remove that of the previous page. @param {string} name @returns {Promise<unknown>} */
function loadStyle(name) {
  document.head.querySelector("link[data-page]")?.remove();
  return new Promise((done) => {
    document.head.append(h("link", { rel: "stylesheet", href: `pages/${name}.css`, dataset: { page: name }, onload: done, onerror: done }));
  });
}

/** Reload when the server is back: a browser does not retry a module import. @param {number} thisOpen */
async function reloadWhenBack(thisOpen) {
  await untilServerAnswers();
  if (thisOpen === openCount) location.reload();
}

const loadingNote = () => h("p", { id: "waiting", class: "waiting", role: "status" }, "Loading the page …");

/** Show a message while the server does not answer. */
function showOutages() {
  const message = h("p", { class: "outage", role: "status" });
  elementById("lead").before(message);
  addEventListener("server", (event) => {
    const isLost = /** @type {CustomEvent} */ (event).detail === "lost";
    message.textContent = isLost ? "The lab's server does not answer. Is `trueloop lab` still running? The page reconnects by itself." : "";
    if (!isLost) announce("The server is back.");
  });
}

function focusPage() {
  elementById("main").focus({ preventScroll: true });
  scrollTo(0, 0);
  announce(document.title);
}

function closeMenu() {
  elementById("nav").classList.remove("open");
  elementById("menu").setAttribute("aria-expanded", "false");
}

function setUpNavigation() {
  fill(elementById("nav"), ...PAGES.map(([group, pages]) => h("div", { class: "group" },
    h("h2", {}, group),
    h("ul", {}, ...pages.map(([name, text]) => h("li", {}, h("a", { href: `#/${name}` }, text)))))));
  elementById("menu").addEventListener("click", () => {
    const open = elementById("nav").classList.toggle("open");
    elementById("menu").setAttribute("aria-expanded", String(open));
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") closeMenu(); });
}

function setUpTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const button = elementById("theme");
  let theme = localStorage.getItem("trueloop-theme") ?? "system";
  const apply = () => {
    if (theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    button.textContent = { system: "◐", light: "☀", dark: "☾" }[theme] ?? "◐";
    button.title = `Colours: ${theme === "system" ? "follow the system" : theme}`;
    button.setAttribute("aria-label", button.title);
    dispatchEvent(new Event("colours"));
  };
  button.addEventListener("click", () => {
    const other = isDark.matches ? "light" : "dark"; // the first click changes what is shown
    theme = theme === "system" ? other : theme === other ? (other === "dark" ? "light" : "dark") : "system";
    localStorage.setItem("trueloop-theme", theme);
    apply();
  });
  isDark.addEventListener("change", apply);
  apply();
}

setUpNavigation();
setUpTheme();
showOutages();
const classView = classroom({ button: elementById("class"), steps: elementById("steps"), state: () => ({ name: pageName, params: pageParams }), announce });
tour({ button: elementById("tour"), announce });
addEventListener("hashchange", show);
show();
