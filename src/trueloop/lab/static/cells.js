// @ts-check
// A table whose cells are buttons: Tab stops once at the table, arrow keys move between its cells.

/** @param {HTMLElement} table @returns {HTMLElement} the same */
export function roving(table) {
  table.querySelectorAll("button").forEach((button, i) => { button.tabIndex = i ? -1 : 0; });
  table.addEventListener("keydown", walk);
  return table;
}

/** @param {KeyboardEvent} event */
function walk(event) {
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const table = /** @type {HTMLElement} */ (event.currentTarget);
  const cell = /** @type {HTMLElement} */ (event.target).closest("td"), row = cell?.closest("tr");
  if (!by || !cell || !row) return;
  event.preventDefault(); // also at the edge: the page stays where it is
  const rows = [...table.querySelectorAll("tr")], column = [...row.children].indexOf(cell) + by[1];
  let at = rows.indexOf(row) + by[0];
  while (by[0] && rows[at] && !rows[at].children[column]?.querySelector("button")) at += by[0];
  const next = rows[at]?.children[column]?.querySelector("button");
  if (!next) return;
  for (const button of table.querySelectorAll("button")) button.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
