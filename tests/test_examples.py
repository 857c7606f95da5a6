"""The examples are correct, each broken copy (twin) has one mistake, and the pages show what they print."""

from __future__ import annotations

import ast
import difflib
import io
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
watching = runpy.run_path(str(ROOT / "tests" / "watching.py"), run_name="watching")
tutorial = runpy.run_path(str(EXAMPLES / "tutorial" / "page.py"), run_name="page")
RESULTS = json.loads(tutorial["RESULTS"].read_text())
TWINS = tutorial["TWINS"]

TINY_TEXT = ("--characters", "12000", "--size", "32", "--batch-size", "4")
SMALL = {
    "classification": ("--epochs", "2"),
    "regression": ("--epochs", "2"),
    "language_model": ("--epochs", "1", *TINY_TEXT),
    "gan": ("--epochs", "1"),
    "finetuning": ("--epochs", "2", "--pretrain-epochs", "1"),
    "actor_critic": ("--updates", "25"),
    "data_parallel": ("--epochs", "3"),
}
# Options of twins whose mistake shows only after some epochs.
LONGER = {
    "best_by_reference": ("--epochs", "6"),
    "recreated": ("--epochs", "4"),
    "graph_kept": ("--epochs", "3"),
    "window_dropped": ("--epochs", "2", *TINY_TEXT),
    "counted_in_micro_batches": ("--epochs", "2", *TINY_TEXT),
    "clipped_before_unscale": ("--epochs", "1", "--half", "--characters", "3000", "--size", "32"),
    "resumed_without_optimizer": ("--resume", "ckpt.pt", *TINY_TEXT),
}


pytestmark = pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")  # PyTorch warns about SCH001 and SCH002


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def run_watched(script: Path, name: str, example: str) -> Any:
    """Run an example or its twin with the sanitizer and small settings."""
    if name == "resumed_without_optimizer":
        watching["run"](script, "--save", "ckpt.pt", "--stop-after", "1", *TINY_TEXT, watched=False)
    return watching["run"](script, *LONGER.get(name, SMALL[example]), watched=True)


def mask_numbers(lines: list[str]) -> list[str]:
    """Return the words of printed findings without numbers and counts, which depend on the length of the run."""
    text = " ".join(line for line in lines if not line.startswith("  seen ")).replace("batches", "batch")
    return re.sub(r"-?\d[\d,.]*(e[-+]\d+)?", "0", re.sub(r"[-^]{3,}", "^", text)).split()


def render(findings: list[Any]) -> list[str]:
    from rich.console import Console

    from trueloop.reporting.text import print_findings

    output = io.StringIO()
    print_findings(findings, Console(file=output, width=tutorial["COLUMNS"]), base=EXAMPLES)
    return output.getvalue().splitlines()


@pytest.mark.parametrize("name", tutorial["CORRECT"])
def test_a_correct_example_is_quiet(name: str):
    done = run_watched(EXAMPLES / f"{name}.py", name, name)
    assert done.printed.strip()
    assert not done.report.problems
    assert not [
        found for found in done.report.findings if found.code != "ENV001"
    ]  # the waiting time depends on the machine


@pytest.mark.parametrize("name", ["clipped_before_unscale", "resumed_without_optimizer"])
def test_it_is_quiet_with_the_options_of_its_twin(name: str):
    done = run_watched(EXAMPLES / "language_model.py", name, "language_model")
    assert not done.report.findings


@pytest.mark.parametrize("twin", [twin for twin in TWINS if twin.at], ids=lambda twin: twin.name)
def test_a_twin_has_its_failure_at_its_line_and_the_page_says_so(twin: Any):
    script = EXAMPLES / twin.script
    done = run_watched(script, twin.name, twin.of)
    assert not done.report.problems
    assert {found.code for found in done.findings} == {twin.code}, done.messages
    first = done.findings[0]
    assert script.read_text().splitlines()[first.location.line - 1].strip().startswith(twin.at)
    page_lines = [line for finding in RESULTS["runs"][twin.name]["report"] for line in finding]
    assert mask_numbers(page_lines) == mask_numbers(render(done.findings)), (
        "run examples/tutorial/page.py --run " + twin.name
    )


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_a_twin_differs_by_the_lines_of_its_mistake(twin: Any):
    texts = [(EXAMPLES / name).read_text().splitlines() for name in (f"{twin.of}.py", twin.script)]
    changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
    assert 1 <= len(changes) <= 4, changes


def test_every_broken_script_is_a_twin():
    assert {path.stem for path in (EXAMPLES / "broken").glob("*.py")} == {twin.name for twin in TWINS} | {
        "four_mistakes"
    }
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(tutorial["CORRECT"])


def imported_modules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_they_are_bare_torch():
    scripts = [*EXAMPLES.glob("*.py"), *(EXAMPLES / "broken").glob("*.py")]
    assert not [
        path.name for path in scripts if any(name.startswith("trueloop") for name in imported_modules(path.read_text()))
    ]


# The pages -------------------------------------------------------------------------------------------------------


def test_nothing_was_changed_since_it_was_run():
    stale = [
        case.key
        for case in tutorial["cases"]()
        if RESULTS["runs"][case.key]["digest"] != tutorial["digest"](case.script)
    ]
    assert not stale, f"run examples/tutorial/page.py --run {' '.join(stale)}"
    assert set(RESULTS["runs"]) == {case.key for case in tutorial["cases"]()}


@pytest.mark.parametrize("page", tutorial["PAGES"], ids=lambda page: page.name)
def test_a_page_shows_what_was_printed(page: Path):
    text = page.read_text()
    assert tutorial["Pages"](RESULTS).page(text) == text, "run examples/tutorial/page.py"


def test_the_tutorial_shows_every_twin_once():
    pattern = re.compile(r"^<!-- (?:report|summary|lint) (\w+) \(page\.py\) -->$", re.MULTILINE)
    main, more = (pattern.findall(page.read_text()) for page in tutorial["PAGES"][:2])
    assert sorted([*main, *more]) == sorted(twin.name for twin in TWINS)
    assert (len(main), len(more)) == (6, 22)  # the numbers in the text of README, tutorial and index


def test_the_linter_still_finds_what_the_pages_say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from trueloop.cli.app import main

    monkeypatch.chdir(EXAMPLES)
    main(["lint", "--format", "json", "--select", ",".join(twin.code for twin in TWINS), "--jobs", "1", "."])
    codes_by_file: dict[str, set[str]] = {}
    for each in json.loads(capsys.readouterr().out)["findings"]:
        codes_by_file.setdefault(Path(each["path"]).name, set()).add(each["code"])
    assert {name: sorted(codes) for name, codes in codes_by_file.items()} == RESULTS["lint"]
    assert not [name for name in codes_by_file if name.removesuffix(".py") in tutorial["CORRECT"]]


def test_the_command_of_the_page_prints_what_the_page_shows(forker: Any):
    run = RESULTS["runs"]["target_broadcast"]
    done = forker.run("-m", "trueloop", "run", run["command"], cwd=EXAMPLES, env={"COLUMNS": str(tutorial["COLUMNS"])})
    assert mask_numbers(done.stdout.splitlines()) == mask_numbers(run["printed"])
    assert [mask_numbers(each) for each in tutorial["findings"](done.stderr)] == [
        mask_numbers(each) for each in run["report"]
    ]


def test_four_mistakes_are_four_findings(tmp_path: Path, forker: Any):
    report_json = tmp_path / "report.json"
    done = forker.run(
        "-m", "trueloop", "run", "--strict", "--json", str(report_json), "four_mistakes.py", cwd=EXAMPLES / "broken"
    )
    assert done.returncode == 3, done.stderr
    report = json.loads(report_json.read_text())
    assert {(each["code"], each["line"]) for each in report["findings"] if each["severity"] != "note"} == {
        ("LOS001", 17), ("GRD001", 19), ("MEM001", 20), ("EVL001", 22)
    }  # fmt: skip
    assert "4 errors: this run is not training what you think" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("epoch 7: accuracy 0.")
