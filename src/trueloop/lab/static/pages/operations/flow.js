// @ts-check
// Values that move along the edges of the graph: forward from the leaves to the root, backward as gradients from the root.
import { fill, svg } from "../../dom.js";
import { prefersReducedMotion } from "../../player.js";

const TRAVEL_MS = 700; // time on one edge, of all edges together

/** Let the values of a step move along the edges, and rest in their middle; without motion they are there at once.
 * @param {Element} drawing @param {any} graph @param {string} operation @param {Map<string, any>} tensors
 * @returns {() => void} stops the motion */
export function flows(drawing, graph, operation, tensors) {
  const layer = drawing.querySelector(".flows"), paths = [...drawing.querySelectorAll("path.edge")];
  if (!layer) return () => {};
  const isBackward = operation === "backward", lastColumn = Math.max(...graph.nodes.map((/** @type {any} */ node) => node.column));
  const isMoving = (/** @type {any} */ from) => isBackward || operation === "forward" || (operation === "loss" && from.column === lastColumn);
  const moving = graph.edges.flatMap((/** @type {[number, number]} */ [from, to], /** @type {number} */ i) => {
    const [root, leaf] = [graph.nodes[from], graph.nodes[to]];
    if (!isMoving(root)) return [];
    const text = tensors.get(isBackward ? `${leaf.tensor_name}.grad` : leaf.tensor_name)?.cells?.[0][0]; // its first number
    const element = svg("g", { class: `flow of-${isBackward ? "gradient" : "data"}` }, svg("circle", { r: 4 }), text && svg("text", { y: -7 }, text));
    const order = isBackward ? lastColumn - root.column : leaf.column; // edges that values reach later move later
    return [{ element, path: /** @type {SVGPathElement} */ (paths[i]), order }];
  });
  fill(layer, ...moving.map(({ element }) => element));
  const orders = Math.max(1, ...moving.map(({ order }) => order + 1)), start_ms = performance.now();
  let request = 0;
  const place = (/** @type {number} */ now_ms) => {
    const share = prefersReducedMotion() ? 1 : Math.min(1, Math.max(0, now_ms - start_ms) / TRAVEL_MS);
    for (const { element, path, order } of moving) {
      const own = Math.min(1, Math.max(0, share * orders - order)); // 0: has not started, 1: rests in the middle
      const along = own < 1 ? own : 0.5; // an edge begins at the root
      const { x, y } = path.getPointAtLength(path.getTotalLength() * (isBackward ? along : 1 - along));
      element.setAttribute("transform", `translate(${x} ${y})`);
      element.setAttribute("opacity", own > 0 ? "1" : "0");
    }
    if (share < 1) request = requestAnimationFrame(place);
  };
  place(start_ms);
  return () => cancelAnimationFrame(request);
}
