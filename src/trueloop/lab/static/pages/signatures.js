// @ts-check
// Bug signatures: a wall with a small curve of each silent failure, and a page of each.
import { fill, h } from "../dom.js";
import { ask, fetchJson, retryUntilAnswered } from "../net.js";
import { failurePage } from "./signatures/page.js";
import { wall } from "./signatures/wall.js";

export const title = "Bug signatures";
export const lead = "";

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, page) {
  const [{ failures }, curves] = await retryUntilAnswered(() => Promise.all([ask("signatures", { what: "table" }), fetchJson("pages/signatures/wall_curves.json", {})]));
  const code = page.params.get("code") ?? "";
  const failure = failures.find((/** @type {any} */ each) => [each.code, each.slug].includes(code));
  const view = failure ? failurePage(failures, failure, curves) : wall(failures, curves, page);
  fill(root, code && !failure && h("p", { class: "error", role: "alert" }, `There is no failure ${code.slice(0, 60)}.`), view.element);
  view.shown();
  return view.unmount;
}
