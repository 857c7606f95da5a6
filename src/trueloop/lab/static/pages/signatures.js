// @ts-check
// Bug signatures: a wall with a small curve of each silent failure, and a page of each.
import { fill, h } from "../dom.js";
import { ask, retryUntilAnswered } from "../net.js";
import { failurePage } from "./signatures/page.js";
import { wall } from "./signatures/wall.js";

export const title = "Bug signatures";
export const lead = "";

/** @param {HTMLElement} root @param {import("../app.js").Page} page */
export async function mount(root, page) {
  const { failures } = await retryUntilAnswered(() => ask("signatures", { what: "table" }));
  const code = page.params.get("code") ?? "";
  const failure = failures.find((/** @type {any} */ each) => [each.code, each.slug].includes(code));
  const view = failure ? failurePage(failures, failure) : wall(failures, page);
  fill(root, code && !failure && h("p", { class: "error", role: "alert" }, `There is no failure ${code.slice(0, 60)}.`), view.element);
  view.shown();
  return view.unmount;
}
