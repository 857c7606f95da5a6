"""Run the examples under trueloop, and write their output into the two tutorial pages and examples/README.md.

python examples/tutorial/page.py --run                  # run all of them (ten minutes), then write the pages
python examples/tutorial/page.py --run never_cleared    # run some of them
python examples/tutorial/page.py                        # write the pages from examples/tutorial/results.json
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLES, RESULTS = ROOT / "examples", Path(__file__).parent / "results.json"
PAGES = (ROOT / "docs" / "tutorial.md", ROOT / "docs" / "tutorial-more.md", EXAMPLES / "README.md")
COLUMNS = 92  # width of a report on a page


class Twin(NamedTuple):
    """A broken copy of a correct example."""

    name: str
    of: str
    """Name of the correct example."""
    code: str
    """Code of the failure: "GRD001"."""
    at: str
    """Beginning of the source line that the report of `trueloop run` names; "" if no run proves the failure."""
    options: tuple[str, ...] = ()
    """Command-line options of both scripts of the pair."""
    first: tuple[str, ...] = ()
    """Options of an earlier run of the script, without trueloop; () = no earlier run."""

    @property
    def script(self) -> str:
        """Path of the script within examples/."""
        return f"broken/{self.name}.py"


INTERRUPTED = ("--save", "ckpt.pt", "--stop-after", "1")

TWINS = (
    Twin("never_cleared", "classification", "GRD001", "optimizer.step()"),
    Twin("never_stepped", "classification", "OPT006", "loss.backward()"),
    Twin("train_mode_left_on", "classification", "EVL001", "logits = model(images)"),
    Twin("eval_mode_left_on", "classification", "EVL002", "optimizer.step()"),
    Twin("softmax_applied_twice", "classification", "LOS001", "loss = F.cross_entropy(model(images), labels)"),
    Twin("order_not_shuffled", "classification", "DAT003", "train_loader = DataLoader(train_set, batch_size"),
    Twin("held_out_seen_in_training", "classification", "DAT001", "train_loader = DataLoader(dataset, batch_size"),
    Twin("best_by_reference", "classification", "CKP001", "best, best_accuracy = model.state_dict(), accuracy"),
    Twin("stepped_before_optimizer", "classification", "SCH001", "scheduler.step()"),
    Twin("never_advanced", "classification", "SCH006", "scheduler = torch.optim.lr_scheduler.OneCycleLR("),
    Twin("last_batch_overweighted", "classification", "EVL006", ""),
    Twin("target_broadcast", "regression", "LOS003", "loss.backward()"),
    Twin("statistics_leaked", "regression", "DAT002", "train_loader = DataLoader("),
    Twin("recreated", "regression", "OPT004", "optimizer = torch.optim.AdamW("),
    Twin("accumulation_not_scaled", "language_model", "GRD003", "scaler.scale(loss).backward()"),
    Twin("window_dropped", "language_model", "GRD004", "for i, (x, y) in enumerate(train_loader):"),
    Twin("counted_in_micro_batches", "language_model", "SCH002", "scheduler.step()"),
    Twin("dropout_always_on", "language_model", "EVL004", "return x + F.dropout("),
    Twin("layer_never_registered", "language_model", "MDL001", "self.blocks = [Block(width, heads, dropout)"),
    Twin("resumed_without_optimizer", "language_model", "CKP002", "model.load_state_dict(",
         ("--resume", "ckpt.pt"), INTERRUPTED),
    Twin("clipped_before_unscale", "language_model", "PRC001", "nn.utils.clip_grad_norm_",
         ("--half", "--characters", "30000")),
    Twin("logits_taken_for_probabilities", "gan", "LOS002", "errD_real = criterion(netD(real), real_label)"),
    Twin("graph_kept", "gan", "MEM001", "G_losses.append(errG)"),
    Twin("parameters_stale", "finetuning", "OPT002", "model.head = nn.Linear(64, 5)"),
    Twin("parameters_missing", "actor_critic", "OPT001", "optimizer.step()"),
    Twin("discarded", "actor_critic", "GRD002", "optimizer.zero_grad()"),
    Twin("loss_without_graph", "actor_critic", "GRD009", "loss.backward()"),
    Twin("sampler_epoch_frozen", "data_parallel", "DST003", "for inputs, labels in loader:"),
)  # fmt: skip
PROCESSES = {"data_parallel.py": 2, "broken/sampler_epoch_frozen.py": 2}
CORRECT = tuple(dict.fromkeys(twin.of for twin in TWINS))


# Running ---------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One measured run of a script."""

    key: str
    script: str
    options: tuple[str, ...] = ()
    first: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Script and options as the reader types them in examples/."""
        return " ".join([self.script, *self.options])


def cases() -> list[Case]:
    """Return a run of every correct example and every twin; if a twin has options, also of its example with them."""
    runs = [Case(name, f"{name}.py") for name in CORRECT]
    for twin in TWINS:
        runs.append(Case(twin.name, twin.script, twin.options, twin.first))
        if twin.options:
            runs.append(Case(f"{twin.of} for {twin.name}", f"{twin.of}.py", twin.options, twin.first))
    return sorted(runs, key=lambda case: "language_model" in case.key or "language_model" in case.script)


def digest(script: str) -> str:
    """Return a hash of a script, to detect changes since its run."""
    return hashlib.sha256((EXAMPLES / script).read_bytes()).hexdigest()[:16]


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Run a script under trueloop in a copy of examples/."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": str(COLUMNS), "PYTHONWARNINGS": "ignore"}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )

    if case.first:
        python(case.script, *case.first)
    report = folder / "report.json"
    processes = PROCESSES.get(case.script)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(processes)) if processes else ()
    completed = python(*launcher, "-m", "trueloop", "run", "--json", str(report), case.script, *case.options)
    report_json = json.loads(report.read_text(encoding="utf-8"))
    return {
        "command": case.command, "digest": digest(case.script), "printed": completed.stdout.splitlines(),
        "headline": report_json["headline"], "report": findings(completed.stderr),
        "codes": sorted({each["code"] for each in report_json["findings"] if each["severity"] != "note"}),
    }  # fmt: skip


FIGURE_DATA = {
    "graph_kept": "memory",
    "target_broadcast": "torch.stack([y[val], model(x[val]).flatten()], 1).mul(100).round().div(100).tolist()",
    "logits_taken_for_probabilities": "netG(torch.randn(16, 32, 1, 1)).add(1).mul(8).round().int().flatten(1).tolist()",
}
"""Data of the figures by twin: "memory", or an expression that is evaluated after both scripts have run."""
RUN_AND_EVALUATE = """
import json, runpy, sys, torch
sys.argv = sys.argv[1:]
variables = runpy.run_path(sys.argv[0], run_name="__main__")
variables.get("model", torch.nn.Identity()).eval()
torch.manual_seed(0)
with torch.no_grad():
    print(json.dumps(eval("EXPRESSION", variables)))
"""


def figure_data(name: str) -> dict[str, Any]:
    """Run a twin and its correct example, and return the data of a figure for each."""
    [twin] = [twin for twin in TWINS if twin.name == name]
    collect = memory_use if FIGURE_DATA[name] == "memory" else final_value
    return {script: collect(script, FIGURE_DATA[name]) for script in (f"{twin.of}.py", twin.script)}


def final_value(script: str, expression: str) -> Any:
    """Return the value of an expression after a script has run."""
    command = [sys.executable, "-W", "ignore", "-c", RUN_AND_EVALUATE.replace("EXPRESSION", expression), script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


def memory_use(script: str, _: str) -> list[int]:
    """Return the resident memory of a script in MiB after each printed line; Linux only."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command, resident_mib = [sys.executable, "-W", "ignore", script], list[int]()
    with subprocess.Popen(command, cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for _line in process.stdout or ():
            pages = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()[1])
            resident_mib.append(pages * os.sysconf("SC_PAGE_SIZE") // 2**20)
    return resident_mib


def findings(stderr: str) -> list[list[str]]:
    """Return the findings of a printed report, each as a list of lines."""
    found = re.findall(r"^(?:error|warning) [A-Z]{3}\d{3}  .*?^  more .*?$", stderr, flags=re.MULTILINE | re.DOTALL)
    return [each.splitlines() for each in found]


def lint_lines(script: str, code: str) -> list[str]:
    """Return the linter's output for a script."""
    arguments = ["-m", "trueloop", "lint", "--format", "concise", "--quiet", "--select", code, script]
    completed = subprocess.run([sys.executable, *arguments], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    return completed.stdout.splitlines()


def lint() -> dict[str, list[str]]:
    """Return the codes that the linter reports in each script, notes included."""
    arguments = ["-m", "trueloop", "lint", "--format", "json", "--select", ",".join(twin.code for twin in TWINS), "."]
    completed = subprocess.run([sys.executable, *arguments], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    codes_by_script: dict[str, set[str]] = {}
    for each in json.loads(completed.stdout)["findings"]:
        codes_by_script.setdefault(Path(each["path"]).name, set()).add(each["code"])
    return {name: sorted(codes) for name, codes in sorted(codes_by_script.items())}


def run(names: list[str]) -> None:
    """Run the named cases, or all, and save their results."""
    import torch

    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"runs": {}}
    results["made_with"] = {"python": ".".join(map(str, sys.version_info[:2])), "torch": torch.__version__}
    for case in cases():
        if names and case.key not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(EXAMPLES, Path(folder) / "examples", ignore=shutil.ignore_patterns("tutorial")))
            results["runs"][case.key] = found = measure(case, copy)
        print(f"{case.command}: {found['codes']}, {found['printed'][-1]}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in FIGURE_DATA:
        if not names or name in names:
            results.setdefault("figure_data", {})[name] = figure_data(name)
    results["lint"] = lint()
    results["lint_lines"] = {t.name: lint_lines(t.script, t.code) for t in TWINS if t.code == "EVL006"}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_command(command: str) -> str:
    """Return the command line that runs a script under trueloop."""
    processes = PROCESSES.get(command.partition(" ")[0])
    return (
        f"torchrun --nproc-per-node {processes} -m trueloop run {command}" if processes else f"trueloop run {command}"
    )


# Writing ---------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"(<!-- (\w+)((?: [\w.]+)*) \(page\.py\) -->\n).*?(<!-- end -->\n)", flags=re.DOTALL)


class Pages:
    """Writes the generated blocks of a page; each public method returns the content of the blocks with its name."""

    def __init__(self, results: dict[str, Any]) -> None:
        self._results = results
        self._twins = {twin.name: twin for twin in TWINS}

    def page(self, text: str) -> str:
        """Return the page with new content in all its blocks."""
        return BLOCK.sub(lambda m: m[1] + getattr(self, m[2])(*m[3].split()) + m[4], text)

    def printed(self, key: str) -> str:
        """Show the output of a script without trueloop."""
        run = self._run(key)
        lines = run["printed"]
        last = min(
            len(lines) - 3, lines.index(result(lines))
        )  # text that the model generates at the end is shown completely
        shown = lines if len(lines) < 7 else [*lines[:2], "...", *(line.rstrip() for line in lines[last:])]
        return fenced("text", [f"$ python {run['command']}", *shown])

    def report(self, key: str) -> str:
        """Show the finding of `trueloop run`."""
        run = self._run(key)
        first, *others = run["report"]
        more = [f"... and {len(others)} more, for the other losses"] if others else []
        block = fenced("text", [f"$ {run_command(run['command'])}", "...", *first, *more])
        found_by_lint = self._twins[key].code in self._linted(self._twins[key])
        return block + ("\n`trueloop lint` finds it too, without running the script.\n" if found_by_lint else "")

    def summary(self, key: str) -> str:
        """Show the message and the line of a finding, then the result next to that of the correct script."""
        run = self._run(key)
        finding = run["report"][0]
        message = finding[: finding.index("")]
        location = finding[len(message) + 1]
        command = f"$ {run_command(run['command'])}"
        if self._twins[key].code in self._linted(self._twins[key]):
            command += "    # trueloop lint finds it too"
        return fenced("text", [command, *message, location, "", *self._results_of_pair(key)])

    def quiet(self, key: str) -> str:
        """Show that `trueloop run` finds nothing in a correct script."""
        run = self._run(key)
        return fenced("text", [f"$ {run_command(run['command'])}", "...", f"trueloop: {run['headline']}", "..."])

    def lint(self, name: str) -> str:
        """Show the linter's output for a twin, then the result next to that of the correct script."""
        command = f"trueloop lint --format concise --select {self._twins[name].code} {self._twins[name].script}"
        lines = [f"$ {command}", *self._results["lint_lines"][name], "", *self._results_of_pair(name)]
        return fenced("text", lines)

    def reached(self, name: str) -> str:
        """Compare the final result of a twin with that of the correct example."""
        return fenced("text", self._results_of_pair(name))

    def broken(self, name: str) -> str:
        """Show the lines with the mistake."""
        lines = [line for line in self._changes(name, context=2) if not line.startswith("+")]
        texts = dedent([line[1:] for line in lines])
        shown = [text if line else "..." for line, text in zip(lines, texts, strict=True)]
        return fenced("py", shown)  # an excerpt: the tests compile blocks marked "python"

    def fix(self, name: str) -> str:
        """Show the fix as a diff."""
        lines = self._changes(name)
        texts = dedent([line[1:] for line in lines])
        return fenced("diff", [f"{a[0]} {b}".rstrip() if a else "..." for a, b in zip(lines, texts, strict=True)])

    def index(self) -> str:
        """List all twins."""
        rows = ["| broken | correct | failure | `run` | `lint` |", "|---|---|---|---|---|"]
        for twin in TWINS:
            run, lint = (twin.code in self._run(twin.name)["codes"], twin.code in self._linted(twin))
            rows.append(
                f"| [{twin.name}.py]({twin.script}) | [{twin.of}.py]({twin.of}.py) | {twin.code} {title(twin.code)} "
                f"| {'✓' if run else ''} | {'✓' if lint else ''} |"
            )
        return "\n".join(rows) + "\n"

    def linted(self) -> str:
        """Count the scripts in which `trueloop run` and `trueloop lint` find the mistake."""
        by_run = [twin for twin in TWINS if twin.code in self._run(twin.name)["codes"]]
        by_lint = [twin for twin in TWINS if twin.code in self._linted(twin)]
        both = [twin for twin in by_run if twin in by_lint]
        return (
            f"Of the {len(TWINS)} broken scripts, `trueloop run` finds the mistake in {len(by_run)}, `trueloop lint` "
            f"in {len(by_lint)}, and both together in {len(by_run) + len(by_lint) - len(both)}.\n"
        )

    def machine(self) -> str:
        """Name the versions that the output comes from."""
        versions = self._results["made_with"]
        return (
            f"All output comes from torch {versions['torch']} and Python {versions['python']} on one CPU thread. Other "
            "versions and machines print other digits, but get the same findings.\n"
        )

    def _run(self, key: str) -> dict[str, Any]:
        return self._results["runs"][key]

    def _linted(self, twin: Twin) -> list[str]:
        return self._results["lint"].get(f"{twin.name}.py", [])

    def _results_of_pair(self, name: str) -> list[str]:
        twin = self._twins[name]
        pair = (name, f"{twin.of} for {name}" if twin.options else twin.of)
        width = max(len(self._run(key)["command"]) for key in pair)
        return [f"{self._run(key)['command']:{width}}   {result(self._run(key)['printed'])}" for key in pair]

    def _changes(self, name: str, context: int = 1) -> list[str]:
        """Return the lines of a unified diff from a twin to its correct example; "" separates two hunks."""
        twin = self._twins[name]
        texts = [
            (EXAMPLES / script).read_text(encoding="utf-8").splitlines() for script in (twin.script, f"{twin.of}.py")
        ]
        lines = list(difflib.unified_diff(*texts, n=context, lineterm=""))[
            3:
        ]  # without the file names and the first hunk header
        lines = ["" if line.startswith("@@") else line for line in lines]
        while lines[0].strip() == "":
            del lines[0]
        while lines[-1].strip() == "":
            del lines[-1]
        return lines


def dedent(lines: list[str]) -> list[str]:
    """Return lines without their common indentation."""
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return [line[indent:] for line in lines]


def result(printed: list[str]) -> str:
    """Return the last printed line that contains a result."""
    return next(line for line in reversed(printed) if re.search(r"(loss|accuracy|upright) +\d", line))


def fenced(language: str, lines: list[str]) -> str:
    """Return a fenced block of Markdown."""
    return "\n".join([f"```{language}", *lines, "```"]) + "\n"


def title(code: str) -> str:
    """Return a failure's title."""
    from trueloop.failures.load import catalogue

    return catalogue()[code].failure.title


def write() -> None:
    """Write the pages."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    missing = {case.key for case in cases()} - results["runs"].keys()
    if missing:
        raise SystemExit(f"Not run yet: {', '.join(sorted(missing))}; add --run")
    from plots import draw  # in this folder

    draw(results, PAGES[0].parent / "images" / "tutorial")
    for page in PAGES:
        page.write_text(Pages(results).page(page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """Run the examples if requested, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the examples; without it, only write the pages")
    parser.add_argument("names", nargs="*", metavar="NAME", help="an example or a mistake; default: all")
    options = parser.parse_args()
    if options.run:
        run(options.names)
    write()


if __name__ == "__main__":
    main()
