// @ts-check
// The classic experiments: a click runs an experiment on the server and shows its measurements.
import { chart } from "../../chart.js";
import { fill, h } from "../../dom.js";
import { Live } from "../../net.js";
import { alignCurves } from "./curves.js";

const COLOURS = ["--data", "--c1", "--c2", "--c3"];
/** Key, title and axis of the charts that do not show the loss, by experiment. @type {Record<string, [string, string, string]>} */
const CHART_OF_SCENARIO = { clearing: ["norm", "Gradient norm", "update"], no_grad: ["sweep", "Memory above the start of the last evaluation, MiB", "batch"] };
const DASHES = [undefined, [7, 4], [2, 3], [9, 3, 2, 3]];

/** @param {{announce: (text: string) => void, onopen: (setup: any) => void}} options */
export function scenarios({ announce, onopen }) {
  /** @type {Set<Live>} */ const connections = new Set();
  /** @type {any[]} */ const charts = [];
  const grid = h("div", { class: "tiles scenarios" });
  const element = h("section", { "aria-label": "Five classic experiments" }, grid);

  /** @param {any} scenario name, title, claim, and its runs: label, config, bugs */
  function card(scenario) {
    const verdict = h("div", { class: "measured", "aria-live": "polite" }), chartContainer = h("div", {});
    const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": `${scenario.title}: progress` });
    const run = h("button", { type: "button", onclick: () => start(scenario, { run, bar, verdict, chartContainer }) }, "Run the experiment");
    return h("article", { class: "scenario", dataset: { scenario: scenario.name } },
      h("h3", {}, scenario.title), h("p", {}, "Claim: ", h("q", {}, scenario.claim)),
      h("div", { class: "row" }, run, bar), verdict, chartContainer,
      h("div", { class: "row opens" }, (scenario.runs ?? []).map((/** @type {any} */ each) => h("button", { type: "button", class: "quiet small", onclick: () => onopen(each) }, `Open: ${each.label}`))));
  }

  /** @param {any} scenario @param {{run: any, bar: any, verdict: any, chartContainer: any}} parts */
  function start(scenario, { run, bar, verdict, chartContainer }) {
    run.disabled = true;
    bar.hidden = false;
    bar.value = 0;
    fill(verdict, "Starting ...");
    const live = new Live("simulator", {
      ontext(message) {
        if (message.kind === "ready") live.send({ do: "scenario", name: scenario.name });
        else if (message.kind === "refused") end(`${message.what} ${message.fix ?? ""}`);
        else if (message.kind === "scenario" && message.state === "running") {
          bar.value = message.progress ?? 0;
          fill(verdict, "Training ...");
        } else if (message.kind === "scenario" && message.state === "done") {
          end(null);
          fill(verdict, h("strong", { class: message.holds ? "holds" : "fails" }, message.holds ? "✓ It holds. " : "✗ It does not hold. "), `Measured: ${message.measured}`,
            h("ul", {}, message.runs.map((/** @type {any} */ each) => h("li", {}, `${each.label}: learning ${each.learning}`))));
          announce(`${scenario.title}: ${message.holds ? "it holds" : "it does not hold"}. Measured: ${message.measured}`);
          drawCurves(scenario.name, message.runs, chartContainer);
          const panel = element.closest(".tab-panel"); // scroll it, not the page
          if (panel) panel.scrollTop += verdict.getBoundingClientRect().top - panel.getBoundingClientRect().top;
        }
      },
      onstate(state, reason) {
        if (state === "lost" || state === "busy" || state === "idle") end(reason || "The connection was lost; run it again.");
      },
    });
    connections.add(live);
    function end(/** @type {string | null} */ message) {
      live.close();
      connections.delete(live);
      run.disabled = false;
      bar.hidden = true;
      run.textContent = "Run it again";
      if (message) fill(verdict, message);
    }
  }

  /** @param {string} name @param {any[]} runs @param {HTMLElement} container */
  function drawCurves(name, runs, container) {
    const [key, title, x] = CHART_OF_SCENARIO[name] ?? ["loss", "Training loss", "update"];
    const plot = chart({ title, x, lines: runs.map(({ label }, i) => ({ label, colour: COLOURS[i], dash: DASHES[i], width: 1.5 })), height: 150 });
    charts.push(plot);
    fill(container, plot.element);
    plot.set(...alignCurves(runs.map((run) => [x === "update" ? run.update.map((/** @type {number} */ each) => each + 1) : run[key].map((/** @type {any} */ _, /** @type {number} */ i) => i + 1), run[key]])));
  }

  return {
    element,
    /** @param {any[]} all */
    show(all) {
      element.hidden = !all.length;
      if (!grid.children.length) fill(grid, ...all.map(card));
    },
    unmount() {
      for (const live of connections) live.close();
      for (const each of charts) each.unmount();
    },
  };
}
