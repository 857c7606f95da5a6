// @ts-check
// The flow chart: boxes from top to bottom, and edges in lanes at the sides. The server defines boxes and edges.
import { fill, svg } from "./dom.js";

const WIDE = 196, LANE = 13, SIDE = 2 * LANE + 30, GAP = 20, LINE = 15, LETTERS = 27;
const WIDTH = 2 * SIDE + WIDE;

/** @param {{onpoint: (spans: [number, number][], chosen: boolean) => void}} handlers
 *   onpoint: the lines of the box that is pointed at, or chosen by keyboard or click */
export function flow({ onpoint }) {
  const element = svg("svg", { class: "flow", role: "group", "aria-label": "Flow chart of the program" });
  /** @type {any[]} */
  let boxes = [];
  /** @type {SVGElement[]} */
  let drawn = [];

  /** @param {number} place -1 points at none */
  function highlight(place) {
    drawn.forEach((box, at) => box.classList.toggle("pointed", at === place));
  }

  /** @param {any} box @param {number} place @param {{top: number, height: number, lines: string[]}} at */
  function draw(box, place, { top, height, lines }) {
    const point = () => { highlight(place); onpoint(box.lines, false); };
    const choose = () => { highlight(place); onpoint(box.lines, true); };
    const spans = box.lines.map((/** @type {number[]} */ [first, last]) => (first === last ? `line ${first}` : `lines ${first} to ${last}`)).join(", ");
    return svg("g", {
      class: ["box", `is-${box.kind}`, box.about && `about-${box.about}`, box.new && "new"].filter(Boolean).join(" "),
      tabindex: 0, role: "button", "aria-label": [box.text, box.new && "new", spans].filter(Boolean).join(", "), dataset: { box: box.name },
      onfocus: choose, onmouseenter: point, onclick: choose,
      onmouseleave: () => { highlight(-1); onpoint([], false); }, onblur: () => { highlight(-1); onpoint([], false); },
    },
    shape(box.kind, top, height),
    lines.map((text, row) => svg("text", { x: SIDE + WIDE / 2, y: top + height / 2 + (row - (lines.length - 1) / 2) * LINE + 4, "text-anchor": "middle" }, text)),
    box.new && svg("g", { class: "plus", "aria-hidden": "true" }, svg("circle", { cx: SIDE + WIDE - 3, cy: top + 2, r: 7 }),
      svg("path", { d: `M${SIDE + WIDE - 7} ${top + 2}h8m-4 -4v8` })));
  }

  return {
    element,
    /** @param {{boxes: any[], edges: any[]}} chart */
    show(chart) {
      boxes = chart.boxes;
      let y = 6;
      const places = boxes.map((box) => {
        const lines = wrapped(box.text, box.kind === "ask" ? LETTERS - 5 : LETTERS);
        const height = lines.length * LINE + 13;
        const place = { top: y, height, lines };
        y += height + GAP;
        return place;
      });
      element.setAttribute("viewBox", `0 0 ${WIDTH} ${y - GAP + 6}`);
      drawn = boxes.map((box, at) => draw(box, at, places[at]));
      fill(element,
        svg("defs", {}, svg("marker", { id: "flow-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
          svg("path", { d: "M0 0.8L8 4L0 7.2z", class: "tip" }))),
        chart.edges.map((edge) => way(edge, places)), drawn);
    },
    /** Highlight the box that a line belongs to. @param {number} line */
    point(line) {
      const at = boxes.findIndex((box) => box.lines.some((/** @type {number[]} */ [first, last]) => line >= first && line <= last));
      highlight(at);
      drawn[at]?.scrollIntoView({ block: "nearest" });
    },
  };
}

/** @param {string} kind @param {number} top @param {number} height */
function shape(kind, top, height) {
  if (kind !== "ask") return svg("rect", { x: SIDE, y: top, width: WIDE, height, rx: kind === "end" ? height / 2 : 6 });
  const cut = 12, right = SIDE + WIDE, middle = top + height / 2;
  return svg("path", { d: `M${SIDE} ${middle}L${SIDE + cut} ${top}H${right - cut}L${right} ${middle}L${right - cut} ${top + height}H${SIDE + cut}Z` });
}

/** @param {{start: number, end: number, direction: string, lane: number, label: string}} edge @param {{top: number, height: number}[]} places */
function way(edge, places) {
  const from = places[edge.start], to = places[edge.end];
  const middle = SIDE + WIDE / 2;
  if (edge.direction === "down") {
    const start = from.top + from.height;
    return [line(`M${middle} ${start}V${to.top - 1}`), label(edge.label, middle + 5, start + 13, "start")];
  }
  const left = edge.direction === "back";
  const out = LANE * edge.lane + 24;
  const near = left ? SIDE : SIDE + WIDE, x = left ? SIDE - out : SIDE + WIDE + out, turn = left ? 1 : -1;
  const asks = edge.label !== "";
  const start = from.top + from.height / 2, end = to.top + to.height / 2 - (left ? 5 : 0) * (edge.lane ? 1 : -1) * (asks || edge.lane ? 1 : 0);
  const r = 6, down = end > start ? 1 : -1;
  return [
    line(`M${near} ${start}H${x + r * turn}Q${x} ${start} ${x} ${start + r * down}V${end - r * down}Q${x} ${end} ${x + r * turn} ${end}H${near - turn}`, "around"),
    label(edge.label, near - turn * 3, start - 4, left ? "end" : "start"),
  ];
}

/** @param {string} d @param {string} [more] */
const line = (d, more = "") => svg("path", { class: `way ${more}`, d, "marker-end": "url(#flow-tip)" });

/** @param {string} text @param {number} x @param {number} y @param {string} anchor */
const label = (text, x, y, anchor) => (text ? svg("text", { class: "answer", x, y, "text-anchor": anchor }, text) : null);

/** Break a text into lines with a maximum number of letters. @param {string} words @param {number} letters */
function wrapped(words, letters) {
  /** @type {string[]} */
  const lines = [];
  for (const word of words.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length + 1 <= letters) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}
