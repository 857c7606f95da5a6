// @ts-check
// A flow chart: boxes from top to bottom, and edges in lanes at the sides. The server defines boxes and edges.
import { fill, svg } from "./dom.js";

const BOX_WIDTH = 196, LANE = 13, SIDE = 2 * LANE + 30, GAP = 20, LINE_HEIGHT = 15, MAX_LETTERS = 27;
const WIDTH = 2 * SIDE + BOX_WIDTH;

/** @param {{onpoint: (spans: [number, number][], chosen: boolean) => void}} handlers
 *   onpoint: called with the lines of the box under the pointer, or with chosen = true if it was clicked or focused */
export function flowChart({ onpoint }) {
  const element = svg("svg", { class: "flow", role: "group", "aria-label": "Flow chart of the program" });
  /** @type {any[]} */
  let boxes = [];
  /** @type {SVGElement[]} */
  let boxElements = [];

  /** @param {number} index index of the box; -1 highlights none */
  function highlight(index) {
    boxElements.forEach((box, at) => box.classList.toggle("pointed", at === index));
  }

  /** @param {any} box @param {number} index @param {{top: number, height: number, lines: string[]}} position */
  function draw(box, index, { top, height, lines }) {
    const point = () => { highlight(index); onpoint(box.lines, false); };
    const choose = () => { highlight(index); onpoint(box.lines, true); };
    const spans = box.lines.map((/** @type {number[]} */ [first, last]) => (first === last ? `line ${first}` : `lines ${first} to ${last}`)).join(", ");
    return svg("g", {
      class: ["box", `is-${box.kind}`, box.subject && `subject-`, box.new && "new"].filter(Boolean).join(" "),
      tabindex: 0, role: "button", "aria-label": [box.text, box.new && "new", spans].filter(Boolean).join(", "), dataset: { box: box.name },
      onfocus: choose, onmouseenter: point, onclick: choose,
      onmouseleave: () => { highlight(-1); onpoint([], false); }, onblur: () => { highlight(-1); onpoint([], false); },
    },
    shape(box.kind, top, height),
    lines.map((text, row) => svg("text", { x: SIDE + BOX_WIDTH / 2, y: top + height / 2 + (row - (lines.length - 1) / 2) * LINE_HEIGHT + 4, "text-anchor": "middle" }, text)),
    box.new && svg("g", { class: "plus", "aria-hidden": "true" }, svg("circle", { cx: SIDE + BOX_WIDTH - 3, cy: top + 2, r: 7 }),
      svg("path", { d: `M${SIDE + BOX_WIDTH - 7} ${top + 2}h8m-4 -4v8` })));
  }

  return {
    element,
    /** @param {{boxes: any[], edges: any[]}} chart */
    show(chart) {
      boxes = chart.boxes;
      let y = 6;
      const boxPositions = boxes.map((box) => {
        const lines = wrapText(box.text, box.kind === "ask" ? MAX_LETTERS - 5 : MAX_LETTERS);
        const height = lines.length * LINE_HEIGHT + 13;
        const position = { top: y, height, lines };
        y += height + GAP;
        return position;
      });
      element.setAttribute("viewBox", `0 0 ${WIDTH} ${y - GAP + 6}`);
      boxElements = boxes.map((box, at) => draw(box, at, boxPositions[at]));
      fill(element,
        svg("defs", {}, svg("marker", { id: "flow-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
          svg("path", { d: "M0 0.8L8 4L0 7.2z", class: "tip" }))),
        chart.edges.map((edge) => edgePath(edge, boxPositions)), boxElements);
    },
    /** Highlight the box that a line belongs to. @param {number} line */
    point(line) {
      const index = boxes.findIndex((box) => box.lines.some((/** @type {number[]} */ [first, last]) => line >= first && line <= last));
      highlight(index);
      boxElements[index]?.scrollIntoView({ block: "nearest" });
    },
  };
}

/** @param {string} kind @param {number} top @param {number} height */
function shape(kind, top, height) {
  if (kind !== "ask") return svg("rect", { x: SIDE, y: top, width: BOX_WIDTH, height, rx: kind === "end" ? height / 2 : 6 });
  const cut = 12, right = SIDE + BOX_WIDTH, middle = top + height / 2;
  return svg("path", { d: `M${SIDE} ${middle}L${SIDE + cut} ${top}H${right - cut}L${right} ${middle}L${right - cut} ${top + height}H${SIDE + cut}Z` });
}

/** @param {{start: number, end: number, direction: string, lane: number, label: string}} edge @param {{top: number, height: number}[]} boxPositions */
function edgePath(edge, boxPositions) {
  const from = boxPositions[edge.start], to = boxPositions[edge.end];
  const middle = SIDE + BOX_WIDTH / 2;
  if (edge.direction === "down") {
    const start = from.top + from.height;
    return [line(`M${middle} ${start}V${to.top - 1}`), label(edge.label, middle + 5, start + 13, "start")];
  }
  const left = edge.direction === "back";
  const offset = LANE * edge.lane + 24;
  const near = left ? SIDE : SIDE + BOX_WIDTH, x = left ? SIDE - offset : SIDE + BOX_WIDTH + offset, inward = left ? 1 : -1;
  const isCondition = edge.label !== "";
  const start = from.top + from.height / 2, end = to.top + to.height / 2 - (left ? 5 : 0) * (edge.lane ? 1 : -1) * (isCondition || edge.lane ? 1 : 0);
  const r = 6, down = end > start ? 1 : -1;
  return [
    line(`M${near} ${start}H${x + r * inward}Q${x} ${start} ${x} ${start + r * down}V${end - r * down}Q${x} ${end} ${x + r * inward} ${end}H${near - inward}`, "around"),
    label(edge.label, near - inward * 3, start - 4, left ? "end" : "start"),
  ];
}

/** @param {string} d @param {string} [more] */
const line = (d, more = "") => svg("path", { class: `way ${more}`, d, "marker-end": "url(#flow-tip)" });

/** @param {string} text @param {number} x @param {number} y @param {string} anchor */
const label = (text, x, y, anchor) => (text ? svg("text", { class: "answer", x, y, "text-anchor": anchor }, text) : null);

/** Break a text into lines with a maximum number of letters. @param {string} text @param {number} maxLetters */
function wrapText(text, maxLetters) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length + 1 <= maxLetters) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}
