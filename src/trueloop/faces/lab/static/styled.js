// @ts-check
// A stylesheet of a page's own: in place before the page is drawn, gone with it.
import { fill, h } from "./dom.js";

/** @param {Element} root what the page is drawn into; emptied @param {string} href @returns {Promise<void>} */
export function styled(root, href) {
  return new Promise((done) => {
    const link = h("link", { rel: "stylesheet", href, onload: () => done(), onerror: () => done() });
    fill(root, link);
    if (!root.isConnected) done(); // another page has been asked for meanwhile: nothing will load
  });
}
