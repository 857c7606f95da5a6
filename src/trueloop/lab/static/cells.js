// @ts-check
// A table whose cells are buttons: Tab stops once at the table, arrow keys move between its cells.

/** Make the cells of a table reachable by arrow keys. @param {HTMLElement} table @returns {HTMLElement} the same table */
export function roving(table) {
  table.querySelectorAll("button").forEach((button, i) => { button.tabIndex = i ? -1 : 0; });
  table.addEventListener("keydown", moveFocus);
  return table;
}

/** @param {KeyboardEvent} event */
function moveFocus(event) {
  const direction = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const table = /** @type {HTMLElement} */ (event.currentTarget);
  const cell = /** @type {HTMLElement} */ (event.target).closest("td"), row = cell?.closest("tr");
  if (!direction || !cell || !row) return;
  event.preventDefault(); // also at the edge of the table, so that the page does not scroll
  const rows = [...table.querySelectorAll("tr")], column = [...row.children].indexOf(cell) + direction[1];
  let rowIndex = rows.indexOf(row) + direction[0];
  while (direction[0] && rows[rowIndex] && !rows[rowIndex].children[column]?.querySelector("button")) rowIndex += direction[0];
  const next = rows[rowIndex]?.children[column]?.querySelector("button");
  if (!next) return;
  for (const button of table.querySelectorAll("button")) button.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
