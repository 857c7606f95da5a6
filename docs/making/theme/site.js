// The interactive parts of the site: menu, light or dark theme, copying of code, and a search that needs no server.
const base = document.body.dataset.base.replace(/\/?$/, "/");
const byId = (id) => document.getElementById(id);

byId("menu").addEventListener("click", () => {
  const open = document.body.classList.toggle("open");
  byId("menu").setAttribute("aria-expanded", open);
});
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest" });

for (const table of document.querySelectorAll("article table")) {
  const box = Object.assign(document.createElement("div"), { className: "table", tabIndex: 0, role: "region" });
  box.setAttribute("aria-label", "table");
  table.replaceWith(box);
  box.append(table);
}
for (const pre of document.querySelectorAll("article pre")) {
  pre.tabIndex = 0;
  const button = Object.assign(document.createElement("button"), { className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.innerText.replace(/^\$ /gm, ""));
    button.textContent = "Copied";
  });
  (pre.closest(".codehilite") ?? pre).append(button);
}

// The index is a script, because pages opened from a folder, without a server, cannot fetch files.
let index = null;
function load() {
  index ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${base}search-index.js`;
    script.addEventListener("load", () => done(window.searchIndex));
    document.head.append(script);
  });
  return index;
}
function rank(page, words) {
  const [title, text] = [page.title.toLowerCase(), page.text.toLowerCase()];
  let sum = 0;
  for (const word of words) {
    if (title.includes(word)) sum += title.startsWith(word) ? 30 : 20;
    else if (text.includes(word)) sum += 1 + Math.min(5, text.split(word).length - 1);
    else return 0;
  }
  return sum - (page.location.includes("#") ? 12 : 0); // pages rank before sections
}
function excerpt(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 50);
  return `${at ? "… " : ""}${text.slice(at, at + 140)}${text.length > at + 140 ? " …" : ""}`;
}
const [input, found] = [document.querySelector("#search input"), byId("found")];
input.addEventListener("focus", load);
input.addEventListener("input", async () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const pages = await load();
  const hits = pages.map((page) => [rank(page, words), page]).filter(([score]) => score > 0);
  hits.sort((a, b) => b[0] - a[0]);
  found.replaceChildren(
    ...hits.slice(0, 12).map(([, page]) => {
      const link = Object.assign(document.createElement("a"), { href: base + page.location });
      link.append(
        Object.assign(document.createElement("strong"), { textContent: page.title }),
        Object.assign(document.createElement("span"), { textContent: excerpt(page.text, words[0]) }),
      );
      const item = document.createElement("li");
      item.append(link);
      return item;
    }),
  );
  if (words.length && !hits.length) found.textContent = "No page has all of these words.";
  found.hidden = !words.length;
});
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  found.querySelector("a")?.click();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") found.hidden = true;
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(event.target.tagName)) {
    event.preventDefault();
    input.focus();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("#search")) found.hidden = true;
});
