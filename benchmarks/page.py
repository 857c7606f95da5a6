"""Writes the figures of benchmarks/results into docs/benchmarks.md, so that no figure there is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin (written by benchmarks/page.py) -->\n", "<!-- figures: end -->\n"


def result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def share(value: float) -> str:
    return "0" if value < 1e-12 else f"{100 * value:.0f} %"


def accumulation() -> str:
    found = result("accumulation")["deviation"]["SGD"]
    cases = list(found["trueloop"])
    rows = [[name, *(share(measured[case]["of_movement"]) for case in cases)] for name, measured in found.items()]
    return (
        "Deviation of the weights' trajectory from that of the one big batch, as a share of the movement, SGD, "
        "float64 (`accumulation.py`; 0 is below 1e-12):\n\n" + table(["system", *cases], rows)
    )


def overhead() -> str:
    found = result("overhead")["found"]
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "small CNN"}
    references = ["bare five lines, default AdamW", "by hand, default AdamW", "by hand, fused AdamW"]
    rows = [
        [tasks[task], name, *(ratio(measured["wall_ratio_to"][reference]) for reference in references)]
        for task in tasks
        for name, measured in found[task].items()
        if name not in references
    ]
    defaults = found["textbook"]["trueloop, its default settings"]["wall_ratio_to"]["textbook loop"]
    return (
        "Time per update with clipping, a schedule and the norm recorded, as a ratio within a round: median and middle "
        "80 % (`overhead.py`; the bare loop does none of the three):\n\n"
        + table(["task", "system", *(f"/ {reference}" for reference in references)], rows)
        + f"\nThe defaults of `trueloop train` take {ratio(defaults)} of the textbook loop's time on the small CNN.\n"
    )


def ratio(measured: dict[str, float]) -> str:
    return f"{measured['median']:.2f} ({measured['low']:.2f} to {measured['high']:.2f})"


def nonfinite() -> str:
    rows = [
        [name, f"{100 * seen['finite']:.0f} %", str(seen["exit"])]
        for name, seen in result("nonfinite")["found"].items()
    ]
    return "What one batch with a NaN in it leaves of the weights (`nonfinite.py`):\n\n" + table(
        ["system", "finite weights", "exit code"], rows
    )


def components() -> str:
    found = result("components")["components"]
    rows = [
        [name, str(sum(seen["lines"].values())), *(cell for task in ("mlp", "gpt") for cell in cost(seen.get(task)))]
        for name, seen in found.items()
    ]
    head = ["component", "lines", "MLP: memory, MiB", "MLP: time", "GPT: memory, MiB", "GPT: time"]
    return (
        "What each component adds to the plain loop: its lines of code, the peak memory of tensors, and CPU time per "
        "update as a ratio to the plain loop's (`components.py`):\n\n" + table(head, rows)
    )


def cost(seen: dict[str, Any] | None) -> list[str]:
    if seen is None:
        return ["", ""]
    return [f"{seen['extra_bytes'] / 2**20:+.2f}", ratio(seen["cpu_ratio"]) if "cpu_ratio" in seen else "1"]


def machine() -> str:
    facts = result("overhead")["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if name != "trueloop")
    return f"Measured on {facts['cpu']}, {facts['cores']} cores, one thread, Python {facts['python']}, {versions}.\n"


def figures() -> str:
    return "\n".join([machine(), accumulation(), overhead(), nonfinite(), components()])


def page(text: str) -> str:
    """The page with its figures made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + figures() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
